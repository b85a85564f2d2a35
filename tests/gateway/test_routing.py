"""Filter, score, pick; and a ring on which little moves."""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.errors import NoReplicaAvailable
from gateway.prompt import Affinity
from gateway.routing.candidates import Candidates
from gateway.routing.decision import Decision, Reason
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.ring import PrefixRing, ring_point
from tests.gateway.fleets import LOAD, fleet_of, inference_request, profile_of

KEYS = [b"key-%d" % n for n in range(400)]


def endpoint(name: str, *, is_ready: bool = True, model: str = "m") -> Endpoint:
    return Endpoint(name, is_ready, frozenset({model}))


def request_of(key: bytes, *, num_tokens: int = 1, prompt_tokens: int = 100) -> RoutingRequest:
    return RoutingRequest("m", Affinity(key, key), prompt_tokens, num_tokens)


class Scene:
    """Some endpoints, and a profile to choose among them."""

    def __init__(self, names: Iterable[str], **settings: Any) -> None:
        self.ring = PrefixRing(names)
        self.endpoints = {name: endpoint(name) for name in names}
        self.reuse = PrefixReuse(lambda: 1.0)
        self.profile, self.hot = profile_of(Random(7).random, reuse=self.reuse, **settings)

    def decide(self, key: bytes, **request: Any) -> Decision:
        group = Candidates(list(self.endpoints.values()), self.ring)
        return self.profile.decide(request_of(key, **request), group)

    def route(self, key: bytes, **request: Any) -> str:
        return self.decide(key, **request).endpoint.name

    def order(self, key: bytes) -> list[str]:
        return list(self.ring.walk(ring_point(key)))

    def load(self, **tokens: int) -> None:
        for name, one in self.endpoints.items():
            one.load_tokens = tokens.get(name, 0)


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param([], id="no-replicas"),
        pytest.param([endpoint("a", model="other")], id="another-model"),
        pytest.param([endpoint("a", is_ready=False)], id="not-ready"),
    ],
)
def test_without_a_candidate_there_is_no_route(endpoints: list[Endpoint]) -> None:
    profile, _ = profile_of(Random(1).random)
    assert profile.candidates(request_of(b"key"), endpoints) == []


async def test_a_tried_replica_is_not_tried_again() -> None:
    fleet, request = fleet_of("a", "b", "c"), inference_request("m")
    tried: set[str] = set()
    for _ in range(3):
        tried.add(fleet.choose(request, frozenset(tried)).endpoint.name)
    assert tried == {"a", "b", "c"}
    with pytest.raises(NoReplicaAvailable):
        fleet.choose(request, frozenset(tried))


async def test_with_a_target_a_replica_that_would_be_late_is_passed_over() -> None:
    now_s = SYSTEM_CLOCK.monotonic_s()
    clock = Clock(SYSTEM_CLOCK.wall_s, lambda: now_s)
    fleet, request = fleet_of("a", "b", clock=clock), inference_request("m")
    home = fleet.pool[fleet.choose(request, ()).endpoint.name]
    (other,) = {"a", "b"} - {home.name}
    for replica in (home, fleet.pool[other]):
        replica.forecast.report(LOAD, now_s)
    assert fleet.has_room(request, target_s=0.5)
    home.forecast.send(1_000.0, now_s, tells_first_token=True)
    assert fleet.choose(request, ()).endpoint is home.endpoint
    late = fleet.choose(request, (), target_ms=500)
    assert (late.endpoint.name, late.reason, late.home) == (other, Reason.LATE, home.name)
    assert max(late.costs) == pytest.approx(500.0, abs=100.0), "milliseconds past the target"
    fleet.pool[other].forecast.send(5_000.0, now_s, tells_first_token=True)
    assert fleet.choose(request, (), target_ms=500).endpoint is home.endpoint, "the least late"
    assert not fleet.has_room(request, target_s=0.5)
    assert fleet.drain_s(request, target_s=0.5, prompt_tokens=0) == pytest.approx(0.5, abs=0.1)
    assert fleet.drain_s(request, target_s=0.5, prompt_tokens=2_000) == pytest.approx(1.5, abs=0.1)


async def test_a_model_that_no_replica_serves_has_no_candidate() -> None:
    fleet = fleet_of("a", "b")
    fleet.require_candidate(inference_request("m"))
    with pytest.raises(NoReplicaAvailable):
        fleet.require_candidate(inference_request("other"))
    with pytest.raises(NoReplicaAvailable):
        fleet.choose(inference_request("other"), frozenset())


def test_the_order_of_endpoints_does_not_matter() -> None:
    forward, backward = Scene("abcde"), Scene("edcba")
    assert all(forward.route(key) == backward.route(key) for key in KEYS[:50])


