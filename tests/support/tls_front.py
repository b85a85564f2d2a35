"""TLS before a server that speaks none, on a port of 127.0.0.1."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.certificates import Certificate


@contextmanager
def tls_before(socket: Path, certificate: Certificate) -> Iterator[int]:
    """The port; in a thread of its own, so that clients may block."""
    begun: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(socket, certificate, begun)))
    thread.start()
    port, loop, done = begun.result(10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


async def _serve(
    socket: Path,
    certificate: Certificate,
    begun: "Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_unix_connection(socket)
        await asyncio.gather(_copy(reader, to_them), _copy(theirs, writer))

    done = asyncio.Event()
    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=certificate.server_context())
    begun.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), done))
    await done.wait()
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()
