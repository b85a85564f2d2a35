"""What a server of another owner may answer, and what of it a tenant reads, and pays."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.usage import Outcome, UsageSource
from gateway.errors import CredentialRefused
from gateway.providers.credential import Credential
from tests.gateway.beside import Members, busy, members_of
from tests.gateway.falling import KEY, OPENAI, Fallen, Falls, break_down
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import until
from tests.gateway.upstream_server import Generation, Upstream, words

Behaviour = Callable[[Generation], Awaitable[None]]

HALF_HIDDEN = f"Incorrect API key provided: {KEY[:7]}****{KEY[-2:]}"
GOOGLES = b'[{"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}}]'


@pytest.fixture
def members(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Members:
    return members_of(tmp_path, valkey, policies, upstream, others)


def answering(status: int, body: object = b"") -> Behaviour:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def behave(generation: Generation) -> None:
        await generation.answer(status, data)

    return behave


def error(message: str = "bad", **members: Any) -> dict[str, object]:
    return {"error": {"message": message} | members}


def streaming(*payloads: bytes) -> Behaviour:
    async def behave(generation: Generation) -> None:
        await generation.start_stream()
        for payload in payloads:
            await generation.chunk(b"data: %b\n\n" % payload)
        await generation.send(b"0\r\n\r\n")

    return behave


def completion(**members: object) -> dict[str, object]:
    message = {"role": "assistant", "content": "word " * 500}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "choices": [choice]} | members


WORD = json.dumps({"choices": [{"index": 0, "delta": {"content": "word"}}]}).encode()
TELLING = {
    "message": answering(400, error(f"key {KEY}")),
    "members": answering(400, error(param=KEY, code=KEY, type=KEY)),
    "half-hidden": answering(400, error(HALF_HIDDEN)),
    "text": answering(418, {"error": KEY}),
    "no-json": answering(422, f"nonsense {KEY}".encode()),
    "no-account": answering(402, error(HALF_HIDDEN)),
    "html-200": answering(200, f"<html>{KEY}".encode()),
    "error-200": answering(200, error(HALF_HIDDEN)),
    "account-200": answering(200, error("no such account: acme", code=403)),
    "used-error-200": answering(200, error(KEY) | {"usage": {"prompt_tokens": 1}}),
    "document": answering(200, completion(warning=KEY)),
    "error-event": streaming(WORD, json.dumps(error(HALF_HIDDEN, code=400)).encode()),
    "odd-event": streaming(WORD, f"Unauthorized: {KEY}".encode()),
}


def told(fallen: Fallen) -> bool:
    return any(part in fallen.head + fallen.body.decode() for part in (KEY, KEY[:6], KEY[-6:]))


@pytest.mark.parametrize("name", TELLING)
async def test_no_part_of_a_credential_is_passed_on(
    members: Members, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with members() as fall:
        fall.upstream.behaviour = break_down
        fall.others["openai"].behaviour = TELLING[name]
        fallen = await fall.ask(stream=name.endswith("-event"))
        assert fall.others["openai"].generations
    assert not told(fallen)
    assert b"acme" not in fallen.body
    assert "error" in (json.loads(fallen.payloads[-1]) if fallen.payloads else fallen.document)
    assert KEY not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("message", 401, "our credential is refused"),
        ("document", 200, "its answers are of no use, break off, or hold our credential"),
    ],
)
async def test_the_log_says_which_it_is(
    members: Members, name: str, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with members() as fall, busy(fall):
        fall.upstream.behaviour = words(3)
        fall.others["openai"].behaviour = TELLING[name]
        await fall.ask()
    (opened,) = (r for r in caplog.records if r.getMessage() == "breaker opened")
    assert (vars(opened)["status"], vars(opened)["reason"]) == (status, reason)


@pytest.mark.parametrize("name", ["message", "half-hidden", "no-account", "error-200"])
async def test_nor_by_a_step_of_a_chain(falls: Falls, name: str) -> None:
    async with falls(OPENAI) as fall:
        fall.others["openai"].behaviour = TELLING[name]
        fallen = await fall.ask()
        assert len(fall.others["openai"].generations) == 1
    assert not told(fallen)


async def test_what_it_says_of_a_request_is_the_clients_to_read(members: Members) -> None:
    async with members() as fall:
        fall.upstream.behaviour = break_down
        fall.others["openai"].behaviour = answering(400, error("too hot", param="temperature"))
        fallen = await fall.ask()
    told = fallen.document["error"]
    assert (fallen.status, told["message"], told["param"]) == (400, "too hot", "temperature")


def test_a_credential_is_seen_in_parts() -> None:
    assert Credential("sk-abcdefgh").is_hinted_in("key sk-abc***gh")
    assert not Credential("sk-abcdefgh").is_hinted_in("key sk-a***gh")
    assert Credential("abc").is_hinted_in("key abc")
    assert not Credential("").is_hinted_in("anything")
    Credential("").check_untold(b"anything")


@pytest.mark.parametrize("word", ["EMPTY", "none", "ollama", "x", "sk-no-key-required"])
def test_a_word_for_a_server_that_wants_no_key_may_stand_in_its_answers(word: str) -> None:
    """Or whoever asks for it to be said ends what the server does for all."""
    credential, answer = Credential(word), json.dumps(completion(says=word)).encode()
    credential.check_untold(answer)
    assert not credential.is_refused_in(400, answer)
    with pytest.raises(CredentialRefused):
        Credential(KEY).check_untold(json.dumps(completion(says=KEY)).encode())


async def test_a_request_that_an_error_repeats_says_nothing_of_our_credential(
    members: Members,
) -> None:
    echo = {"detail": [{"input": {"metadata": {"reason": "API_KEY_INVALID"}}}]}
    async with members() as fall, busy(fall):
        fall.others["openai"].behaviour = answering(422, echo)
        statuses = [(await fall.ask()).status for _ in range(2)]
        num_asked = len(fall.others["openai"].generations)
    assert statuses == [422, 422]
    assert num_asked == 2
    assert not Credential(KEY).is_refused_in(400, json.dumps(echo).encode())
    assert not Credential(KEY).is_refused_in(422, GOOGLES)


@pytest.mark.parametrize(
    ("behaviour", "most_asked"),
    [
        pytest.param(answering(302), 5, id="redirect"),
        pytest.param(answering(204), 5, id="no-content"),
        pytest.param(answering(304), 5, id="unmodified"),
        pytest.param(answering(200), 5, id="empty"),
        pytest.param(answering(200, b"<html>" * 500), 5, id="html"),
        pytest.param(answering(200, b"null"), 5, id="null"),
        pytest.param(answering(200, b"[]"), 5, id="list"),
        pytest.param(answering(400, GOOGLES), 1, id="wrong-key"),
        pytest.param(answering(400, error(f"key {KEY}")), 1, id="told-key"),
    ],
)
async def test_who_gives_no_answer_is_passed_over_and_left_alone(
    members: Members, behaviour: Behaviour, most_asked: int
) -> None:
    async with members() as fall, busy(fall):
        fall.others["openai"].behaviour = behaviour
        fall.upstream.behaviour = words(3)
        fallen = [await fall.ask() for _ in range(most_asked + 1)]
        num_asked = len(fall.others["openai"].generations)
    assert {f.status for f in fallen} == {200}
    assert {event.provider for f in fallen for event in f.events} == {None}
    assert num_asked == most_asked


USED = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}).encode()
NO_ANSWERS = {
    "nothing": streaming(b"[DONE]"),
    "odd": streaming(b'{"foo": 1}', b"[DONE]"),
    "usage": streaming(USED, b"[DONE]"),
    "telling": streaming(USED, json.dumps({"key": KEY}).encode(), b"[DONE]"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_a_stream_without_a_completion_is_no_answer(members: Members, name: str) -> None:
    async with members() as fall, busy(fall):
        fall.others["openai"].behaviour = NO_ANSWERS[name]
        fall.upstream.behaviour = words(3)
        fallen = await fall.ask(stream=True)
        assert len(fall.others["openai"].generations) == 1
    assert [event.provider for event in fallen.events] == [None]
    assert b"foo" not in fallen.body


@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_and_costs_nothing_where_nobody_else_is_left(members: Members, name: str) -> None:
    async with members(max_retries=0) as fall:
        fall.upstream.behaviour = break_down
        pool = fall.gateway.pipeline._stages.fleet.pool
        fall.upstream.is_ready = False
        await until(lambda: not pool["replica-0"].is_ready)
        fall.others["openai"].behaviour = NO_ANSWERS[name]
        fallen = await fall.ask(stream=True)
    assert fallen.status == 502
    assert [e.input_uncached_tokens + e.output_text_tokens for e in fallen.events] == [0]


ACCOUNT = "Rate limit reached in organization org-OURS"
BETWEEN_US = [
    {"code": "rate_limit_exceeded", "type": "requests"},
    {"code": "insufficient_quota"},
    {"type": "overloaded_error"},
    {"code": "429"},
    {"code": 402},
]


@pytest.mark.parametrize("members_of_it", BETWEEN_US)
@pytest.mark.parametrize("how", ["event", "document", "400"])
async def test_what_is_between_it_and_us_is_no_tenants_to_read(
    members: Members, members_of_it: dict[str, Any], how: str
) -> None:
    told = error(ACCOUNT, **members_of_it)
    behave = streaming(WORD, json.dumps(told).encode())
    async with members() as fall, busy(fall):
        if how != "event":
            behave = answering(200 if how == "document" else 400, told)
        fall.others["openai"].behaviour = behave
        fall.upstream.behaviour = words(3)
        fallen = await fall.ask(stream=how == "event")
    assert fall.others["openai"].generations
    assert b"org-OURS" not in fallen.body


@pytest.mark.parametrize(
    ("usage", "counted", "source"),
    [
        pytest.param({"prompt_tokens": 10, "completion_tokens": 2}, 2, "provider", id="usual"),
        pytest.param({"prompt_tokens": 10, "completion_tokens": 10**8}, 20, "partial", id="more"),
        pytest.param(None, 20, "counted", id="none"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_more_than_was_asked_for_is_not_charged(
    members: Members, usage: object, counted: int, source: str, is_stream: bool
) -> None:
    async with members() as fall:
        fall.upstream.behaviour = break_down
        end = json.dumps({"choices": [], "usage": usage}).encode()
        behave = streaming(*[WORD] * 30, end, b"[DONE]")
        if not is_stream:
            behave = answering(200, completion(usage=usage))
        fall.others["openai"].behaviour = behave
        fallen = await fall.ask(stream=is_stream, max_tokens=20)
        event = await fall.scene.only_event()
    assert (fallen.status, event.outcome) == (200, Outcome.COMPLETED)
    assert event.output_text_tokens == counted
    assert event.usage_source is UsageSource(source)


IMAGE = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}


@pytest.mark.parametrize(
    ("content", "is_bounded"),
    [("word " * 300, True), ([{"type": "text", "text": "word " * 300}, IMAGE], False)],
    ids=["text", "image"],
)
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_no_more_prompt_tokens_are_charged_than_there_were_bytes(
    members: Members, content: object, is_bounded: bool, is_stream: bool
) -> None:
    """But for images: a few bytes of an address are as many tokens as its provider says."""
    usage = {
        "prompt_tokens": 20_000,
        "prompt_tokens_details": {"cached_tokens": 15_000},
        "completion_tokens": 2,
    }
    async with members() as fall:
        fall.upstream.behaviour = break_down
        end = json.dumps({"choices": [], "usage": usage}).encode()
        behave = streaming(WORD, WORD, end, b"[DONE]")
        if not is_stream:
            behave = answering(200, completion(usage=usage))
        fall.others["openai"].behaviour = behave
        messages = [{"role": "user", "content": content}]
        fallen = await fall.ask(stream=is_stream, max_tokens=20, messages=messages)
        event = await fall.scene.only_event()
        (generation,) = fall.others["openai"].generations
    assert (fallen.status, event.outcome) == (200, Outcome.COMPLETED)
    most = len(generation.received.body) + 1_024
    assert event.input_tokens == (most if is_bounded else 20_000)
    assert event.input_cache_read_tokens == min(event.input_tokens, 15_000)
    assert event.settled_tokens == event.total_tokens == event.input_tokens + 2
    assert event.usage_source is (UsageSource.PARTIAL if is_bounded else UsageSource.PROVIDER)
