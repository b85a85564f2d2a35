"""The engine's end of the socket: whole messages in, whole messages out."""

import select
import socket
from collections.abc import Iterator
from typing import Final

from replica.engine.messages import (
    LENGTH_PREFIX_BYTES,
    FromEngine,
    ToEngine,
    decode_to_engine,
    encode_frame,
)

_RECEIVE_BYTES: Final = 1 << 16


class ChannelClosed(Exception):
    """The HTTP process is gone."""


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._buffer = bytearray()

    def send(self, message: FromEngine) -> None:
        """Blocks while the HTTP process does not read:

        it always does, so that is its back-pressure.
        """
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as exc:
            raise ChannelClosed from exc

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Everything that has arrived; waits up to ``timeout_s`` (None:

        for ever) for the first byte.
        """
        while self._is_readable(timeout_s):
            self._buffer += self._receive_some()
            timeout_s = 0.0
        return list(self._frames())

    def _receive_some(self) -> bytes:
        """Raises ChannelClosed: also when it was closed over something we had sent (a reset)."""
        try:
            chunk = self._socket.recv(_RECEIVE_BYTES)
        except OSError as exc:
            raise ChannelClosed from exc
        if not chunk:
            raise ChannelClosed
        return chunk

    def _is_readable(self, timeout_s: float | None) -> bool:
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)

    def _frames(self) -> Iterator[ToEngine]:
        while len(self._buffer) >= LENGTH_PREFIX_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_PREFIX_BYTES], "big")
            end = LENGTH_PREFIX_BYTES + length
            if len(self._buffer) < end:
                return
            yield decode_to_engine(bytes(self._buffer[LENGTH_PREFIX_BYTES:end]))
            del self._buffer[:end]
