"""Filter, score, pick; and a ring on which little moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.filters.ready import Ready
from gateway.routing.filters.serves_model import ServesModel
from gateway.routing.pickers.best_score import BestScore
from gateway.routing.profile import NoEndpointAvailable, RoutingProfile
from gateway.routing.ring import PrefixRing
from gateway.routing.scorers.prefix_affinity import PrefixAffinityScorer

RING = PrefixRing()
PROFILE = RoutingProfile([ServesModel(), Ready()], [(PrefixAffinityScorer(RING), 1.0)], BestScore())
KEYS = [b"key-%d" % n for n in range(400)]


def endpoint(name: str, *, is_ready: bool = True, model: str = "m") -> Endpoint:
    return Endpoint(name, is_ready, frozenset({model}))


@pytest.mark.parametrize(
    ("endpoints", "rejected_by"),
    [
        pytest.param([], "discovery", id="no-replicas"),
        pytest.param([endpoint("a", model="other")], "serves_model", id="another-model"),
        pytest.param([endpoint("a", is_ready=False)], "ready", id="not-ready"),
    ],
)
def test_names_the_filter_that_emptied_the_list(
    endpoints: list[Endpoint], rejected_by: str
) -> None:
    with pytest.raises(NoEndpointAvailable) as caught:
        PROFILE.route(RoutingRequest("m", b"key"), endpoints)
    assert caught.value.rejected_by == rejected_by


def test_a_tried_endpoint_is_not_tried_again() -> None:
    endpoints = [endpoint("a"), endpoint("b"), endpoint("c")]
    tried: set[str] = set()
    for _ in endpoints:
        tried.add(PROFILE.route(RoutingRequest("m", b"k", frozenset(tried)), endpoints).endpoint)
    assert tried == {"a", "b", "c"}


def test_the_order_of_endpoints_does_not_matter() -> None:
    endpoints = [endpoint(name) for name in "abcde"]
    for key in KEYS[:50]:
        request = RoutingRequest("m", key)
        forward, backward = (PROFILE.route(request, e) for e in (endpoints, endpoints[::-1]))
        assert forward.endpoint == backward.endpoint


@given(
    st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=8), min_size=2, max_size=8),
    st.data(),
)
def test_removing_one_moves_only_its_keys(names: set[str], draw: st.DataObject) -> None:
    removed = draw.draw(st.sampled_from(sorted(names)))
    for key in KEYS[:60]:
        before, after = RING.home(key, names), RING.home(key, names - {removed})
        assert after == before or before == removed


def test_shares_are_fair() -> None:
    names = [f"replica-{n}" for n in range(8)]
    homes = [RING.home(b"%d" % n, names) for n in range(8_000)]
    shares = sorted(homes.count(name) for name in names)
    assert shares[0] > 700
    assert shares[-1] < 1_300


def test_a_score_out_of_range_is_a_defect() -> None:
    class Boastful:
        name = "boastful"

        def score(self, request: RoutingRequest, endpoints: object) -> list[float]:
            return [2.0]

    with pytest.raises(ValueError, match="boastful"):
        RoutingProfile([], [(Boastful(), 1.0)], BestScore()).route(
            RoutingRequest("m", b""), [endpoint("a")]
        )
