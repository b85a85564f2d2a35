"""The facts of one request, fixed once they are known."""

import enum
from datetime import datetime

import msgspec

from gateway.policies import Grant
from gateway.prompt import Affinity, CountedPrompt, Prompt, PromptText


class Operation(enum.StrEnum):
    """What the data plane does, spelled as usage events spell their ``endpoint``."""

    path: str
    path_bytes: bytes

    CHAT_COMPLETIONS = "chat.completions"
    COMPLETIONS = "completions"

    def __init__(self, name: str) -> None:
        self.path = "/v1/" + name.replace(".", "/")
        self.path_bytes = self.path.encode()


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request.  Its body is not among its facts: nobody needs that to the end."""

    operation: Operation
    model_requested: str
    model: str
    is_stream: bool
    wants_usage_chunk: bool  # the client set stream_options.include_usage
    prompt: Prompt
    num_choices: int
    estimated_prompt_tokens: int
    max_completion_tokens: int  # over all choices: the most the replica may generate
    reserved_completion_tokens: int  # what is more than this becomes debt
    affinity: Affinity
    text: PromptText | None = None  # where routing looks at it
    counted: CountedPrompt | None = None  # where the policy wants it, and it could be had
    has_seed: bool = False  # the client's own
    providers: tuple[str, ...] = ()  # who may serve it beside our own replicas

    @property
    def estimated_tokens(self) -> int:
        return self.estimated_prompt_tokens + self.reserved_completion_tokens

    @property
    def is_resumable(self) -> bool:
        """By a replica of our own make: the tokens of one choice are what it goes on behind."""
        return self.is_stream and self.num_choices == 1


class RequestContext(msgspec.Struct, frozen=True):
    """An admitted request."""

    request_id: str
    event_id: str
    grant: Grant
    request: InferenceRequest
    admitted_at: datetime
    started_monotonic_s: float
