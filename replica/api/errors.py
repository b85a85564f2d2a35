"""Errors as the OpenAI API spells them."""

import msgspec
from starlette.responses import Response

from replica.errors import ReplicaError


class _Error(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: _Error


def error_body(exc: ReplicaError, type_: str | None = None) -> bytes:
    return msgspec.json.encode(
        ErrorBody(
            error=_Error(
                message=exc.message,
                type=exc.type if type_ is None else type_,
                param=exc.param,
                code=exc.code,
            )
        )
    )


def error_response(
    exc: ReplicaError, *, status: int | None = None, type_: str | None = None
) -> Response:
    headers = {} if exc.retry_after_s is None else {"retry-after": str(exc.retry_after_s)}
    if exc.closes_connection:
        headers["connection"] = "close"
    return Response(
        error_body(exc, type_),
        status_code=exc.status if status is None else status,
        headers=headers,
        media_type="application/json",
    )
