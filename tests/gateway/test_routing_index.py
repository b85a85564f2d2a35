"""Exact prefix routing: what replicas say they have cached, found again by a prompt's text."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.blocks import (
    BlockChanges,
    BlockRemoved,
    BlocksCleared,
    BlockSnapshot,
    BlockStored,
    PromptStored,
)
from contracts.prefix import block_hash, root_hash
from gateway.prompt import Affinity, PromptText
from gateway.routing.block_index import BlockIndex
from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.prefix_index import BlockFollower, PrefixIndex, SequenceGap
from gateway.routing.prompts_underway import PromptsUnderway
from gateway.routing.ring import PrefixRing
from gateway.routing.text_chain import BOUNDARIES_BYTES, prompt_text
from tests.gateway.fleets import profile_of

BLOCK = 16
BYTES_PER_TOKEN = 4
ROOT = root_hash(model_revision="r", cache_salt="s", kv_dtype="float32")


def tokens_of(text: bytes) -> list[int]:
    ends = range(BYTES_PER_TOKEN, len(text) + 1, BYTES_PER_TOKEN)
    return [int.from_bytes(text[end - BYTES_PER_TOKEN : end], "big") for end in ends]


def blocks_of(text: bytes) -> list[BlockStored]:
    tokens, parent, blocks = tokens_of(text), ROOT, []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        digest = block_hash(parent, tokens[start : start + BLOCK])
        blocks.append(BlockStored(hash=digest.hex(), parent_hash=parent.hex(), num_tokens=BLOCK))
        parent = digest
    return blocks


class Engine:
    """One replica's cache and the events it sends to one gateway."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.follower = index.follower()
        self.held: dict[str, BlockStored] = {}
        self.seq = 0
        self.follower.take(BlockSnapshot(seq=0, blocks=()))

    def serve(self, request_id: str, text: bytes) -> None:
        blocks = blocks_of(text)
        new = [block for block in blocks if block.hash not in self.held]
        self.held.update((block.hash, block) for block in new)
        stored = PromptStored(
            request_id=request_id,
            hash=blocks[-1].hash,
            num_tokens=len(tokens_of(text)),
            block_size=BLOCK,
        )
        self.tell(*new, stored)

    def drop(self, hashes: Sequence[str]) -> None:
        for hash_ in hashes:
            del self.held[hash_]
        self.tell(*(BlockRemoved(hash=hash_) for hash_ in hashes))

    def tell(self, *changes: BlockStored | BlockRemoved | BlocksCleared | PromptStored) -> None:
        self.seq += 1
        self.follower.take(BlockChanges(seq=self.seq, changes=changes))

    def cached_tokens(self, text: bytes) -> int:
        """In truth."""
        num = 0
        for block in blocks_of(text):
            if block.hash not in self.held:
                break
            num += BLOCK
        return num


def found(index: PrefixIndex, engine: Engine, text: bytes) -> int:
    chain = prompt_text(b"t", text).chain
    holders = index.anchors.find(chain, engine.follower.bit).holders
    return sum(tokens for _, tokens in holders)


def serve(index: PrefixIndex, engine: Engine, request_id: str, text: bytes) -> None:
    send(index, engine, request_id, text)
    engine.serve(request_id, text)


def send(index: PrefixIndex, engine: Engine, request_id: str, text: bytes) -> None:
    num_tokens = len(tokens_of(text))
    index.expect(request_id, prompt_text(b"t", text), num_tokens, engine.follower.bit)


