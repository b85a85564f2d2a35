"""A limiter against a real store, and a tenant of its own for each test."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import ModelPrice, QuotaRule
from gateway.admission.local_shares import LocalShares
from gateway.admission.quota_plan import PlanBook, QuotaPlan
from gateway.admission.quota_scripts import greeting
from gateway.admission.quota_store import QuotaStore
from gateway.admission.redis_limiter import MAX_OPEN, RedisLimiter
from gateway.admission.verdict import Reservation, Verdict
from gateway.grants import Grant, snapshot_of
from gateway.resp_address import RespAddress
from tests.gateway.processes import Valkey
from tests.gateway.scene import until

MODEL = "model-a"
_numbers = itertools.count()


@dataclass(frozen=True)
class Terms:
    """What a tenant agreed to."""

    tokens: int
    requests: int = 1_000_000
    rules: tuple[QuotaRule, ...] = ()
    prices: tuple[ModelPrice, ...] = ()

    def plan(self, tenant: str, key_id: str = "k1", model: str = MODEL) -> QuotaPlan:
        policy = TenantPolicy(
            tenant_id=tenant_id(tenant),
            tier="gold",
            tokens_per_minute=self.tokens,
            requests_per_minute=self.requests,
            rules=self.rules,
        )
        key = ApiKeyRecord(key_id=key_id, key_hash=key_id, key_prefix="sk")
        prices = {price.model: price for price in self.prices}
        grant = grant_of(policy, key, prices)
        return PlanBook().plan_for(grant, model)


def grant_of(policy: TenantPolicy, key: ApiKeyRecord, prices: Mapping[str, ModelPrice]) -> Grant:
    """As a gateway resolves it."""
    document = PolicyDocument(
        version=1,
        tenants=(msgspec.structs.replace(policy, keys=(key,)),),
        prices=tuple(prices.values()),
    )
    return snapshot_of(document, b"0123456789abcdef", datetime.now(UTC)).grants[key.key_hash]


def reservation_of(
    tenant: str,
    tokens: int,
    terms: Terms,
    *,
    budget_tokens: int | None = None,
    nano_usd: int = 0,
    turn: int | None = None,
    **who: str,
) -> Reservation:
    """Of an ask that no other resembles, unless it is given the ``turn`` of one."""
    number = next(_numbers)
    plan = terms.plan(tenant, **who)
    return Reservation(
        reservation_id=f"r{number}",
        plan=plan,
        reserved_tokens=tokens,
        budget_tokens=tokens if budget_tokens is None else budget_tokens,
        reserved_nano_usd=nano_usd,
        turn=number if turn is None else turn,
    )


@dataclass
class Bench:
    """A limiter and one fresh tenant."""

    limiter: RedisLimiter
    valkey: Valkey
    tenant: str = field(default_factory=lambda: f"bench-{next(_numbers)}")

    def renew_tenant(self) -> None:
        self.tenant = f"bench-{next(_numbers)}"

    def reservation(
        self,
        tokens: int,
        terms: Terms,
        *,
        nano_usd: int = 0,
        turn: int | None = None,
        **who: str,
    ) -> Reservation:
        return reservation_of(self.tenant, tokens, terms, nano_usd=nano_usd, turn=turn, **who)

    async def ask(
        self,
        tokens: int,
        terms: Terms,
        *,
        nano_usd: int = 0,
        turn: int | None = None,
        **who: str,
    ) -> Verdict:
        return await self.limiter.reserve(
            self.reservation(tokens, terms, nano_usd=nano_usd, turn=turn, **who)
        )

    def forget_turns(self) -> None:
        with self.valkey.client as client:
            client.delete(self.key("turns"), self.key("line"))

    async def settle(self, reservation: Reservation, tokens: int, nano_usd: int = 0) -> bool:
        return await self.limiter.settle(reservation, used_tokens=tokens, used_nano_usd=nano_usd)

    def level(self) -> float:
        """Tokens in the tenant's own bucket as of its last change."""
        with self.valkey.client as client:
            stored = client.hget(self.key("bucket"), "tokens")
            assert stored is not None
            return int(stored) / 60_000

    def key(self, name: str) -> str:
        return f"{{{self.tenant}}}:quota:{name}"

    def spent(self) -> dict[str, int]:
        """The tenant's own budget counters, by their ends: of which day or month is left out."""
        with self.valkey.client as client:
            fields = client.hgetall(self.key("budget"))
        return {
            name.decode()[0] + " " + name.decode().lstrip("dm0123456789"): int(value)
            for name, value in fields.items()
            if name.endswith((b"tokens", b"nano"))
        }


@asynccontextmanager
async def running_limiter(
    store_at: str | RespAddress,
    lease_s: float = 60.0,
    share_lease_s: float = 0.0,
    call_deadline_s: float = 5.0,
    max_open: int = MAX_OPEN,
    shares: LocalShares | None = None,
) -> AsyncIterator[RedisLimiter]:
    """Without local shares, unless they are leased for a time."""
    name = f"limiter-{next(_numbers)}"
    address = RespAddress.parse(store_at) if isinstance(store_at, str) else store_at
    store = QuotaStore(address, call_deadline_s, greeting(name))
    shares = LocalShares(share_lease_s) if shares is None else shares
    limiter = RedisLimiter(
        store,
        shares,
        name=name,
        lease_s=lease_s,
        monotonic_s=time.monotonic,
        max_open=max_open,
    )
    tasks = [asyncio.create_task(store.run()), asyncio.create_task(limiter.run())]
    try:
        await until(lambda: limiter.is_reachable)
        await until(lambda: share_lease_s == 0 or shares.is_any_leased(time.monotonic()))
        yield limiter
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
