"""Filter, score, pick; and a ring on which little moves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.affinity import chat_affinity_key, prompt_affinity_key
from gateway.clock import SYSTEM_CLOCK
from gateway.errors import NoReplicaAvailable
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.pickers.best_score import BestScore
from gateway.routing.profile import RoutingProfile
from tests.gateway.fleets import LOAD, PROFILE, RING, fleet_of, inference_request

KEYS = [b"key-%d" % n for n in range(400)]


def endpoint(name: str, *, is_ready: bool = True, model: str = "m") -> Endpoint:
    return Endpoint(name, is_ready, frozenset({model}))


def route(request: RoutingRequest, endpoints: list[Endpoint]) -> str:
    return PROFILE.best(request, PROFILE.candidates(request, endpoints)).name


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param([], id="no-replicas"),
        pytest.param([endpoint("a", model="other")], id="another-model"),
        pytest.param([endpoint("a", is_ready=False)], id="not-ready"),
    ],
)
def test_without_a_candidate_there_is_no_route(endpoints: list[Endpoint]) -> None:
    assert PROFILE.candidates(RoutingRequest("m", b"key"), endpoints) == []


async def test_a_tried_replica_is_not_tried_again() -> None:
    fleet, request = fleet_of("a", "b", "c"), inference_request("m")
    tried: set[str] = set()
    for _ in range(3):
        tried.add(fleet.choose(request, frozenset(tried)).name)
    assert tried == {"a", "b", "c"}
    with pytest.raises(NoReplicaAvailable):
        fleet.choose(request, frozenset(tried))


async def test_with_a_target_a_replica_that_would_be_late_is_passed_over() -> None:
    fleet, request = fleet_of("a", "b"), inference_request("m")
    home = fleet.choose(request, ())
    (other,) = {"a", "b"} - {home.name}
    for replica in (home, fleet.pool[other]):
        replica.forecast.report(LOAD, SYSTEM_CLOCK.monotonic_s())
    assert fleet.has_room(request, target_s=0.5)
    home.forecast.send(1_000.0, SYSTEM_CLOCK.monotonic_s(), tells_first_token=True)
    assert fleet.choose(request, ()) is home
    assert fleet.choose(request, (), target_ms=500).name == other
    fleet.pool[other].forecast.send(5_000.0, SYSTEM_CLOCK.monotonic_s(), tells_first_token=True)
    assert fleet.choose(request, (), target_ms=500) is home, "the least late"
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
    endpoints = [endpoint(name) for name in "abcde"]
    for key in KEYS[:50]:
        request = RoutingRequest("m", key)
        forward, backward = (route(request, e) for e in (endpoints, endpoints[::-1]))
        assert forward == backward


@given(
    st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=8), min_size=2, max_size=8),
    st.data(),
)
@settings(deadline=None)  # the machine may be busy
def test_removing_one_moves_only_its_keys(names: set[str], draw: st.DataObject) -> None:
    removed = draw.draw(st.sampled_from(sorted(names)))
    for key in KEYS[:60]:
        before, after = RING.home(key, names), RING.home(key, names - {removed})
        assert after == before or before == removed


def test_successors_begin_at_home_and_name_everyone_once() -> None:
    names = {"a", "b", "c", "d"}
    for key in KEYS[:50]:
        order = list(RING.successors(key, names))
        assert order[0] == RING.home(key, names)
        assert sorted(order) == sorted(names)
        assert order[1] == RING.home(key, names - {order[0]})


def test_a_home_with_more_than_its_share_passes_work_on() -> None:
    key = KEYS[0]
    first, second, *_ = RING.successors(key, "abcd")

    def chosen(**in_flight: int) -> str:
        endpoints = [
            Endpoint(n, True, frozenset({"m"}), num_in_flight=in_flight.get(n, 0)) for n in "abcd"
        ]
        return route(RoutingRequest("m", key), endpoints)

    assert chosen(**{first: 7}) == first, "below eight nothing queues"
    assert chosen(**{first: 8}) == second
    assert chosen(**dict.fromkeys("abcd", 100)) == first, "evenly loaded: affinity decides"
    assert chosen(**{n: 200 if n in (first, second) else 0 for n in "abcd"}) not in (first, second)


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
        RoutingProfile([], [(Boastful(), 1.0)], BestScore()).best(
            RoutingRequest("m", b""), [endpoint("a")]
        )


def chat_key(*messages: dict[str, str], salt: bytes = b"s" * 32) -> bytes:
    return chat_affinity_key(salt, json.dumps(messages).encode(), None)


SYSTEM = {"role": "system", "content": "be brief"}
HELLO = {"role": "user", "content": "hello"}


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    answer = {"role": "assistant", "content": "hi"}
    assert chat_key(SYSTEM, HELLO) == chat_key(SYSTEM, HELLO, answer, HELLO)


plain_values = st.one_of(st.text(max_size=40), st.none(), st.integers())
any_values = st.one_of(plain_values, st.lists(st.dictionaries(st.text(max_size=3), plain_values)))
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "assistant", "tool"]), "content": any_values},
    optional={"name": plain_values, "tool_calls": any_values},
)


@given(
    before=st.lists(messages, max_size=3),
    first=st.fixed_dictionaries({"content": any_values, "role": st.just("user")}),
    after=st.lists(messages, max_size=3),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
)
@settings(deadline=None)
def test_any_conversation_keeps_its_key_from_its_first_question_on(
    before: list[object], first: object, after: list[object], separators: tuple[str, str]
) -> None:
    short, long = ([*before, first, *rest] for rest in ([], after))
    keys = {
        chat_affinity_key(b"s", json.dumps(m, separators=separators).encode(), None)
        for m in (short, long)
    }
    assert len(keys) == 1


@pytest.mark.parametrize("size", range(4_040, 4_110))
def test_long_openings_count_as_far_as_they_are_looked_at(size: int) -> None:
    def key(*messages: dict[str, str]) -> bytes:
        return chat_affinity_key(b"s", json.dumps(messages).encode(), None)

    long = {"role": "user", "content": "x" * size}
    assert key(long) == key(long, HELLO, HELLO)
    assert len(key(long)) <= 4_098


def test_users_of_one_system_prompt_have_keys_of_their_own() -> None:
    assert chat_key(SYSTEM, HELLO) != chat_key(SYSTEM, {"role": "user", "content": "bye"})


def test_keys_of_two_tenants_never_meet() -> None:
    assert chat_key(HELLO) != chat_key(HELLO, salt=b"t" * 32)
    assert prompt_affinity_key(b"s", b'"x"', "k") != prompt_affinity_key(b"t", b'"x"', "k")


def test_a_cache_key_of_the_clients_own_decides() -> None:
    a, b = (prompt_affinity_key(b"s", prompt, "mine") for prompt in (b'"x"', b'"y"'))
    assert a == b
    assert a != prompt_affinity_key(b"s", b'"x"', None)


def test_messages_that_are_no_messages_have_a_key_too() -> None:
    assert chat_affinity_key(b"s", b'[1, "x", {}]', None)
