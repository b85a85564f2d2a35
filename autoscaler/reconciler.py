"""The loop: observe, decide, plan, act, report.  Level-triggered, and safe to kill anywhere.

Nothing is remembered between ticks that could not be observed again, but the demand's history and
what replicas can do: without them the next decisions hold, and go by the plan.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from autoscaler.actuate import actuate, counts_written
from autoscaler.capacity import remembered
from autoscaler.cluster import Address, Cluster, ClusterView
from autoscaler.decide import decide
from autoscaler.decision import Decision, Memory
from autoscaler.engine_metrics import EngineSample
from autoscaler.errors import AutoscalerError, BadPolicy, ClusterRefused
from autoscaler.observe import GatewaySamples, Observer
from autoscaler.plan import Action, Release, plan
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState

logger = logging.getLogger(__name__)

Scrape = Callable[[Mapping[str, Address]], Awaitable[Mapping[str, EngineSample | None]]]
AskGateway = Callable[[], Awaitable[GatewaySamples | None]]  # None: it did not tell
Clock = Callable[[], float]  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Report:
    """What a tick saw, wanted and did; for conditions, events and ``explain``."""

    state: PoolState
    decision: Decision
    planned: tuple[Action, ...]
    done: tuple[Action, ...]  # fewer: dry run, conflict, or the cluster refused
    conflict: str | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class Sources:
    """Who tells what a pool is asked for."""

    scrape: Scrape
    ask_gateway: AskGateway | None = None  # None: there is none to be asked


class Fence(Protocol):
    def may_act(self) -> bool:
        """Whether this process is the one that acts, now: asked before every action."""


@dataclass(frozen=True, slots=True)
class Rules:
    policy: PoolPolicy
    drain_deadline_s: float = 600.0  # longer than most streams; a replica's own drain comes after
    is_dry_run: bool = False


class Reconciler:
    def __init__(
        self,
        rules: Rules,
        cluster: Cluster,
        *,
        sources: Sources,
        clock: Clock,
        fence: Fence,
        report: Callable[[Report], None],
    ) -> None:
        """Raises BadPolicy when the policy counts on a gateway that nobody asks."""
        self.follow(rules, sources)
        self._cluster = cluster
        self._clock = clock
        self._fence = fence
        self._report = report
        self._observer = Observer()
        self._memory = Memory()
        self._written: dict[str, int] = {}
        self._attempted: dict[str, int] = {}  # may have been written: an answer can be lost

    def follow(self, rules: Rules, sources: Sources) -> None:
        """From the next tick on, with the memory of those before.  Raises BadPolicy."""
        if rules.policy.is_told_by_gateway and sources.ask_gateway is None:
            raise BadPolicy(f"{rules.policy.name}: is_told_by_gateway, and no gateway is asked")
        self._rules = rules
        self._sources = sources

    def recall(self, tokens_per_s: Mapping[str, float]) -> None:
        """What replicas of each variant were once seen to do: they begin from it, not the plan."""
        known = remembered(tokens_per_s, self._rules.policy.variants)
        self._memory = replace(self._memory, tokens_per_s=known)

    async def run(self, period_s: float, sleep: Callable[[float], Awaitable[None]]) -> NoReturn:
        """Until cancelled.  A tick that fails is logged, and the next one looks again."""
        while True:
            try:
                await self.tick()
            except AutoscalerError as exc:
                logger.warning("tick failed", extra={"error": str(exc)})
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("tick failed")
            await sleep(period_s)

    async def tick(self) -> Report:
        """Raises ClusterRefused when the cluster cannot be seen: then nothing is done."""
        view = await self._cluster.observe()
        samples = await self._sources.scrape(view.addresses)
        ask = self._sources.ask_gateway
        gateway = None if ask is None else await ask()
        state = self._observer.look(self._with_written(view), samples, self._clock(), gateway)
        policy = self._rules.policy
        decision = decide(state, policy, self._memory)
        self._memory = decision.memory_if_not_done
        planned = plan(
            state.variants,
            decision.wanted,
            now_s=state.now_s,
            drain_deadline_s=self._rules.drain_deadline_s,
        )
        is_idle = self._rules.is_dry_run or view.conflict is not None
        done, refused = await self._act(() if is_idle else planned, state.now_s)
        if done or not planned:
            self._memory = decision.memory
        report = Report(state, decision, tuple(planned), done, view.conflict, refused)
        self._log(report)
        self._report(report)
        return report

    def _with_written(self, view: ClusterView) -> ClusterView:
        """A count that is neither the one written last nor the one tried last is somebody's.

        A cluster that has it in writing knows better: another process may have led meanwhile.
        """
        for variant in view.variants:
            if variant.num_ordered == self._attempted.get(variant.name):
                self._written[variant.name] = variant.num_ordered
        variants = tuple(
            variant
            if variant.num_written is not None
            else replace(variant, num_written=self._written.get(variant.name))
            for variant in view.variants
        )
        return replace(view, variants=variants)

    async def _act(
        self, actions: Sequence[Action], now_s: float
    ) -> tuple[tuple[Action, ...], str | None]:
        """What was done, and why not more: the first refusal, which ends only what rests on it."""
        done: list[Action] = []
        refused: str | None = None
        unreleased: set[str] = set()  # variants whose lower count would delete just anyone
        for action in actions:
            if not self._fence.may_act():
                return tuple(done), "another process leads"
            if action.variant in unreleased:
                continue
            self._attempted.update(counts_written([action]))
            try:
                await actuate(self._cluster, action, now_s=now_s)
            except ClusterRefused as exc:
                refused = str(exc) if refused is None else refused
                if isinstance(action, Release):
                    unreleased.add(action.variant)
                continue
            done.append(action)
            self._written.update(counts_written([action]))
        return tuple(done), refused

    def _log(self, report: Report) -> None:
        if report.planned or report.refused is not None:
            logger.info(
                "decided",
                extra={
                    "pool": self._rules.policy.name,
                    "num_wanted": report.decision.num_wanted,
                    "num_actions": len(report.done),
                    "reason": sorted(report.decision.codes),
                    "error": report.refused,
                },
            )
