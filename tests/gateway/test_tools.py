"""Tools: whatever serves them, a client reads the same calls; who cannot is passed over."""

import json
from typing import Any

import pytest

from contracts.replica_api import CODE_NOT_SUPPORTED
from contracts.usage import Outcome
from gateway.providers.anthropic_answer import AnthropicAnswer
from tests.gateway.falling import ANTHROPIC, OPENAI, SMALL, Fallen, Falls
from tests.gateway.test_anthropic import TOOL, delta, sse, text
from tests.gateway.upstream_server import MODEL, PROMPT_TOKENS, Generation

CALLS = [
    ("call_a", "weather", '{"place": "K\\u00f6ln \\"am\\" Rhein"}'),
    ("call_b", "weather", '{"place": "Z\u00fcrich", "days": [1, 2]}'),
    ("call_c", "now", "{}"),
]
CONVERSATION = [
    {"role": "user", "content": "and now?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
]
ASKED = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": True,
    "messages": CONVERSATION,
}


def call_deltas(pieces: int) -> list[dict[str, Any]]:
    """Each call's arguments in so many pieces; all at once with its name, if it is one."""
    deltas = []
    for index, (id_, name, arguments) in enumerate(CALLS):
        size = -(-len(arguments) // pieces)
        parts = [arguments[start : start + size] for start in range(0, len(arguments), size)]
        first = "" if pieces > 1 else parts.pop(0)
        function = {"name": name, "arguments": first}
        deltas.append({"index": index, "id": id_, "type": "function", "function": function})
        deltas += [{"index": index, "function": {"arguments": part}} for part in parts]
    return [{"tool_calls": [each]} for each in deltas]


def calls_of(payloads: list[str]) -> list[tuple[str, str, str]]:
    """As a client puts them together."""
    calls: dict[int, list[str]] = {}
    for payload in payloads[:-1]:
        for choice in json.loads(payload)["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                function = call["function"]
                known = calls.setdefault(call["index"], ["", "", ""])
                known[0] += call.get("id", "")
                known[1] += function.get("name", "")
                known[2] += function.get("arguments", "")
    return [(id_, name, arguments) for _, (id_, name, arguments) in sorted(calls.items())]


def finish_reasons(payloads: list[str]) -> list[str]:
    choices = [c for payload in payloads[:-1] for c in json.loads(payload)["choices"]]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


async def reject(generation: Generation) -> None:
    """As our own replicas, which have no tools."""
    error = {"message": "tools is not supported", "code": CODE_NOT_SUPPORTED, "param": "tools"}
    await generation.answer(400, json.dumps({"error": error}).encode())


def streaming(pieces: int, sent: list[bytes]) -> Any:
    async def behave(generation: Generation) -> None:
        await generation.start_stream()
        for each in call_deltas(pieces):
            generation.completion_tokens += 1
            choice = {"index": 0, "delta": each, "finish_reason": None}
            sent.append(json.dumps({"id": "c", "model": MODEL, "choices": [choice]}).encode())
            await generation.chunk(b"data: %b\n\n" % sent[-1])
        end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
        await generation.event({"id": "c", "model": MODEL, "choices": [end]})
        await generation.end_stream()

    return behave


@pytest.mark.parametrize("pieces", [1, 3, 50])
async def test_calls_of_an_openai_server_arrive_as_they_were_sent(
    falls: Falls, pieces: int
) -> None:
    sent: list[bytes] = []
    async with falls() as fall:
        fall.upstream.behaviour = streaming(pieces, sent)
        fallen: Fallen = await fall.ask(stream=True, **ASKED)
        (generation,) = fall.upstream.generations
    asked = generation.received.document
    assert {name: asked[name] for name in ASKED} == ASKED
    assert [payload.encode() for payload in fallen.payloads[: len(sent)]] == sent
    assert calls_of(fallen.payloads) == CALLS
    assert finish_reasons(fallen.payloads) == ["tool_calls"]
    (event,) = fallen.events
    assert (event.outcome, event.total_tokens) == (Outcome.COMPLETED, PROMPT_TOKENS + len(sent))


async def test_whole_calls_of_an_openai_server_arrive_as_they_were_sent(falls: Falls) -> None:
    functions = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in CALLS
    ]
    message = {"role": "assistant", "content": None, "tool_calls": functions}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}

    async def behave(generation: Generation) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
        document = {"id": "c", "model": MODEL, "choices": [choice], "usage": usage}
        await generation.answer(200, json.dumps(document).encode())

    async with falls() as fall:
        fall.upstream.behaviour = behave
        fallen: Fallen = await fall.ask(**ASKED)
    assert fallen.document["choices"] == [choice]
    assert fallen.events[0].total_tokens == 14


def claude_stream(pieces: int) -> bytes:
    started = {"id": "m", "model": "claude", "content": [], "usage": {"input_tokens": 3}}
    events = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        delta(0, type="text_delta", text="Let me look."),
        {"type": "content_block_stop", "index": 0},
    ]
    for index, (id_, name, arguments) in enumerate(CALLS, start=1):
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        parts = [] if arguments == "{}" else [*arguments] if pieces > 1 else [arguments]
        events += [delta(index, type="input_json_delta", partial_json=p) for p in ("", *parts)]
        events.append({"type": "content_block_stop", "index": index})
    stopped = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    return sse(*events, stopped, {"type": "message_stop"})


@pytest.mark.parametrize("pieces", [1, 50])
def test_claudes_parallel_calls_keep_their_numbers_and_arguments(pieces: int) -> None:
    out = AnthropicAnswer(created_unix_s=7, max_event_bytes=10_000).feed(claude_stream(pieces))
    payloads = [part.removeprefix("data: ") for part in out.decode().split("\n\n") if part]
    assert calls_of(payloads) == CALLS, "one without arguments, too"
    assert finish_reasons(payloads) == ["tool_calls"]


@pytest.mark.parametrize("step", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_replicas_without_tools_are_passed_over(
    falls: Falls, step: Any, is_stream: bool
) -> None:
    async with falls(SMALL, step) as fall:
        fall.upstream.behaviour = fall.others["small"].behaviour = reject
        fallen = await fall.ask(stream=is_stream, **ASKED)
        (generation,) = fall.others[step.provider].generations
    received = generation.received.document
    assert (
        [tool["name"] for tool in received["tools"]] == ["weather"]
        if step is ANTHROPIC
        else (received["tools"] == ASKED["tools"])
    )
    assert fallen.status == 200
    (event,) = fallen.events
    assert (event.provider, event.outcome) == (step.provider, Outcome.COMPLETED)


async def test_where_nobody_has_tools_the_client_is_told(falls: Falls) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.behaviour = fall.others["small"].behaviour = reject
        fallen = await fall.ask(**ASKED)
    assert (fallen.status, fallen.document["error"]["code"]) == (400, CODE_NOT_SUPPORTED)
    assert fallen.document["error"]["param"] == "tools"
    assert [(event.outcome, event.total_tokens) for event in fallen.events] == [
        (Outcome.REFUSED, 0)
    ]
