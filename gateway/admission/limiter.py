"""The words of admission: an ask, its verdict, and what an admitted request holds until settled."""

import msgspec

from contracts.names import TenantId
from contracts.policy import Limits


class Budget(msgspec.Struct, frozen=True):
    """What is left of both limits at one moment."""

    tokens_limit: int
    tokens_remaining: int
    tokens_reset_ms: int  # until full again, if nobody spends
    requests_limit: int
    requests_remaining: int
    requests_reset_ms: int


class Reservation(msgspec.Struct, frozen=True):
    """Tokens held for one request, until ``settle`` or ``release`` names them."""

    reservation_id: str
    tenant_id: TenantId
    limits: Limits
    reserved_tokens: int


class Refusal(msgspec.Struct, frozen=True):
    limit: str  # "tokens" or "requests": the one that takes longest to allow the ask
    retry_after_ms: int  # true: waiting this long is enough if nobody else spends


class Verdict(msgspec.Struct, frozen=True):
    budget: Budget
    refusal: Refusal | None  # None: admitted
