"""``PolicyFile`` beside an event loop: in a thread of its own, so that a disk may hang."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from contracts.policy_change import PolicyChange
from gateway.policy_documents.policy_file import PolicyFile
from gateway.policy_documents.port import StoredPolicy
from gateway.worker_thread import WorkerThread


class FileDocuments:
    """Works also before ``run``, which only sees to its end."""

    def __init__(self, path: Path) -> None:
        self._file = PolicyFile(path)
        self._thread = WorkerThread("policy-file")

    @property
    def where(self) -> str:
        return self._file.where

    async def read(self, unless: str | None = None) -> StoredPolicy | None:
        return await self._thread.call(partial(self._file.read, unless))

    async def wait_changed(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def write(self, payload: bytes, change: PolicyChange, *, expected: str | None) -> None:
        await self._thread.call(partial(self._file.write, payload, change, expected=expected))

    async def history(self, limit: int) -> Sequence[PolicyChange]:
        return await self._thread.call(partial(self._file.history, limit))

    async def version(self, number: int) -> bytes:
        return await self._thread.call(partial(self._file.version, number))

    async def note_keys_used(self, used: Mapping[str, float]) -> None:
        await self._thread.call(partial(self._file.note_keys_used, used))

    async def keys_used(self) -> Mapping[str, float]:
        return await self._thread.call(self._file.keys_used)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self._thread.stop()
