"""Block events of vLLM and SGLang: decoded, followed, and tied to the texts of prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from gateway.app import Gateway
from gateway.clock import SYSTEM_CLOCK
from gateway.errors import UpstreamError
from gateway.prompt import PromptText
from gateway.routing.block_streams import BlockStreams
from gateway.routing.engine_blocks import EngineBlocks
from gateway.routing.engine_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_events,
)
from gateway.routing.engine_streams import EngineStreams
from gateway.routing.engine_streams import Publisher as Address
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.prefix_index import PrefixIndex, SequenceGap
from gateway.routing.text_chain import prompt_text
from gateway.settings import EventPublisher, ReplicaAddress
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from gateway.upstream.zmtp import ZmtpSocket
from tests.gateway.event_publisher import (
    ClearedEvent,
    Published,
    Publisher,
    RemovedEvent,
    StoredEvent,
    batch,
    publishing,
)
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running, until
from tests.gateway.upstream_server import Upstream

SIZE = 16
SALT = "tenant-salt"
METRICS = b'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
TEXT = bytes(range(256)) * 8  # a token for four bytes
TOKENS = [int.from_bytes(TEXT[at : at + 4], "big") for at in range(0, len(TEXT), 4)]
CHAIN = prompt_text(b"seed", TEXT)


def stored(tokens: Sequence[int], *, secret: bytes = b"", salt: str | None = SALT) -> StoredEvent:
    """All of its whole blocks, called by names of that engine's own."""
    num = len(tokens) // SIZE
    extra_keys = None if salt is None else [[salt], *([None] * (num - 1))]
    names: list[int | bytes] = [secret + bytes((n,)) + repr(tokens[0]).encode() for n in range(num)]
    return StoredEvent(names, None, list(tokens[: num * SIZE]), SIZE, extra_keys=extra_keys)


def take(blocks: EngineBlocks, seq: int, *events: Published) -> None:
    blocks.take(seq, decode_events(batch(*events)))


def found(index: PrefixIndex, blocks: EngineBlocks, text: PromptText = CHAIN) -> int:
    holders = index.anchors.find(text.chain, blocks.bit).holders
    return holders[0][1] if holders else 0


STORED = BlockStored([7, b"8"], None, [1, 2, 3, 4], 2, "GPU", [["s"], None])
OLD_STORED = ["BlockStored", [7, b"8"], None, [1, 2, 3, 4], 2, None, "GPU", None, [["s"], None]]
NEW_STORED = msgspec.msgpack.encode(
    StoredEvent([7, b"8"], None, [1, 2, 3, 4], 2, medium="GPU", extra_keys=[["s"], None])
)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param(
            [1.5, [OLD_STORED, ["BlockRemoved", [7], "GPU"], ["AllBlocksCleared"]], 0],
            [STORED, BlockRemoved([7], "GPU"), AllBlocksCleared()],
            id="arrays",
        ),
        pytest.param(
            [1.5, [["BlockStored", [7], 6, [1, 2], 2, None], ["BlockRemoved", [7]]]],
            [BlockStored([7], 6, [1, 2], 2), BlockRemoved([7])],
            id="arrays-of-the-first-versions",
        ),
        pytest.param(
            [1.5, [msgspec.Raw(NEW_STORED), {"type": "AllBlocksCleared"}], 0],
            [STORED, AllBlocksCleared()],
            id="maps-in-an-array",
        ),
        pytest.param(
            {"ts": 1.5, "events": [msgspec.Raw(NEW_STORED)]}, [STORED], id="maps-in-a-map"
        ),
        pytest.param([1.5, [], None], [], id="none"),
    ],
)
def test_batches_of_all_versions_say_the_same(payload: object, expected: list[object]) -> None:
    assert decode_events(msgspec.msgpack.encode(payload)) == expected


@pytest.mark.parametrize(
    "payload", [5, [1.5], {"ts": 1}, [1.5, [["Unheard", 1]]], [1.5, [["BlockStored", "x"]]], "x"]
)
def test_what_is_no_batch_is_refused(payload: object) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_events(msgspec.msgpack.encode(payload))


