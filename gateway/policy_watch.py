"""Follows the policy store: what is written there is in force a moment later, on every gateway.

It is asked again and again, and sooner where it can tell of a change.  A notification that gets
lost costs one interval.
"""

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from gateway.errors import PolicyAbsent, PolicyStoreUnavailable
from gateway.policies import LivePolicies
from gateway.policy_documents.durable_file import replace_durably
from gateway.policy_documents.port import StoredPolicy
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_CLOCK_S: Final = 0.25  # an expired key lives no longer


class Readable(Protocol):
    """The part of ``PolicyDocuments`` that a gateway needs."""

    async def read(self, unless: str | None = None) -> StoredPolicy | None: ...

    async def wait_changed(self, timeout_s: float) -> None: ...


class PolicyWatch:
    """``last_good``: a file to start from while the store is away; ``None``: there is none."""

    def __init__(
        self,
        documents: Readable,
        policies: LivePolicies,
        *,
        interval_s: float,
        last_good: Path | None,
    ) -> None:
        self._documents = documents
        self._policies = policies
        self._interval_s = interval_s
        self._last_good = last_good
        # All that is worked out is in this one: a large document takes its time.  It waits for no
        # disk, which may hang while a key expires.
        self._thread = WorkerThread("policy-reader")
        self._copier = WorkerThread("last-good-policy")
        self._etag: str | None = None  # of the one that was read last, good or not
        self._is_started = asyncio.Event()

    async def start(self, timeout_s: float) -> None:
        """A first look, for no longer than that; else what was good when the gateway last ran."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._look()
        if self._policies.current is None and self._last_good is not None:
            payload = await self._copier.call(partial(_content, self._last_good))
            await self._thread.call(partial(self._begin_with, payload))
        self._is_started.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._follow_clock())
        finally:
            self._thread.stop()
            self._copier.stop()

    async def _follow(self) -> None:
        await self._is_started.wait()
        while True:
            await self._documents.wait_changed(self._interval_s)
            await self._look()

    async def _follow_clock(self) -> None:
        """Beside it: a disk that hangs keeps no key alive that has expired."""
        while True:
            await asyncio.sleep(_CLOCK_S)
            await self._thread.call(self._policies.look_at_clock)

    async def _look(self) -> None:
        try:
            stored = await self._documents.read(self._etag)
        except (PolicyAbsent, PolicyStoreUnavailable) as exc:
            self._policies.store_lost(str(exc))
            return
        self._policies.store_back()
        if stored is not None:
            self._etag = stored.etag
            await self._thread.call(partial(self._adopt, stored.payload))

    def _adopt(self, payload: bytes) -> None:
        if self._policies.adopt(payload) and self._last_good is not None:
            self._copier.submit(partial(_keep, self._last_good, payload))

    def _begin_with(self, last_good: bytes | None) -> None:
        """Not in place of one that was read after all, while the first look was given up."""
        if last_good is not None and self._policies.current is None:
            self._policies.adopt(last_good)


def _keep(path: Path, payload: bytes) -> None:
    try:
        replace_durably(path, payload)
    except OSError as exc:
        fields = {"path": str(path), "error": exc.strerror}
        logger.error("the last good policy cannot be kept", extra=fields)  # noqa: TRY400


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
