"""The words of admission: an ask, its verdict, and what an admitted request holds until settled."""

import enum
from zlib import crc32

import msgspec

from contracts.quota import usd_of_nano
from gateway.admission.quota_plan import QuotaPlan
from gateway.errors import InsufficientQuota, RateLimited, whole_seconds

_TURN_BYTES = 512


def turn_of(key_number: int, body: bytes) -> int:
    """A checksum of an ask: its length, its beginning and its end, where conversations differ.

    Who is refused and comes back with the same finds its place in line by it.
    """
    number = crc32(body[:_TURN_BYTES], key_number ^ len(body))
    return number if len(body) <= _TURN_BYTES else crc32(body[-_TURN_BYTES:], number)


class Counted(enum.Enum):
    """The value: OpenAI's ``type`` of a refusal, or in kind."""

    TOKENS = "tokens"
    REQUESTS = "requests"
    CONCURRENT_REQUESTS = "concurrent_requests"
    NANO_USD = "nano_usd"


class LimitKind(enum.Enum):
    """What can refuse.  The value: how the store numbers it, its words, and what it counts.

    A budget's period is the calendar's: waiting some seconds does not help.
    """

    TOKENS_PER_MINUTE = (1, "tokens per minute", Counted.TOKENS, False)
    REQUESTS_PER_MINUTE = (2, "requests per minute", Counted.REQUESTS, False)
    CONCURRENT_REQUESTS = (3, "concurrent requests", Counted.CONCURRENT_REQUESTS, False)
    TOKENS_PER_DAY = (4, "tokens per day", Counted.TOKENS, True)
    TOKENS_PER_MONTH = (5, "tokens per month", Counted.TOKENS, True)
    NANO_USD_PER_DAY = (6, "USD per day", Counted.NANO_USD, True)
    NANO_USD_PER_MONTH = (7, "USD per month", Counted.NANO_USD, True)

    def __init__(self, number: int, words: str, counted: Counted, is_budget: bool) -> None:
        self.number = number
        self.words = words
        self.counted = counted
        self.counted_word = counted.value  # an enum's own attribute takes two calls
        self.is_budget = is_budget


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
    limit, wait_s = refusal.limit, whole_seconds(refusal.retry_after_ms)
    where = f" ({refusal.rule})" if refusal.rule else ""
    allowed, used = refusal.allowed, refusal.allowed - refusal.remaining
    if limit.counted is Counted.NANO_USD:
        needs = usd_of_nano(reservation.reserved_nano_usd)
        counts = f"limit {usd_of_nano(allowed)}, used {usd_of_nano(used)}"
    else:
        counts = f"limit {allowed}, used {used}"
        needs = str(_needed(limit, reservation))
    counts = f"{limit.words}{where}: {counts}, this request needs {needs}"
    if limit.is_budget:
        return InsufficientQuota(
            f"Quota exceeded for {counts}; a new period begins in {wait_s} s.",
            retry_after_ms=refusal.retry_after_ms,
        )
    return RateLimited(
        f"Rate limit reached for {counts}; retry in {wait_s} s.",
        limit=limit.counted_word,
        retry_after_ms=refusal.retry_after_ms,
    )


def _needed(limit: LimitKind, reservation: Reservation) -> int:
    if limit.counted is not Counted.TOKENS:
        return 1
    return reservation.budget_tokens if limit.is_budget else reservation.reserved_tokens
