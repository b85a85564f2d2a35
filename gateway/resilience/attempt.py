"""One attempt at a request: what was sent where, and what its failure says."""

import msgspec

from contracts.names import HEADER_EVENT_ID, HEADER_REQUEST_ID, HEADER_TENANT_ID
from contracts.replica_api import CODE_NOT_SUPPORTED
from gateway.errors import GatewayError, UpstreamAnswerTooLarge, UpstreamRefused
from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.resilience.retries import is_retriable
from gateway.routing.replica import Replica
from gateway.routing.stay import Stay
from gateway.upstream.response import UpstreamResponse

REQUEST_HEADERS = (  # with the ids of request, event and tenant, and what the client sent
    f"{HEADER_REQUEST_ID}: %b\r\n{HEADER_EVENT_ID}: %b\r\n{HEADER_TENANT_ID}: %b\r\n"
    "content-type: application/json\r\n%b"
).encode()
_FAILED_FOR_GOOD = b'"code":"generation_failed"'
_NOT_SUPPORTED = b'"code":"%b"' % CODE_NOT_SUPPORTED.encode()


class Attempt(msgspec.Struct, frozen=True):
    replica: Replica
    request_id: str
    response: UpstreamResponse
    began_monotonic_s: float
    stay: Stay
    probe: int | None = None  # its number, for a breaker that waits for its end
    translation: AnthropicAnswer | None = None  # of another API's answer
    is_foreign: bool = False  # a provider's, who knows nothing of ours


def may_retry(failure: GatewayError, response: UpstreamResponse) -> bool:
    if response.is_refusal:
        return is_retriable(response.status)
    return is_replicas_end(failure)


def is_replicas_end(failure: GatewayError) -> bool:
    """Not of an answer that would fail on any replica."""
    if not isinstance(failure, UpstreamRefused):
        return not isinstance(failure, UpstreamAnswerTooLarge)
    return not failure.is_clients_fault and _FAILED_FOR_GOOD not in failure.error


def may_fall_back(failure: GatewayError) -> bool:
    """Not for what the client did wrong: it would be wrong elsewhere, too."""
    if not isinstance(failure, UpstreamRefused):
        return True
    return not failure.is_clients_fault or _NOT_SUPPORTED in failure.error
