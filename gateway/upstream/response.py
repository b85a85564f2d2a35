"""One answer of a replica, as it comes in.

A consumer waits on completions and takes bytes; the connection fills them.  When the consumer is
slow the connection stops reading, so a slow client costs a bounded buffer and nothing more.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.completion import Completion
from gateway.errors import UpstreamError

_HIGH_WATER_BYTES = 256 * 1024  # a screenful of events; beyond it the replica waits


class Source(Protocol):
    """Where an answer comes from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abandon(self) -> None:
        """The consumer has lost interest."""


Taker = Callable[[bytes], bool]  # False: it has not taken it
FramedTaker = Callable[[bytes, bytes], bool]  # of a chunk, without and with its frame


class UpstreamResponse:
    """``head`` is done when the status line and headers are in, or failed with an UpstreamError."""

    status = 0
    content_type = b""
    retry_after_s: int | None = None
    is_sent = False  # once true, the replica may have begun to work
    is_ended = False
    is_paused = False
    _is_discarding = False
    _num_buffered_bytes = 0
    _failure: UpstreamError | None = None
    _next: Completion[bytes] | None = None
    _taker: Taker | None = None
    framed_taker: FramedTaker | None = None  # None: a chunk by itself is like any other bytes
    source: Source | None = None  # None: nothing more will come

    def __init__(self, request: bytes) -> None:
        self.request = request  # kept whole until the head is in: it may be sent once more
        self.head: Completion[None] = Completion()
        self._chunks: list[bytes] = []

    @property
    def is_exhausted(self) -> bool:
        """The consumer has taken all there was."""
        return self.is_ended and not self._chunks

    @property
    def is_refusal(self) -> bool:
        """The replica has answered, and not with a generation."""
        return self.status not in (0, 200)

    @property
    def has_begun(self) -> bool:
        """With a generation, as far as its head tells."""
        return self.status == 200 and self.head.is_done

    # For the consumer

    def next_chunk(
        self, taker: Taker | None = None, framed_taker: FramedTaker | None = None
    ) -> Completion[bytes]:
        """Everything that came since the last call; empty at the end; or fails.

        What comes while it is waited for is offered to ``taker`` first, or, where it is a chunk by
        itself, to ``framed_taker``, which takes nothing once nobody waits.  What they take wakes
        nobody; what they raise fails the wait, if it is an UpstreamError.
        """
        chunk: Completion[bytes] = Completion()
        if self._chunks or self.is_ended or self._failure is not None:
            self._give(chunk)
        else:
            self._next, self._taker, self.framed_taker = chunk, taker, framed_taker
        return chunk

    def take(self) -> bytes:
        """What has come since the last call, without a wait."""
        chunks = self._chunks
        if not chunks:
            return b""
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._num_buffered_bytes = 0
        if self.is_paused and self.source is not None:
            self.is_paused = False
            self.source.resume()
        return taken

    def cancel(self) -> None:
        """Closes the connection unless the answer is complete.  Idempotent."""
        if self.source is not None:
            source, self.source = self.source, None
            source.abandon()

    def discard(self) -> None:
        """The consumer has all it wants; the connection is worth keeping if the end is near."""
        self._is_discarding = True
        self.take()

    # For the connection

    def add(self, chunk: bytes) -> None:
        if self._is_discarding:
            return
        self._chunks.append(chunk)
        self._num_buffered_bytes += len(chunk)
        if self._num_buffered_bytes > _HIGH_WATER_BYTES and not self.is_paused and self.source:
            self.is_paused = True
            self.source.pause()

    def publish(self) -> None:
        """Wakes the consumer: once per read of the socket, not once per chunk."""
        if self.status and not self.head.is_done:
            self.head.resolve(None)
        waiter, chunks = self._next, self._chunks
        if waiter is None or waiter.is_done:
            return
        if self.is_ended or self._failure is not None:
            self._next = self.framed_taker = None
            self._give(waiter)
        elif chunks:
            taker = self._taker
            try:
                if len(chunks) == 1 and not self.is_paused:
                    chunk = chunks.pop()
                    self._num_buffered_bytes = 0
                else:
                    chunk = self.take()
                if taker is not None and taker(chunk):
                    return
            except UpstreamError as failure:
                self.end_wait(failure)
            else:
                self._next = self.framed_taker = None
                waiter.resolve(chunk)

    @property
    def latest(self) -> bytes:
        """Of what has come and waits, the last part as the parser gave it."""
        return self._chunks[-1] if self._chunks else b""

    def end_wait(self, failure: UpstreamError) -> None:
        """A taker has raised it."""
        waiter, self._next, self.framed_taker = self._next, None, None
        if waiter is not None:
            waiter.fail(failure)

    def fail(self, failure: UpstreamError) -> None:
        self._failure = failure
        if not self.status:
            self.head.fail(failure)
        self.publish()

    def _give(self, waiter: Completion[bytes]) -> None:
        if self._chunks:
            waiter.resolve(self.take())
        elif self._failure is not None:
            waiter.fail(self._failure)
        else:
            waiter.resolve(b"")
