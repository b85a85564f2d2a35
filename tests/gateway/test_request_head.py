"""A head that is known again means what the parser said of it, however the bytes are cut."""

import asyncio
import itertools
import socket
from collections.abc import Iterator

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.api.context import Operation
from gateway.client_connection import ConnectionLimits
from gateway.exchange import Exchange
from gateway.protocol import DataPlaneProtocol
from gateway.request_head import known_head, request_head, traced_lines

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nContent-Length: %d\r\n"
    b"authorization: Bearer sk\r\ntraceparent: t\r\n\r\n"
)
REQUEST_HEAD = request_head(Operation.CHAT_COMPLETIONS, [(b"authorization", b"Bearer sk")])
LIMITS = ConnectionLimits(200, 60.0, 60.0, 60.0)


def message(body: bytes) -> bytes:
    return HEAD % len(body) + body


def test_the_same_head_with_another_length_is_known() -> None:
    known = known_head(REQUEST_HEAD, message(b"first"), 5)
    assert known is not None
    assert known.split(message(b"another body")) == (12, b"another body")
    assert known.split(HEAD % 7) == (7, b"")
    assert known.split(HEAD % 7 + b"abc") == (7, b"abc")


@pytest.mark.parametrize(
    "data",
    [
        message(b"x").replace(b"sk", b"sl"),
        message(b"x").replace(b"traceparent: t\r\n", b""),
        message(b"x").replace(b"traceparent", b"transfer-encoding: chunked\r\ntraceparent"),
        message(b"x").replace(b": 1\r\n", b": 1, 1\r\n"),
        message(b"x").replace(b": 1\r\n", b": +1\r\n"),
        message(b"x").replace(b": 1\r\n", b": 0x1\r\n"),
        message(b"x").replace(b": 1\r\n", b": 1 \r\n"),
        message(b"x").replace(b": 1\r\n", b": \r\n"),
        message(b"x").replace(b": 1\r\n", b": 1\n"),
        message(b"x").replace(b": 1\r\n", b": " + b"1" * 10 + b"\r\n"),
        message(b"x").replace(b"\r\n", b"\n"),
        (HEAD % 1)[:-1],
        b"",
    ],
)
def test_no_other_head_is(data: bytes) -> None:
    known = known_head(REQUEST_HEAD, message(b"first"), 5)
    assert known is not None
    assert known.split(data) is None


@pytest.mark.parametrize(
    ("data", "num_body_bytes"),
    [
        (message(b"first") * 2, 5),
        (message(b"first"), 4),
        (b"POST / HTTP/1.1\r\nhost: g\r\n\r\n", 0),
        (message(b"first").replace(b": 5\r\n", b": 5 \r\n"), 5),
        (message(b"first").replace(b"host: g", b"content-length: 5"), 5),
    ],
)
def test_only_a_plain_head_before_one_body_is_remembered(data: bytes, num_body_bytes: int) -> None:
    assert known_head(REQUEST_HEAD, data, num_body_bytes) is None


class Wire(asyncio.Transport):
    """Keeps what the protocol does to it."""

    def __init__(self, socket_: socket.socket) -> None:
        super().__init__({"socket": socket_})
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Listener:
    """One connection; each request is answered with its body at once, or when it is told to."""

    def __init__(self, socket_: socket.socket, *, answers: bool = True) -> None:
        self.wire = Wire(socket_)
        self.begun: list[Exchange] = []
        self._answers = answers
        config = uvicorn.Config(
            _nobody, ws="none", lifespan="off", log_config=None, interface="asgi3"
        )
        self.protocol = DataPlaneProtocol(
            config,
            ServerState(),
            {},
            start=self._start,
            make_request_id=lambda: "req_1",
            limits=LIMITS,
        )
        self.protocol.connection_made(self.wire)

    def _start(self, exchange: Exchange) -> None:
        self.begun.append(exchange)
        if self._answers:
            exchange.send(200, b"", exchange.body)

    async def feed(self, *packets: bytes) -> None:
        for packet in packets:
            if self.wire.is_closed:
                return
            self.protocol.data_received(packet)
            await asyncio.sleep(0)  # the next one's turn

    def seen(self) -> tuple[object, ...]:
        begun = [(e.head.operation, tuple(e.head.headers), e.body) for e in self.begun]
        return begun, self.wire.written, self.wire.is_closed


