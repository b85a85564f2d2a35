"""A collection of objects kept as the API server has it: one list, then a watch.

A watch that the server ends is resumed where it was; one whose history is gone (410) lists again;
one that says nothing for longer than the server's bookmarks are apart is taken for dead, whatever
TCP believes.  Attempts that fail are spread by chance, or every watcher comes back at once when an
API server does.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol

from autoscaler.errors import ClusterRefused, Expired
from autoscaler.kubernetes.objects import Failure, HasMetadata, Item, Listed, Notice, decoded

logger = logging.getLogger(__name__)

_EXPIRED = 410


class Readable(Protocol):
    """What a reflector needs of the API server.  Both raise ClusterRefused."""

    async def get(self, path: str, **query: str) -> bytes: ...

    def lines(self, path: str, *, silence_s: float, **query: str) -> AsyncGenerator[bytes, None]:
        """Of a watch, until the server ends it; ``silence_s`` without a byte is a refusal."""


@dataclass(frozen=True, slots=True)
class WatchTimings:
    lifetime_s: float = 300.0  # the server ends a watch then; spread by a third
    silence_s: float = 90.0  # bookmarks come every minute
    first_backoff_s: float = 0.5
    most_backoff_s: float = 30.0
    page_size: int = 500


@dataclass(frozen=True, slots=True)
class Collection(Generic[Item]):
    path: str
    item: type[Item]
    label_selector: str = ""


class Reflector(Generic[Item]):
    def __init__(
        self,
        api: Readable,
        collection: Collection[Item],
        timings: WatchTimings,
        *,
        monotonic_s: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._api = api
        self._collection: Collection[Item] = collection
        self._timings = timings
        self._monotonic_s = monotonic_s
        self._random = random
        self._items: dict[str, Item] = {}
        self._version = ""  # "": list first
        self._heard_monotonic_s: float | None = None
        self._listed = asyncio.Event()

    @property
    def items(self) -> Mapping[str, Item]:
        """By name.  Raises ClusterRefused where nothing has been heard for too long."""
        heard_s = self._heard_monotonic_s
        if heard_s is None or not self._listed.is_set():
            raise ClusterRefused(f"{self._collection.path}: not listed yet")
        age_s = self._monotonic_s() - heard_s
        if age_s > self._timings.silence_s + self._timings.first_backoff_s:
            raise ClusterRefused(f"{self._collection.path}: nothing heard for {age_s:.0f} s")
        return self._items

    async def listed(self, timeout_s: float) -> None:
        """Raises ClusterRefused when there is no list by then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._listed.wait()
        except TimeoutError as exc:
            raise ClusterRefused(f"{self._collection.path}: not listed in time") from exc

    async def run(self, sleep: Callable[[float], Awaitable[None]]) -> NoReturn:
        """Until cancelled."""
        num_failures = 0
        while True:
            try:
                await self._follow()
                num_failures = 0
            except Expired:
                self._version = ""
                num_failures += 1
                if num_failures > 1:  # the first time a list helps, and needs no waiting
                    await sleep(self._backoff_s(num_failures))
            except ClusterRefused as exc:
                num_failures += 1
                logger.warning(
                    "watch broken", extra={"path": self._collection.path, "error": str(exc)}
                )
                await sleep(self._backoff_s(num_failures))
            except Exception:
                num_failures += 1
                logger.exception("watch broken", extra={"path": self._collection.path})
                await sleep(self._backoff_s(num_failures))

    async def _follow(self) -> None:
        """A list if there is none, and one watch to its end."""
        if self._version == "":
            await self._list()
        lifetime_s = self._timings.lifetime_s * (1 + self._random() / 3)
        lines = self._api.lines(
            self._collection.path,
            silence_s=self._timings.silence_s,
            **self._selected(),
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(max(1, round(lifetime_s))),
        )
        begun_s = self._monotonic_s()
        async with aclosing(lines):
            async for line in lines:
                self._heard_monotonic_s = self._monotonic_s()
                self._note(decoded(line, Notice))
        if self._monotonic_s() - begun_s < self._timings.first_backoff_s:
            raise ClusterRefused("a watch that ends at once")

    async def _list(self) -> None:
        found: dict[str, Item] = {}
        page = Listed[self._collection.item]  # type: ignore[name-defined]  # known at run time
        more = ""
        while True:
            query = {**self._selected(), "limit": str(self._timings.page_size)}
            if more:
                query["continue"] = more
            body = await self._api.get(self._collection.path, **query)
            listed = decoded(body, page)
            found.update((item.metadata.name, item) for item in listed.items)
            more = listed.metadata.continue_
            if not more:
                break
        self._items, self._version = found, listed.metadata.resource_version
        self._heard_monotonic_s = self._monotonic_s()
        self._listed.set()

    def _note(self, notice: Notice) -> None:
        match notice.type:
            case "ADDED" | "MODIFIED":
                item = decoded(notice.object, self._collection.item)
                self._items[item.metadata.name] = item
                self._version = item.metadata.resource_version
            case "DELETED":
                gone = decoded(notice.object, HasMetadata)
                self._items.pop(gone.metadata.name, None)
                self._version = gone.metadata.resource_version
            case "BOOKMARK":
                mark = decoded(notice.object, HasMetadata)
                self._version = mark.metadata.resource_version
            case _:
                failure = decoded(notice.object, Failure)
                raise _refusal(self._collection.path, failure)

    def _selected(self) -> dict[str, str]:
        selector = self._collection.label_selector
        return {"labelSelector": selector} if selector else {}

    def _backoff_s(self, num_failures: int) -> float:
        doubled_s = self._timings.first_backoff_s * 2.0 ** (num_failures - 1)
        most_s = min(self._timings.most_backoff_s, doubled_s)
        return most_s * (0.5 + 0.5 * self._random())


def _refusal(path: str, failure: Failure) -> ClusterRefused:
    if failure.code == _EXPIRED:
        return Expired(f"{path}: {failure.reason}")
    return ClusterRefused(f"{path}: {failure.code} {failure.reason}")
