"""What a Prometheus server has heard of pods, instead of asking each of them.

One query for a hundred pods, or fewer where that is too much (``part_size``): every sample of the
last minute, of which the newest of each series counts, with the time at which it was scraped.
Older ones say nothing of now: such a pod has not told.  Pods are known by the labels ``namespace``
and ``pod``, which PodMonitors give.
https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

import asyncio
import json
import logging
import re
from asyncio import TaskGroup
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from autoscaler.cluster import Address
from autoscaler.errors import SourceFailed, SourceRefused, SourceTooLarge
from autoscaler.exposition import Families, Sample, normal_name
from autoscaler.pages import Reading
from autoscaler.part_size import PartSize
from autoscaler.scrape import exchange, get

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_AGE_S: Final = 60  # two scrapes at the usual intervals
MAX_AT_ONCE: Final = 4  # queries of a pool's look; a server runs twenty at once unless told so
DEADLINE_RATIO: Final = 3  # of a query's timeout: within it, what is too much is asked for again
_LONGEST_IN_PATH: Final = 2_000  # bytes; a longer query is posted: proxies cut long paths
_TOO_MUCH: Final = frozenset({"413", "414", "422"})  # 422: more samples than a query may load

_Target = tuple[str, str]  # job and instance


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct, frozen=True):
    result: list[_Series]


class _Answer(msgspec.Struct, frozen=True):
    data: _Matrix


class Prometheus:
    def __init__(self, server: Address, *, path: str, namespace: str, timeout_s: float) -> None:
        """``path``: before the API's own; empty where it is at the root.  Pods' ``namespace``.

        ``timeout_s`` is one query's; a whole read takes DEADLINE_RATIO of it.
        """
        self._server = server
        self._path = f"{path}/api/v1/query"
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._standings: dict[tuple[str, ...], _Standing] = {}  # by a reading's names

    async def read(
        self, addresses: Mapping[str, Address], reading: Reading[T]
    ) -> Mapping[str, T | None]:
        """Who is not found, not heard of lately, or not told of in time, did not tell."""
        standing = self._standings.setdefault(reading.names, _Standing())
        look = _Look[T](deque(addresses))
        try:
            async with asyncio.timeout(DEADLINE_RATIO * self._timeout_s), TaskGroup() as group:
                for _ in range(MAX_AT_ONCE):
                    group.create_task(self._ask(look, reading, standing.size))
        except TimeoutError:
            look.failures.append(SourceFailed("the rest was not told in time"))
        if addresses:
            standing.note(look.failures)
        return {pod: look.told.get(pod) for pod in addresses}

    async def _ask(self, look: "_Look[T]", reading: Reading[T], size: PartSize) -> None:
        """Part by part until none is left; what is too much at once goes back to those."""
        while part := look.next_part(size.num_pods):
            try:
                look.told.update(await self._told(part, reading))
            except SourceTooLarge as exc:
                if size.note_too_much(len(part)):
                    look.left.extend(part)
                else:
                    look.failures.append(exc)
            except SourceFailed as exc:
                look.failures.append(exc)

    async def _told(self, pods: Sequence[str], reading: Reading[T]) -> Mapping[str, T]:
        """Raises SourceFailed."""
        try:
            body = await self._answer(query_of(self._namespace, pods, reading.names))
            series = msgspec.json.decode(body, type=_Answer).data.result
        except msgspec.DecodeError as exc:
            raise SourceFailed("no answer of a Prometheus") from exc
        except SourceRefused as exc:
            if exc.status in _TOO_MUCH:
                raise SourceTooLarge(f"status {exc.status}") from exc
            raise SourceFailed(f"status {exc.status}") from exc
        samples = {pod: _sampled(targets, reading) for pod, targets in _by_pod(series).items()}
        return {pod: sample for pod, sample in samples.items() if sample is not None}

    async def _answer(self, query: str) -> str:
        """Raises SourceFailed."""
        form = urlencode({"query": query})
        if len(form) <= _LONGEST_IN_PATH:
            return await get(self._server, f"{self._path}?{form}", timeout_s=self._timeout_s)
        return await exchange(
            self._server, "POST", self._path, timeout_s=self._timeout_s, form=form
        )


@dataclass(slots=True)
class _Look(Generic[T]):
    """Whom one read has still to ask of, and what it was told."""

    left: deque[str]
    told: dict[str, T] = field(default_factory=dict)
    failures: list[SourceFailed] = field(default_factory=list)

    def next_part(self, num_pods: int) -> Sequence[str]:
        return [self.left.popleft() for _ in range(min(num_pods, len(self.left)))]


class _Standing:
    """Of one reading, from look to look."""

    def __init__(self) -> None:
        self.size = PartSize()
        self._is_failing = False

    def note(self, failures: Sequence[SourceFailed]) -> None:
        """Logs a failure once when it begins and once when it ends: not at each look."""
        if failures and not self._is_failing:
            logger.warning("prometheus does not tell", extra={"error": str(failures[0])})
        elif not failures and self._is_failing:
            logger.info("prometheus tells again")
        self._is_failing = bool(failures)
        if not failures:
            self.size.note_good_look()


def query_of(namespace: str, pods: Iterable[str], names: Iterable[str]) -> str:
    """A name with a colon may be spelled with an underscore: some servers escape it so."""
    told = {
        "__name__": "|".join(name.replace(":", "[:_]") for name in names),
        "namespace": re.escape(namespace),
        "pod": "|".join(map(re.escape, pods)),
    }
    matchers = ",".join(f"{label}=~{json.dumps(regex)}" for label, regex in told.items())
    return f"{{{matchers}}}[{MAX_AGE_S}s]"


def _by_pod(series: Iterable[_Series]) -> Mapping[str, Mapping[_Target, list[_Series]]]:
    found: dict[str, dict[_Target, list[_Series]]] = {}
    for each in series:
        if each.values:
            labels = each.metric
            target = labels.get("job", ""), labels.get("instance", "")
            found.setdefault(labels.get("pod", ""), {}).setdefault(target, []).append(each)
    return found


def _sampled(targets: Mapping[_Target, Sequence[_Series]], reading: Reading[T]) -> T | None:
    """Of the pod's last scrape, of which job ever; a series that is not in it has ended."""
    taken_at_s, target = max(
        (max(each.values[-1][0] for each in series), target) for target, series in targets.items()
    )
    newest = (each for each in targets[target] if each.values[-1][0] == taken_at_s)
    try:
        return reading.sample(_families(newest), taken_at_s)
    except SourceFailed:
        return None


def _families(series: Iterable[_Series]) -> Families:
    """Raises SourceFailed."""
    found: dict[str, list[Sample]] = {}
    for each in series:
        labels = dict(each.metric)
        name = normal_name(labels.pop("__name__", ""))
        try:
            value = float(each.values[-1][1])
        except ValueError as exc:
            raise SourceFailed(f"{name}: a value that is no number") from exc
        found.setdefault(name, []).append(Sample(labels, value))
    return found
