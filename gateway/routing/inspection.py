"""What a replica tells when it is asked: whether it is ready, what it serves, how busy it is."""

from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE
from contracts.load import LOAD_PATH, ReplicaLoad
from gateway.errors import UpstreamError
from gateway.routing.foreign_metrics import Engine, ForeignLoad, foreign_load
from gateway.upstream.replica_client import ReplicaClient


class ServedModel(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    created: object = None  # Unix time in seconds, where a server keeps to the API
    parent: object = None  # the name of whose adapter it is, where a server says so as vLLM does

    @property
    def base(self) -> str | None:
        """None: it is no adapter, for all that is said."""
        return self.parent if isinstance(self.parent, str) and self.parent != self.id else None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


class LoadAnswer(msgspec.Struct, frozen=True):
    is_known: bool  # it has such a report at all
    load: ReplicaLoad | None  # None: not now


class Inspector:
    """All raise UpstreamError, or what ``msgspec`` raises."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def is_ready(self, client: ReplicaClient) -> bool:
        answer = await client.fetch("/ready", self._timeout_s)
        if answer.status == 404:  # vLLM, SGLang and others know only /health
            answer = await client.fetch("/health", self._timeout_s)
        return answer.status == 200

    async def models(self, client: ReplicaClient) -> list[ServedModel] | None:
        """``None``: it does not say now."""
        answer = await client.fetch("/v1/models", self._timeout_s)
        if answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=_ModelList).data

    async def load(self, client: ReplicaClient) -> LoadAnswer:
        """A replica of another make has no report: it need be asked only once."""
        answer = await client.fetch(LOAD_PATH, self._timeout_s)
        if answer.status != 200:
            return LoadAnswer(answer.status != 404, None)
        try:
            return LoadAnswer(True, msgspec.json.decode(answer.body, type=ReplicaLoad))
        except UNDECODABLE:
            return LoadAnswer(False, None)

    async def foreign_load(self, client: ReplicaClient) -> ForeignLoad | None:
        """By the metrics that servers of other makes have.  One without any is ``OTHER``.

        ``None``: it does not say now.
        """
        try:
            answer = await client.fetch("/metrics", self._timeout_s)
        except UpstreamError:
            return None  # its health does not hang on that
        if answer.status == 404:
            return ForeignLoad(Engine.OTHER)
        return foreign_load(answer.body) if answer.status == 200 else None


FAILURES = (UpstreamError, *UNDECODABLE)
