"""The turnstile and the forecasts before real schedulers, whose steps take a known time.

Nothing computes and nothing listens: on an event loop whose time is virtual a minute of a busy
fleet takes less than a second, and is the same each time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from contracts.admission import AdmissionPolicy
from gateway.api.context import RequestContext
from gateway.clock import Clock
from gateway.completion import Completion, Flow
from gateway.errors import Overloaded
from gateway.metering import Meter
from gateway.turnstile import Turnstile
from replica.engine.block_manager import BlockManager
from replica.engine.messages import SamplingParams
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.engine.sequence import Prompt, Standing
from replica.engine.sequence import Sequence as EngineSequence
from replica.engine.step import SampledToken, ScheduledChunk
from replica.engine.step_meter import StepMeter
from tests.gateway.fleets import LOAD, context_of, fleet_of, inference_request

STEP_S, PREFILL_S, DECODE_S = 0.008, 0.005, 0.006  # each step, each token of a prompt, each row
_LIMITS = SchedulerLimits(block_size=16, max_num_seqs=32, max_num_batched_tokens=128)
_NUM_BLOCKS = 1_400
_REPORT_S = 1.0
_BODY = b'{"model": "m"}'
_TOKEN = SampledToken(5, is_finite=True)
_IDENTITY = PrefixIdentity("virtual", "float32")


@dataclass(slots=True)
class Job:
    """A request inside a replica."""

    first_token: Completion[None] = field(default_factory=Completion)
    end: Completion[None] = field(default_factory=Completion)


class VirtualReplica:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._scheduler = Scheduler(_LIMITS, BlockManager(_NUM_BLOCKS), [])
        self._meter = StepMeter()
        self._jobs: dict[int, Job] = {}
        self._is_stepping = False
        self._num_submitted = 0

    def submit(self, tenant: str, prompt_tokens: int, answer_tokens: int) -> Job:
        loop = asyncio.get_running_loop()
        self._num_submitted += 1
        number = self._num_submitted
        token_ids = [number, *[7] * (prompt_tokens - 1)]  # it begins like no other
        self._scheduler.add(
            EngineSequence(
                sequence_id=number,
                standing=Standing(number, tenant, 0, loop.time()),
                prompt=Prompt(token_ids),
                params=SamplingParams(max_tokens=answer_tokens, ignore_eos=True),
                root=_IDENTITY.root(tenant),
            )
        )
        job = self._jobs[number] = Job()
        if not self._is_stepping:
            self._is_stepping = True
            loop.call_soon(self._step)
        return job

    def load(self) -> object:
        stats = self._scheduler.stats()
        return msgspec.structs.replace(
            LOAD,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            queued_prompt_tokens=stats.queued_prompt_tokens,
            prefill_tokens_per_s=self._meter.prefill.tokens_per_s,
        )

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        chunks = self._scheduler.schedule(loop.time())
        if not chunks:
            self._is_stepping = False
            return
        num_decoded = sum(chunk.is_decoding for chunk in chunks)
        num_prefilled = sum(chunk.num_tokens for chunk in chunks) - num_decoded
        duration_s = STEP_S + PREFILL_S * num_prefilled + DECODE_S * num_decoded
        duration_s *= self._random.uniform(0.95, 1.1)
        self._meter.note(
            num_prefilled=num_prefilled, num_decoded=num_decoded, duration_s=duration_s
        )
        loop.call_later(duration_s, self._retire, chunks)

    def _retire(self, chunks: Sequence[ScheduledChunk]) -> None:
        self._scheduler.retire()
        told: list[Completion[None]] = []
        for chunk in chunks:
            if chunk.is_void:
                continue
            sequence = chunk.sequence
            self._scheduler.update(chunk, _TOKEN if chunk.is_sampled else None)
            if sequence.num_completion_tokens == 1:
                told.append(self._jobs[sequence.sequence_id].first_token)
            if sequence.finish_reason is not None:
                told.append(self._jobs.pop(sequence.sequence_id).end)
        self._step()
        for completion in told:
            completion.resolve(None)


@dataclass(slots=True)
class Visit:
    """One request, as its client saw it."""

    tenant: str
    turn: int  # the same when the same is asked again
    asked_s: float
    end: Completion[None] = field(default_factory=Completion)
    went_s: float | None = None  # to a replica
    first_token_s: float | None = None
    retry_after_ms: int | None = None  # refused

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None
        return self.first_token_s - self.asked_s


class VirtualFleet:
    def __init__(self, num_replicas: int = 2, *, max_waiting: int = 1_000, seed: int = 1) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock(loop.time, loop.time)
        names = [f"replica-{number}" for number in range(num_replicas)]
        self.began_s = loop.time()
        self.random = Random(seed)
        self.visits: list[Visit] = []
        self.errors: list[tuple[float, float]] = []  # predicted and actual seconds
        self._replicas = {name: VirtualReplica(Random(seed)) for name in names}
        self._fleet = fleet_of(
            *names,
            clock=clock,
            on_progress=lambda: self._turnstile.look(),
            observe_ttft=lambda predicted, actual: self.errors.append((predicted, actual)),
        )
        self._turnstile = Turnstile(self._fleet, clock, max_waiting=max_waiting, ageing_s=30.0)
        self._report()

    def come(
        self,
        tenant: str,
        policy: AdmissionPolicy,
        per_s: float,
        shape: Callable[[Random], tuple[int, int]],
    ) -> None:
        """Requests at random from now on; ``shape``: tokens of a prompt and of its answer."""
        random, loop = Random(f"{tenant} {self.random.random()}"), asyncio.get_running_loop()

        def ask() -> None:
            self.ask(tenant, policy, *shape(random))
            loop.call_later(random.expovariate(per_s), ask)

        loop.call_later(random.expovariate(per_s), ask)

    def ask(
        self,
        tenant: str,
        policy: AdmissionPolicy,
        prompt_tokens: int,
        answer_tokens: int,
        turn: int = 0,
    ) -> Visit:
        request = inference_request(
            "m",
            prompt_tokens=int(1.2 * prompt_tokens),  # estimates are high
            reserved_tokens=answer_tokens,
            is_stream=True,
            key=self.random.randbytes(8),
        )
        context = context_of(tenant, policy, request)
        visit = Visit(tenant, turn, asyncio.get_running_loop().time())
        self.visits.append(visit)
        Flow(
            self._serve(context, visit, prompt_tokens, answer_tokens),
            lambda _: visit.end.resolve(None),
        ).start()
        return visit

    async def _serve(
        self, context: RequestContext, visit: Visit, prompt_tokens: int, answer_tokens: int
    ) -> None:
        loop, meter, policy = asyncio.get_running_loop(), Meter(), context.grant.admission
        waiting = None
        try:
            self._turnstile.check(context.grant, _BODY, visit.turn)
            waiting = self._turnstile.enter(context, meter, visit.turn)
            if waiting is not None:
                await waiting.holder.called
        except Overloaded as refusal:
            visit.retry_after_ms = refusal.retry_after_ms
            return
        finally:
            if waiting is not None:
                self._turnstile.queues["m"].remove(waiting)
        decision = self._fleet.choose(context.request, (), policy.ttft_target_ms)
        visit.went_s = loop.time()
        name = decision.endpoint.name
        stay = self._fleet.begin(self._fleet.pool[name], context.request, loop.time())
        job = self._replicas[name].submit(visit.tenant, prompt_tokens, answer_tokens)
        await job.first_token
        visit.first_token_s = loop.time()
        self._fleet.first_token(stay, loop.time())
        await job.end
        self._fleet.end(stay)
        self._turnstile.settle(context, meter, prompt_tokens + answer_tokens)

    def _report(self) -> None:
        loop = asyncio.get_running_loop()
        for name, replica in self._replicas.items():
            self._fleet.pool[name].report(replica.load(), loop.time())
        self._fleet.pool.refresh()
        loop.call_later(_REPORT_S, self._report)
