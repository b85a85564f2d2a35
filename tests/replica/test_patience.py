"""A client that takes nothing: the server goes on without it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from replica.api.patience import Patience, PatientApp

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
        config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            yield client
        server.should_exit = True
        await serving


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    flood = Flood()
    patience = Patience(read_timeout_s=60, write_timeout_s=0.1)
    async with served(PatientApp(flood, patience)):
        async with asyncio.timeout(30):
            await flood.has_ended.wait()


@pytest.mark.parametrize("ends_first", [False, True])
async def test_no_client_is_waited_for_once_writing_is_over(ends_first: bool) -> None:
    flood = Flood()
    patience = Patience(read_timeout_s=60, write_timeout_s=600)
    if ends_first:
        patience.end_writing()
    async with served(PatientApp(flood, patience)):
        async with asyncio.timeout(30):
            await flood.has_begun.wait()
            patience.end_writing()
            await flood.has_ended.wait()
