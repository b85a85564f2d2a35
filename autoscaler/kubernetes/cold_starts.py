"""How long a variant's pods took to start: of those that were seen to, from not ready to ready."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.pods import cold_start_s, has_yet_to_start

_KEPT: Final = 20
_LONGEST_S: Final = 86_400.0  # a note of more is broken


class ColdStarts:
    def __init__(self, noted_s: Sequence[float] = ()) -> None:
        """``noted_s``: what a process before this one has measured, the newest last."""
        self._starting: set[str] = set()  # uids
        self._newest_s = deque(filter(_is_a_start, noted_s), maxlen=_KEPT)

    @property
    def newest_s(self) -> tuple[float, ...]:
        return tuple(self._newest_s)

    def note(self, pods: Sequence[Pod]) -> None:
        """All of the variant's.  A pod that is ready when it is first seen tells nothing."""
        self._starting &= {pod.metadata.uid for pod in pods}
        self._starting |= {pod.metadata.uid for pod in pods if has_yet_to_start(pod)}
        for pod in pods:
            start_s = cold_start_s(pod)
            if start_s is not None and pod.metadata.uid in self._starting:
                self._starting.remove(pod.metadata.uid)
                self._newest_s.append(start_s)


def _is_a_start(noted_s: float) -> bool:
    return math.isfinite(noted_s) and 0 <= noted_s <= _LONGEST_S
