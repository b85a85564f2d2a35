"""One HTTP/1.1 connection: one request at a time, kept alive in between.

A protocol over ``httptools`` rather than a client library: what is measured is the moment bytes
come off the socket, and a library's queues and tasks between would be measured too.
"""

import asyncio
import re
from collections.abc import Callable

import httptools

from pandal.bench.answer import Answer

_SECONDS = re.compile(rb"\d{1,6}(\.\d{1,6})?")  # a Retry-After may also be a date: not followed


class Connection(asyncio.Protocol):
    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0
        self._is_complete = False
        self._is_reusable = False
        self.has_answered = False  # any byte of the running answer

    @property
    def is_usable(self) -> bool:
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._answer is None
        )

    async def exchange(self, head: bytes, body: bytes, answer: Answer) -> None:
        """Returns when the answer has ended, in whatever way; the answer says how."""
        assert self._transport is not None
        self._answer = answer
        self._is_complete = self._is_reusable = self.has_answered = False
        self._ended = self._loop.create_future()
        self._transport.write(head + body)
        try:
            await self._ended
        finally:
            self._answer = None
            if not self._is_complete:
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(  # type: ignore[override]  # uvloop's is a Transport in all but class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock_s()
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort()
            return
        if self._is_complete:
            self._end()
            if not self._is_reusable and self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._now_s = self._clock_s()
        self._end()  # an answer without a length ends so; one that is cut lacks its [DONE]

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if (
            self._answer is not None
            and name.lower() == b"retry-after"
            and _SECONDS.fullmatch(value)
        ):
            self._answer.retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._answer.status = status

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.add(body, self._now_s)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # 1xx: the real answer follows
            self._is_complete = True
            self._is_reusable = self._parser.should_keep_alive()  # llhttp forgets it after this

    def _end(self) -> None:
        if self._answer is not None:
            self._answer.ended_s = self._now_s
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
