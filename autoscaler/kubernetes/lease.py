"""Which of several autoscalers acts: a Lease, and a fence that is asked before every write.

Safety rests on one clock per process and none between them.  A leader counts its time from *before*
it sent a renewal; a candidate counts the lease's duration from *after* it saw the lease change.  So
whoever leads has stopped, with its last request timed out, before anyone else may begin:
``renew_deadline_s + request_timeout_s < duration_s``.  A process that slept through its time finds
``may_act`` false when it wakes.

The algorithm is that of client-go's leader election, with the fence it leaves to its users:
https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn, Protocol

from autoscaler.errors import BadPolicy, ClusterRefused
from autoscaler.kubernetes.objects import Lease, LeaseSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    duration_s: float = 15.0  # how long nobody scales after a leader's sudden death
    renew_deadline_s: float = 9.0
    request_timeout_s: float = 4.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.renew_deadline_s + self.request_timeout_s < self.duration_s:
            raise BadPolicy(
                "lease: renew_deadline_s + request_timeout_s < duration_s expected, got "
                f"{self.renew_deadline_s:g} + {self.request_timeout_s:g} and {self.duration_s:g}"
            )
        if not 0 < self.retry_period_s < self.renew_deadline_s:
            raise BadPolicy("lease: 0 < retry_period_s < renew_deadline_s expected")


class LeaseStore(Protocol):
    """One lease.  Each call raises ClusterRefused."""

    async def read(self) -> Lease | None: ...

    async def create(self, spec: LeaseSpec) -> None: ...

    async def replace(self, known: Lease, spec: LeaseSpec) -> None:
        """Raises StaleWrite when the lease is not the one known any more."""


@dataclass(frozen=True, slots=True)
class Clocks:
    monotonic_s: Callable[[], float]
    now: Callable[[], datetime]  # aware, UTC; told to people, never compared


@dataclass(frozen=True, slots=True)
class _Sight:
    """The lease as last changed by somebody else, and when that was first seen."""

    resource_version: str
    seen_monotonic_s: float


class Elector:
    def __init__(
        self,
        store: LeaseStore,
        identity: str,
        timings: LeaseTimings,
        *,
        clocks: Clocks,
        random: Callable[[], float],
    ) -> None:
        """``identity``: of this process alone, also after a restart in the same pod."""
        self._store = store
        self._identity = identity
        self._timings = timings
        self._clocks = clocks
        self._random = random
        self._sight: _Sight | None = None
        self._valid_until_s: float | None = None  # None: does not lead
        self._num_terms = 0

    @property
    def token(self) -> str:
        """Of this term: no two terms, of one process or of two, have the same."""
        return f"{self._identity}/{self._num_terms}"

    def may_act(self) -> bool:
        until_s = self._valid_until_s
        return until_s is not None and self._clocks.monotonic_s() < until_s

    async def run(self, sleep: Callable[[float], Awaitable[None]]) -> NoReturn:
        """Until cancelled; then the caller resigns."""
        while True:
            try:
                await self.attempt()
            except ClusterRefused as exc:
                logger.warning("lease not renewed", extra={"error": str(exc)})
            except Exception:
                logger.exception("lease not renewed")
            await sleep(self._timings.retry_period_s * (0.8 + 0.4 * self._random()))

    async def attempt(self) -> None:
        """Renews what is held, takes what is free.  Raises ClusterRefused."""
        begun_s = self._clocks.monotonic_s()
        async with _bounded(self._timings.request_timeout_s):
            lease = await self._store.read()
            if lease is None or lease.spec.holder_identity != self._identity:
                self._follow()  # somebody may have led since, though nobody does now
            if lease is None:
                await self._store.create(self._spec(None))
            elif lease.spec.holder_identity == self._identity or self._is_free(lease):
                await self._store.replace(lease, self._spec(lease))
            else:
                return
        self._lead(begun_s)

    async def resign(self) -> None:
        """The next one need not wait.  Nothing may be written after."""
        self._follow()
        async with _bounded(self._timings.request_timeout_s):
            lease = await self._store.read()
            if lease is not None and lease.spec.holder_identity == self._identity:
                freed = LeaseSpec(
                    holder_identity="", lease_transitions=lease.spec.lease_transitions,
                    lease_duration_seconds=1, renew_time=self._now(),
                )  # fmt: skip
                await self._store.replace(lease, freed)

    def _is_free(self, lease: Lease) -> bool:
        if not lease.spec.holder_identity:
            return True
        version, now_s = lease.metadata.resource_version, self._clocks.monotonic_s()
        if self._sight is None or self._sight.resource_version != version:
            self._sight = _Sight(version, now_s)
        told_s = lease.spec.lease_duration_seconds
        duration_s = max(self._timings.duration_s, 0 if told_s is None else told_s)
        return now_s - self._sight.seen_monotonic_s > duration_s

    def _lead(self, begun_s: float) -> None:
        if self._valid_until_s is None:
            self._num_terms += 1
            logger.info("leading", extra={"reason": self.token})
        self._valid_until_s = begun_s + self._timings.renew_deadline_s

    def _follow(self) -> None:
        if self._valid_until_s is not None:
            logger.info("not leading any more", extra={"reason": self.token})
        self._valid_until_s = None

    def _spec(self, before: Lease | None) -> LeaseSpec:
        known = LeaseSpec() if before is None else before.spec
        is_ours = known.holder_identity == self._identity
        num_before = 0 if known.lease_transitions is None else known.lease_transitions
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self._timings.duration_s),
            lease_transitions=num_before + (not is_ours),
            acquire_time=known.acquire_time if is_ours else self._now(),
            renew_time=self._now(),
        )

    def _now(self) -> str:
        return self._clocks.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@asynccontextmanager
async def _bounded(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as exc:
        raise ClusterRefused("lease: no answer in time") from exc
