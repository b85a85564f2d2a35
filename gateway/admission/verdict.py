"""The words of admission: an ask, its verdict, and what an admitted request holds until settled."""

import enum
from zlib import crc32

import msgspec

from gateway.admission.quota_plan import QuotaPlan
from gateway.errors import InsufficientQuota, RateLimited, whole_seconds

_TURN_BYTES = 1_024


def turn_of(key_number: int, body: bytes) -> int:
    """A checksum of an ask: its length, its beginning and its end, where conversations differ.

    Who is refused and comes back with the same finds its place in line by it.
    """
    number = crc32(body[:_TURN_BYTES], key_number ^ len(body))
    return number if len(body) <= _TURN_BYTES else crc32(body[-_TURN_BYTES:], number)


class LimitKind(enum.Enum):
    """What can refuse.  The value: its words, and how the store numbers it."""

    TOKENS_PER_MINUTE = ("tokens per minute", 1)
    REQUESTS_PER_MINUTE = ("requests per minute", 2)
    CONCURRENT_REQUESTS = ("concurrent requests", 3)
    TOKENS_PER_DAY = ("tokens per day", 4)
    TOKENS_PER_MONTH = ("tokens per month", 5)
    NANO_USD_PER_DAY = ("nano-dollars per day", 6)
    NANO_USD_PER_MONTH = ("nano-dollars per month", 7)

    def __init__(self, words: str, number: int) -> None:
        self.words = words
        self.number = number
        self.is_budget = words.endswith(("day", "month"))
        self.counts_requests = "requests" in words
        self.counts_money = "dollars" in words
        # OpenAI's ``type`` of a refusal: ``tokens``, ``requests``, or in kind.
        self.unit = words.rpartition(" per ")[0].replace(" ", "_") or "concurrent_requests"


LIMIT_BY_NUMBER = {kind.number: kind for kind in LimitKind}


class Budget(msgspec.Struct, frozen=True):
    """What is left of both rates at one moment, each of the rule that has least left.

    In the order of reserve.lua's answer.
    """

    tokens_limit: int
    tokens_remaining: int
    tokens_reset_ms: int  # until full again, if nobody spends
    requests_limit: int
    requests_remaining: int
    requests_reset_ms: int
    retry_after_ms: int | None = None  # of a refusal


class Reservation(msgspec.Struct, frozen=True):
    """What is held for one request, until ``settle`` or ``release`` names it."""

    reservation_id: str
    plan: QuotaPlan
    reserved_tokens: int  # of rates
    budget_tokens: int  # of budgets: the most it can take, whatever is expected
    reserved_nano_usd: int
    turn: int  # the same when the same is asked again: see ``turn_of``


class Refusal(msgspec.Struct, frozen=True):
    """By the one limit that takes longest to allow the ask."""

    limit: LimitKind
    rule: str  # in words; "" for the tenant's own
    allowed: int
    remaining: int
    retry_after_ms: int  # true: waiting this long is enough if nobody else spends


class Verdict(msgspec.Struct, frozen=True):
    budget: Budget
    refusal: Refusal | None  # None: admitted
    shadows: int = 0  # which of the plan's shadow rules would have refused, in bits
    is_local: bool = False  # decided without the store


def refused(refusal: Refusal, reservation: Reservation) -> RateLimited | InsufficientQuota:
    """What the client is told."""
    limit = refusal.limit
    where = f" ({refusal.rule})" if refusal.rule else ""
    counts = f"limit {refusal.allowed}, used {refusal.allowed - refusal.remaining}"
    needed = f"this request needs {_needed(limit, reservation)}"
    if limit.is_budget:
        return InsufficientQuota(
            f"Quota exceeded for {limit.words}{where}: {counts}, {needed}; "
            f"a new period begins in {whole_seconds(refusal.retry_after_ms)} s.",
            retry_after_ms=refusal.retry_after_ms,
        )
    return RateLimited(
        f"Rate limit reached for {limit.words}{where}: {counts}, {needed}; "
        f"retry in {whole_seconds(refusal.retry_after_ms)} s.",
        limit=limit.unit,
        retry_after_ms=refusal.retry_after_ms,
    )


def _needed(limit: LimitKind, reservation: Reservation) -> int:
    if limit.counts_requests:
        return 1
    if limit.counts_money:
        return reservation.reserved_nano_usd
    return reservation.budget_tokens if limit.is_budget else reservation.reserved_tokens
