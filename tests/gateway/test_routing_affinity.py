"""Which requests should meet the same prefix cache."""

import json
from collections.abc import Callable, Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.admission import ADMISSION_TIERS
from gateway.admission.cost import CostModel
from gateway.api.affinity import chat_affinity, clients_affinity, prompt_affinity
from gateway.api.context import Operation
from gateway.api.request_body import RequestReader
from gateway.prompt import Affinity
from tests.gateway.fleets import context_of, inference_request


def chat_key(*messages: dict[str, str], salt: bytes = b"s" * 32, tools: bytes = b"") -> Affinity:
    return chat_affinity(salt, json.dumps(messages).encode(), tools)


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
    keys = [
        chat_affinity(b"s", json.dumps(m, separators=separators).encode(), b"")
        for m in (short, long)
    ]
    assert keys[0] == keys[1]


def test_long_openings_count_as_far_as_they_are_looked_at() -> None:
    for size in (1_000, 4_090, 5_000, 100_000):
        long = {"role": "user", "content": "x" * size}
        key = chat_key(long)
        assert key == chat_key(long, HELLO, HELLO)
        assert max(len(key.key), len(key.conversation)) <= 6_000


LONG_SYSTEM = {"role": "system", "content": "be brief " * 600}
BYE = {"role": "user", "content": "bye"}


def test_who_shares_a_long_system_prompt_shares_a_key_and_no_conversation() -> None:
    one, other = chat_key(LONG_SYSTEM, HELLO), chat_key(LONG_SYSTEM, BYE)
    assert one.key == other.key
    assert one.conversation != other.conversation
    assert one.key != chat_key(LONG_SYSTEM, HELLO, tools=b"[1]").key, "tools stand before it"


def test_users_of_one_short_system_prompt_have_keys_of_their_own() -> None:
    assert chat_key(SYSTEM, HELLO).key != chat_key(SYSTEM, BYE).key


def test_keys_of_two_tenants_never_meet() -> None:
    assert chat_key(HELLO).key != chat_key(HELLO, salt=b"t" * 32).key
    assert chat_key(LONG_SYSTEM).key != chat_key(LONG_SYSTEM, salt=b"t" * 32).key
    assert clients_affinity(b"s", b"k").key != clients_affinity(b"t", b"k").key
    assert prompt_affinity(b"s", b'"x"').key != prompt_affinity(b"t", b'"x"').key


def test_messages_that_are_no_messages_have_a_key_too() -> None:
    assert chat_affinity(b"s", b'[1, "x", {}]', b"").key


GRANT = context_of("t", ADMISSION_TIERS["free"], inference_request("m")).grant


class AnyModel:
    takes_priority = False
    plain_names = frozenset[str]()

    def own_name(self, model: str) -> str:
        return model

    def resolve(self, model: str, share: Callable[[], float], providers: Collection[str]) -> str:
        return model


def affinity_of(session: bytes | None = None, **members: object) -> Affinity:
    body = {"model": "m", "messages": [HELLO], **members}
    reader = RequestReader(AnyModel(), CostModel(0.95))
    raw = json.dumps(body).encode()
    return reader.read(Operation.CHAT_COMPLETIONS, raw, GRANT, session)[0].affinity


def test_a_key_of_the_clients_own_decides_then_its_session_then_what_it_says() -> None:
    named = affinity_of(prompt_cache_key="mine")
    assert named == affinity_of(prompt_cache_key="mine", messages=[BYE])
    assert named == affinity_of(session=b"s", prompt_cache_key="mine")
    in_session = affinity_of(session=b"s")
    assert in_session == affinity_of(session=b"s", messages=[BYE])
    assert len({named.key, in_session.key, affinity_of().key, affinity_of(messages=[BYE]).key}) == 4
