"""The caller of a request, as routes ask for it."""

from typing import Annotated

from fastapi import Depends, Request

from gateway.admin.authority import Authority
from gateway.admin.callers import Caller


async def _authenticated(request: Request) -> Caller:
    authority: Authority = request.app.state.authority
    address = "" if request.client is None else request.client.host
    caller = await authority.caller(request.headers.get("authorization"), address)
    request.state.caller = caller  # for the access log
    return caller


Calling = Annotated[Caller, Depends(_authenticated)]
