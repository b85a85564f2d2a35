"""A generation as server-sent events.

The status waits for the first token: whatever fails before it is an ordinary error response.
What fails after it is an ``error`` event, and no ``[DONE]`` follows.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from replica.api.errors import error_body, error_response
from replica.api.replies import Replies
from replica.engine.engine import Engine
from replica.engine.live_request import LiveRequest
from replica.errors import ReplicaError

_DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)


@asynccontextmanager
async def abort_on_disconnect(
    receive: Receive, engine: Engine, live: LiveRequest
) -> AsyncIterator[None]:
    """While inside, the engine stops generating as soon as the client is gone.

    The body must have been read: every further message can only say that.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        engine.request_abort(live)

    watcher = asyncio.create_task(watch(), name="disconnect")
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})  # unlike awaiting it, lets our own cancellation through


async def events(live: LiveRequest, replies: Replies, *, has_usage: bool) -> AsyncGenerator[bytes]:
    """Raises what LiveRequest.pieces raises."""
    opened: set[int] = set()
    async with aclosing(live.pieces()) as pieces:
        async for piece in pieces:
            if piece.index not in opened:
                opened.add(piece.index)
                cached = live.choices[piece.index].cached_prompt_tokens
                opening = replies.opening(piece.index, cached)
                if opening is not None:
                    yield _event(opening)
            payload = replies.piece(piece)
            if payload is not None:
                yield _event(payload)
            if piece.finish_reason is not None:
                yield _event(replies.finish(piece.index, piece.finish_reason))
    if has_usage:
        yield _event(replies.usage(live.usage))
    yield _DONE


class EventStream(Response):
    """Closes its request before returning, whoever hung up."""

    def __init__(
        self, engine: Engine, live: LiveRequest, stream: AsyncGenerator[bytes], request_id: str
    ) -> None:
        super().__init__()
        self._engine = engine
        self._live = live
        self._stream = stream
        self._request_id_header = (b"x-request-id", request_id.encode("latin-1"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with (
                aclosing(self._stream),
                abort_on_disconnect(receive, self._engine, self._live),
            ):
                await self._relay(scope, receive, send)
        finally:
            self._engine.close(self._live)

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._stream)
        except ReplicaError as exc:
            await error_response(exc)(scope, receive, send)
            return
        headers = [*_HEADERS, self._request_id_header]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_body(send, first, more_body=True)
        try:
            async for event in self._stream:
                await _send_body(send, event, more_body=True)
        except ReplicaError as exc:
            await _send_body(send, _event(error_body(exc)), more_body=True)
        await _send_body(send, b"", more_body=False)


async def _send_body(send: Send, body: bytes, *, more_body: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


def _event(payload: bytes) -> bytes:
    return b"data: %b\n\n" % payload
