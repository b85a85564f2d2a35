"""Connections to replicas: kept warm, and never a reason to do a request's work twice."""

import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from contracts.usage import Outcome, UsageSource
from gateway.errors import UpstreamError, UpstreamTimeout
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.raising import loop_failures, raise_index_error
from tests.gateway.scene import until
from tests.gateway.upstream_server import PROMPT_TOKENS, Generation, Upstream


async def test_warm_connections_are_used_again(tenant: Tenant, upstream: Upstream) -> None:
    await tenant.chat(chat())
    before = upstream.num_connections
    for _ in range(5):
        await tenant.chat(chat(stream=True))
        await tenant.chat(chat())
    assert upstream.num_connections <= before + 1  # a poll may take one of its own


async def die(generation: Generation) -> None:
    """As a process does that its work has killed: all was read, nothing is answered."""
    generation.reset()


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_request_that_kills_a_warm_replica_is_not_sent_again(
    tenant: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    assert (await tenant.chat(chat())).status == 200
    upstream.reset()
    upstream.behaviour = die
    reply = await tenant.chat(chat(stream=is_stream))
    assert (reply.status, reply.error["code"]) == (502, "upstream_error")
    assert len(upstream.generations) == 1


async def test_what_a_replica_did_before_it_hung_up_is_asked_for(
    tenant: Tenant, upstream: Upstream
) -> None:
    async def hang_up_half_way(generation: Generation) -> None:
        generation.completion_tokens = 7
        generation.reset()

    assert (await tenant.chat(chat())).status == 200
    upstream.behaviour = hang_up_half_way
    assert (await tenant.chat(chat())).status == 502
    failed = next(e for e in tenant.events() if e.outcome is Outcome.UPSTREAM_FAILED)
    assert failed.usage_source is UsageSource.ENGINE
    assert (failed.input_tokens, failed.output_text_tokens) == (PROMPT_TOKENS, 7)


def client_of(url: str, keep_alive_s: float = 60.0) -> ReplicaClient:
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=keep_alive_s)
    return ReplicaClient("replica-0", url, timeouts)


@pytest.mark.parametrize(("keep_alive_s", "num_connections"), [(60.0, 1), (0.0, 3)])
async def test_a_connection_that_idled_too_long_is_not_used_again(
    upstream: Upstream, keep_alive_s: float, num_connections: int
) -> None:
    """The replica may be closing it at this moment."""
    client = client_of(upstream.url, keep_alive_s)
    before = upstream.num_connections
    for _ in range(3):
        assert (await client.fetch("/ready", 5.0)).status == 200
    assert upstream.num_connections - before == num_connections
    await client.close()


class ClosingServer:
    """Answers the first request of each of two connections, then closes them as it is told to."""

    def __init__(self, ending: Callable[["ClosingServer", socket.socket], object]) -> None:
        self._ending = ending
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.may_close = threading.Event()
        self.has_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self.may_close.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes an accept
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        for _ in range(2):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                self._ending(self, connection)
            self.has_closed.set()


def close_while_idle(server: ClosingServer, _: socket.socket) -> None:
    server.may_close.wait(60)


def close_unread(_: ClosingServer, connection: socket.socket) -> None:
    select.select([connection], [], [], 10)


def close_read(_: ClosingServer, connection: socket.socket) -> None:
    connection.recv(65_536)


@pytest.fixture
def closing_server(request: pytest.FixtureRequest) -> Iterator[ClosingServer]:
    server = ClosingServer(request.param)
    yield server
    server.close()


@pytest.mark.parametrize("closing_server", [close_while_idle], indirect=True)
async def test_a_request_that_crosses_the_close_of_an_idle_connection_is_sent_again(
    closing_server: ClosingServer,
) -> None:
    client = client_of(closing_server.url)
    await client.fetch("/ready", 5.0)
    closing_server.may_close.set()
    assert closing_server.has_closed.wait(60), "closed, and our event loop does not know it yet"
    assert (await client.fetch("/ready", 5.0)).status == 200
    await client.close()


@pytest.mark.parametrize("closing_server", [close_unread], indirect=True)
async def test_a_request_that_was_left_unread_is_sent_again(closing_server: ClosingServer) -> None:
    client = client_of(closing_server.url)
    await client.fetch("/ready", 5.0)
    assert (await client.fetch("/ready", 5.0)).status == 200
    await client.close()


@pytest.mark.parametrize("closing_server", [close_read], indirect=True)
async def test_a_request_that_was_read_is_not_sent_again(closing_server: ClosingServer) -> None:
    client = client_of(closing_server.url)
    await client.fetch("/ready", 5.0)
    with pytest.raises(UpstreamError, match="broke off"):
        await client.fetch("/ready", 5.0)
    await client.close()


async def test_a_client_without_a_replica_says_so(upstream: Upstream) -> None:
    client = ReplicaClient("gone", "http://127.0.0.1:1", Timeouts(1.0, 1.0, 1.0, 1.0))
    with pytest.raises(UpstreamError, match="cannot be reached"):
        await client.fetch("/ready", 5.0)
    await client.close()


async def test_who_raises_when_told_of_a_silent_replica_stops_no_later_deadline() -> None:
    failures = loop_failures()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and that is all
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = ReplicaClient("silent", url, Timeouts(5.0, 0.05, 0.05, 60.0))
        client.get("/ready").head.then(raise_index_error)
        await until(lambda: bool(failures))
        with pytest.raises(UpstreamTimeout):
            await client.get("/ready").head
        await client.close()
    assert [type(failure) for failure in failures] == [IndexError]