@given(
    st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=8), min_size=2, max_size=8),
    st.data(),
)
@settings(deadline=None, max_examples=40)  # a ring takes its time, and the machine may be busy
def test_removing_one_moves_only_its_keys(names: set[str], draw: st.DataObject) -> None:
    removed = draw.draw(st.sampled_from(sorted(names)))
    before, after = PrefixRing(names), PrefixRing(names)
    after.set_members(names - {removed})
    for point in map(ring_point, KEYS[:60]):
        assert after.home(point) == before.home(point) or before.home(point) == removed


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=8))
@settings(deadline=None, max_examples=30)
def test_a_ring_that_has_changed_is_as_one_built_anew(steps: list[set[str]]) -> None:
    ring = PrefixRing()
    for names in steps:
        ring.set_members(names)
        anew = PrefixRing(names)
        for point in map(ring_point, KEYS[:20]):
            assert list(ring.walk(point)) == list(anew.walk(point))


def test_the_ring_names_everyone_once_beginning_at_home() -> None:
    ring, fewer = PrefixRing("abcd"), PrefixRing("abcd")
    for point in map(ring_point, KEYS[:50]):
        order = list(ring.walk(point))
        assert order[0] == ring.home(point)
        assert sorted(order) == list("abcd")
        fewer.set_members(set("abcd") - {order[0]})
        assert order[1:] == list(fewer.walk(point))


@pytest.mark.parametrize("num", [4, 16, 64])
def test_one_that_joins_takes_its_share_and_one_that_leaves_spreads_it(num: int) -> None:
    names = [f"replica-{n}" for n in range(num)]
    few, many = PrefixRing(names[:-1]), PrefixRing(names)
    points = [ring_point(b"%d" % n) for n in range(10_000)]
    moved = [point for point in points if few.home(point) != many.home(point)]
    assert len(moved) / len(points) <= 1 / num + 0.05
    assert {many.home(point) for point in moved} == {names[-1]}, "to the one that has joined"
    heirs = Counter(few.home(point) for point in moved)
    assert len(heirs) > (num - 1) / 2
    assert max(heirs.values()) < len(moved) * (0.6 if num == 4 else 0.3)


def test_shares_are_fair() -> None:
    names = [f"replica-{n}" for n in range(8)]
    ring = PrefixRing(names)
    homes = Counter(ring.home(ring_point(b"%d" % n)) for n in range(8_000))
    assert min(homes[name] for name in names) > 700
    assert max(homes[name] for name in names) < 1_300


def test_a_home_with_more_than_it_is_worth_gets_an_heir() -> None:
    """Half of a prompt is expected to be found: 100 tokens of 200, worth twice as many."""
    key = KEYS[0]
    first, second, third, _ = Scene("abcd").order(key)
    for load, expected in ((200, first), (201, second)):
        scene = Scene("abcd")
        scene.load(**{first: load})
        assert scene.route(key, prompt_tokens=200) == expected
    scene = Scene("abcd")
    scene.load(**{first: 400})
    decision = scene.decide(key, prompt_tokens=200)
    assert (decision.endpoint.name, decision.reason, decision.home) == (second, Reason.GROWN, first)
    scene = Scene("abcd")
    scene.load(**{first: 4_000, second: 4_000})
    scene.hot.grow(ring_point(key), 2)
    decision = scene.decide(key, prompt_tokens=200)
    assert (decision.endpoint.name, decision.reason) == (third, Reason.GROWN)


def test_what_many_share_is_worth_less_waiting_to_each_than_one_conversations_turns() -> None:
    """A copy of what is shared serves all that follow; of a conversation it serves one."""
    key = KEYS[0]
    for conversation, expected in ((key, 0), (b"one of many", 1)):
        scene = Scene("abcd")
        order = scene.order(key)
        scene.load(**{order[0]: 150})
        group = Candidates(list(scene.endpoints.values()), scene.ring)
        for _ in range(4):
            scene.hot.use(ring_point(key))
        request = RoutingRequest("m", Affinity(key, conversation), 200, 240)
        assert scene.profile.decide(request, group).endpoint.name == order[expected]


