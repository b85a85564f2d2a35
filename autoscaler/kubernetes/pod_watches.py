"""The pods of each label selector, watched from the first time that somebody asks for them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.reflector import Collection, Readable, Reflector, WatchTimings

UNASKED_S: Final = 600.0  # longer than any pool's period


@dataclass(frozen=True, slots=True)
class WatchInputs:
    timings: WatchTimings
    monotonic_s: Callable[[], float]
    random: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    first_list_s: float = 10.0  # a thousand pods take one


@dataclass(slots=True)
class _Watch:
    reflector: Reflector[Pod]
    task: asyncio.Task[None]
    asked_monotonic_s: float


class PodWatches:
    def __init__(
        self, api: Readable, namespace: str, inputs: WatchInputs, group: asyncio.TaskGroup
    ) -> None:
        """Watches are the group's tasks: they end with it."""
        self._api = api
        self._namespace = namespace
        self._inputs = inputs
        self._group = group
        self._watches: dict[str, _Watch] = {}

    async def matching(self, label_selector: str) -> Mapping[str, Pod]:
        """Raises ClusterRefused."""
        now_s = self._inputs.monotonic_s()
        self._end_unasked(now_s)
        if label_selector not in self._watches:
            self._watches[label_selector] = self._begun(label_selector, now_s)
        watch = self._watches[label_selector]
        watch.asked_monotonic_s = now_s
        await watch.reflector.listed(self._inputs.first_list_s)
        return watch.reflector.items

    def _end_unasked(self, now_s: float) -> None:
        """Of workloads that no pool speaks of any more."""
        for selector, watch in list(self._watches.items()):
            if now_s - watch.asked_monotonic_s > UNASKED_S:
                watch.task.cancel()
                del self._watches[selector]

    def _begun(self, label_selector: str, now_s: float) -> _Watch:
        reflector = Reflector(
            self._api,
            Collection(paths.pods(self._namespace), Pod, label_selector),
            self._inputs.timings,
            monotonic_s=self._inputs.monotonic_s,
            random=self._inputs.random,
        )
        running = reflector.run(self._inputs.sleep)
        task = self._group.create_task(running, name=f"watch pods {label_selector}")
        return _Watch(reflector, task, now_s)
