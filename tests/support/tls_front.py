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
from tests.support.waiting import PATIENCE_S


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
    port, loop, done = begun.result(PATIENCE_S)
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
                connection.settimeout(PATIENCE_S)
                with connection, suppress(OSError):
                    _tell(connection, context)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _tell(connection: socket.socket, context: ssl.SSLContext) -> None:
    """Hears the client out: whom it hangs up on while he writes is told nothing."""
    with context.wrap_socket(
        connection, server_side=True, do_handshake_on_connect=False
    ) as encrypted:
        with suppress(OSError):
            encrypted.do_handshake()
        encrypted.shutdown(socket.SHUT_WR)
        while encrypted.recv(65_536):
            pass


async def _serve(
    path: Path,
    context: ssl.SSLContext,
    begun: "Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    served: set[asyncio.Task[None]] = set()
    ends: set[asyncio.StreamWriter] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add(writer)
        try:
            theirs, to_them = await asyncio.open_unix_connection(path)
            ends.add(to_them)
            await asyncio.gather(_copy(reader, to_them), _copy(theirs, writer))
        except OSError:
            pass  # it is away: whoever asks for it is told so
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.create_task(pass_on(reader, writer)))

    done = asyncio.Event()
    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    begun.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), done))
    await done.wait()
    server.close()
    while not all(task.done() for task in served):  # one that connects now adds its other end
        for end in ends:
            end.transport.abort()
        await asyncio.wait(served, timeout=0.01)
    for end in ends:
        end.transport.abort()  # nor does one wait for its peer's farewell
    await asyncio.sleep(0)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()
