"""The replicas: asked about once a second, told of by failed requests, joining and leaving."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from gateway.clock import Clock
from gateway.errors import ModelNotFound, NoReplicaAvailable
from gateway.routing.adapter_names import adapter_names
from gateway.routing.aliases import Aliases, Target
from gateway.routing.ejection import eject
from gateway.routing.endpoint import Endpoint
from gateway.routing.foreign_metrics import Engine
from gateway.routing.inspection import FAILURES, Inspector, ServedModel
from gateway.routing.others_load import neutral_tokens
from gateway.routing.replica import Replica
from gateway.routing.ring import PrefixRing
from gateway.upstream.replica_client import ReplicaClient

logger = logging.getLogger(__name__)

_NOBODY: Final = frozenset[str]()
_TICK_S: Final = 1.0
_LONGEST_BEGINNING_S: Final = 30.0
_USUAL_SPEEDS: Final = 1.5  # times faster or slower than the mean


@dataclass(frozen=True, slots=True)
class PoolTimings:
    poll_interval_s: float
    poll_timeout_s: float
    slow_start_s: float  # until one that joins has its full share


class ReplicaPool:
    def __init__(
        self,
        clients: Iterable[ReplicaClient],
        aliases: Mapping[str, Target],
        timings: PoolTimings,
        clock: Clock,
        outside: Iterable[Replica] = (),
        sources: Iterable[str] = (),
    ) -> None:
        """``outside``: of other owners, who stay and are asked nothing, but work.

        ``sources``: that will tell who is to join.
        """
        self._replicas = {client.name: Replica(client) for client in clients}
        self._unasked = set(self._replicas)  # of those that it begins with
        self._unheard = set(sources)
        theirs = {replica.name: replica for replica in outside}
        self._replicas |= theirs
        self._leaving: list[Replica] = []  # with requests that still run
        self._aliases = Aliases(aliases)
        self._timings = timings
        self._inspector = Inspector(timings.poll_timeout_s)
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None  # while it watches
        self.plain_names = frozenset[str]()  # of our models, ready or not, that are no aliases
        self._theirs = defaultdict[str, set[str]](set)  # by model: the other owners that serve it
        for name, replica in theirs.items():
            for model in replica.endpoint.models:
                self._theirs[model].add(name)
        self.ready_models = frozenset[str]()  # served now by our own
        self._ready_names: Set[str] = self.ready_models  # with adapters' behind their models'
        self._created_unix_s: dict[str, int] = {}
        self._adapters = adapter_names(())
        self._parents: Mapping[str, str] = {}  # whose adapter each is
        self._called: Mapping[str, str] = {}  # what replicas call those that go by another name
        self.ring = PrefixRing()  # ready or not: those that come back keep their keys
        self.is_blind = True  # nobody knows what other gateways send
        self.takes_priority = False  # all replicas do
        self.version = 0  # rises with each change of who there is, serves what, and is ready
        self._changed_members()

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    @property
    def num_ready(self) -> int:
        """Those of other owners among them, once all that we begin with have been asked."""
        members = self.replicas() if self._is_beginning() else self._replicas.values()
        return sum(replica.is_ready for replica in members)

    def _is_beginning(self) -> bool:
        """One of our own may yet be found ready; not for ever: a source may have nothing to say."""
        if not self._unasked and not self._unheard:
            return False
        return self._clock.monotonic_s() - self._began_s < _LONGEST_BEGINNING_S

    def endpoints(self) -> list[Endpoint]:
        """Those of other owners among them."""
        return [replica.endpoint for replica in self._replicas.values()]

    def replicas(self) -> list[Replica]:
        """Our own."""
        return [replica for replica in self._replicas.values() if replica.outside is None]

    # Models

    def served_models(self, providers: Collection[str] = ()) -> list[str]:
        """Every name that a client may use now whom those ``providers`` may serve, too."""
        members = [r for r in self._replicas.values() if r.outside is None or r.name in providers]
        served = {model for replica in members for model in replica.endpoint.models}
        return sorted(served | self._aliases.names_for(self._adapters.names_for(served)))

    def created_unix_s(self, model: str) -> int:
        """The earliest that was told: some servers tell the time of the question.  0: none told."""
        name = self.goes_by(self._aliases.models(model)[0])
        return self._created_unix_s.get(self.own_name(name), 0)

    def parent(self, model: str) -> str | None:
        """Whose adapter it is, as a replica tells; None: nobody's."""
        return self._parents.get(self.goes_by(self._aliases.models(model)[0]))

    def own_name(self, model: str) -> str:
        """What replicas themselves call it."""
        return self._called.get(model, model)

    def goes_by(self, name: str) -> str:
        """Of an adapter behind its model's name its own, where that is clear."""
        return self._adapters.qualified.get(name, name)

    def resolve(
        self,
        model: str,
        share: Callable[[], float] = lambda: 0.0,
        providers: Collection[str] = (),
    ) -> str:
        """The name replicas use; of a name for several models by the conversation's ``share``, of
        an adapter behind its model's name its own.  ``providers``: who may serve it, too.

        Raises ModelNotFound, or NoReplicaAvailable if nobody can say.
        """
        if model in self.plain_names:
            return model
        if model in self._aliases:
            withheld, ready = self._withheld(providers), self._ready_names
            if not withheld or not withheld.issuperset(self._aliases.models(model)):
                return self.goes_by(self._aliases.resolve(model, share, ready, withheld))
        if model in self._adapters.qualified:
            return self._adapters.qualified[model]
        if self._theirs.get(model, _NOBODY).intersection(providers):
            return model
        if model in self._adapters.choices:
            choices = "' or '".join(self._adapters.choices[model])
            raise ModelNotFound(f"'{model}' is the name of several adapters: ask for '{choices}'.")
        if any(replica.models is None for replica in self._replicas.values()):
            raise NoReplicaAvailable("The replicas have not told yet which models they serve.")
        raise self.not_found(model, providers)

    def _withheld(self, providers: Collection[str]) -> set[str]:
        """Models that only others serve, and none of those ``providers``."""
        theirs = {m for m, names in self._theirs.items() if names.isdisjoint(providers)}
        if theirs:
            theirs.difference_update(*(r.endpoint.models for r in self.replicas()))
        return theirs

    def not_found(self, model: str, providers: Collection[str] = ()) -> ModelNotFound:
        served = ", ".join(self.served_models(providers))
        known = f" Served now: {served}." if served else ""
        return ModelNotFound(f"The model '{model}' does not exist.{known}")

    def serving(self, model: str) -> list[Replica]:
        """Our own that are ready and serve the model."""
        return [r for r in self.replicas() if r.is_ready and model in r.endpoint.models]

    # Joining and leaving

    def join(self, client: ReplicaClient) -> None:
        """As ``follow``, one."""
        self.follow([client], ())

    def leave(self, name: str) -> None:
        """As ``follow``, one."""
        self.follow((), [name])

    def follow(self, joining: Iterable[ReplicaClient], leaving: Iterable[str]) -> None:
        """Who joins gets work once it is ready; one of that name leaves, for it is another now.

        Who leaves gets no more work; what runs there goes on.  No matter if there is none.
        The name of one of another owner is taken.
        """
        joining = [client for client in joining if not self._is_outside(client.name)]
        is_beginning = self._is_beginning()
        for name in (*leaving, *(client.name for client in joining)):
            self._remove(name)
        for client in joining:
            self._replicas[client.name] = Replica(client)
            if is_beginning:
                self._unasked.add(client.name)
            if self._group is not None:
                self._start_poll(self._group, self._replicas[client.name])
        self._changed_members()

    def heard_from(self, source: str) -> None:
        """Whom it tells of has joined."""
        self._unheard.discard(source)

    def _is_outside(self, name: str) -> bool:
        replica = self._replicas.get(name)
        return replica is not None and replica.outside is not None

    def _remove(self, name: str) -> None:
        replica = None if self._is_outside(name) else self._replicas.pop(name, None)
        if replica is None:
            return
        self._leaving.append(replica)
        self._unasked.discard(name)
        poll = self._polls.pop(name, None)
        if poll is not None:
            poll.cancel()

    def mark_unreachable(self, name: str) -> None:
        """Until the next poll finds it well; nobody polls one of another owner."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.record.note(is_failure=True)
            if replica.outside is None:
                self._set_ready(replica, is_ready=False)

    def note(self, name: str, *, is_failure: bool) -> None:
        """How a request there has ended."""
        replica = self._replicas.get(name)
        if replica is not None:
            record = replica.record
            record.num_requests += 1.0
            record.num_failures += is_failure

    # Watching

    async def watch(self, on_tick: Callable[[], None]) -> None:
        """Runs until cancelled.  A replica that answers slowly does not delay the others' turn.

        ``on_tick``: about once a second, when loads are up to date.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for replica in self.replicas():
                    self._start_poll(group, replica)
                while True:
                    await asyncio.sleep(_TICK_S)
                    await self._tick()
                    on_tick()
            finally:
                self._group = None

    async def close(self) -> None:
        """Of our own."""
        for replica in (*self.replicas(), *self._leaving):
            await replica.client.close()

    def refresh(self) -> None:
        """What changes with time alone."""
        now_s = self._clock.monotonic_s()
        replicas = self.replicas()
        neutral = neutral_tokens((replica.others for replica in replicas), now_s)
        self.is_blind = neutral is None
        for replica in replicas:
            tokens = 0 if neutral is None else replica.others.tokens(now_s, neutral)
            replica.set_others_tokens(tokens)
            replica.refresh_kv(now_s)
            replica.warm_up(now_s, self._timings.slow_start_s)
        mean_rate = _compare_speeds(replicas)
        for replica in self._replicas.values():
            if replica.outside is not None:  # as much as one of ours would do meanwhile
                replica.set_others_tokens(round(replica.outside.ttft_s(now_s) * mean_rate))
        self._set_ejected(eject({name: r.record for name, r in self._replicas.items()}, now_s))

    async def _tick(self) -> None:
        self.refresh()
        for replica in [r for r in self._leaving if r.num_in_flight == 0]:
            self._leaving.remove(replica)
            await replica.client.close()

    def _set_ejected(self, names: frozenset[str]) -> None:
        for replica in self._replicas.values():
            is_ejected = replica.name in names
            if is_ejected != replica.endpoint.is_ejected:
                replica.endpoint.is_ejected = is_ejected
                self.version += 1
                logger.warning(
                    "replica ejected" if is_ejected else "replica no longer ejected",
                    extra={"replica": replica.name},
                )

    def _start_poll(self, group: asyncio.TaskGroup, replica: Replica) -> None:
        self._polls[replica.name] = group.create_task(self._watch_one(replica))

    async def _watch_one(self, replica: Replica) -> None:
        while True:
            await self._poll(replica)
            self._unasked.discard(replica.name)
            await asyncio.sleep(self._timings.poll_interval_s)

    async def _poll(self, replica: Replica) -> None:
        inspector, client = self._inspector, replica.client
        try:
            is_ready = await inspector.is_ready(client)
            if is_ready or replica.models is None:
                self._note_models(replica, await inspector.models(client))
            if is_ready and replica.knows_load:
                is_ready = await self._ask_load(replica)
            if is_ready and not replica.knows_load and replica.engine is not Engine.OTHER:
                load = await inspector.foreign_load(client)
                if load is not None:
                    replica.report_foreign(load, self._clock.monotonic_s())
            self._set_ready(replica, is_ready=is_ready and bool(replica.models))
        except FAILURES:
            self._set_ready(replica, is_ready=False)
            # Another may come back in its place; whose make that is, its load tells before it is
            # ready.  Until then our own one's requests are resumed and hedged as its.
            replica.knows_load, replica.engine = True, None
            replica.others.forget()

    def _note_models(self, replica: Replica, listed: Sequence[ServedModel] | None) -> None:
        if listed is None:
            return
        known, replica.models = replica.models, frozenset(model.id for model in listed)
        adapters = {model.id: model.base for model in listed if model.base is not None}
        if adapters != replica.adapters or replica.models != known:
            replica.adapters = adapters
            self._changed_models()
        for model in listed:
            told = model.created
            if isinstance(told, int) and told > 0:
                earliest = min(told, self._created_unix_s.get(model.id, told))
                self._created_unix_s[model.id] = earliest

    async def _ask_load(self, replica: Replica) -> bool:
        """Whether it takes work, for all that it says.  Raises UpstreamError."""
        answer = await self._inspector.load(replica.client)
        replica.knows_load = answer.is_known
        if answer.load is not None or not answer.is_known:  # else it does not say now
            replica.has_reported = answer.load is not None
        known = [replica for replica in self.replicas() if replica.models is not None]
        self.takes_priority = all(r.has_reported for r in known)
        if answer.load is not None:
            replica.report(answer.load, self._clock.monotonic_s())
        return answer.load is None or not answer.load.is_draining

    def _set_ready(self, replica: Replica, *, is_ready: bool) -> None:
        was_ready, known_models = replica.is_ready, replica.endpoint.models
        now_s = self._clock.monotonic_s()
        has_begun = now_s - self._began_s > self._timings.slow_start_s
        replica.set_ready(is_ready, now_s, is_join=has_begun)
        if (is_ready, replica.endpoint.models) != (was_ready, known_models):
            self._changed_models()
        if is_ready != was_ready:
            logger.info(
                "replica ready" if is_ready else "replica not ready",
                extra={"replica": replica.name, "engine": replica.engine},
            )

    def _changed_members(self) -> None:
        self.ring.set_members(replica.name for replica in self.replicas())
        self._changed_models()

    def _changed_models(self) -> None:
        self.version += 1
        replicas = self._replicas.values()
        self._adapters = adapters = adapter_names(told for r in replicas for told in r.told())
        self._parents, self._called = adapters.parents, adapters.own_names
        for replica in replicas:
            replica.name_models(adapters)
        ours = self.replicas()
        served = {model for replica in ours for model in replica.endpoint.models}
        self.plain_names = frozenset(model for model in served if model not in self._aliases)
        self.ready_models = frozenset[str]().union(*(r.endpoint.models for r in ours if r.is_ready))
        self._ready_names = adapters.names_for(self.ready_models | self._theirs.keys())


def _compare_speeds(replicas: Collection[Replica]) -> float:
    """Those that are nearly as fast as all count as such: measured rates always differ a little.

    The mean, in prompt tokens a second; 0: nobody tells.
    """
    told = [r.prefill_tokens_per_s for r in replicas if r.prefill_tokens_per_s > 0]
    mean = sum(told) / len(told) if told else 0.0
    for replica in replicas:
        rate = replica.prefill_tokens_per_s
        slowness = mean / rate if rate > 0 else 1.0
        is_usual = 1 / _USUAL_SPEEDS < slowness < _USUAL_SPEEDS
        replica.endpoint.slowness = 1.0 if is_usual else slowness
    return mean
