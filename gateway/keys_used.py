"""Tells the policy store which keys were used, so that people find those that are not."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gateway.errors import PolicyStoreUnavailable

logger = logging.getLogger(__name__)

_TURN_S: Final = 10.0
_LAST_S: Final = 1.0


class NotesKeysUsed(Protocol):
    """The part of ``PolicyDocuments`` that this needs."""

    async def note_keys_used(self, used: Mapping[str, float]) -> None: ...


class KeysUsed:
    """``turn``: by key id when it was used lately (seconds since 1970), each time anew."""

    def __init__(
        self,
        turn: Callable[[], Mapping[str, float]],
        store: NotesKeysUsed,
        turn_s: float = _TURN_S,
    ) -> None:
        self._turn = turn
        self._store = store
        self._turn_s = turn_s
        self._is_lost = False

    async def run(self) -> None:
        """Runs until cancelled.  While the store is away nothing is noted: it is no account."""
        while True:
            await asyncio.sleep(self._turn_s)
            await self._note()

    async def note_last(self) -> None:
        """What came since the last turn, at the end, for as long as it holds nobody up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self._note()

    async def _note(self) -> None:
        try:
            await self._store.note_keys_used(self._turn())
        except PolicyStoreUnavailable as exc:
            if not self._is_lost:  # once, not every ten seconds
                logger.warning("when keys were used is not noted", extra={"error": str(exc)})
            self._is_lost = True
        else:
            self._is_lost = False
