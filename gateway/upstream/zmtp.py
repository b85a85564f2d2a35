"""The part of ZeroMQ's wire protocol that following a publisher takes: ZMTP 3.0, without security.

https://rfc.zeromq.org/spec/23/.  A connection that breaks is not made anew here, and nothing is
queued: who reads too slowly makes the publisher drop messages, which shows in their numbers.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from gateway.errors import UpstreamError, UpstreamUnreachable

_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_GREETING: Final = _SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_MAX_SHORT_BYTES: Final = 255
_SUBSCRIBE: Final = b"\x01"
_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class ZmtpSocket:
    """One connection to one peer.  Close it when done."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, host: str, port: int, socket_type: bytes, timeout_s: float
    ) -> "ZmtpSocket":
        """``socket_type``: ``SUB``, ``REQ``.  Raises UpstreamError."""
        try:
            async with asyncio.timeout(timeout_s):
                socket = cls(*await asyncio.open_connection(host, port))
                await socket._open(socket_type)
        except (OSError, TimeoutError) as exc:
            raise UpstreamUnreachable(f"No publisher at {host}:{port}: {exc!r}") from exc
        return socket

    def subscribe(self, topic: bytes = b"") -> None:
        """To all that begins with ``topic``."""
        self.send([_SUBSCRIBE + topic])

    def send(self, parts: Sequence[bytes]) -> None:
        last = len(parts) - 1
        self._writer.writelines(
            _frame(_MORE if place < last else 0, part) for place, part in enumerate(parts)
        )

    async def receive(self) -> list[bytes]:
        """A message's parts.  Raises UpstreamError."""
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            flags, body = await self._read_frame(_MAX_MESSAGE_BYTES - num_bytes)
            if flags & _COMMAND:
                continue  # of later versions, for those that asked for it
            parts.append(body)
            num_bytes += len(body)
            if not flags & _MORE:
                return parts

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _open(self, socket_type: bytes) -> None:
        is_open = False
        try:
            await self._greet(socket_type)
            is_open = True
        finally:
            if not is_open:
                await self.close()

    async def _greet(self, socket_type: bytes) -> None:
        self._writer.write(_GREETING)
        theirs = await self._read_exactly(len(_GREETING))
        if theirs[:1] != b"\xff" or theirs[9:10] != b"\x7f" or theirs[10] < 3:
            raise UpstreamError("The publisher does not speak ZMTP 3.")
        if theirs[12:32].rstrip(b"\0") != b"NULL":
            raise UpstreamError("The publisher wants a security mechanism.")
        self._writer.write(_frame(_COMMAND, b"\x05READY" + _property(b"Socket-Type", socket_type)))
        flags, body = await self._read_frame(_MAX_SHORT_BYTES)
        if not flags & _COMMAND or not body.startswith(b"\x05READY"):
            raise UpstreamError("The publisher refuses the connection.")

    async def _read_frame(self, max_bytes: int) -> tuple[int, bytes]:
        flags = (await self._read_exactly(1))[0]
        size = int.from_bytes(await self._read_exactly(8 if flags & _LONG else 1), "big")
        if size > max_bytes:
            raise UpstreamError("The publisher sent a message without end.")
        return flags, await self._read_exactly(size)

    async def _read_exactly(self, num_bytes: int) -> bytes:
        try:
            return await self._reader.readexactly(num_bytes)
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise UpstreamError("The publisher has closed the connection.") from exc


def _frame(flags: int, body: bytes) -> bytes:
    if len(body) <= _MAX_SHORT_BYTES:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + len(body).to_bytes(8, "big") + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
