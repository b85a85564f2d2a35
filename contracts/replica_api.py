"""The wire between gateway and replica: the OpenAI API, plus the few things below.

Any OpenAI-compatible server can stand in a replica's place.  It ignores what it does not know:

- ``x-request-id`` (request header): the gateway's id of the request, unique per attempt.
- ``x-pandal-event-id`` and ``x-pandal-tenant-id`` (request headers): the usage event that the
  gateway will write and whose it is, for the replica's own count (``contracts.replica_usage``).
- ``x-pandal-locally-admitted`` (request header, where it is so): the quota's store may not know of
  the request; for the replica's own count as well.
- ``cache_salt`` (body field, as vLLM spells it): prefixes are shared only under equal salts.
- ``priority`` (body field, as vLLM spells it): the least goes first.
- ``max_time_s`` (body field): seconds from arrival; then the request ends with finish reason
  ``deadline``, with what it has and what that took.
- ``resume_tokens`` (body field): token ids generated elsewhere already.  The answer goes on behind
  them: same sampling positions, ``max_tokens`` and stop strings as if it had never moved.  They
  count as prompt tokens here.  Every token that has been in ``token_ids`` of a chunk may be among
  them, though its text may still be held back: that is sent by whoever resumes.
- ``return_token_ids`` (body field, as vLLM spells it), for whoever may have to resume: answers
  and chunks have what was generated for them in ``choices[].token_ids``, also without any text;
  ``prompt_token_ids`` (without what is resumed) stand in the answer, or the first chunk, of a chat,
  and in ``choices[]`` of a plain completion, or of the first chunk for each.  Just before them, in
  that chunk, ``cached_prompt_tokens``: a stream that breaks off would else never tell.
- ``POST abort_path(id)``: stop generating now; answers ``AbortedUsage`` with the final count.  A
  server without it answers 404, and the gateway falls back to closing the connection and to its
  own count.
- ``GET contracts.load.LOAD_PATH`` and ``GET contracts.blocks.BLOCKS_PATH``: how busy it is and what
  its prefix cache holds.  A server without them answers 404.
- ``GET contracts.tokenizer.TOKENIZER_PATH``: the tokenizer it counts with.
- ``PUT CORDON_PATH``: ``/ready`` answers 503 from now on, so that whoever routes sends nothing
  more; what comes all the same is served.  ``DELETE`` undoes it.  Both answer 200 and may be
  repeated; a server without it answers 404.
- ``GET /ready``: ``ReplicaState``, status 200 when it takes work and 503 otherwise.
- Error code ``not_supported`` (status 400): the request may be good, but this server cannot serve
  it (tools, images, ...); a gateway may know who can.
"""

import enum
from typing import Annotated
from urllib.parse import quote

import msgspec

from contracts.usage import Tokens

CORDON_PATH = "/pandal/v1/cordon"
CACHE_SALT_FIELD = "cache_salt"
PRIORITY_FIELD = "priority"
MAX_TIME_FIELD = "max_time_s"
RESUME_TOKENS_FIELD = "resume_tokens"
RETURN_TOKEN_IDS_FIELD = "return_token_ids"
FINISH_REASON_DEADLINE = "deadline"
CODE_NOT_SUPPORTED = "not_supported"

GATEWAY_OWNED_FIELDS = frozenset({PRIORITY_FIELD, RESUME_TOKENS_FIELD, RETURN_TOKEN_IDS_FIELD})
"""What only a gateway may ask of a replica: a client's priority would be everybody's business."""


class Phase(enum.StrEnum):
    STARTING = "starting"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ReplicaState(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="replica.state.v1"
):
    phase: Phase
    progress_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]  # within the phase
    model: str | None = None  # None: not known yet
    detail: str = ""  # one line for people


class AbortedUsage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="replica.aborted.v1"
):
    """What the aborted request had consumed when the abort took effect; nothing comes after."""

    request_id: str
    prompt_tokens: Tokens  # prompt tokens processed, cached ones included
    cached_prompt_tokens: Tokens  # subset of prompt_tokens
    completion_tokens: Tokens


def abort_path(request_id: str) -> str:
    return f"/pandal/v1/requests/{quote(request_id, safe='')}/abort"
