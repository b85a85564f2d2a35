"""The FastAPI side: everything that is not inference, with errors in OpenAI's shape."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from contracts.names import HEADER_REQUEST_ID
from gateway.api.context import Operation
from gateway.api.errors import error_body, error_headers, error_status
from gateway.errors import GatewayError, MethodNotAllowed, UnknownPath

_DATA_PLANE_PATHS = frozenset(operation.path for operation in Operation)


def control_plane(routers: Sequence[APIRouter], make_request_id: Callable[[], str]) -> FastAPI:
    app = FastAPI(title="Pandal gateway", docs_url=None, redoc_url=None, openapi_url=None)
    for router in routers:
        app.include_router(router)

    async def refuse(request: Request, exc: Exception) -> Response:
        response = _refusal(request, exc)
        response.headers[HEADER_REQUEST_ID] = make_request_id()
        return response

    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(GatewayError, refuse)
    return app


def _refusal(request: Request, exc: Exception) -> Response:
    if isinstance(exc, GatewayError):
        return _response(exc)
    assert isinstance(exc, HTTPException)  # 404 or 405: no route takes a body or a parameter
    # The data plane takes POST before ASGI begins, so what arrives here for its paths is not POST.
    is_wrong_method = exc.status_code == 405 or request.url.path in _DATA_PLANE_PATHS
    if is_wrong_method:
        allowed = (exc.headers or {}).get("Allow", "POST")
        response = _response(MethodNotAllowed(f"Use {allowed} for this path."))
        response.headers["allow"] = allowed
        return response
    return _response(UnknownPath("There is nothing at this path."))


def _response(error: GatewayError) -> Response:
    response = Response(
        error_body(error), status_code=error_status(error), media_type="application/json"
    )
    for line in error_headers(error).splitlines():
        name, _, value = line.decode().partition(": ")
        response.headers[name] = value
    return response
