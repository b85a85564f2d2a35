"""The policy document over HTTP: read, replaced, told apart, explained, put back."""

from datetime import datetime
from functools import partial
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from contracts.api_keys import key_of, tenant_of
from contracts.errors import UNDECODABLE, ContractError, Unknown
from contracts.policy import PolicyDocument, encode_policy_document
from contracts.policy_change import FieldChange, PolicyChange, differences
from contracts.policy_keys import replaced
from contracts.policy_reasons import reasons
from contracts.policy_text import from_plain
from gateway.admin.callers import Role
from gateway.admin.calling import Calling
from gateway.admin.desk import Expected, Kept, PolicyDesk, Whatever
from gateway.admin.responses import documented
from gateway.admin.schemas import (
    ChangeBody,
    DifferencesBody,
    HistoryBody,
    HistoryEntryBody,
    ReasonBody,
    ReasonListBody,
    RollbackBody,
    StoredBody,
)
from gateway.errors import PolicyRefused, PreconditionRequired, RequestTooLarge, UnknownName

MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024  # a hundred thousand tenants
_JSON: Final = "application/json"
_DOCUMENT: Final = {"content": {_JSON: {"schema": {"type": "object"}}}}

Why = Annotated[str, Query(max_length=500, description="For the audit log.")]
Number = Annotated[int, Path(ge=0, le=2**53)]


def policy_router(desk: PolicyDesk) -> APIRouter:
    routes = _PolicyRoutes(desk)
    router = APIRouter(prefix="/admin/v1", tags=["policy"])
    add = router.add_api_route
    add("/policy", routes.read, responses={**documented(), 200: _DOCUMENT, 304: {}})
    add(
        "/policy",
        routes.replace,
        methods=["PUT"],
        responses=documented(412, 413, 428),
        openapi_extra={"requestBody": {"required": True, **_DOCUMENT}},
    )
    add("/policy/history", routes.history, responses=documented())
    add("/policy/versions/{number}", routes.version, responses={**documented(404), 200: _DOCUMENT})
    add("/policy/versions/{number}/diff", routes.compare, responses=documented(404))
    add("/policy/rollback", routes.roll_back, methods=["POST"], responses=documented(404, 412))
    add("/tenants/{tenant}/policy", routes.explain, responses=documented(404))
    return router


class _PolicyRoutes:
    def __init__(self, desk: PolicyDesk) -> None:
        self._desk = desk

    async def read(
        self, calling: Calling, if_none_match: Annotated[str | None, Header()] = None
    ) -> Response:
        """The document in force, with its ETag."""
        calling.require(Role.VIEWER)
        kept = await self._desk.current()
        if if_none_match is not None and _unquoted(if_none_match) == kept.etag:
            return Response(status_code=304, headers=_etag(kept))
        return _document(kept.document, _etag(kept))

    async def replace(  # noqa: PLR0913 - what a request may bear
        self,
        request: Request,
        response: Response,
        calling: Calling,
        if_match: Annotated[str | None, Header(description="The ETag that was read.")] = None,
        if_none_match: Annotated[str | None, Header(description="'*': there is none yet.")] = None,
        why: Why = "",
        drop_all: Annotated[bool, Query(description="No tenant is to be left.")] = False,
    ) -> StoredBody:
        """Replaces the document that has the ETag of If-Match; '*' stands for any.

        Keys are created, rotated and revoked one by one.  A tenant without any here keeps its own.
        """
        calling.require(Role.OPERATOR)
        kept = await self._desk.edited(
            partial(_replaced, _parsed(await _body(request)), self._desk.now(), drops_all=drop_all),
            calling,
            action="edit",
            why=why,
            expected=_expected(if_match, if_none_match),
        )
        response.headers.update(_etag(kept))
        return _stored(kept)

    async def history(
        self, calling: Calling, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
    ) -> HistoryBody:
        """Who changed what, when and why; newest first."""
        calling.require(Role.VIEWER)
        return HistoryBody(entries=[_entry(change) for change in await self._desk.history(limit)])

    async def version(self, calling: Calling, number: Number) -> Response:
        """A document as it once was."""
        calling.require(Role.VIEWER)
        return _document(await self._desk.version(number), {})

    async def compare(
        self,
        calling: Calling,
        number: Number,
        to: Annotated[
            int | None, Query(ge=0, le=2**53, description="Else the current one.")
        ] = None,
    ) -> DifferencesBody:
        """What changed between two versions."""
        calling.require(Role.VIEWER)
        desk = self._desk
        after = (await desk.current()).document if to is None else await desk.version(to)
        found = differences(await desk.version(number), after)
        return DifferencesBody(changes=[_change(change) for change in found])

    async def roll_back(self, calling: Calling, wanted: RollbackBody) -> StoredBody:
        """An older version's rules, as a new version; keys stay as they are today.

        A tenant that was dropped since comes back with the keys that it went with.
        """
        calling.require(Role.OWNER)
        why = f"back to version {wanted.version}{': ' if wanted.why else ''}{wanted.why}"
        return _stored(await self._desk.rolled_back(wanted.version, calling, why=why))

    async def explain(
        self,
        calling: Calling,
        tenant: str,
        model: Annotated[str | None, Query()] = None,
        key: Annotated[str | None, Query(description="A key's id.")] = None,
    ) -> ReasonListBody:
        """What applies to the tenant's requests now, and whose word each value is."""
        calling.require(Role.VIEWER)
        document = (await self._desk.current()).document
        try:
            policy = tenant_of(document, tenant)
            record = None if key is None else key_of(policy, key)
        except Unknown as exc:
            raise UnknownName(f"{exc}.") from exc
        found = reasons(document, policy, key=record, model=model, at=self._desk.now())
        told = [
            ReasonBody(field=r.field, value=r.value, because=r.because, words=r.words)
            for r in found
        ]
        return ReasonListBody(reasons=told)


