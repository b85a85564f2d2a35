"""The generator's connections against servers that close, stall or speak no HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from pandal.bench.answer import Answer, Outcome
from pandal.bench.client import Client
from pandal.bench.run import Patience
from pandal.bench.target import parse_target, request_head
from pandal.bench.tenants import Slo
from pandal.bench.workload import Turn

EVENTS = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(EVENTS), EVENTS)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS
Ask = Callable[[], Awaitable[Answer]]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(
    serve: Serve, timeout_s: float = 10.0, clock_s: Callable[[], float] = time.perf_counter
) -> AsyncIterator[tuple[Client, Ask]]:
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    target = parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    client = Client(target, clock_s, max_connections=4)
    head = request_head(target, None)
    try:
        yield client, lambda: client.ask(head, b"{}", timeout_s)
    finally:
        client.close()
        server.close()
        await asyncio.gather(*connections)


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"{}")


async def test_a_connection_closed_while_it_was_idle_is_no_failure() -> None:
    """The server answers one request of each connection and closes on the next."""
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await read_request(reader)
        writer.write(WHOLE)
        await read_request(reader)

    async with client_of(serve, clock_s=lambda: 1.0) as (client, ask):
        outcomes = [(await ask()).outcome for _ in range(3)]
    assert outcomes == [Outcome.COMPLETED] * 3
    assert (num_connections, client.num_resent) == (3, 2)


async def test_a_kept_connection_that_a_server_gives_up_later_is_a_failure() -> None:
    """It took the request, and a second over it: to ask again would hide that."""
    now_s, num_connections = 1.0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now_s, num_connections
        num_connections += 1
        await read_request(reader)
        writer.write(WHOLE)
        await read_request(reader)
        now_s += 1.0

    async with client_of(serve, clock_s=lambda: now_s) as (client, ask):
        outcomes = [(await ask()).outcome for _ in range(2)]
    assert outcomes == [Outcome.COMPLETED, Outcome.BROKEN]
    assert (num_connections, client.num_resent) == (1, 0)


async def test_a_new_connection_that_is_closed_is_not_tried_again() -> None:
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await read_request(reader)

    async with client_of(serve) as (_, ask):
        answer = await ask()
    assert (answer.outcome, answer.status) == (Outcome.BROKEN, None)
    assert num_connections == 1


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (UNTIL_CLOSED, Outcome.COMPLETED),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, Outcome.COMPLETED),
        (WHOLE[:-4], Outcome.BROKEN),
        (b"220 mail.example ESMTP\r\n", Outcome.BROKEN),
        (b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", Outcome.REFUSED),
        (b"HTTP/1.1 503 X\r\nretry-after: soon\r\ncontent-length: 0\r\n\r\n", Outcome.ERROR),
    ],
)
async def test_however_an_answer_ends_it_has_an_outcome(reply: bytes, outcome: Outcome) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(reply)
        await writer.drain()

    async with client_of(serve) as (_, ask):
        assert (await ask()).outcome is outcome


async def test_a_silent_server_is_a_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with client_of(serve, timeout_s=0.05) as (_, ask):
        answer = await ask()
    assert answer.outcome is Outcome.TIMEOUT
    assert answer.ended_s is not None


SLO = Slo(ttft_s=1.0, tpot_s=0.1)
TURN = Turn((), max_tokens=20)


@pytest.mark.parametrize(
    ("now_s", "intended_s", "hopeless_end_at_s", "timeout_s"),
    [
        (0.0, 0.0, None, 300.0),
        (0.0, 0.0, 10.0, 10.0),  # hopeless after 3 s, but others arrive until 10 s
        (9.0, 9.0, 10.0, 3.0),
        (50.0, 50.0, 10.0, 3.0),  # a later turn of a conversation
        (60.0, 50.0, 10.0, 0.0),
    ],
)
def test_a_search_waits_as_long_as_a_request_can_be_good(
    now_s: float, intended_s: float, hopeless_end_at_s: float | None, timeout_s: float
) -> None:
    patience = Patience(300.0, 0.0, hopeless_end_at_s)
    assert patience.timeout_at(now_s, intended_s, TURN, SLO) == pytest.approx(timeout_s)
