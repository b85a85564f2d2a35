"""What a policy would have done with the asks that were noted: by the quota's own scripts.

They run as they are, on a store that nobody else uses, but for the clock: each call is given the
time at which it was made.  So the policy that was in force decides as it did.

What a request would have used that was refused in truth is not known: it is taken to use what it
asked for, for as long as the others took.  Its later attempts are then the same request.
"""

import heapq
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Final

from contracts.names import TenantId
from contracts.policy import PolicyDocument
from gateway.admission.quota_plan import QuotaPlan, quota_plan, rule_in_words
from gateway.admission.quota_scripts import KEY_BUILDERS, RESERVE, SETTLE
from gateway.admission.record import Noted, NotedAsk, NotedSettlement
from gateway.admission.resp import pack_arguments
from gateway.admission.verdict import LIMIT_BY_NUMBER
from gateway.errors import GatewayError
from gateway.grants import Grant, PolicySnapshot, snapshot_of

_CLOCK: Final = "redis.call('TIME')"
# The two last arguments are the clock's, taken off: whoever counts arguments does not see them.
_GIVEN_CLOCK: Final = "{table.remove(ARGV, #ARGV - 1), table.remove(ARGV)}"
_LEASE_MS: Final = 86_400_000  # nobody renews here
_PEPPER: Final = bytes(16)  # of hashes that nobody asks for
_USUAL_HOLD_US: Final = 1_000_000

Call = Callable[[bytes], Coroutine[Any, Any, object]]  # to the store that nobody else uses


@dataclass(frozen=True, slots=True)
class Decision:
    ask: NotedAsk
    refused_by: str | None  # in words; None: admitted

    @property
    def at(self) -> datetime:
        return self.ask.at


@dataclass(slots=True)
class _Early:
    """Requests that are served here, and were refused in truth."""

    by_turn: dict[str, NotedAsk] = field(default_factory=dict)
    real_ids: dict[str, str] = field(default_factory=dict)  # of their later attempt that was served
    ends: list[tuple[int, NotedAsk]] = field(default_factory=list)  # a heap, by time


