"""What the quota store noted of asks and settlements (``note`` in keys.lua), read back."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from gateway.errors import QuotaUnavailable


def asked_by(key_id: str, model: str, adapter_of: str | None) -> str:
    """``NotedAsk.who``."""
    return "\n".join((key_id, model) if adapter_of is None else (key_id, model, adapter_of))


class NotedAsk(msgspec.Struct, frozen=True, array_like=True):
    seconds: int  # of the store's clock
    microseconds: int
    who: str
    is_forced: int  # 1: a gateway decided without the store
    tokens: int  # that rates are charged
    budget_tokens: int
    nano_usd: int
    reservation_id: str
    turn: str
    refused_by: int  # 0: admitted

    @property
    def key_id(self) -> str:
        return self.who.split("\n")[0]

    @property
    def model(self) -> str:
        return self.who.split("\n")[1]

    @property
    def adapter_of(self) -> str | None:
        """The model that it was priced as, where that was not its own."""
        return next(iter(self.who.split("\n")[2:]), None)

    @property
    def at_us(self) -> int:
        return self.seconds * 1_000_000 + self.microseconds

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_us / 1e6, UTC)

    @property
    def is_admitted(self) -> bool:
        return self.refused_by == 0


class NotedSettlement(msgspec.Struct, frozen=True, array_like=True):
    seconds: int
    microseconds: int
    reservation_id: str
    limited_tokens: int  # used, as limits count them
    nano_usd: int
    is_settled: int  # 0: released, it led to no request

    @property
    def at_us(self) -> int:
        return self.seconds * 1_000_000 + self.microseconds


Noted = NotedAsk | NotedSettlement
_asks = msgspec.msgpack.Decoder(NotedAsk, strict=False)
_settlements = msgspec.msgpack.Decoder(NotedSettlement, strict=False)


def noted(entries: object) -> Iterator[Noted]:
    """From a reply of XRANGE.  Raises QuotaUnavailable for what is none."""
    if not isinstance(entries, list):
        raise QuotaUnavailable("The quota store answered something else.")
    for _, (kind, payload) in _pairs(entries):
        yield (_asks if kind == b"reserve" else _settlements).decode(payload)


def _pairs(entries: Iterable[object]) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
    for entry in entries:
        assert isinstance(entry, list)
        name, (kind, payload) = entry
        yield name, (kind, payload)
