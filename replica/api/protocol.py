"""HTTP/1.1 on a client connection: uvicorn's protocol, and a way to be rid of a client.

Closing a connection waits until the client has taken what was written for it.  One that takes
nothing would keep its connection, and what is buffered for it, for ever.
"""

import socket
import struct
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

RESET: Final = "pandal.connection.reset"
"""ASGI extension: a callable that ends the connection now, and drops what is buffered for it."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


class ResettableProtocol(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {RESET: self._reset}  # type: ignore[dict-item]  # not only its own

    def _reset(self) -> None:
        if not self.transport.is_closing():
            # With a reset: else the kernel would go on where we left off.
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
        self.transport.abort()
