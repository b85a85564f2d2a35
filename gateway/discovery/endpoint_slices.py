"""The endpoints of a Kubernetes service: one list, then a watch.

A watch that the server ends is resumed where it was; one whose history is gone (410) lists again;
one that says nothing for longer than the server's bookmarks are apart is taken for dead.  Attempts
that fail are spread by chance, or all gateways come back at once when an API server does.  While
nothing can be read the last members stay.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from contracts.errors import UNDECODABLE
from gateway.discovery.kubernetes_client import ApiFailure, Expired, KubernetesClient
from gateway.discovery.membership import Publish
from gateway.discovery.slices import (
    Failure,
    Notice,
    Slice,
    SliceList,
    WithMetadata,
    members_of,
)

logger = logging.getLogger(__name__)

_LIFETIME_S: Final = 300  # the server ends a watch then; spread by a third
_SILENCE_S: Final = 90.0  # bookmarks come every minute
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 0.5, 30.0
_PAGE: Final = "500"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    namespace: str
    name: str
    port_name: str  # where a slice has several

    @property
    def path(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    @property
    def selector(self) -> str:
        return f"kubernetes.io/service-name={self.name}"


class EndpointSliceSource:
    def __init__(
        self, client: KubernetesClient, service: Service, random: Callable[[], float]
    ) -> None:
        """``random``: from 0 to below 1."""
        self.name = f"service/{service.name}"
        self._client = client
        self._service = service
        self._random = random
        self._slices: dict[str, Slice] = {}
        self._version = ""  # "": list first

    async def run(self, publish: Publish) -> None:
        num_failures = 0
        while True:
            try:
                await self._follow(publish)
                num_failures = 0
            except Expired:
                self._version = ""
                num_failures += 1
                if num_failures > 1:  # the first time a list helps, and needs no waiting
                    await asyncio.sleep(self._backoff_s(num_failures))
            except (ApiFailure, *UNDECODABLE) as exc:
                num_failures += 1
                logger.warning("watch broken", extra={"path": self.name, "error": str(exc)})
                await asyncio.sleep(self._backoff_s(num_failures))

    async def _follow(self, publish: Publish) -> None:
        """A list if there is none, and one watch to its end."""
        if self._version == "":
            await self._list()
            self._publish(publish)
        lines = self._client.lines(
            self._service.path,
            silence_s=_SILENCE_S,
            labelSelector=self._service.selector,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(round(_LIFETIME_S * (1 + self._random() / 3))),
        )
        begun_s = asyncio.get_running_loop().time()
        async with aclosing(lines):
            async for line in lines:
                if self._note(_decoded(line, Notice)):
                    self._publish(publish)
        if asyncio.get_running_loop().time() - begun_s < _FIRST_BACKOFF_S:
            raise ApiFailure(f"{self._service.path}: a watch that ends at once")

    async def _list(self) -> None:
        found: dict[str, Slice] = {}
        more = ""
        while True:
            query = {"labelSelector": self._service.selector, "limit": _PAGE}
            if more:
                query["continue"] = more
            listed = _decoded(await self._client.get(self._service.path, **query), SliceList)
            found.update((item.metadata.name, item) for item in listed.items)
            more = listed.metadata.continue_
            if not more:
                break
        self._slices, self._version = found, listed.metadata.resource_version

    def _note(self, notice: Notice) -> bool:
        """Whether there is something to publish."""
        match notice.type:
            case "ADDED" | "MODIFIED":
                changed = _decoded(notice.object, Slice)
                self._slices[changed.metadata.name] = changed
                self._version = changed.metadata.resource_version
                return True
            case "DELETED":
                gone = _decoded(notice.object, WithMetadata).metadata
                self._slices.pop(gone.name, None)
                self._version = gone.resource_version
                return True
            case "BOOKMARK":
                self._version = _decoded(notice.object, WithMetadata).metadata.resource_version
                return False
            case _:
                failure = _decoded(notice.object, Failure)
                kind = Expired if failure.code == 410 else ApiFailure
                raise kind(f"{self._service.path}: {failure.code} {failure.reason}")

    def _publish(self, publish: Publish) -> None:
        publish(members_of(self._slices.values(), self._service.port_name))

    def _backoff_s(self, num_failures: int) -> float:
        most_s = min(_MOST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (num_failures - 1))
        return most_s * (0.5 + 0.5 * self._random())


def _decoded(body: bytes | msgspec.Raw, wanted: type[T]) -> T:
    return msgspec.json.decode(body, type=wanted)