class Replay:
    """One tenant's record under one document.  Use it once."""

    def __init__(self, call: Call, document: PolicyDocument, tenant: TenantId) -> None:
        self._call = call
        self._document = document
        self._tenant = tenant
        self._snapshot: PolicySnapshot | None = None
        self._by_key: dict[str, Grant] = {}
        self._plans: dict[str, QuotaPlan | str] = {}  # by who asks for what
        self._early = _Early()
        self._usual_hold_us = _USUAL_HOLD_US

    async def run(self, record: Sequence[Noted]) -> list[Decision]:
        self._usual_hold_us = _usual_hold_us(record)
        decisions = []
        for entry in record:
            await self._end_early_ones(entry.at_us)
            if isinstance(entry, NotedSettlement):
                await self._settle(entry)
            elif not self._is_served_already(entry):
                decisions.append(await self._decide(entry))
        return decisions

    async def _decide(self, ask: NotedAsk) -> Decision:
        plan = self._plan(ask)
        if isinstance(plan, str):
            return Decision(ask, plan)
        try:
            plan.check_fits(
                tokens=ask.tokens, budget_tokens=ask.budget_tokens, nano_usd=ask.nano_usd
            )
        except GatewayError as exc:
            return Decision(ask, str(exc.code).replace("_", " "))
        asked = (ask.is_forced, ask.tokens, ask.budget_tokens, ask.nano_usd)
        arguments = b"%b%b%b" % (
            pack_arguments(_LEASE_MS),
            plan.arguments,
            pack_arguments(*asked, ask.reservation_id, ask.turn),
        )
        num_arguments = 1 + plan.num_arguments + len(asked) + 2
        reply = await self._run(_RESERVE, arguments, num_arguments, ask.at_us)
        kind, rule = reply[0], reply[1]
        if kind == 0:
            if not ask.is_admitted:
                self._early.by_turn[ask.turn] = ask
                heapq.heappush(self._early.ends, (ask.at_us + self._usual_hold_us, ask))
            return Decision(ask, None)
        words = rule_in_words(plan.rules[rule - 1])
        limit = LIMIT_BY_NUMBER[kind].words
        return Decision(ask, f"{limit} ({words})" if words else limit)

    def _is_served_already(self, ask: NotedAsk) -> bool:
        early = self._early.by_turn.get(ask.turn)
        if early is None:
            return False
        if ask.is_admitted:
            del self._early.by_turn[ask.turn]
            self._early.real_ids[ask.reservation_id] = early.reservation_id
        return True

    async def _settle(self, settlement: NotedSettlement) -> None:
        real = settlement.reservation_id
        own_id = self._early.real_ids.pop(real, real)
        used = (settlement.limited_tokens, settlement.limited_tokens, settlement.nano_usd)
        await self._use(own_id, *used, settlement.is_settled, at_us=settlement.at_us)

    async def _end_early_ones(self, now_us: int) -> None:
        """Those of which nothing more is known."""
        ends = self._early.ends
        while ends and ends[0][0] <= now_us:
            _, ask = heapq.heappop(ends)
            if ask.reservation_id not in self._early.real_ids.values():
                used = (ask.tokens, ask.tokens, ask.nano_usd, 1)
                await self._use(ask.reservation_id, *used, at_us=now_us)

    def _plan(self, ask: NotedAsk) -> QuotaPlan | str:
        """Or why there is none."""
        at = ask.at
        if self._snapshot is None or at >= self._snapshot.valid_until:
            self._snapshot = snapshot_of(self._document, _PEPPER, at)
            self._plans = {}
            self._by_key = {
                grant.key.key_id: grant
                for grant in self._snapshot.grants.values()
                if grant.tenant.tenant_id == self._tenant
            }
        if ask.who not in self._plans:
            self._plans[ask.who] = _planned(self._by_key.get(ask.key_id), ask.model, ask.adapter_of)
        return self._plans[ask.who]

    async def _use(self, reservation_id: str, *used: int, at_us: int) -> None:
        arguments = pack_arguments(reservation_id, *used)
        await self._run(_SETTLE, arguments, 1 + len(used), at_us)

    async def _run(
        self, text: str, arguments: bytes, num_arguments: int, at_us: int
    ) -> Any:  # as the script replies
        keys = [build(self._tenant) for build in KEY_BUILDERS]
        return await self._call(
            b"*%d\r\n%b%b%b"
            % (
                3 + len(keys) + num_arguments + 2,
                pack_arguments("EVAL", text, len(keys), *keys),
                arguments,
                pack_arguments(*divmod(at_us, 1_000_000)),
            )
        )


def _planned(grant: Grant | None, model: str, adapter_of: str | None) -> QuotaPlan | str:
    if grant is None:
        return "the key is no longer good"
    grant = grant.for_model(model)
    try:
        if grant.scope is not None and not grant.scope.has_model(model):
            return "the model is not allowed"
        return quota_plan(grant, model, adapter_of=adapter_of, is_recorded=False)
    except GatewayError as exc:
        return str(exc.code).replace("_", " ")


def _usual_hold_us(record: Sequence[Noted]) -> int:
    return int(median([*_holds_us(record)] or [_USUAL_HOLD_US]))


def _holds_us(record: Sequence[Noted]) -> Iterator[int]:
    began: dict[str, int] = {}
    for entry in record:
        if isinstance(entry, NotedAsk):
            began[entry.reservation_id] = entry.at_us
        elif entry.reservation_id in began:
            yield entry.at_us - began[entry.reservation_id]


def _with_given_clock(text: str) -> str:
    assert text.count(_CLOCK) == 1, "one look at the clock decides a call"
    return text.replace(_CLOCK, _GIVEN_CLOCK)


_RESERVE: Final = _with_given_clock(RESERVE.text)
_SETTLE: Final = _with_given_clock(SETTLE.text)
