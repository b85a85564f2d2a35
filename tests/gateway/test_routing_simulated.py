"""Whole fleets on a virtual clock: what the policies promise, in small."""

import pytest

from benchmarks.routing import CHANGES, simulate
from benchmarks.routing_claims import Row


def row_of(mix: str, policy: str) -> Row:
    return simulate(mix, policy, seed=1, until_s=80.0, load=1.0)


@pytest.mark.parametrize("mix", ["multi-turn", "shared prompts"])
def test_prefixes_are_found_again_far_more_often_than_by_load_alone(mix: str) -> None:
    plain, bounded, exact = (row_of(mix, p) for p in ("least tokens", "bounded", "exact"))
    assert bounded.hit_ratio > plain.hit_ratio + 0.15
    assert exact.hit_ratio > plain.hit_ratio + 0.15
    assert max(bounded.ttft_p95_s, exact.ttft_p95_s) < plain.ttft_p95_s


def test_popular_prefixes_drown_nobody() -> None:
    """production-stack#957: one system prompt, one pod."""
    unbounded, bounded = (row_of("zipf", policy) for policy in ("ring", "bounded"))
    assert unbounded.max_over_mean > 3
    assert bounded.max_over_mean < 1.8
    assert bounded.ttft_p95_s < unbounded.ttft_p95_s / 3


def test_a_replica_that_dies_and_one_that_joins_cost_little() -> None:
    steady, changing = (row_of(mix, "bounded") for mix in ("multi-turn", CHANGES))
    assert changing.num_requests >= steady.num_requests * 0.9
    assert changing.hit_ratio > steady.hit_ratio - 0.12
