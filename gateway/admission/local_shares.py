"""What this gateway may admit by itself while the quota store is away.

While the store answers, a gateway leases an equal share of every rate and concurrency limit: the
limit divided by the gateways that are alive.  When the store goes away, the share holds until the
lease ends; then nobody is admitted.  Budgets are hard: they have no shares.  In a cluster each node
is the store of its own tenants, and their shares are leased from it alone.

The bound: until the lease ends, all gateways together admit at most what one full bucket holds
and its refill, that is ``limit * (1 + outage / 60 s)``, beyond what the store had admitted; of
concurrent requests at most the limit once more.  The store is told of each as soon as it is back,
whether or not its request still runs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.names import TenantId, quota_rule_name
from contracts.quota import QuotaRule
from gateway.admission.quota_plan import rule_in_words
from gateway.admission.verdict import Budget, LimitKind, Refusal, Reservation, Verdict
from gateway.errors import QuotaUnavailable

_MAX_SHARES = 10_000
_MS_PER_MINUTE = 60_000


@dataclass(slots=True)
class _Rate:
    """A bucket of one unit; it holds a minute's share."""

    level: float
    at_s: float

    def refill(self, share: float, now_s: float) -> None:
        if share < math.inf:  # infinity times no time is not a number
            elapsed_s = max(0.0, now_s - self.at_s)
            self.level = min(share, self.level + share * elapsed_s / 60)
        self.at_s = now_s

    def wait_ms(self, share: float, needed: float) -> int:
        return max(0, -int(-(needed - self.level) * _MS_PER_MINUTE // share))


@dataclass(frozen=True, slots=True)
class _Lease:
    until_s: float
    num_gateways: int


@dataclass(slots=True)
class _Share:
    tokens: _Rate
    requests: _Rate
    num_running: int = 0


class LocalShares:
    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: dict[object, _Lease] = {}  # by home: the node that decides as a rule
        self.num_gateways = 1
        self._shares: dict[tuple[TenantId, str], _Share] = {}
        self.running: set[str] = set()  # ids of requests that it admitted
        self.num_admitted = 0

    def renew(self, home: object, num_gateways: int, now_s: float) -> None:
        """The node is there, and counts this many gateways, ourselves included.

        One that has just started may not have heard of all: where others know more, they count.
        """
        self._leases[home] = _Lease(now_s + self._lease_s, num_gateways)
        self._leases = {h: lease for h, lease in self._leases.items() if now_s < lease.until_s}
        counts = [lease.num_gateways for lease in self._leases.values()]
        self.num_gateways = max(1, num_gateways, *counts)

    def is_leased(self, home: object, now_s: float) -> bool:
        lease = self._leases.get(home)
        return lease is not None and now_s < lease.until_s

    def is_any_leased(self, now_s: float) -> bool:
        return any(now_s < lease.until_s for lease in self._leases.values())

    def reserve(self, reservation: Reservation, home: object, now_s: float) -> Verdict:
        """Raises QuotaUnavailable for what only the store can decide."""
        plan, tokens = reservation.plan, reservation.reserved_tokens
        if not self.is_leased(home, now_s):
            raise QuotaUnavailable("The quota store is not reachable.")
        if plan.has_budget:
            raise QuotaUnavailable("A budget cannot be checked now.")
        if tokens > plan.most_tokens / self.num_gateways:
            raise QuotaUnavailable("The request is too large to be admitted without the store.")
        shares = [(rule, self._share(plan.tenant_id, rule, now_s)) for rule in plan.rules]
        refusal = self._refusal(shares, tokens)
        if refusal is None:
            for _, share in shares:
                share.tokens.level -= tokens
                share.requests.level -= 1
                share.num_running += 1
            self.running.add(reservation.reservation_id)
            self.num_admitted += 1
        retry_after_ms = None if refusal is None else refusal.retry_after_ms
        return Verdict(self._budget(shares, retry_after_ms), refusal, is_local=True)

    def settle(self, reservation: Reservation, used_tokens: int, now_s: float) -> None:
        """Changes nothing for one that was not admitted here."""
        self._give_back(reservation, used_tokens, 0, now_s)

    def release(self, reservation: Reservation, now_s: float) -> None:
        """As ``settle``, for an ask that led to no request: gives the request back, too."""
        self._give_back(reservation, 0, 1, now_s)

    def _give_back(
        self, reservation: Reservation, used_tokens: int, num_requests: int, now_s: float
    ) -> None:
        if reservation.reservation_id not in self.running:
            return
        self.running.remove(reservation.reservation_id)
        plan = reservation.plan
        for rule in plan.rules:
            share = self._share(plan.tenant_id, rule, now_s)
            share.tokens.level += reservation.reserved_tokens - used_tokens
            share.requests.level += num_requests
            share.num_running = max(0, share.num_running - 1)

    def _share(self, tenant: TenantId, rule: QuotaRule, now_s: float) -> _Share:
        name = (tenant, quota_rule_name(rule.key_id, rule.model))
        tokens, requests = self._of(rule.tokens_per_minute), self._of(rule.requests_per_minute)
        share = self._shares.get(name)
        if share is None:
            self._make_room(now_s)
            share = self._shares[name] = _Share(_Rate(tokens, now_s), _Rate(requests, now_s))
        share.tokens.refill(tokens, now_s)
        share.requests.refill(requests, now_s)
        return share

    def _make_room(self, now_s: float) -> None:
        """Those untouched for a minute are full again: the same as none."""
        if len(self._shares) >= _MAX_SHARES:
            self._shares = {
                name: share
                for name, share in self._shares.items()
                if share.num_running or share.tokens.at_s > now_s - 60
            }
        if len(self._shares) >= _MAX_SHARES:
            raise QuotaUnavailable("Too many tenants to admit without the store.")

    def _of(self, limit: int | None) -> float:
        return math.inf if limit is None else limit / self.num_gateways

    def _refusal(self, shares: list[tuple[QuotaRule, _Share]], tokens: int) -> Refusal | None:
        refusals = [r for rule, share in shares for r in self._refusals(rule, share, tokens)]
        return max(refusals, key=lambda refusal: refusal.retry_after_ms, default=None)

    def _refusals(self, rule: QuotaRule, share: _Share, tokens: int) -> Iterator[Refusal]:
        words = rule_in_words(rule)
        for kind, limit, rate, needed in (
            (LimitKind.TOKENS_PER_MINUTE, rule.tokens_per_minute, share.tokens, tokens),
            (LimitKind.REQUESTS_PER_MINUTE, rule.requests_per_minute, share.requests, 1),
        ):
            if limit is not None and rate.level < needed:
                wait_ms = rate.wait_ms(self._of(limit), needed)
                yield Refusal(kind, words, limit, _whole(rate.level), wait_ms)
        most_running = rule.concurrent_requests
        if most_running is not None and share.num_running + 1 > self._of(most_running):
            yield Refusal(LimitKind.CONCURRENT_REQUESTS, words, most_running, 0, 1_000)

    def _budget(self, shares: list[tuple[QuotaRule, _Share]], retry_after_ms: int | None) -> Budget:
        """Of the rule with least left: its limit as stated, but what is left of our share."""
        tokens_rule, by_tokens = min(shares, key=lambda pair: pair[1].tokens.level)
        requests_rule, by_requests = min(shares, key=lambda pair: pair[1].requests.level)
        tokens_limit, requests_limit = (
            tokens_rule.tokens_per_minute, requests_rule.requests_per_minute
        )  # fmt: skip
        assert tokens_limit is not None, "the tenant's own rule limits both rates"
        assert requests_limit is not None
        tokens, requests = self._of(tokens_limit), self._of(requests_limit)
        return Budget(
            tokens_limit=tokens_limit,
            tokens_remaining=_whole(by_tokens.tokens.level),
            tokens_reset_ms=by_tokens.tokens.wait_ms(tokens, tokens),
            requests_limit=requests_limit,
            requests_remaining=_whole(by_requests.requests.level),
            requests_reset_ms=by_requests.requests.wait_ms(requests, requests),
            retry_after_ms=retry_after_ms,
        )


def _whole(level: float) -> int:
    return max(0, int(level))
