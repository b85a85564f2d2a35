"""Counts a prompt's parts in worker threads, each content once."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from contracts.errors import UNDECODABLE
from gateway.admission.backlog import Backlog
from gateway.admission.prompt_parts import PartCounts, text_of
from gateway.completion import Completion
from gateway.worker_thread import WorkerThread

_NUM_THREADS: Final = 2  # a prompt of a megabyte takes half a second: another may pass beside it
_DEADLINE_S: Final = 0.2  # hardly anybody notices; a prompt of 400 kB is counted within it

Parts = Mapping[bytes, bytes]  # by the key of their content
Counts = Mapping[bytes, int]  # likewise


class TextCounter(Protocol):
    """Blocking, and safe to call from several threads."""

    def num_tokens(self, text: str) -> int: ...


class PartCounter:
    """Stop it when done."""

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._counts = PartCounts()
        self._backlog = Backlog()
        threads = [WorkerThread(f"token-counter-{n}") for n in range(_NUM_THREADS)]
        self._pending_bytes = dict.fromkeys(threads, 0)

    def stop(self) -> None:
        for thread in self._pending_bytes:
            thread.stop()

    def num_tokens(
        self, tokenizer: TextCounter, model: str, tenant_salt: bytes, parts: Sequence[bytes]
    ) -> Completion[int | None]:
        """Of all parts; ``None``: not in time, or the parts are no text.

        Once nobody waits for the result any more, no further part is begun; what was counted is
        kept for the next prompt that holds it.
        """
        result: Completion[int | None] = Completion()
        keys = self._counts.keys(model, tenant_salt, parts)
        known = {key: count for key in keys if (count := self._counts.get(key)) is not None}
        missing = {key: part for key, part in zip(keys, parts, strict=True) if key not in known}
        num_bytes = sum(map(len, missing.values()))
        if not missing:
            result.resolve(sum(known[key] for key in keys))
        elif not self._backlog.add(tenant_salt, num_bytes):
            result.resolve(None)
        else:
            job = self._submit(partial(_count, tokenizer, missing, result), num_bytes)
            job.add_done_callback(lambda _: self._backlog.remove(tenant_salt, num_bytes))
            job.add_done_callback(lambda done: self._note(done, keys, known, result))
            asyncio.get_running_loop().call_later(self._deadline_s, result.resolve, None)
        return result

    def _submit(self, count: Callable[[], Counts], num_bytes: int) -> "asyncio.Future[Counts]":
        """To the thread that has least to do."""
        thread = min(self._pending_bytes, key=self._pending_bytes.__getitem__)
        self._pending_bytes[thread] += num_bytes

        def came_back(_: object) -> None:
            self._pending_bytes[thread] -= num_bytes

        job = asyncio.wrap_future(thread.submit(count))
        job.add_done_callback(came_back)
        return job

    def _note(
        self,
        job: "asyncio.Future[Counts]",
        keys: Sequence[bytes],
        known: Counts,
        result: Completion[int | None],
    ) -> None:
        failure = job.exception()
        if isinstance(failure, (UnicodeEncodeError, *UNDECODABLE)):
            result.resolve(None)  # the replica will refuse it
        elif failure is not None:
            result.fail(failure)
        else:
            for key, count in job.result().items():
                self._counts.put(key, count)
            if not result.is_done:  # else there may be parts that nobody counted
                counts = {**known, **job.result()}
                result.resolve(sum(counts[key] for key in keys))


def _count(tokenizer: TextCounter, parts: Parts, result: Completion[int | None]) -> Counts:
    """In a worker thread: as many parts as somebody waits for."""
    counts: dict[bytes, int] = {}
    for key, part in parts.items():
        if result.is_done:
            break
        counts[key] = tokenizer.num_tokens(text_of(part))
    return counts
