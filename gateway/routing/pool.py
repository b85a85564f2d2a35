"""What each configured replica is up to: asked about once a second, and told by failed requests."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE
from contracts.load import LOAD_PATH, ReplicaLoad
from gateway.clock import Clock
from gateway.errors import ModelNotFound, NoReplicaAvailable, UpstreamError
from gateway.routing.endpoint import Endpoint
from gateway.routing.ttft_forecast import TtftForecast
from gateway.upstream.replica_client import ReplicaClient

logger = logging.getLogger(__name__)


class _ServedModel(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    created: object = None  # Unix time in seconds, where a server keeps to the API


class _ModelList(msgspec.Struct):
    data: list[_ServedModel]


class Replica:
    """One configured replica: its client and what is known of it."""

    def __init__(self, client: ReplicaClient) -> None:
        self.client = client
        self.name = client.name
        self.models: frozenset[str] | None = None  # None: it has never told
        self.endpoint = Endpoint(client.name, is_ready=False, models=frozenset())
        self.forecast = TtftForecast()
        self.knows_load = True  # until it says otherwise
        self.has_reported = False  # it is one of our own make

    @property
    def is_ready(self) -> bool:
        return self.endpoint.is_ready

    def begin(self) -> None:
        """One more request is open on it."""
        self.endpoint.num_in_flight += 1

    def end(self) -> None:
        self.endpoint.num_in_flight -= 1

    def set_ready(self, is_ready: bool) -> None:
        """With the models that it serves."""
        self.endpoint.is_ready = is_ready
        self.endpoint.models = frozenset[str]() if self.models is None else self.models


class ReplicaPool:
    def __init__(
        self,
        clients: Sequence[ReplicaClient],
        aliases: Mapping[str, str],
        poll_timeout_s: float,
        clock: Clock,
    ) -> None:
        self._replicas = {client.name: Replica(client) for client in clients}
        self._aliases = aliases
        self._poll_timeout_s = poll_timeout_s
        self._clock = clock
        self._known_models = frozenset[str]()  # ready or not
        self._created_unix_s: dict[str, int] = {}
        self.takes_priority = False  # all replicas do
        self.version = 0  # rises with each change of what a replica serves, or of its readiness

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    @property
    def num_ready(self) -> int:
        return sum(replica.is_ready for replica in self._replicas.values())

    def endpoints(self) -> list[Endpoint]:
        return [replica.endpoint for replica in self._replicas.values()]

    def served_models(self) -> list[str]:
        """Every name a client may use now: models with their aliases."""
        served = {model for replica in self._replicas.values() for model in replica.models or ()}
        aliases = {alias for alias, model in self._aliases.items() if model in served}
        return sorted(served | aliases)

    def created_unix_s(self, model: str) -> int:
        """The earliest that was told: some servers tell the time of the question.  0: none told."""
        return self._created_unix_s.get(self._aliases.get(model, model), 0)

    def resolve(self, model: str) -> str:
        """The name replicas use.  Raises ModelNotFound, or NoReplicaAvailable if nobody can say."""
        if model in self._aliases:
            return self._aliases[model]
        if model in self._known_models:
            return model
        if any(replica.models is None for replica in self._replicas.values()):
            raise NoReplicaAvailable("The replicas have not told yet which models they serve.")
        raise self.not_found(model)

    def not_found(self, model: str) -> ModelNotFound:
        served = ", ".join(self.served_models())
        known = f" Served now: {served}." if served else ""
        return ModelNotFound(f"The model '{model}' does not exist.{known}")

    def serving(self, model: str) -> list[Replica]:
        """Those that are ready and serve the model."""
        replicas = self._replicas.values()
        return [r for r in replicas if r.is_ready and model in r.endpoint.models]

    def mark_unreachable(self, name: str) -> None:
        """Until the next poll finds it well."""
        self._set_ready(self._replicas[name], is_ready=False)

    async def watch(self, interval_s: float) -> None:
        """Runs until cancelled.  A replica that answers slowly does not delay the others' turn."""
        async with asyncio.TaskGroup() as group:
            for replica in self._replicas.values():
                group.create_task(self._watch_one(replica, interval_s))

    async def close(self) -> None:
        for replica in self._replicas.values():
            await replica.client.close()

    async def _watch_one(self, replica: Replica, interval_s: float) -> None:
        while True:
            await self._poll(replica)
            await asyncio.sleep(interval_s)

    async def _poll(self, replica: Replica) -> None:
        try:
            is_ready = await self._ask_ready(replica)
            if is_ready or replica.models is None:
                await self._ask_models(replica)
            self._set_ready(replica, is_ready=is_ready and bool(replica.models))
            if is_ready and replica.knows_load:
                await self._ask_load(replica)
        except (UpstreamError, *UNDECODABLE):
            self._set_ready(replica, is_ready=False)
            replica.knows_load = True  # another may come back in its place

    async def _ask_ready(self, replica: Replica) -> bool:
        answer = await replica.client.fetch("/ready", self._poll_timeout_s)
        if answer.status == 404:  # vLLM, SGLang and others know only /health
            answer = await replica.client.fetch("/health", self._poll_timeout_s)
        return answer.status == 200

    async def _ask_models(self, replica: Replica) -> None:
        answer = await replica.client.fetch("/v1/models", self._poll_timeout_s)
        if answer.status == 200:
            listed = msgspec.json.decode(answer.body, type=_ModelList)
            replica.models = frozenset(model.id for model in listed.data)
            for model in listed.data:
                self._note_created(model)

    def _note_created(self, model: _ServedModel) -> None:
        told = model.created
        if isinstance(told, int) and told > 0:
            self._created_unix_s[model.id] = min(told, self._created_unix_s.get(model.id, told))

    async def _ask_load(self, replica: Replica) -> None:
        """Raises UpstreamError.  A replica of another make has no report: it is asked once."""
        answer = await replica.client.fetch(LOAD_PATH, self._poll_timeout_s)
        replica.knows_load = answer.status != 404
        replica.has_reported = answer.status == 200
        known = [r for r in self._replicas.values() if r.models is not None]
        self.takes_priority = all(r.has_reported for r in known)
        if answer.status == 200:
            try:
                load = msgspec.json.decode(answer.body, type=ReplicaLoad)
            except UNDECODABLE:
                replica.knows_load = False
            else:
                replica.forecast.report(load, self._clock.monotonic_s())

    def _set_ready(self, replica: Replica, *, is_ready: bool) -> None:
        was_ready, known_models = replica.is_ready, replica.endpoint.models
        replica.set_ready(is_ready)
        if (is_ready, replica.endpoint.models) != (was_ready, known_models):
            self.version += 1
            known = [r.models for r in self._replicas.values() if r.models is not None]
            self._known_models = frozenset[str]().union(*known)
        if is_ready != was_ready:
            logger.info(
                "replica ready" if is_ready else "replica not ready",
                extra={"replica": replica.name},
            )
