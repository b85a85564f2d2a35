"""Whole chunks are told by their length, and the parser never knows that it was left out."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamError
from gateway.upstream.chunk_frames import HEADS, MOST_BYTES, ends_with_whole
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.response import UpstreamResponse
from tests.gateway.scene import RecordedTransport

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def test_a_length_tells_the_size_line() -> None:
    expected = {len(framed(bytes(n))): b"%x\r\n" % n for n in range(1, 4_089)}
    for num_bytes, head in enumerate(HEADS):
        if num_bytes in expected:
            assert head == expected[num_bytes]
        else:
            assert len(head) == MOST_BYTES > num_bytes
    assert max(expected) < MOST_BYTES


def test_the_end_of_a_read_tells_whether_its_last_chunk_is_whole() -> None:
    assert ends_with_whole(HEAD + framed(b"abc"), b"abc")
    assert not ends_with_whole(b"c\r\nabc", b"abc")
    assert not ends_with_whole(b"abc\r\n", b"abc")
    assert not ends_with_whole(framed(b"abc") + b"4", b"abc")


class Consumer:
    """Takes in turn by each of the two doors, or declines."""

    def __init__(self, declines: Sequence[bool]) -> None:
        self.parts: list[bytes] = []
        self.num_framed = 0
        self._declines = list(declines)

    def take(self, chunk: bytes) -> bool:
        if self._declines and self._declines.pop():
            return False
        self.parts.append(chunk)
        return True

    def take_framed(self, content: bytes, whole: bytes) -> bool:
        assert whole == framed(content)
        is_taken = self.take(content)
        self.num_framed += is_taken
        return is_taken

    async def read(self, response: UpstreamResponse) -> None:
        while chunk := await response.next_chunk(self.take, self.take_framed):
            self.parts.append(chunk)


def connected() -> tuple[UpstreamConnection, UpstreamResponse]:
    def ignore(_: object) -> None: ...

    connection = UpstreamConnection(
        on_idle=ignore, on_closed=ignore, on_stale=ignore, head_timeout_s=60.0, idle_timeout_s=60.0
    )
    connection.connection_made(RecordedTransport())
    response = UpstreamResponse(b"POST / HTTP/1.1\r\n\r\n")
    connection.send(response)
    return connection, response


async def received(reads: Sequence[bytes], declines: Sequence[bool]) -> Consumer:
    connection, response = connected()
    consumer = Consumer(declines)
    reading = asyncio.ensure_future(consumer.read(response))
    for read in reads:
        await asyncio.sleep(0)
        connection.data_received(read)
    await reading
    return consumer


_contents = st.binary(min_size=1, max_size=40) | st.sampled_from(
    [b"\r\n", b"\r\n\r\n", b"1\r\na\r\n", b"0\r\n\r\n", b"x" * 300, b"x" * 5_000]
)
_frames = st.sampled_from([b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"0%x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n"])


@given(
    st.lists(st.tuples(_contents, _frames), max_size=12),
    st.lists(st.booleans(), max_size=12),
    st.lists(st.integers(1, 6), max_size=12),
    st.lists(st.booleans(), max_size=12),
)
def test_a_body_is_the_same_however_it_is_cut(
    chunks: list[tuple[bytes, bytes]],
    joins: list[bool],
    cuts: list[int],
    declines: list[bool],
) -> None:
    reads = [HEAD]
    for number, (content, frame) in enumerate(chunks):
        whole = frame % (len(content), content)
        if number < len(joins) and joins[number]:
            reads[-1] += whole
        elif number < len(cuts) and cuts[number] < len(whole):
            reads += [whole[: -cuts[number]], whole[-cuts[number] :]]
        else:
            reads.append(whole)
    reads.append(b"0\r\n\r\n")
    consumer = asyncio.run(received(reads, declines))
    assert b"".join(consumer.parts) == b"".join(content for content, _ in chunks)


async def test_one_chunk_a_read_leaves_the_parser_out() -> None:
    chunks = [framed(b"data: %d\n\n" % n) for n in range(10)]
    consumer = await received([HEAD, *chunks, b"0\r\n\r\n"], [])
    assert consumer.parts == [b"data: %d\n\n" % n for n in range(10)]
    assert consumer.num_framed == 9  # the parser read the first


async def test_what_a_taker_raises_fails_the_wait() -> None:
    connection, response = connected()

    def refuse(_: bytes, __: bytes) -> bool:
        raise UpstreamError("not this")

    consumer = Consumer([])
    waiting = response.next_chunk(consumer.take, refuse)
    for read in (HEAD, framed(b"a"), framed(b"b")):
        connection.data_received(read)
    assert consumer.parts == [b"a"]
    assert waiting.is_done
    assert response.framed_taker is None
    connection.data_received(framed(b"c"))
    assert response.take() == b"c"


async def test_a_silent_replica_is_late_by_what_it_said_last() -> None:
    loop = asyncio.get_running_loop()
    connection, response = connected()
    waiting = response.next_chunk(lambda _: True, lambda _, __: True)
    for read in (HEAD, framed(b"a"), framed(b"b")):
        connection.data_received(read)
    connection.check_deadline(loop.time() + 59.0)
    connection.data_received(framed(b"c"))
    connection.check_deadline(loop.time() + 118.0)
    assert not waiting.is_done
    connection.check_deadline(loop.time() + 179.0)
    assert waiting.is_done
