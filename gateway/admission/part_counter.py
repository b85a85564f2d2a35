"""Counts a prompt's parts in worker threads, each content once."""

import itertools
from collections.abc import Sequence
from typing import Final, Protocol

from contracts.errors import UNDECODABLE
from gateway.admission.prompt_parts import PartCounts, text_of
from gateway.worker_thread import WorkerThread

_NUM_THREADS: Final = 2  # a prompt of a megabyte takes half a second: another may pass beside it
_MAX_PENDING: Final = 32  # jobs of all threads; more would be late


class TextCounter(Protocol):
    """Blocking, and safe to call from several threads."""

    def num_tokens(self, text: str) -> int: ...


class PartCounter:
    """Stop it when done."""

    def __init__(self) -> None:
        self._counts = PartCounts()
        self._threads = [WorkerThread(f"token-counter-{n}") for n in range(_NUM_THREADS)]
        self._turns = itertools.cycle(self._threads)
        self._num_pending = 0

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    async def num_tokens(
        self, tokenizer: TextCounter, model: str, tenant_salt: bytes, parts: Sequence[bytes]
    ) -> int | None:
        """Of all parts; ``None``: the threads have too much to do, or the parts are no text."""
        keys = self._counts.keys(model, tenant_salt, parts)
        counts = {key: self._counts.get(key) for key in keys}
        missing = {key: part for key, part in zip(keys, parts, strict=True) if counts[key] is None}
        if missing:
            if self._num_pending >= _MAX_PENDING:
                return None
            counted = await self._count(tokenizer, list(missing.values()))
            if counted is None:
                return None
            for key, count in zip(missing, counted, strict=True):
                counts[key] = count
                self._counts.put(key, count)
        return sum(counts[key] or 0 for key in keys)

    async def _count(self, tokenizer: TextCounter, parts: Sequence[bytes]) -> list[int] | None:
        def count() -> list[int]:
            return [tokenizer.num_tokens(text_of(part)) for part in parts]

        self._num_pending += 1
        try:
            return await next(self._turns).call(count)
        except (UnicodeEncodeError, *UNDECODABLE):
            return None  # the replica will refuse it
        finally:
            self._num_pending -= 1
