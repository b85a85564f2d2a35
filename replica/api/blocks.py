"""``GET contracts.blocks.BLOCKS_PATH`` and ``POST /reset_prefix_cache``, which vLLM has, too."""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from replica.api.context import context_of
from replica.engine.block_mirror import BlockMirror, Subscription

_HEARTBEAT_S: Final = 15.0  # so that both ends notice when the other is gone


async def block_changes(request: Request) -> Response:
    return _BlockStream(context_of(request).engine.block_mirror)


async def reset_prefix_cache(request: Request) -> Response:
    """Blocks in use stay with their users; nobody finds them any more."""
    engine = context_of(request).engine
    engine.check_accepting()
    engine.clear_cache()
    return Response(status_code=200)


class _BlockStream(Response):
    """Ends its subscription before returning, whoever hung up."""

    def __init__(self, mirror: BlockMirror) -> None:
        super().__init__()
        self._mirror = mirror

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with self._mirror.subscribe() as subscription:
            tasks = {
                asyncio.create_task(_relay(send, subscription), name="block changes"),
                asyncio.create_task(_until_gone(receive), name="disconnect"),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        for task in done:
            task.result()


async def _relay(send: Send, subscription: Subscription) -> None:
    for part in subscription.snapshot:
        await _send_line(send, part)
        await asyncio.sleep(0)  # between two parts others have their turn
    while (payload := await _next_line(subscription)) is not None:
        await _send_line(send, payload)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _next_line(subscription: Subscription) -> bytes | None:
    """Empty where nothing has changed for a while: a reader that is gone is noticed by writing."""
    try:
        async with asyncio.timeout(_HEARTBEAT_S):
            return await subscription.changes.get()
    except TimeoutError:
        return b""


async def _send_line(send: Send, line: bytes) -> None:
    await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