async def test_engines_that_name_their_blocks_each_in_its_own_way_hold_the_same() -> None:
    index = PrefixIndex(10_000)
    one, other = EngineBlocks(index), EngineBlocks(index)
    take(one, 0, stored(TOKENS, secret=b"one"))
    take(other, 7, stored(TOKENS[:128], secret=b"other"))
    await one.expect(CHAIN, TOKENS, SALT)
    assert (found(index, one), found(index, other)) == (len(TOKENS), 128)


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_a_prompt_is_tied_to_its_blocks_whichever_is_known_first(
    *, is_asked_first: bool
) -> None:
    index = PrefixIndex(10_000)
    blocks = EngineBlocks(index)
    take(blocks, 0, stored([1] * SIZE))  # whose size is known then
    if is_asked_first:
        await blocks.expect(CHAIN, TOKENS, SALT)
        assert found(index, blocks) == 0
        take(blocks, 1, stored(TOKENS))
    else:
        take(blocks, 1, stored(TOKENS))
        await blocks.expect(CHAIN, TOKENS, SALT)
    assert found(index, blocks) == len(TOKENS)


async def test_the_same_tokens_under_another_salt_are_others() -> None:
    index = PrefixIndex(10_000)
    blocks = EngineBlocks(index)
    take(blocks, 0, stored(TOKENS, salt="another's"))
    await blocks.expect(CHAIN, TOKENS, SALT)
    assert found(index, blocks) == 0
    take(blocks, 1, stored(TOKENS, secret=b"x", salt=None))  # a version that does not tell salts
    assert found(index, blocks) == len(TOKENS)


async def test_the_same_tokens_behind_another_image_are_others() -> None:
    """An image is the same placeholder tokens as any other; its blocks' extra keys tell it."""
    index = PrefixIndex(10_000)
    blocks = EngineBlocks(index)
    num = len(TOKENS) // SIZE
    for number, image in enumerate((b"cat", b"dog")):
        event = stored(TOKENS, secret=image)
        extra_keys = [[SALT], *([[image.decode()]] * (num - 1))]
        take(blocks, number, msgspec.structs.replace(event, extra_keys=extra_keys))
    assert len(index.blocks) == 1 + 2 * (num - 1)


async def test_a_long_prompt_leaves_the_event_loop_to_others() -> None:
    blocks = EngineBlocks(PrefixIndex(10))
    take(blocks, 0, stored([1] * SIZE))
    expecting = asyncio.ensure_future(blocks.expect(CHAIN, TOKENS * 40, SALT))
    num_turns = 0
    while not expecting.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 2 * len(TOKENS) * 40 // SIZE // 1_000


async def test_what_is_removed_or_cleared_is_gone_and_what_has_no_beginning_is_nothing() -> None:
    index = PrefixIndex(10_000)
    blocks = EngineBlocks(index)
    event = stored(TOKENS)
    elsewhere = StoredEvent([b"c"], None, TOKENS[:SIZE], SIZE, medium="CPU")
    orphan = StoredEvent([b"o"], b"before anybody listened", TOKENS[:SIZE], SIZE)
    take(blocks, 0, event, elsewhere, orphan)
    await blocks.expect(CHAIN, TOKENS, SALT)
    assert len(index.blocks) == len(TOKENS) // SIZE
    take(blocks, 1, RemovedEvent(event.block_hashes[8:]), RemovedEvent([b"unheard of"]))
    assert found(index, blocks) == 8 * SIZE
    take(blocks, 2, RemovedEvent(event.block_hashes[:8], medium="CPU"))
    assert found(index, blocks) == 8 * SIZE
    take(blocks, 3, ClearedEvent())
    assert found(index, blocks) == 0


@pytest.mark.parametrize("seq", [0, 3, 5])
def test_a_number_out_of_turn_is_a_gap(seq: int) -> None:
    blocks = EngineBlocks(PrefixIndex(10))
    take(blocks, 3)
    with pytest.raises(SequenceGap):
        take(blocks, seq)


