import random

import pytest

from replica.engine.block_manager import NULL_BLOCK, BlockManager


def test_null_block_is_never_handed_out() -> None:
    blocks = BlockManager(8)
    assert NULL_BLOCK not in {blocks.allocate() for _ in range(blocks.num_free)}


def test_freed_block_with_content_is_revived_by_its_hash() -> None:
    blocks = BlockManager(4)
    block = blocks.allocate()
    blocks.publish(block, b"a")
    blocks.release([block])
    assert blocks.match([b"a", b"b"]) == [block]
    blocks.acquire([block])
    blocks.check_invariants([[block]])


def test_reused_block_is_no_longer_found() -> None:
    blocks = BlockManager(2)
    block = blocks.allocate()
    blocks.publish(block, b"a")
    blocks.release([block])
    assert blocks.allocate() == block
    assert blocks.match([b"a"]) == []


def test_match_ends_at_the_first_unknown_block() -> None:
    blocks = BlockManager(4)
    first, third = blocks.allocate(), blocks.allocate()
    blocks.publish(first, b"1")
    blocks.publish(third, b"3")
    assert blocks.match([b"1", b"2", b"3"]) == [first]


def test_blocks_without_content_are_reused_before_cached_ones() -> None:
    blocks = BlockManager(4)
    cached, plain = blocks.allocate(), blocks.allocate()
    blocks.publish(cached, b"a")
    blocks.release([cached])
    blocks.release([plain])
    assert [blocks.allocate() for _ in range(3)][-1] == cached


def test_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    blocks = BlockManager(3)
    table = [blocks.allocate(), blocks.allocate()]
    for block, digest in zip(table, (b"head", b"tail"), strict=True):
        blocks.publish(block, digest)
    blocks.release(table)
    blocks.allocate()
    assert blocks.match([b"head", b"tail"]) == [table[0]]


def test_equal_content_keeps_one_known_copy() -> None:
    blocks = BlockManager(4)
    first, second = blocks.allocate(), blocks.allocate()
    blocks.publish(first, b"same")
    blocks.publish(second, b"same")
    blocks.release([first])
    blocks.check_invariants([[second]])
    assert blocks.match([b"same"]) == [first]


def test_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockManager(1)


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_under_random_use(seed: int) -> None:
    rng = random.Random(seed)
    blocks = BlockManager(rng.randrange(2, 12))
    tables: list[list[int]] = []
    digests = [bytes([i]) for i in range(6)]
    for _ in range(300):
        match rng.randrange(4):
            case 0 if blocks.num_free:
                tables.append([blocks.allocate()])
            case 1 if tables:
                blocks.publish(rng.choice(tables)[-1], rng.choice(digests))
            case 2 if tables:
                blocks.release(tables.pop(rng.randrange(len(tables))))
            case 3:
                found = blocks.match([rng.choice(digests)])
                blocks.acquire(found)
                if found:
                    tables.append(found)
        blocks.check_invariants(tables)
