"""The words of admission: an ask, its verdict, and what an admitted request holds until settled."""

from dataclasses import dataclass

from contracts.names import TenantId
from contracts.policy import Limits


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of both limits at one moment."""

    tokens_limit: int
    tokens_remaining: int
    tokens_reset_ms: int  # until full again, if nobody spends
    requests_limit: int
    requests_remaining: int
    requests_reset_ms: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Tokens held for one request, until ``settle`` or ``release`` names them."""

    reservation_id: str
    tenant_id: TenantId
    limits: Limits
    reserved_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    limit: str  # "tokens" or "requests": the one that takes longest to allow the ask
    retry_after_ms: int  # true: waiting this long is enough if nobody else spends


@dataclass(frozen=True, slots=True)
class Verdict:
    budget: Budget
    refusal: Refusal | None  # None: admitted