async def _nobody(scope: object, receive: object, send: object) -> None:
    raise AssertionError("all requests are the data plane's")


@pytest.fixture
def socket_() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


_bodies = st.binary(max_size=60)
_messages = st.one_of(
    _bodies.map(message),
    _bodies.map(message),  # more often than any other
    st.just(message(b"a\r\n\r\nPOST / HTTP/1.1\r\n\r\n")),
    st.just(message(b"x" * 201)),  # too large
    st.sampled_from(
        [
            message(b"x").replace(b": 1\r\n", b": +1\r\n"),
            message(b"x").replace(b"traceparent", b"transfer-encoding: chunked\r\ntraceparent"),
            message(b"x").replace(b"traceparent: t", b"connection: close"),
            message(b"x").replace(b"traceparent: t", b"accept: a"),
            message(b"x").replace(b"host: g\r\n", b""),
            message(b"x").replace(b"traceparent", b"content-length"),
            b"\r\n" + message(b"x"),
            HEAD.replace(b"Content-Length: %d", b"transfer-encoding: chunked")
            + b"1\r\nx\r\n0\r\n\r\n",
        ]
    ),
)


@given(st.lists(_messages, max_size=6), st.lists(st.integers(0, 1_500), max_size=6))
@settings(max_examples=150, deadline=None)
def test_packets_and_single_bytes_are_understood_alike(
    messages: list[bytes], cuts: list[int]
) -> None:
    """Single bytes show the parser all; whole messages show it only what is not known."""
    stream = b"".join(messages)
    ends = [len(b"".join(messages[: n + 1])) for n in range(len(messages))]

    async def compare() -> None:
        with socket.socket() as made:
            packets, bytes_ = Listener(made), Listener(made)
            places = sorted({0, len(stream), *ends, *(cut % (len(stream) + 1) for cut in cuts)})
            await packets.feed(*(stream[a:b] for a, b in itertools.pairwise(places) if a < b))
            await bytes_.feed(*(stream[n : n + 1] for n in range(len(stream))))
            assert packets.seen() == bytes_.seen()

    asyncio.run(compare())


async def test_what_follows_a_known_body_waits_for_its_turn(socket_: socket.socket) -> None:
    listener = Listener(socket_, answers=False)
    await listener.feed(message(b"one"))
    listener.begun[0].send(200, b"", b"")
    listener.protocol.data_received(HEAD % 3)
    listener.protocol.data_received(b"two" + message(b"three") + message(b"four"))
    assert [exchange.body for exchange in listener.begun] == [b"one", b"two"]
    for number in (1, 2, 3):
        listener.begun[number].send(200, b"", b"")
        await asyncio.sleep(0)
    assert [exchange.body for exchange in listener.begun] == [b"one", b"two", b"three", b"four"]


async def test_a_body_behind_a_known_head_has_no_longer_than_others(
    socket_: socket.socket,
) -> None:
    listener = Listener(socket_)
    await listener.feed(message(b"one"), HEAD % 3, b"t")
    listener.protocol.check_deadlines(asyncio.get_running_loop().time() + 61.0)
    assert b"HTTP/1.1 408 " in listener.wire.written
    assert listener.wire.is_closed


def test_where_a_trace_begins_no_other_state_is_told() -> None:
    headers = ((b"traceparent", b"bad"), (b"tracestate", b"vendor=1"), (b"accept", b"a"))
    head = request_head(Operation.CHAT_COMPLETIONS, headers)
    assert traced_lines(head, b"ours", is_new=True) == (b"accept: a\r\ntraceparent: ours\r\n")
    assert b"tracestate: vendor=1" in traced_lines(head, b"ours", is_new=False)
