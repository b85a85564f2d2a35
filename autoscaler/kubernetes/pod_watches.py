"""The pods of each label selector, watched from the first time that somebody asks for them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.reflector import Collection, Readable, Reflector, WatchTimings


@dataclass(frozen=True, slots=True)
class WatchInputs:
    timings: WatchTimings
    monotonic_s: Callable[[], float]
    random: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    first_list_s: float = 10.0  # a thousand pods take one


class PodWatches:
    def __init__(
        self, api: Readable, namespace: str, inputs: WatchInputs, group: asyncio.TaskGroup
    ) -> None:
        """Watches are the group's tasks: they end with it."""
        self._api = api
        self._namespace = namespace
        self._inputs = inputs
        self._group = group
        self._watched: dict[str, tuple[Reflector[Pod], asyncio.Task[None]]] = {}

    async def matching(self, label_selector: str) -> Mapping[str, Pod]:
        """Raises ClusterRefused."""
        if label_selector not in self._watched:
            self._watched[label_selector] = self._begun(label_selector)
        reflector, _ = self._watched[label_selector]
        await reflector.listed(self._inputs.first_list_s)
        return reflector.items

    def keep(self, label_selectors: frozenset[str]) -> None:
        """The others are of workloads that no pool speaks of any more."""
        for selector in self._watched.keys() - label_selectors:
            _, task = self._watched.pop(selector)
            task.cancel()

    def _begun(self, label_selector: str) -> tuple[Reflector[Pod], asyncio.Task[None]]:
        reflector = Reflector(
            self._api,
            Collection(paths.pods(self._namespace), Pod, label_selector),
            self._inputs.timings,
            monotonic_s=self._inputs.monotonic_s,
            random=self._inputs.random,
        )
        running = reflector.run(self._inputs.sleep)
        return reflector, self._group.create_task(running, name=f"watch pods {label_selector}")
