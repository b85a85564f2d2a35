"""TLS before a server that speaks none, on a port of 127.0.0.1."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.certificates import Certificate


@contextmanager
def tls_before(
    path: Path, certificate: Certificate, client: Certificate | None = None
) -> Iterator[int]:
    """The port; in a thread of its own, so that clients may block.

    ``client``: the only one that is let in; None: everybody.
    """
    begun: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    context = certificate.server_context(client)
    thread = threading.Thread(target=lambda: asyncio.run(_serve(path, context, begun)))
    thread.start()
    port, loop, done = begun.result(10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


@contextmanager
def strangers_refused(certificate: Certificate, client: Certificate) -> Iterator[int]:
    """A port that tells whoever is not ``client`` why, as servers do: asyncio's only hangs up."""
    context = certificate.server_context(client)

    def refuse() -> None:
        with suppress(OSError):  # the listener is shut down
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def _serve(
    path: Path,
    context: ssl.SSLContext,
    begun: "Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, to_them = await asyncio.open_unix_connection(path)
            await asyncio.gather(_copy(reader, to_them), _copy(theirs, writer))
        except OSError:
            pass  # it is away: whoever asks for it is told so
        finally:
            writer.close()

    done = asyncio.Event()
    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    begun.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), done))
    await done.wait()
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()
