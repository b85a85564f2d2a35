"""What a decision was made of, so that it can be explained."""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from gateway.routing.endpoint import Endpoint


class Reason(enum.StrEnum):
    ONLY = "only"  # there is no other
    HOME = "home"  # where its prefix lives
    OWNER = "owner"  # one of several where a hot prefix lives
    GROWN = "grown"  # all of those had more than their share: from now on this one, too
    SPILL = "spill"  # and the next one had, too
    NO_PREFIX = "no_prefix"  # none, or too short to be worth it
    CACHED = "cached"  # the least to do, cached tokens known
    LATE = "late"  # the one chosen first would have missed the target


class Scores(msgspec.Struct, frozen=True):
    """The least cost is best."""

    places: Sequence[int]  # of those that are in question, among the candidates
    costs: Sequence[float]  # of each, in tokens to be done
    reason: Reason
    home: str | None = None  # where the prefix lives, if it has one
    cached_tokens: Mapping[int, float] = {}  # of the prompt, by place, as far as any are expected


class Decision(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    reason: Reason
    home: str | None
    candidates: Sequence[Endpoint]
    places: Sequence[int]  # of those that were in question
    costs: Sequence[float]  # of each, as above; where all are late, in milliseconds past the target
    cached_tokens: float = 0.0  # of the prompt, at the chosen one, as far as is known
