"""One attempt at a request: what was sent where."""

import msgspec

from contracts.names import (
    HEADER_EVENT_ID,
    HEADER_LOCALLY_ADMITTED,
    HEADER_REQUEST_ID,
    HEADER_TENANT_ID,
)
from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.routing.replica import Replica
from gateway.routing.stay import Stay
from gateway.upstream.response import UpstreamResponse

REQUEST_HEADERS = (  # with the ids of request, event and tenant, and what the client sent
    f"{HEADER_REQUEST_ID}: %b\r\n{HEADER_EVENT_ID}: %b\r\n{HEADER_TENANT_ID}: %b\r\n"
    "content-type: application/json\r\n%b"
).encode()
LOCALLY_ADMITTED = f"{HEADER_LOCALLY_ADMITTED}: 1\r\n".encode()


class Attempt(msgspec.Struct, frozen=True):
    replica: Replica
    request_id: str
    response: UpstreamResponse
    began_monotonic_s: float
    stay: Stay
    probe: int | None = None  # its number, for a breaker that waits for its end
    translation: AnthropicAnswer | None = None  # of another API's answer
    is_foreign: bool = False  # a provider's, who knows nothing of ours
