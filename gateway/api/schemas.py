"""The bodies that the gateway reads and writes: on the data plane msgspec's, else pydantic's.

Of OpenAI's requests only the part that the gateway reads; the rest passes through untouched.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel

# Bounded far above any use, far below where arithmetic in the quota store loses integers.
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_Choices = Annotated[int, msgspec.Meta(ge=1, le=128)]  # OpenAI's own bound


ABSENT = msgspec.Raw(b"")  # itself, not an equal


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """``UNSET`` where it matters whether a member is there: one that is may be ``null``."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | UnsetType | None = UNSET
    max_tokens: _Count | UnsetType | None = UNSET
    max_completion_tokens: _Count | None = None
    n: _Choices | None = None
    best_of: _Choices | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | UnsetType | None = UNSET
    seed: msgspec.Raw = ABSENT
    # contracts.replica_api.GATEWAY_OWNED_FIELDS
    priority: msgspec.Raw = ABSENT
    resume_tokens: msgspec.Raw = ABSENT
    return_token_ids: msgspec.Raw = ABSENT


class ChatCompletionBody(_Generation, frozen=True, kw_only=True):
    messages: msgspec.Raw
    tools: msgspec.Raw = ABSENT


class CompletionBody(_Generation, frozen=True, kw_only=True):
    prompt: msgspec.Raw


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorBody


class ModelBody(BaseModel):
    id: str
    object: str = "model"
    created: int  # Unix time, seconds; 0: no replica tells
    owned_by: str = "pandal"
    parent: str | None = None  # whose adapter it is, as replicas tell


class ModelListBody(BaseModel):
    object: str = "list"
    data: Sequence[ModelBody]


class ReadinessBody(BaseModel):
    is_ready: bool
    reasons: Sequence[str]  # why not; empty when ready
