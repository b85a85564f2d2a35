import random

import pytest

from replica.engine.block_manager import NULL_BLOCK, BlockManager
from replica.engine.prefix import Prefix, PrefixIdentity

ROOT = PrefixIdentity(model_revision="m", kv_dtype="float32").root("")
A = ROOT.child([1])
FIRST = ROOT.child([1])
SECOND = FIRST.child([2])
THIRD = SECOND.child([3])


def constant_hash_root(salt: str = "") -> Prefix:
    """Everything collides."""
    identity = PrefixIdentity("m", "float32", hash_block=lambda parent, tokens: b"same")
    return identity.root(salt)


def test_null_block_is_never_handed_out() -> None:
    blocks = BlockManager(8)
    assert NULL_BLOCK not in {blocks.allocate() for _ in range(blocks.num_free)}


def test_freed_block_with_content_is_revived_by_its_hash() -> None:
    blocks = BlockManager(4)
    block = blocks.allocate()
    blocks.publish(block, A)
    blocks.release([block])
    assert blocks.match([A, A.child([9])]) == [block]
    blocks.acquire([block])
    blocks.check_invariants([[block]])


def test_reused_block_is_no_longer_found() -> None:
    blocks = BlockManager(2)
    block = blocks.allocate()
    blocks.publish(block, A)
    blocks.release([block])
    assert blocks.allocate() == block
    assert blocks.match([A]) == []


def test_match_ends_at_the_first_unknown_block() -> None:
    blocks = BlockManager(4)
    first, third = blocks.allocate(), blocks.allocate()
    blocks.publish(first, FIRST)
    blocks.publish(third, FIRST.child([9]))
    assert blocks.match([FIRST, SECOND, THIRD]) == [first]


def test_blocks_without_content_are_reused_before_cached_ones() -> None:
    blocks = BlockManager(4)
    cached, plain = blocks.allocate(), blocks.allocate()
    blocks.publish(cached, A)
    blocks.release([cached])
    blocks.release([plain])
    assert [blocks.allocate() for _ in range(3)][-1] == cached


def test_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    blocks = BlockManager(3)
    table = [blocks.allocate(), blocks.allocate()]
    for block, prefix in zip(table, (FIRST, SECOND), strict=True):
        blocks.publish(block, prefix)
    blocks.release(table)
    blocks.allocate()
    assert blocks.match([FIRST, SECOND]) == [table[0]]


def test_parent_never_goes_before_its_child_not_even_a_shared_one() -> None:
    """The known copy of SECOND is freed first; THIRD, which hangs on it, has another owner."""
    blocks = BlockManager(6)
    first, second, own_second, third = (blocks.allocate() for _ in range(4))
    for block, prefix in [(first, FIRST), (second, SECOND), (own_second, SECOND), (third, THIRD)]:
        blocks.publish(block, prefix)
    blocks.release([first, second])
    blocks.acquire([first])
    blocks.take_changes()
    blocks.allocate()  # the one nobody has used
    blocks.allocate()
    removed = [change.digest for change in blocks.take_changes()]
    assert removed == [THIRD.digest, SECOND.digest]
    assert blocks.match([FIRST, SECOND, THIRD]) == [first]


def test_equal_content_in_use_takes_over_from_a_copy_that_is_not() -> None:
    blocks = BlockManager(4)
    old, new = blocks.allocate(), blocks.allocate()
    blocks.publish(old, A)
    blocks.release([old])
    blocks.take_changes()
    blocks.publish(new, ROOT.child([1]))
    assert blocks.match([A]) == [new]
    assert blocks.take_changes() == [], "the same is cached as before"
    blocks.check_invariants([[new]])


def test_block_behind_an_unknown_parent_is_not_kept() -> None:
    """Nobody could find it."""
    blocks = BlockManager(4)
    block = blocks.allocate()
    blocks.publish(block, SECOND)
    assert blocks.contents == {}


def test_equal_content_keeps_one_known_copy() -> None:
    blocks = BlockManager(4)
    first, second = blocks.allocate(), blocks.allocate()
    blocks.publish(first, ROOT.child([1]))
    blocks.publish(second, ROOT.child([1]))
    blocks.release([first])
    blocks.check_invariants([[second]])
    assert blocks.match([ROOT.child([1])]) == [first]


def test_colliding_hashes_find_only_what_is_the_same() -> None:
    root = constant_hash_root()
    mine, other = root.child([1, 2]), root.child([1, 3])
    blocks = BlockManager(4)
    block = blocks.allocate()
    blocks.publish(block, mine)
    assert blocks.match([root.child([1, 2])]) == [block]
    assert blocks.match([other]) == []
    assert blocks.match([constant_hash_root("other tenant").child([1, 2])]) == []
    assert blocks.match([root.child([9, 9]).child([1, 2])]) == []


def test_equal_tokens_behind_another_parent_are_another_prefix() -> None:
    root = constant_hash_root()
    chain = [root.child([1]), root.child([1]).child([2])]
    assert chain[1].is_same(root.child([1]).child([2]))
    assert not chain[1].is_same(root.child([3]).child([2]))
    assert not chain[1].is_same(root.child([2]))


def test_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockManager(1)


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_under_random_use(seed: int) -> None:
    rng = random.Random(seed)
    blocks = BlockManager(rng.randrange(2, 12))
    tables: list[list[int]] = []
    prefixes = [ROOT.child([i]) for i in range(3)]
    prefixes += [parent.child([i]) for parent in prefixes for i in range(3)]
    prefixes += [parent.child([1]) for parent in prefixes[3:]]
    for _ in range(300):
        match rng.randrange(4):
            case 0 if blocks.num_free:
                tables.append([blocks.allocate()])
            case 1 if tables:
                blocks.publish(rng.choice(tables)[-1], rng.choice(prefixes))
            case 2 if tables:
                blocks.release(tables.pop(rng.randrange(len(tables))))
            case 3 if rng.random() < 0.1:
                blocks.forget(rng.randrange(1, 1 + blocks.num_usable))
            case 3:
                found = blocks.match([rng.choice(prefixes)])
                blocks.acquire(found)
                if found:
                    tables.append(found)
        blocks.check_invariants(tables)
