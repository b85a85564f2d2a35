"""Replicas: whether each answers, serves what the others serve, and has the same time."""

import email.utils
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec

from pandal.doctor.finding import Finding, failure, fine, warning
from pandal.errors import Unreachable
from pandal.http_client import Address, get, parse_url

_ABOUT: Final = "replicas"
_ANSWER_S: Final = 5.0
_CLOCK_S: Final = 3.0  # HTTP tells whole seconds
_AT_ONCE: Final = 16


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Examined:
    name: str
    failure: str | None
    is_ready: bool = False
    models: frozenset[str] = frozenset()
    clock_s: float | None = None  # from this machine's


def examine(urls: Mapping[str, str]) -> Sequence[Examined]:
    """By name.  Blocks; all at once."""
    if not urls:
        return []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(_examined, urls.keys(), urls.values()))


def replica_findings(examined: Sequence[Examined]) -> Iterator[Finding]:
    for replica in examined:
        if replica.failure is not None:
            yield failure(
                _ABOUT, f"{replica.name}: {replica.failure}", "start it, or take it off the list"
            )
        elif not replica.is_ready:
            advice = "its log tells what it waits for"
            yield warning(_ABOUT, f"{replica.name} answers, and is not ready", advice)
    there = [replica for replica in examined if replica.failure is None]
    for replica in there:
        if replica.clock_s is not None and abs(replica.clock_s) > _CLOCK_S:
            fact = f"{replica.name}: its clock is {replica.clock_s:+.0f} s from this machine's"
            yield warning(_ABOUT, fact, "run NTP on both")
    by_models: dict[frozenset[str], list[str]] = {}
    for replica in there:
        by_models.setdefault(replica.models, []).append(replica.name)
    if len(by_models) > 1:
        told = "; ".join(
            f"{', '.join(sorted(models)) or 'none'}: {len(names)}"
            for models, names in by_models.items()
        )
        advice = "as it should be for several pools, and not within one"
        yield warning(_ABOUT, f"they serve different models ({told})", advice)
    elif there and len(there) == len(examined):
        yield fine(_ABOUT, f"{len(there)} serve {', '.join(sorted(there[0].models)) or 'nothing'}")


def _examined(name: str, url: str) -> Examined:
    try:
        address = parse_url(url, option=name)
        ready = get(address, "/ready", timeout_s=_ANSWER_S)
        away_s = _clock_away_s(ready.headers.get("date"))
        models = _models(address)
    except Unreachable as exc:
        return Examined(name, str(exc))
    return Examined(name, None, ready.status == 200, models, away_s)


def _models(address: Address) -> frozenset[str]:
    answer = get(address, "/v1/models", timeout_s=_ANSWER_S)
    return frozenset(model.id for model in answer.decode(_Models).data)


def _clock_away_s(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return None
