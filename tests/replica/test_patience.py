"""A client that takes nothing: the server goes on without it."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from replica.api.patience import Patience, PatientApp
from replica.api.protocol import ResettableProtocol
from replica.errors import BodyAbandoned

CHUNK = bytes(1 << 20)


class Flood:
    """Sends until it is stopped."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.has_begun.set()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        finally:
            self.has_ended.set()


@asynccontextmanager
async def served(app: PatientApp) -> AsyncIterator[socket.socket]:
    """A client that has asked and does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            http=ResettableProtocol,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            yield client
        server.should_exit = True
        await serving


async def test_a_client_that_takes_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """And has no connection any more, though it still holds its end of it."""
    caplog.set_level(logging.INFO)
    flood = Flood()
    patience = Patience(read_timeout_s=60, write_timeout_s=0.1)
    async with served(PatientApp(flood, patience)) as client:
        async with asyncio.timeout(60):
            await flood.has_ended.wait()
            await asyncio.to_thread(read_to_reset, client)
    assert "client gave up" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def read_to_reset(client: socket.socket) -> None:
    """What is buffered for it is dropped: else all of it would come, and a proper end."""
    client.settimeout(30)
    with pytest.raises(ConnectionResetError):
        deque(iter(lambda: client.recv(1 << 20), b""), maxlen=0)


async def test_waiting_may_be_over_at_the_very_moment_a_wait_ends() -> None:
    patience = Patience(read_timeout_s=60, write_timeout_s=60)

    async def read() -> None:
        async with patience.reading():
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    while not reading.done():
        patience.end_reading()
        await asyncio.sleep(0)
    with pytest.raises(BodyAbandoned):
        await reading


@pytest.mark.parametrize("ends_first", [False, True])
async def test_no_client_is_waited_for_once_writing_is_over(ends_first: bool) -> None:
    flood = Flood()
    patience = Patience(read_timeout_s=60, write_timeout_s=600)
    if ends_first:
        patience.end_writing()
    async with served(PatientApp(flood, patience)):
        async with asyncio.timeout(60):
            await flood.has_begun.wait()
            patience.end_writing()
            await flood.has_ended.wait()