def test_its_share_of_a_high_load_is_a_homes_whatever_it_is_worth() -> None:
    """The bound is in tokens, and its factor can be set."""
    key = KEYS[0]
    for factor, expected in ((1.25, 1), (2.5, 0)):
        scene = Scene("abcd", load_factor=factor)
        order = scene.order(key)
        scene.load(**{order[0]: 5_000, **dict.fromkeys(order[1:], 2_000)})
        assert scene.route(key, num_tokens=100, prompt_tokens=100) == order[expected]
    for load, expected in ((3_300, 0), (3_400, 1)):  # 1.3 of 3,333, less the thousand that it adds
        scene = Scene("abcd", load_factor=1.3)
        scene.load(**{order[0]: load, **dict.fromkeys(order[1:], 3_000)})
        assert scene.route(key, num_tokens=1_100, prompt_tokens=200) == order[expected]
    scene = Scene("abcd")
    scene.load(**dict.fromkeys("abcd", 9_000))
    assert {scene.route(key) for _ in range(8)} == {scene.order(key)[0]}, "evenly loaded: home"


def test_with_the_heir_busy_too_it_goes_to_whoever_has_least() -> None:
    scene, key = Scene("abcd"), KEYS[0]
    first, second, third, fourth = scene.order(key)
    scene.load(**{first: 900, second: 900, third: 20, fourth: 10})
    decision = scene.decide(key)
    assert (decision.endpoint.name, decision.reason) == (fourth, Reason.SPILL)
    assert decision.home == first
    assert list(decision.costs) == [scene.endpoints[name].load_tokens for name in "abcd"]


def test_where_nothing_is_ever_found_again_any_place_is_as_good() -> None:
    scene, key = Scene("abcd"), KEYS[0]
    affinity = request_of(key).affinity
    for _ in range(200):
        scene.reuse.learn(affinity, prompt_tokens=500, cached_tokens=0)
    home, *others = scene.order(key)
    scene.load(**{home: 10, **dict.fromkeys(others, 5)})
    decision = scene.decide(key)
    assert decision.reason is Reason.NO_PREFIX
    assert decision.endpoint.name in others
    for _ in range(200):
        scene.reuse.learn(affinity, prompt_tokens=500, cached_tokens=450)
    assert scene.decide(key).reason is Reason.HOME
    other_tenants = Affinity(b"t" * 33 + key, b"")
    assert scene.reuse.expected_tokens(other_tenants, 100) == 50, "each learns for itself"


def test_what_is_unknown_is_tried_now_and_then() -> None:
    draws = iter([0.5, 0.01])
    reuse, affinity = PrefixReuse(lambda: next(draws)), request_of(b"k").affinity
    for _ in range(200):
        reuse.learn(affinity, prompt_tokens=500, cached_tokens=0)
    usual, explored = (reuse.expected_tokens(affinity, 1_000) for _ in range(2))
    assert usual < 100
    assert explored == 500


def test_a_hot_prefix_gets_as_many_owners_as_it_needs_and_loses_them_again() -> None:
    scene, key = Scene([f"r{n}" for n in range(8)]), b"hot"
    for number in range(400):  # of which 32 are under way at a time
        chosen = scene.decide(key, num_tokens=100).endpoint
        chosen.add_load(100)
        if number >= 32:
            max(scene.endpoints.values(), key=lambda e: e.load_tokens).add_load(-100)
    point = ring_point(key)
    assert scene.hot.num_owners(point) >= 6, "it is all the traffic there is"
    assert scene.hot.num_owners(ring_point(b"cold")) == 1
    scene.load()
    for _ in range(200):
        scene.hot.tick()
    assert scene.hot.num_owners(point) == 1
    assert scene.route(key) == scene.order(key)[0], "home again"


def test_a_spilt_prefix_comes_home_when_home_has_room() -> None:
    scene, key = Scene("abc"), KEYS[1]
    home, *_ = scene.order(key)
    scene.load(**{home: 9_000})
    assert scene.route(key) != home
    for _ in range(30):
        scene.hot.tick()
    scene.load()
    assert scene.route(key) == home


def test_hot_prefixes_are_bounded() -> None:
    hot = HotPrefixes()
    for point in range(10_000):
        hot.grow(point, 2)
    assert sum(hot.num_owners(point) == 2 for point in range(10_000)) == 4_096
    assert hot.num_owners(9_999) == 2


def test_conversations_of_a_hot_prefix_keep_to_one_owner_each() -> None:
    scene = Scene("abcdef")
    scene.hot.grow(ring_point(b"hot"), 3)
    owners = set(scene.order(b"hot")[:3])
    group = Candidates(list(scene.endpoints.values()), scene.ring)
    seen: dict[bytes, set[str]] = {}
    for key in KEYS[:60] * 2:
        request = RoutingRequest("m", Affinity(b"hot", key), 100, 100)
        seen.setdefault(key, set()).add(scene.profile.decide(request, group).endpoint.name)
    assert all(len(names) == 1 for names in seen.values())
    assert set().union(*seen.values()) == owners