def _replaced(
    after: PolicyDocument, at: datetime, before: PolicyDocument, *, drops_all: bool
) -> PolicyDocument:
    return replaced(before, after, at, drops_all=drops_all)


def _expected(if_match: str | None, if_none_match: str | None) -> Expected:
    """Raises PreconditionRequired."""
    if if_none_match == "*":
        return Whatever.ABSENT
    if if_match is None:
        raise PreconditionRequired(
            "Send If-Match with the ETag that was read, or '*'; for the first, If-None-Match: *."
        )
    return Whatever.ANY if if_match == "*" else _unquoted(if_match)


async def _body(request: Request) -> bytes:
    """Raises RequestTooLarge, PolicyRefused."""
    parts, num_bytes = [], 0
    try:
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > MAX_DOCUMENT_BYTES:
                raise RequestTooLarge(f"A policy may have at most {MAX_DOCUMENT_BYTES} bytes.")
            parts.append(part)
    except ClientDisconnect as exc:  # the answer is nobody's; its status is for the log
        raise PolicyRefused("The body has not come to its end.") from exc
    return b"".join(parts)


def _parsed(body: bytes) -> PolicyDocument:
    """Raises PolicyRefused."""
    try:
        return from_plain(msgspec.json.decode(body))
    except ContractError as exc:
        raise PolicyRefused(f"{exc}.") from exc
    except (UnicodeDecodeError, *UNDECODABLE) as exc:
        raise PolicyRefused("The body must be one JSON object.") from exc


def _unquoted(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _etag(kept: Kept) -> dict[str, str]:
    return {} if kept.etag is None else {"etag": f'"{kept.etag}"'}


def _document(document: PolicyDocument, headers: dict[str, str]) -> Response:
    return Response(encode_policy_document(document), media_type=_JSON, headers=headers)


def _stored(kept: Kept) -> StoredBody:
    return StoredBody(version=kept.document.version, etag=kept.etag)


def _change(change: FieldChange) -> ChangeBody:
    return ChangeBody(path=change.path, before=change.before, after=change.after)


def _entry(change: PolicyChange) -> HistoryEntryBody:
    return HistoryEntryBody(
        version=change.version,
        etag=change.etag,
        at=change.at,
        who=change.who,
        action=change.action,
        why=change.why,
        num_changes=change.num_changes,
        changes=[_change(each) for each in change.changes],
    )
