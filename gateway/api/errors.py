"""Errors in OpenAI's shape."""

from functools import lru_cache
from typing import Final

import msgspec

from gateway.api.schemas import ErrorBody, ErrorResponse
from gateway.errors import (
    AnswerNotKept,
    GatewayError,
    InsufficientQuota,
    RateLimited,
    UpstreamRefused,
    whole_seconds,
)

_encoder = msgspec.json.Encoder()
_NO_RETRY: Final = b"x-should-retry: false\r\n"


def error_body(error: GatewayError) -> bytes:
    if isinstance(error, UpstreamRefused):
        return error.error
    kind = error.limit if isinstance(error, RateLimited) else error.type
    return _encoded(str(error), kind, error.param, error.code)


@lru_cache(maxsize=256)
def _encoded(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """Who refuses many says the same to most."""
    return encode_error(ErrorBody(message=message, type=kind, param=param, code=code))


def encode_error(error: ErrorBody) -> bytes:
    return _encoder.encode(ErrorResponse(error=error))


def error_event(error: GatewayError) -> bytes:
    """A last server-sent event: the status line is long gone."""
    return b"data: %b\n\n" % error_body(error)


def error_status(error: GatewayError) -> int:
    return error.upstream_status if isinstance(error, UpstreamRefused) else error.status


def error_headers(error: GatewayError) -> bytes:
    """Complete lines: how to authenticate (RFC 9110, 11.6.1), and when to come again.

    Whole seconds, rounded up, for everyone; milliseconds for OpenAI's own clients.
    """
    if error.status == 401:
        return b"www-authenticate: Bearer\r\n"
    if isinstance(error, AnswerNotKept):  # OpenAI's clients would try any 409 again
        return _NO_RETRY
    if error.retry_after_ms is None:
        return b""
    seconds = whole_seconds(error.retry_after_ms)
    headers = b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (seconds, error.retry_after_ms)
    if isinstance(error, InsufficientQuota):  # OpenAI's clients would try again within the minute
        headers += _NO_RETRY
    return headers