def test_a_conversation_of_a_hot_prefix_stays_where_it_was_while_that_is_worth_it() -> None:
    """What it said is there only; the number of its prefix's owners changes meanwhile."""
    scene = Scene("abcd")
    order = scene.order(b"hot")
    group = Candidates(list(scene.endpoints.values()), scene.ring)
    affinity = Affinity(b"hot", b"one of many")
    scene.hot.went(affinity, order[3])
    for num_owners in (1, 2, 3):
        scene.hot.grow(ring_point(b"hot"), num_owners)
        request = RoutingRequest("m", affinity, 1_000, 1_040)
        assert scene.profile.decide(request, group).endpoint.name == order[3]
    scene.load(**{order[3]: 5_000})
    group = Candidates(list(scene.endpoints.values()), scene.ring)
    assert scene.profile.decide(request, group).endpoint.name != order[3]


def test_conversations_remembered_are_bounded() -> None:
    hot = HotPrefixes()
    for number in range(70_000):
        hot.went(Affinity(b"k", b"%d" % number), "a")
    known = [hot.last_of(Affinity(b"k", b"%d" % number)) for number in range(70_000)]
    assert known.count("a") == 65_536
    assert known[-1] == "a"


def test_a_short_prompt_goes_where_least_is_to_do_unless_its_client_knows_better() -> None:
    scene, key = Scene("abc", least_prefix_tokens=64), KEYS[0]
    home, other, *_ = scene.order(key)
    scene.load(**{name: 0 if name == other else 50 for name in "abc"})
    short = scene.decide(key, prompt_tokens=63)
    assert (short.endpoint.name, short.reason) == (other, Reason.NO_PREFIX)
    own = RoutingRequest("m", Affinity(key, key, is_clients=True), 63, 10)
    scene.load()
    group = Candidates(list(scene.endpoints.values()), scene.ring)
    assert scene.profile.decide(own, group).endpoint.name == home


def test_equals_are_chosen_among_by_chance() -> None:
    scene = Scene("abcd", least_prefix_tokens=64)
    chosen = Counter(scene.route(b"k", prompt_tokens=1) for _ in range(400))
    assert min(chosen[name] for name in "abcd") > 60


def test_blind_gateways_do_not_run_after_one_another() -> None:
    """Sixteen that know only of their own requests: two drawn by chance are enough."""
    names = [f"r{n}" for n in range(16)]
    true_load: Counter[str] = Counter()
    for number in range(16):
        scene = Scene(names, least_prefix_tokens=64)
        scene.profile, _ = profile_of(Random(number).random, least_prefix_tokens=64)
        group = Candidates(list(scene.endpoints.values()), scene.ring, is_blind=True)
        for _ in range(16):
            chosen = scene.profile.decide(request_of(b"k", prompt_tokens=1), group).endpoint
            chosen.add_load(100)
            true_load[chosen.name] += 1
    assert max(true_load.values()) <= 2 * 16


def test_one_that_joins_takes_its_keys_over_by_and_by_each_from_where_it_lived() -> None:
    names = [f"r{n}" for n in range(8)]
    before, scene = PrefixRing(names[:-1]), Scene(names)
    joiner = scene.endpoints[names[-1]]
    points = {key: ring_point(key) for key in KEYS}
    moving = [key for key in KEYS if scene.ring.home(points[key]) == joiner.name]
    shares = []
    for joiner.warmth in (0.0, 0.5, 1.0):
        homes = {key: scene.route(key) for key in KEYS}
        assert all(homes[key] in (before.home(point), joiner.name) for key, point in points.items())
        shares.append(sum(homes[key] == joiner.name for key in moving) / len(moving))
    assert shares[0] == 0.0
    assert 0.25 < shares[1] < 0.75
    assert shares[2] == 1.0


def test_one_that_joins_is_not_everybodys_least_busy() -> None:
    scene = Scene("abcd", least_prefix_tokens=64)
    scene.load(a=1_000, b=1_000, c=1_000)
    scene.endpoints["d"].warmth = 0.0
    chosen = []
    for _ in range(10):
        chosen.append(scene.decide(b"k", prompt_tokens=1).endpoint)
        chosen[-1].add_load(200)
    assert 1 <= sum(one.name == "d" for one in chosen) < 10


def test_the_sum_of_a_group_follows_its_endpoints() -> None:
    endpoints = [endpoint(name) for name in "abc"]
    group = Candidates(endpoints, PrefixRing("abc"))
    group.follow()
    endpoints[0].add_load(70)
    endpoints[2].add_load(30)
    endpoints[0].add_load(-20)
    assert group.load.tokens == 80
    assert group.without({"a"}).load.tokens == 30
