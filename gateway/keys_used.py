"""Tells the policy store which keys were used, so that people find those that are not."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gateway.errors import PolicyStoreUnavailable

_TURN_S: Final = 10.0


class NotesKeysUsed(Protocol):
    """The part of ``PolicyDocuments`` that this needs."""

    async def note_keys_used(self, used: Mapping[str, float]) -> None: ...


class KeysUsed:
    """``turn``: by key id when it was used lately (seconds since 1970), each time anew."""

    def __init__(self, turn: Callable[[], Mapping[str, float]], store: NotesKeysUsed) -> None:
        self._turn = turn
        self._store = store

    async def run(self) -> None:
        """Runs until cancelled.  While the store is away nothing is noted: it is no account."""
        while True:
            await asyncio.sleep(_TURN_S)
            with contextlib.suppress(PolicyStoreUnavailable):
                await self._store.note_keys_used(self._turn())
