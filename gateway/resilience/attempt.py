"""One attempt at a request: what was sent where."""

import msgspec

from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.providers.credential import Credential
from gateway.routing.replica import Replica
from gateway.routing.stay import Stay
from gateway.upstream.response import UpstreamResponse


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    replica: Replica
    request_id: str
    response: UpstreamResponse
    began_monotonic_s: float
    stay: Stay
    probe: int | None = None  # its number, for a breaker that waits for its end
    translation: AnthropicAnswer | None = None  # of another API's answer
    credential: Credential | None = None  # that a provider was shown; None: one of our own
    most_prompt_tokens: int | None = None  # that a provider can have made of it; None: who knows

    @property
    def breaker_key(self) -> tuple[str, str, int | None]:
        """Whose breaker hears of it, and as which probe."""
        return self.model, self.replica.name, self.probe

    @property
    def is_foreign(self) -> bool:
        """A provider's, who knows nothing of ours."""
        return self.credential is not None
