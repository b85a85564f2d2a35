"""Who waits as told gets in: many clients of one tenant, on a clock that the test moves."""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from gateway.admission.quota_scripts import RESERVE
from gateway.errors import whole_seconds
from tests.gateway.processes import Valkey

NUM_CLIENTS = 50
TOKENS_PER_MINUTE, ASK = 12_000, 100
KEY_NAMES = [
    *("bucket", "budget", "reservations", "holds", "swept", "settled", "turns", "line", "record"),
]
_numbers = itertools.count()


@dataclass
class Store:
    """The reserve script as it is, but for the clock: the seconds come from the test."""

    valkey: Valkey
    tenant: str = field(default_factory=lambda: f"honest-{next(_numbers)}")

    def __post_init__(self) -> None:
        text = RESERVE.text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
        assert text != RESERVE.text
        self._client = self.valkey.client
        self._script = self._client.register_script(text)
        self._keys = [f"{{{self.tenant}}}:quota:{name}" for name in KEY_NAMES]

    def wait_ms(self, now_s: float, tokens: int, turn: int) -> int | None:
        """Until the ask may come again; None: admitted."""
        rule = ("", TOKENS_PER_MINUTE, 10**9, 0, 0, 0, 0, 0)
        asked = (0, tokens, tokens, 0, f"r{next(_numbers)}", turn)
        clock = divmod(int(now_s * 1e6), 10**6)
        reply = self._script(self._keys, [3_600_000, 1, 0, "", *rule, *asked, *clock])
        return None if reply[0] == 0 else int(reply[2])


@pytest.fixture
def store(valkey: Valkey) -> Store:
    return Store(valkey)


@dataclass
class Tally:
    num_admitted: int = 0
    num_attempts: int = 0
    num_returns: int = 0  # attempts after a wait
    num_returns_admitted: int = 0


def run_clients(store: Store, seed: int, run_s: float, think_s: float) -> Tally:
    """Each asks, waits exactly Retry-After when refused, and thinks before the next ask."""
    chance, tally = random.Random(seed), Tally()
    began_s = 1_700_000_000.0
    attempts = [(began_s + chance.random(), client, next(_numbers), False) for client in range(50)]
    heapq.heapify(attempts)
    while attempts:
        now_s, client, ask, is_return = heapq.heappop(attempts)
        if now_s > began_s + run_s and not is_return:
            continue
        wait_ms = store.wait_ms(now_s, ASK, ask)
        tally.num_attempts += 1
        tally.num_returns += is_return
        if wait_ms is None:
            tally.num_admitted += 1
            tally.num_returns_admitted += is_return
            later_s = now_s + chance.expovariate(1 / think_s)
            heapq.heappush(attempts, (later_s, client, next(_numbers), False))
        else:
            travel_s = chance.uniform(0.001, 0.02)
            heapq.heappush(attempts, (now_s + whole_seconds(wait_ms) + travel_s, client, ask, True))
    return tally


@pytest.mark.parametrize("load", [1.0, 1.5, 4.0])
def test_waiting_as_told_gets_in_and_makes_no_storm(store: Store, load: float) -> None:
    """Fifty clients want what the limit gives, or more, and begin with the bucket near empty."""
    assert store.wait_ms(1_700_000_000.0, TOKENS_PER_MINUTE - 20 * ASK, turn=0) is None
    think_s = NUM_CLIENTS * ASK * 60 / TOKENS_PER_MINUTE / load
    tally = run_clients(store, seed=1, run_s=300, think_s=think_s)
    assert tally.num_returns >= 30
    assert tally.num_returns_admitted >= 0.95 * tally.num_returns
    assert tally.num_attempts < 1.5 * tally.num_admitted


def test_coming_back_too_early_neither_lengthens_nor_shortens_the_wait(store: Store) -> None:
    began_s = 1_700_000_000.0
    assert store.wait_ms(began_s, TOKENS_PER_MINUTE, turn=0) is None
    first = store.wait_ms(began_s, 200, turn=1)
    assert first is not None
    assert first >= 1_000
    assert store.wait_ms(began_s + 0.5, 200, turn=1) == first - 500
    assert store.wait_ms(began_s + first / 1000, 200, turn=1) is None


def test_a_newcomer_does_not_overtake_who_was_told_to_wait(store: Store) -> None:
    began_s = 1_700_000_000.0
    assert store.wait_ms(began_s, TOKENS_PER_MINUTE, turn=0) is None
    told_s = (store.wait_ms(began_s, 200, turn=1) or 0) / 1000
    newcomer = store.wait_ms(began_s + told_s, 200, turn=2)
    assert newcomer is not None
    assert newcomer > 800  # behind the first: the bucket holds just one ask
    assert store.wait_ms(began_s + told_s + 1, 200, turn=1) is None
    assert store.wait_ms(began_s + told_s + newcomer / 1000, 200, turn=2) is None


def test_a_turn_that_nobody_takes_lapses(store: Store) -> None:
    began_s = 1_700_000_000.0
    assert store.wait_ms(began_s, TOKENS_PER_MINUTE, turn=0) is None
    told_s = (store.wait_ms(began_s, 200, turn=1) or 0) / 1000
    assert store.wait_ms(began_s + told_s + 2.1, 200, turn=2) is None


def test_no_more_than_a_minutes_refill_is_promised(store: Store) -> None:
    """A storm of clients that never come back holds nobody up for longer than that."""
    began_s = 1_700_000_000.0
    assert store.wait_ms(began_s, TOKENS_PER_MINUTE, turn=0) is None
    waits = [store.wait_ms(began_s, ASK, turn) for turn in range(1, 500)]
    assert max(wait or 0 for wait in waits) < 66_000
    assert store.wait_ms(began_s + 66, ASK, turn=1_000) is None


def test_behind_another_in_line_is_a_minute_at_most_and_both_are_let_in(store: Store) -> None:
    """However few come anew, and though somebody does all the while."""
    began_s = 1_700_000_000.0
    assert store.wait_ms(began_s, TOKENS_PER_MINUTE, next(_numbers)) is None
    first, second = next(_numbers), next(_numbers)
    waits = {5_000: (first, store.wait_ms(began_s, 5_000, first))}
    waits[6_000] = second, store.wait_ms(began_s, 6_000, second)
    told = {began_s + (wait_ms or 0) / 1e3: (cost, turn) for cost, (turn, wait_ms) in waits.items()}
    assert 55 <= max(told) - began_s <= 60, "5,000 and 6,000 at 200 a second"
    others = {began_s + half_s / 2: (100, next(_numbers)) for half_s in range(1, 119)}
    for now_s, (cost, turn) in sorted((others | told).items()):
        wait_ms = store.wait_ms(now_s, cost, turn)
        assert wait_ms is None or now_s not in told