@asynccontextmanager
async def following(
    upstream: Upstream, publisher: Publisher
) -> AsyncIterator[tuple[ReplicaPool, PrefixIndex]]:
    """As a gateway does: the replica is found to be vLLM by its metrics."""
    upstream.metrics, upstream.tokens = METRICS, TOKENS
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    client = ReplicaClient("a", upstream.url, timeouts)
    pool = ReplicaPool([client], {}, PoolTimings(0.05, 5.0, 1.0), SYSTEM_CLOCK)
    index = PrefixIndex(10_000)
    address = Address("127.0.0.1", publisher.port, publisher.replay_port)
    streams = BlockStreams(pool, index, [EngineStreams(index, {"a": address})])
    running = [asyncio.create_task(pool.watch(lambda: None)), asyncio.create_task(streams.run())]
    try:
        yield pool, index
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await pool.close()


def held(pool: ReplicaPool, index: PrefixIndex) -> int:
    holders = index.anchors.find(CHAIN.chain, pool["a"].endpoint.block_bit).holders
    return holders[0][1] if holders else 0


async def test_a_publisher_is_followed_and_what_was_missed_is_replayed(upstream: Upstream) -> None:
    body = msgspec.json.encode({"prompt": "x", "cache_salt": SALT})
    event = stored(TOKENS)
    async with publishing([batch(event)]) as publisher, following(upstream, publisher) as at:
        pool, index = at
        await until(lambda: pool["a"].prompt_tokens is not None and publisher.num_subscribers == 1)
        tokens = pool["a"].prompt_tokens
        assert tokens is not None
        await until(lambda: pool["a"].endpoint.block_bit > 0)
        tokens.ask(CHAIN, body)
        await until(lambda: held(pool, index) == len(TOKENS))
        publisher.publish(batch(RemovedEvent(event.block_hashes[16:])))
        await until(lambda: held(pool, index) == 16 * SIZE)
        publisher.publish(batch(RemovedEvent(event.block_hashes[8:16])), is_lost=True)
        publisher.publish(batch())
        await until(lambda: held(pool, index) == 8 * SIZE)  # after a gap: all of it anew
        assert publisher.num_replays == 2


@pytest.mark.parametrize(
    "greeting",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64), id="http"),
        pytest.param(b"\xff" + bytes(8) + b"\x7f\x01" + bytes(53), id="an-old-version"),
        pytest.param(b"\xff" + bytes(8) + b"\x7f\x03\0PLAIN" + bytes(47), id="a-password"),
        pytest.param(b"\xff", id="nothing-more"),
    ],
)
async def test_who_speaks_another_protocol_is_left(greeting: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(UpstreamError):
        await ZmtpSocket.connect("127.0.0.1", port, b"SUB", 5.0)
    server.close()
    await server.wait_closed()


async def test_a_gateway_finds_again_what_such_an_engine_holds(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream
) -> None:
    """One process serves for two replicas, and one publisher."""
    policies.add("engine", "sk-engine")
    upstream.metrics, upstream.tokens = METRICS, TOKENS
    async with publishing([batch(stored([1] * SIZE))]) as publisher:
        address = EventPublisher(
            host="127.0.0.1", port=publisher.port, replay_port=publisher.replay_port
        )
        settings = {
            "replicas": tuple(ReplicaAddress(name=n, url=upstream.url) for n in ("one", "other")),
            "routing": "exact",
            "routing_explained": True,
            "routing_engine_events": {"one": address, "other": address},
            "poll_interval_s": 0.05,
        }
        async with running(tmp_path, valkey, policies, upstream, **settings) as gateway:
            scene = Scene(gateway, tmp_path / "spool", "engine", valkey)
            await until(lambda: publisher.num_subscribers == 2)
            assert b"reason=home" in await asked_route(gateway, scene)
            salt = upstream.generations[-1].received.document["cache_salt"]
            publisher.publish(batch(stored(TOKENS, salt=salt)))
            async with asyncio.timeout(60):
                while b"reason=cached" not in await asked_route(gateway, scene):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)  # events come when they come


async def asked_route(gateway: Gateway, scene: Scene) -> bytes:
    scene.transport.written = b""
    prompt = [{"role": "user", "content": "a prompt of some length " * 60}]
    exchange = scene.exchange((b"x-pandal-explain", b"1"), messages=prompt, stream=False)
    gateway.pipeline.start(exchange)
    await until(lambda: exchange.response_complete)
    head = scene.transport.written.partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 200"), scene.transport.written
    return head
