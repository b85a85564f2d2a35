"""The cheapest sufficient replicas, found exactly."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decide import decide
from autoscaler.decision import Memory
from autoscaler.mix import EPSILON, Offer, cheapest_order, cheapest_sufficient, dearest_order
from autoscaler.policy import PoolPolicy, Variant
from autoscaler.pool import Demand, EngineLoad, Phase, PoolState, Replica, VariantState

IDLE = EngineLoad(0, 0, 0.0)
BIG = Offer("big", tokens_per_s=400.0, cost_usd_per_h=4.4, num_available=10)
SMALL = Offer("small", tokens_per_s=100.0, cost_usd_per_h=1.0, num_available=10)


def test_small_ones_fill_what_a_big_one_would_waste() -> None:
    assert cheapest_sufficient(150.0, [BIG, SMALL], 20) == {"big": 0, "small": 2}


def test_a_full_ceiling_prefers_what_is_large() -> None:
    assert cheapest_sufficient(10_000.0, [BIG, SMALL], 12) == {"big": 10, "small": 2}
    assert cheapest_sufficient(1_200.0, [BIG, SMALL], 3) == {"big": 3, "small": 0}


def test_who_goes_first_is_who_costs_most_for_the_work() -> None:
    assert dearest_order([SMALL, BIG]) == ["big", "small"]
    assert cheapest_order([SMALL, BIG]) == ["small", "big"]


offers = st.lists(
    st.builds(Offer, st.just("x"), st.floats(10, 500), st.floats(0.5, 10), st.integers(0, 5)),
    min_size=1,
    max_size=3,
).map(lambda found: [Offer(f"v{i}", o.tokens_per_s, o.cost_usd_per_h, o.num_available)
                     for i, o in enumerate(found)])  # fmt: skip


@settings(deadline=None)
@given(offers, st.floats(0, 3000), st.integers(0, 8))
def test_no_other_purchase_is_cheaper(found: list[Offer], need: float, room: int) -> None:
    bought = cheapest_sufficient(need, found, room)
    assert sum(bought.values()) <= room
    assert all(bought[o.name] <= o.num_available for o in found)
    sufficient = [
        sum(n * o.cost_usd_per_h for n, o in zip(counts, found, strict=True))
        for counts in itertools.product(*(range(o.num_available + 1) for o in found))
        if sum(counts) <= room
        and sum(n * o.tokens_per_s for n, o in zip(counts, found, strict=True)) >= need - EPSILON
    ]
    if sufficient:
        cost = sum(bought[o.name] * o.cost_usd_per_h for o in found)
        assert cost <= min(sufficient) + 1e-6


def test_a_pool_of_two_kinds_orders_the_cheap_and_gives_up_the_dear() -> None:
    rules = PoolPolicy(
        name="chat",
        variants=(
            Variant("a", max_replicas=4, num_slots=10, tokens_per_s=100.0, cost_usd_per_h=3.0),
            Variant("b", max_replicas=8, num_slots=10, tokens_per_s=100.0, cost_usd_per_h=2.0),
        ),
        max_replicas=12,
    )
    counts, memory = {"a": 1, "b": 1}, Memory()
    seen = []
    for rate in [1] * 50 + [9] * 60 + [1] * 120:
        variants = tuple(
            VariantState(n, c, tuple(Replica(f"{n}{i}", Phase.READY, IDLE) for i in range(c)))
            for n, c in counts.items()
        )
        state = PoolState(0.0, variants, Demand(15.0, 15 * rate, 0, 1500.0 * rate, 15 * rate))
        decision = decide(state, rules, memory)
        counts, memory = dict(decision.wanted), decision.memory
        seen.append(dict(counts))
    assert seen[109]["b"] == 8
    assert 2 <= seen[109]["a"] <= 4
    assert seen[-1]["a"] == 0
