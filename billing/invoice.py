"""An invoice: exact amounts by line, one rounding to cents, and lines that sum to the total.  Pure.

The exact total is rounded half-even; its cents are given to the lines by largest remainder, so no
line is a cent or more from its exact amount and nothing is lost between them and the total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec

from billing.money import cents_half_even, plain, usd_from_pico_usd
from billing.periods import Period

_PICO_USD_PER_CENT: Final = 10**10


class LineKind(StrEnum):
    USAGE = "usage"
    LATE_USAGE = "late usage"  # of a period that had been closed when it came
    CORRECTION = "correction"
    CREDIT = "credit"
    CARRIED_IN = "credit carried over"  # from the invoice before, which would have been negative
    CARRIED_OUT = "credit to carry over"  # to the next


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    kind: LineKind
    service_month: str  # when it was used, which for late usage is not when it is billed
    description: str  # the model, or a correction's reason
    token_class: str | None
    price_id: str | None
    tokens: int
    pico_usd: int  # exact
    cents: int = 0  # its share of the total


@dataclass(frozen=True, slots=True)
class Invoice:
    """Never changed once issued: what comes later is on a later one."""

    tenant_id: str
    number: int  # from 1, without gaps
    month: str
    time_zone: str
    period: Period
    closed_at: datetime
    lines: tuple[InvoiceLine, ...]
    num_unpriced: int  # requests of the period that have no price yet, and so are on no line

    @property
    def total_cents(self) -> int:
        return sum(line.cents for line in self.lines)

    @property
    def carried_pico_usd(self) -> int:
        """What the tenant is still owed; zero or less."""
        return -sum(line.pico_usd for line in self.lines if line.kind is LineKind.CARRIED_OUT)

    def to_json(self) -> bytes:
        """Money as strings: a JSON number is a float to most readers."""
        document = {
            "tenant_id": self.tenant_id,
            "number": self.number,
            "month": self.month,
            "time_zone": self.time_zone,
            "period_from": self.period.begins_at,
            "period_to": self.period.ends_at,
            "closed_at": self.closed_at,
            "currency": "USD",
            "num_unpriced_requests": self.num_unpriced,
            "lines": [
                {
                    "kind": line.kind.value,
                    "service_month": line.service_month,
                    "description": line.description,
                    "token_class": line.token_class,
                    "price_id": line.price_id,
                    "tokens": line.tokens,
                    "usd": plain(usd_from_pico_usd(line.pico_usd)),
                    "amount_usd": plain(usd_of_cents(line.cents)),
                }
                for line in self.lines
            ],
            "total_usd": plain(usd_of_cents(self.total_cents)),
        }
        return msgspec.json.encode(document)


def usd_of_cents(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def carried_over(lines: Sequence[InvoiceLine], month: str) -> tuple[InvoiceLine, ...]:
    """``lines``, and if they are owed to the tenant one that takes that to the next invoice."""
    owed = sum(line.pico_usd for line in lines)
    if owed >= 0:
        return tuple(lines)
    carry = InvoiceLine(LineKind.CARRIED_OUT, month, "to the next invoice", None, None, 0, -owed)
    return (*lines, carry)


def allotted(lines: Sequence[InvoiceLine]) -> tuple[InvoiceLine, ...]:
    """Each with its cents.  Equal remainders go by the lines' order."""
    exact = [line.pico_usd for line in lines]
    total = int(cents_half_even(usd_from_pico_usd(sum(exact))).scaleb(2))
    whole = [pico_usd // _PICO_USD_PER_CENT for pico_usd in exact]
    by_rest = sorted(range(len(lines)), key=lambda n: (-(exact[n] % _PICO_USD_PER_CENT), n))
    for n in by_rest[: total - sum(whole)]:
        whole[n] += 1
    return tuple(replace(line, cents=cents) for line, cents in zip(lines, whole, strict=True))