def prose(seed: int, num_bytes: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def test_what_a_replica_has_computed_is_found_by_the_next_turn() -> None:
    index = PrefixIndex(10_000)
    engine, other = Engine(index), Engine(index)
    text = prose(1, 9_000)
    assert found(index, engine, text) == 0
    serve(index, engine, "r-0", text)
    longer = text + prose(2, 5_000)
    truth = engine.cached_tokens(longer)
    assert truth - 1_024 // BYTES_PER_TOKEN <= found(index, engine, longer) <= truth
    assert found(index, other, longer) == 0


def test_of_two_prompts_that_part_only_what_they_share_counts() -> None:
    index = PrefixIndex(10_000)
    engine = Engine(index)
    shared = prose(1, 4_000)
    serve(index, engine, "r-0", shared + prose(2, 3_000))
    other = shared + prose(3, 3_000)
    truth = engine.cached_tokens(other)
    assert truth - 256 // BYTES_PER_TOKEN <= found(index, engine, other) <= truth
    assert found(index, engine, prose(4, 4_000)) == 0


def test_what_is_underway_is_found_where_it_was_sent_and_nowhere_else() -> None:
    """A burst for one new prompt meets in one place, before any replica has told of it."""
    index = PrefixIndex(10_000)
    engine, other = Engine(index), Engine(index)
    text = prose(1, 4_000)
    send(index, engine, "r-0", text)
    next_one = text + prose(2, 500)
    truth = len(tokens_of(text))
    assert truth - 1_024 // BYTES_PER_TOKEN <= found(index, engine, next_one) <= truth
    assert found(index, other, next_one) == 0
    send(index, other, "r-1", text)
    assert found(index, other, next_one) == found(index, engine, next_one)


def test_what_has_arrived_is_as_the_replica_tells() -> None:
    index = PrefixIndex(10_000)
    engine, other = Engine(index), Engine(index)
    text = prose(1, 4_000)
    send(index, other, "r-0", text)
    serve(index, engine, "r-1", text)
    engine.drop([block.hash for block in reversed(blocks_of(text))])
    assert found(index, engine, text) == 0
    assert found(index, other, text) > 0  # there it still is underway


def test_what_was_sent_before_the_replica_told_anything_arrives_like_all() -> None:
    index = PrefixIndex(10_000)
    engine = Engine(index)
    text = prose(1, 4_000)
    index.expect("r-0", prompt_text(b"t", text), len(tokens_of(text)), 0)
    engine.serve("r-0", text)
    assert found(index, engine, text) > 0


def test_what_never_arrives_is_forgotten() -> None:
    """The request failed, its client left, or the replica was restarted."""
    index = PrefixIndex(10_000)
    engine, other = Engine(index), Engine(index)
    text = prose(1, 4_000)
    send(index, engine, "r-0", text)
    send(index, other, "r-1", text)
    bit = engine.follower.bit
    engine.tell(BlocksCleared())
    chain = prompt_text(b"t", text).chain
    assert not any(bits & bit for bits, _ in index.anchors.find(chain, ~0).holders)
    assert found(index, other, text) > 0
    for _ in range(200):  # twenty seconds
        index.tick()
    assert found(index, other, text) == 0


def test_what_is_sent_again_is_kept_as_long_as_the_first_time() -> None:
    underway, text = PromptsUnderway(), PromptText((7,), 256)
    underway.send(text, 64, 1, lambda _: False)
    for _ in range(195):
        underway.tick()
    underway.send(text, 64, 2, lambda _: False)
    for _ in range(199):
        underway.tick()
    assert underway.links[7][0] & 2
    underway.tick()
    assert not underway.links


def test_of_prompts_underway_only_so_many_are_kept() -> None:
    underway = PromptsUnderway()
    texts = [PromptText(range(n, n + 1_000), 2_000_000) for n in range(0, 200_000, 1_000)]
    for text in texts:
        underway.send(text, 1_000, 1, lambda _: False)
    assert len(underway.links) == 65_536
    assert texts[-1].chain[0] in underway.links


def test_what_was_evicted_or_cleared_is_not_found_any_more() -> None:
    index = PrefixIndex(10_000)
    engine = Engine(index)
    text = prose(1, 8_000)
    serve(index, engine, "r-0", text)
    hashes = [block.hash for block in blocks_of(text)]
    engine.drop(hashes[:59:-1])
    truth = engine.cached_tokens(text)
    assert truth == 60 * BLOCK
    assert truth - 256 // BYTES_PER_TOKEN <= found(index, engine, text) <= truth
    engine.tell(BlocksCleared())
    assert found(index, engine, text) == 0


def test_one_that_restarts_holds_nothing_and_its_bit_comes_back_when_all_is_swept() -> None:
    index = PrefixIndex(10_000)
    engine, other = Engine(index), Engine(index)
    text = prose(1, 4_000)
    serve(index, engine, "r-0", text)
    serve(index, other, "r-1", text)
    first_bit = engine.follower.bit
    engine.follower.close()
    assert found(index, other, text) > 0
    again = Engine(index)
    assert again.follower.bit not in (first_bit, other.follower.bit)
    assert found(index, again, text) == 0
    for _ in range(10):
        index.blocks.sweep(100)
    newest = Engine(index)
    assert newest.follower.bit == first_bit
    assert found(index, newest, text) == 0
    assert found(index, other, text) > 0


def test_a_gap_needs_a_snapshot_and_a_snapshot_replaces_all() -> None:
    index = PrefixIndex(10_000)
    engine = Engine(index)
    serve(index, engine, "r-0", prose(1, 4_000))
    with pytest.raises(SequenceGap):
        engine.follower.take(BlockChanges(seq=engine.seq + 2, changes=()))
    fresh = BlockFollower(index)
    with pytest.raises(SequenceGap):
        fresh.take(BlockChanges(seq=0, changes=()))
    text = prose(2, 4_000)
    engine.follower.take(BlockSnapshot(seq=9, blocks=tuple(blocks_of(text))))
    assert found(index, engine, prose(1, 4_000)) == 0
    assert found(index, engine, text) == 0, "nobody has told yet what text these are"
    engine.seq, engine.held = 9, {block.hash: block for block in blocks_of(text)}
    serve(index, engine, "r-1", text)
    assert found(index, engine, text) > 0


def test_a_prompt_of_another_gateway_teaches_nothing_and_harms_nothing() -> None:
    index = PrefixIndex(10_000)
    engine = Engine(index)
    engine.serve("another-gateways", prose(1, 4_000))
    assert len(index.blocks) > 0
    assert found(index, engine, prose(1, 4_000)) == 0


def test_the_index_is_bounded_and_learns_again_when_there_is_room() -> None:
    blocks = BlockIndex(max_blocks=100)
    bit = blocks.enter()
    for key in range(150):
        blocks.store(bit, key, parent=key - 1 if key else 0)
    assert (len(blocks), blocks.num_refused) == (100, 50)
    for key in range(150):
        blocks.remove(bit, key)
    assert len(blocks) == 0
    blocks.store(bit, 200, parent=0)
    assert blocks.holders(200) == bit


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from("sdcr")), max_size=40)
)
@settings(deadline=None, max_examples=60)
def test_never_more_is_found_than_is_there(steps: list[tuple[int, int, str]]) -> None:
    """Whatever is stored, evicted, cleared and restarted."""
    index = PrefixIndex(100_000)
    engines = [Engine(index) for _ in range(3)]
    texts = [prose(0, 1_500) + prose(n // 2 + 1, 1_500) + prose(n + 10, 800) for n in range(6)]
    for number, (which, text, what) in enumerate(steps):
        engine = engines[which]
        if what == "s":
            serve(index, engine, f"r-{number}", texts[text])
        elif what == "d":
            leaves = set(engine.held) - {block.parent_hash for block in engine.held.values()}
            engine.drop(sorted(leaves))
        elif what == "c":
            engine.held.clear()
            engine.tell(BlocksCleared())
        else:
            engine.follower.close()
            engines[which] = Engine(index)
        index.blocks.sweep(50)
    for engine in engines:
        for text in texts:
            assert found(index, engine, text) <= engine.cached_tokens(text)


def test_texts_that_begin_alike_have_chains_that_do() -> None:
    text = prose(1, 200_000)
    whole, part = prompt_text(b"t", text), prompt_text(b"t", text[:50_000])
    assert list(whole.chain[: len(part.chain)]) == list(part.chain)
    assert len(part.chain) == sum(end <= 50_000 for end in BOUNDARIES_BYTES)
    assert prompt_text(b"u", text).chain[0] != whole.chain[0]
    changed = b"x" + text[1:]
    assert not set(prompt_text(b"t", changed).chain) & set(whole.chain)


class Scene:
    """Two replicas that tell their blocks, and one that does not."""

    def __init__(self) -> None:
        self.index = PrefixIndex(10_000)
        self.engines = {name: Engine(self.index) for name in "ab"}
        self.profile, _ = profile_of(random.Random(3).random, self.index, least_prefix_tokens=64)
        self.endpoints = [Endpoint(name, True, frozenset({"m"})) for name in "abc"]
        for endpoint in self.endpoints[:2]:
            endpoint.block_bit = self.engines[endpoint.name].follower.bit

    def decide(self, text: bytes) -> tuple[str, Reason]:
        group = Candidates(self.endpoints, PrefixRing("abc"))
        chain = prompt_text(b"t", text).chain
        num_tokens = len(tokens_of(text))
        request = RoutingRequest("m", Affinity(b"k", b"k"), num_tokens, num_tokens + 100, chain)
        decision = self.profile.decide(request, group)
        return decision.endpoint.name, decision.reason


def test_it_goes_where_its_tokens_are_cached_unless_more_is_to_do_there_than_they_save() -> None:
    text = prose(1, 8_000)  # 2,000 tokens
    for holder, other in ("ab", "ba"):
        scene = Scene()
        assert scene.decide(text)[1] is Reason.HOME, "nobody has it: where its prefix lives"
        serve(scene.index, scene.engines[holder], "r-0", text)
        assert scene.decide(text) == (holder, Reason.CACHED)
        loads = {holder: 2_500, other: 0, "c": 100}
        for endpoint in scene.endpoints:
            endpoint.load_tokens = loads[endpoint.name]
        assert scene.decide(text) == (holder, Reason.CACHED), "they save more than that"
        scene.endpoints["abc".index(holder)].load_tokens = 2_700
        assert scene.decide(text) == (other, Reason.CACHED), "now they do not"


def test_the_busier_all_are_the_longer_what_is_cached_is_waited_for() -> None:
    """What is computed again then keeps more others waiting."""
    text = prose(1, 8_000)
    scene = Scene()
    serve(scene.index, scene.engines["a"], "r-0", text)
    for usual_tokens, goes_home in ((500, False), (12_000, True)):
        for endpoint in scene.endpoints:
            endpoint.load_tokens = usual_tokens
        scene.endpoints[0].load_tokens += 4_000
        assert (scene.decide(text)[0] == "a") is goes_home


def test_a_slow_replica_needs_more_cached_to_be_worth_it() -> None:
    text = prose(1, 8_000)
    scene = Scene()
    serve(scene.index, scene.engines["a"], "r-0", text)
    scene.endpoints[0].load_tokens = 1_200
    assert scene.decide(text)[0] == "a"
    scene.endpoints[0].slowness = 4.0
    assert scene.decide(text)[0] != "a"
