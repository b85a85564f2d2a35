"""What a failure says: whose doing it was, and whether another attempt may end better.

All rules about that are here.  When there is another attempt, and at whose cost, is said by
``resilience.retries``.
"""

from typing import Final

from contracts.replica_api import CODE_NOT_SUPPORTED
from gateway.errors import (
    CredentialRefused,
    GatewayError,
    UpstreamAnswerTooLarge,
    UpstreamRefused,
)
from gateway.upstream.response import UpstreamResponse

_RETRIED_4XX: Final = frozenset({408, 409, 429})
MAYBE_OF_THIS_PROMPT: Final = frozenset({403, 404})  # or of what is asked to be done with it
BETWEEN_US: Final = frozenset({401, 402, 407, 429, 503}) | MAYBE_OF_THIS_PROMPT
"""A server of another owner and ourselves: our account, our limits, our name for its model.  It has
done nothing, and another may serve the request as if it had not been asked."""
_CAUSES: Final = {
    0: "no answer",
    200: "its answers are of no use, break off, or hold our credential",
    401: "our credential is refused",
    402: "our account is not paid",
    403: "it refuses prompts, or our credential",
    404: "it knows no such model or path",
    407: "a proxy refuses us",
    429: "our limit there is reached",
    503: "it is full",
}
_FAILED_FOR_GOOD: Final = b'"code":"generation_failed"'
_NOT_SUPPORTED: Final = b'"code":"%b"' % CODE_NOT_SUPPORTED.encode()


def is_retriable(status: int) -> bool:
    return _is_no_answer(status) or status >= 500 or status in _RETRIED_4XX


def is_replicas_failure(status: int) -> bool:
    """Not the client's doing, and more than being full."""
    return _is_no_answer(status) or (status >= 500 and status != 503)


def _is_no_answer(status: int) -> bool:
    """A redirect, or a success without what was asked for."""
    return status < 400 and status != 200


def keeps_all_away(foreign_status: int) -> bool:
    """Every request fails there now, as that one did."""
    return foreign_status in BETWEEN_US and foreign_status not in MAYBE_OF_THIS_PROMPT


def foreign_cause(status: int) -> str:
    """Why a server of another owner gets no requests, in words of ours."""
    if status >= 500:
        return _CAUSES.get(status, "it fails")
    return _CAUSES.get(status, "its answers are of no use")


def is_replicas_end(failure: GatewayError) -> bool:
    """Not of an answer that would fail on any replica."""
    if not isinstance(failure, UpstreamRefused):
        return not isinstance(failure, UpstreamAnswerTooLarge)
    return not failure.is_clients_fault and _FAILED_FOR_GOOD not in failure.error


def may_retry(failure: GatewayError, response: UpstreamResponse) -> bool:
    if response.is_refusal:
        return is_retriable(response.status) or isinstance(failure, CredentialRefused)
    return is_replicas_end(failure)


def may_fall_back(failure: GatewayError) -> bool:
    """Not for what the client did wrong: it would be wrong elsewhere, too."""
    if not isinstance(failure, UpstreamRefused):
        return True
    return not failure.is_clients_fault or _NOT_SUPPORTED in failure.error
