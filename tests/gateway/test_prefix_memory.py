"""What a replica probably has cached of a prompt: what it was sent before, as far as was found."""

import pytest

from gateway.prompt import Affinity
from gateway.routing.prefix_memory import PrefixMemory, Promise

ALONE = Affinity(b"k" * 33 + b"question", b"k" * 33 + b"question")
BLOCK = 16  # of tokens: only whole ones are found
SYSTEM = b"l" * 33 + b"s" * 2_000  # what many conversations begin with


def newcomer(number: int) -> Affinity:
    return Affinity(SYSTEM, b"m" * 33 + b"%d" % number)


def send(
    memory: PrefixMemory, affinity: Affinity, prompt: int = 400, replica: str = "r0"
) -> Promise:
    return memory.send(affinity, replica, num_bytes=2_500, prompt=prompt)


def process(
    memory: PrefixMemory,
    affinity: Affinity,
    prompt: int = 400,
    cached: int = 0,
    replica: str = "r0",
) -> None:
    promise = send(memory, affinity, prompt, replica)
    memory.processed(promise, prompt=prompt, cached=cached, answer=prompt // 8)


def test_a_conversation_finds_its_last_turn_where_it_was() -> None:
    memory = PrefixMemory()
    assert memory.cached_tokens(ALONE, "r0", 500) == 0.0
    process(memory, ALONE)
    assert memory.cached_tokens(ALONE, "r0", 500) == 450 - BLOCK
    assert memory.cached_tokens(ALONE, "r1", 500) == 0.0
    assert memory.cached_tokens(ALONE, "r0", 100) == 100 - BLOCK


def test_a_new_conversation_finds_what_it_shares_with_another() -> None:
    memory = PrefixMemory()
    process(memory, newcomer(1))
    assert memory.cached_tokens(newcomer(1), "r0", 500) == 450 - BLOCK, "its own turn"
    assert memory.cached_tokens(newcomer(2), "r0", 500) == 400 * 2_000 / 2_500 - BLOCK
    assert memory.cached_tokens(newcomer(2), "r1", 500) == 0.0


def test_what_is_shared_counts_from_when_the_first_is_on_its_way() -> None:
    memory = PrefixMemory()
    send(memory, newcomer(1))
    send(memory, ALONE)
    assert memory.cached_tokens(newcomer(2), "r0", 500) == 400 * 2_000 / 2_500 - BLOCK
    assert memory.cached_tokens(ALONE, "r0", 500) == 0.0


def test_what_a_request_is_the_first_to_begin_with_was_not_promised_to_it() -> None:
    """As where each has a user's profile, or what was found for it, before all else."""
    memory = PrefixMemory()
    process(memory, ALONE)
    expected = memory.cached_tokens(ALONE, "r0", 500)
    for number in range(150):
        beginning = b"%03d" % number + SYSTEM
        process(memory, Affinity(beginning, b"m" * 33 + b"%d" % number))
    assert memory.cached_tokens(ALONE, "r0", 500) == expected


def test_what_came_to_nothing_is_expected_no_longer_unless_another_has_it_there() -> None:
    memory = PrefixMemory()
    failed = send(memory, newcomer(1))
    memory.withdraw(failed)
    assert memory.cached_tokens(newcomer(2), "r0", 500) == 0.0
    failed = send(memory, newcomer(1))
    process(memory, newcomer(2), prompt=300)
    memory.withdraw(failed)
    assert memory.cached_tokens(newcomer(3), "r0", 500) > 0.0


def test_what_came_to_nothing_takes_nothing_from_those_who_rely_on_it() -> None:
    """Equal prompts note equal numbers."""
    memory = PrefixMemory()
    failed, other = send(memory, newcomer(1)), send(memory, newcomer(2))
    memory.withdraw(failed)
    assert memory.cached_tokens(newcomer(3), "r0", 500) > 0.0, "the other is prefilled there"
    memory.withdraw(other)
    assert memory.cached_tokens(newcomer(3), "r0", 500) == 0.0, "nobody is left"
    failed, other = send(memory, newcomer(4)), send(memory, newcomer(5))
    memory.processed(other, prompt=400, cached=0, answer=20)
    memory.withdraw(failed)
    assert memory.cached_tokens(newcomer(6), "r0", 500) > 0.0, "the other has ended there"


def test_a_replica_that_caches_nothing_is_believed_after_a_while() -> None:
    memory = PrefixMemory()
    for _ in range(300):
        process(memory, ALONE)
    assert memory.cached_tokens(ALONE, "r0", 400) < 5.0


def test_a_replica_that_caches_nothing_says_nothing_of_others() -> None:
    memory = PrefixMemory()
    process(memory, ALONE)
    for _ in range(300):
        process(memory, ALONE, replica="r1")
    assert memory.cached_tokens(ALONE, "r1", 500) == 0.0
    assert memory.cached_tokens(ALONE, "r0", 500) == 450 - BLOCK


def test_what_is_missing_of_a_beginning_is_learned_in_tokens() -> None:
    """A client's own words for an answer, say: a turn is found but for the same few tokens."""
    memory = PrefixMemory()
    process(memory, ALONE)
    for _ in range(60):
        process(memory, ALONE, cached=370)
    for prompt in (500, 2_000):
        assert memory.cached_tokens(ALONE, "r0", prompt) == pytest.approx(450 - 30, abs=1)


def test_one_that_was_lost_is_no_reason_to_expect_less_of_others() -> None:
    memory = PrefixMemory()
    for _ in range(10):
        process(memory, ALONE, cached=434)
    before = memory.cached_tokens(ALONE, "r0", 500)
    process(memory, ALONE, cached=0)
    assert memory.cached_tokens(ALONE, "r0", 500) == before


def test_of_a_prompt_that_goes_on_only_what_is_new_is_estimated() -> None:
    memory = PrefixMemory()
    process(memory, ALONE, prompt=400)

    def prompt_tokens(num_bytes: int, replica: str = "r0") -> float:
        return memory.prompt_tokens(ALONE, replica, num_bytes=num_bytes, prompt=0.25 * num_bytes)

    assert prompt_tokens(2_900) == pytest.approx(400 + 0.25 * 400)
    assert prompt_tokens(2_000) == 500, "it does not go on"
    assert prompt_tokens(2_900, "r1") == 725


def test_of_a_prompt_that_begins_as_another_did_only_the_rest_is_estimated() -> None:
    """A client writes in a way that was never seen: its estimate is twice too high."""
    memory = PrefixMemory()
    process(memory, newcomer(1))
    prompt = memory.prompt_tokens(newcomer(2), "r0", num_bytes=2_500, prompt=800)
    assert prompt == pytest.approx(400 * 2_000 / 2_500 + 800 * 500 / 2_500)


def test_the_longest_unheard_of_conversation_is_forgotten() -> None:
    memory = PrefixMemory()
    others = [Affinity(b"%d" % number, b"%d" % number) for number in range(16_385)]
    for affinity in others:
        process(memory, affinity, prompt=100)
    assert memory.cached_tokens(others[0], "r0", 100) == 0.0
    assert memory.cached_tokens(others[1], "r0", 100) > 0.0
