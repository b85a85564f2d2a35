"""A replica's or provider's own error, turned into OpenAI's shape for the client."""

from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from gateway.api.errors import encode_error
from gateway.api.schemas import ErrorBody
from gateway.api.stream_chunk import is_completion, is_error
from gateway.errors import (
    CredentialRefused,
    GatewayError,
    UpstreamBusy,
    UpstreamError,
    UpstreamRefused,
)
from gateway.providers.credential import Credential
from gateway.resilience.failures import BETWEEN_US

_MAX_MESSAGE_CHARACTERS = 2_000
_WORDS_BETWEEN_US: Final = frozenset(
    {
        "access_terminated",
        "account_deactivated",
        "authentication_error",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_quota",
        "invalid_api_key",
        "overloaded_error",
        "permission_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        *map(str, BETWEEN_US),
    }
)
"""Codes and types of OpenAI's and Anthropic's errors that are about our account there."""


class _Detail(msgspec.Struct):
    """OpenAI's error object, with the liberties that servers take."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Wrapped(msgspec.Struct):
    error: _Detail


def refusal(
    status: int,
    body: bytes,
    retry_after_s: int | None = None,
    credential: Credential | None = None,
) -> GatewayError:
    """4xx goes to the client as it came: the request is at fault.  Everything else is ours.

    So are credentials, which are between us and the replica, and the replica's own overload,
    which must not look like a quota.  ``credential``: that a provider was shown.
    """
    if status in (429, 503) and retry_after_s is not None:
        return UpstreamBusy(retry_after_s)
    told = f"The replica answered with status {status}."
    if not 400 <= status < 500 or status in (401, 403, 407, 429):
        return UpstreamError(told)
    if credential is not None and status in BETWEEN_US:
        return UpstreamError(told)
    if credential is not None and credential.is_refused_in(status, body):
        return CredentialRefused(told)
    detail = _detail(body, credential)
    if credential is not None and detail is not None and _is_between_us(detail):
        return UpstreamError(told)
    return UpstreamRefused(status, _openai_error(detail))


def error_in_event(payload: bytes, credential: Credential | None = None) -> GatewayError:
    """In a stream or document that began with status 200."""
    detail = _detail(payload, credential)
    if credential is not None and detail is not None and _is_between_us(detail):
        return UpstreamError("The provider answered with an error of its own.")
    code = None if detail is None else detail.code
    status = code if isinstance(code, int) and 400 <= code < 500 and code != 429 else 502
    return UpstreamRefused(status, _openai_error(detail))


def check_completion(document: bytes, credential: Credential | None) -> None:
    """Raises UpstreamRefused for an error with status 200, UpstreamError for what is neither."""
    if is_completion(document):
        return
    if is_error(document):
        raise error_in_event(document, credential)
    raise UpstreamError("The replica's answer is no completion.")


def _is_between_us(detail: _Detail) -> bool:
    return str(detail.code) in _WORDS_BETWEEN_US or detail.type in _WORDS_BETWEEN_US


def _detail(body: bytes, credential: Credential | None) -> _Detail | None:
    """``None`` also for what tells of the credential: half hidden, it is still a part of it."""
    detail = _decoded(body)
    if detail is None or credential is None:
        return detail
    members = (detail.message, detail.type, detail.param, str(detail.code))
    is_told = any(text is not None and credential.is_hinted_in(text) for text in members)
    return None if is_told else detail


def _decoded(body: bytes) -> _Detail | None:
    try:
        return msgspec.json.decode(body, type=_Wrapped).error
    except UNDECODABLE:
        pass  # older servers put the members at the top
    try:
        return msgspec.json.decode(body, type=_Detail)
    except UNDECODABLE:
        return None


def _openai_error(detail: _Detail | None) -> bytes:
    if detail is None:
        return encode_error(
            ErrorBody(message="The replica refused the request.", type="invalid_request_error")
        )
    return encode_error(
        ErrorBody(
            message=detail.message[:_MAX_MESSAGE_CHARACTERS],
            type=detail.type or "invalid_request_error",
            param=detail.param,
            code=None if detail.code is None else str(detail.code),
        )
    )
