"""What a Prometheus server has heard of pods, instead of asking each of them.

One query for a hundred pods: every sample of the last minute, of which the newest of each series
counts, with the time at which it was scraped.  Older ones say nothing of now: such a pod has not
told.  Pods are known by the labels ``namespace`` and ``pod``, which PodMonitors give.
https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from autoscaler.cluster import Address
from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, Sample, normal_name
from autoscaler.pages import Reading
from autoscaler.scrape import get

T = TypeVar("T")

MAX_AGE_S: Final = 60  # two scrapes at the usual intervals
_NUM_PODS_IN_ONE: Final = 100  # of them an answer is a megabyte

_Target = tuple[str, str]  # job and instance


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct, frozen=True):
    result: list[_Series]


class _Answer(msgspec.Struct, frozen=True):
    data: _Matrix


@dataclass(frozen=True, slots=True)
class Prometheus:
    server: Address
    path: str  # before the API's own; empty: it is served at the root
    namespace: str  # of the pods
    timeout_s: float

    async def read(
        self, addresses: Mapping[str, Address], reading: Reading[T]
    ) -> Mapping[str, T | None]:
        """Who is not found, or not heard of lately, did not tell."""
        pods = list(addresses)
        parts = (
            self._part(pods[first : first + _NUM_PODS_IN_ONE], reading)
            for first in range(0, len(pods), _NUM_PODS_IN_ONE)
        )
        told: dict[str, T] = {}
        for part in await asyncio.gather(*parts):
            told.update(part)
        return {pod: told.get(pod) for pod in addresses}

    async def _part(self, pods: Sequence[str], reading: Reading[T]) -> Mapping[str, T]:
        """Of those that told."""
        query = urlencode({"query": query_of(self.namespace, pods, reading.names)})
        try:
            body = await get(
                self.server, f"{self.path}/api/v1/query?{query}", timeout_s=self.timeout_s
            )
            series = msgspec.json.decode(body, type=_Answer).data.result
        except (SourceFailed, msgspec.DecodeError):
            return {}
        samples = {pod: _sampled(targets, reading) for pod, targets in _by_pod(series).items()}
        return {pod: sample for pod, sample in samples.items() if sample is not None}


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
