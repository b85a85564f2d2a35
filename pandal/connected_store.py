"""A store of quotas and policies, for as long as a command looks into it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.admission.quota_store import QuotaStore
from gateway.resp_address import RespAddress

_LOOK_S = 0.01
_PASSING = ("LOADING", "READONLY", "MASTERDOWN", "BUSY")  # refusals that only time mends


@asynccontextmanager
async def running_store(address: RespAddress, call_deadline_s: float) -> AsyncIterator[QuotaStore]:
    """It connects, and connects again, by itself."""
    store = QuotaStore(address, call_deadline_s)
    running = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.result()  # raises what ended it: a fault of ours, and no store that is away


@asynccontextmanager
async def connected_store(
    address: RespAddress, *, call_deadline_s: float, connect_s: float
) -> AsyncIterator[QuotaStore]:
    """Raises TimeoutError where it does not answer by then; QuotaRefused where it told us why."""
    async with running_store(address, call_deadline_s) as store:
        try:
            async with asyncio.timeout(connect_s):
                while not store.is_reachable:
                    if store.refusal is not None and store.refusal.reason not in _PASSING:
                        raise store.refusal
                    await asyncio.sleep(_LOOK_S)  # it tells by no event
        except TimeoutError:
            if store.refusal is not None:
                raise store.refusal from None
            raise
        yield store
