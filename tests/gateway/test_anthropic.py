"""Anthropic's Messages API behind OpenAI's: requests there, answers back, tools both ways."""

import json
from typing import Any

import pytest

from gateway.errors import UpstreamError
from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.providers.anthropic_request import Untranslatable, messages_request

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is outside.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
PNG = "data:image/png;base64,aGVsbG8="


def translated(**members: Any) -> dict[str, Any]:
    body = {"model": "big", "messages": [{"role": "user", "content": "hi"}]} | members
    return dict(json.loads(messages_request(json.dumps(body).encode(), "claude", 64)))


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_the_plainest_request() -> None:
    assert translated() == {"model": "claude", "max_tokens": 64, "messages": [user(text("hi"))]}


def test_a_seed_which_is_best_effort_anywhere_is_left_out() -> None:
    assert translated(seed=7) == translated()


def test_system_prompts_have_a_place_of_their_own() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "hi"},
    ]
    request = translated(messages=messages)
    assert request["system"] == "Be brief.\n\nBe kind."
    assert request["messages"] == [user(text("hi"))]


def test_sampling_and_stops() -> None:
    request = translated(temperature=1.7, top_p=0.5, stop="END", stream=True, min_p=0, user="u")
    assert request["temperature"] == 1.0
    assert (request["top_p"], request["stop_sequences"], request["stream"]) == (0.5, ["END"], True)
    assert not {"min_p", "user", "stop"} & request.keys()
    assert translated(stop=["a", "b"])["stop_sequences"] == ["a", "b"]


def test_images() -> None:
    parts = [
        text("what?"),
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    sources = [
        {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
        {"type": "url", "url": "https://example.com/a.png"},
    ]
    images = [{"type": "image", "source": source} for source in sources]
    request = translated(messages=[{"role": "user", "content": parts}])
    assert request["messages"] == [user(text("what?"), *images)]


def test_a_conversation_with_tools() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place": "Graz"}'},
    }
    messages = [
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call, call | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "user", "content": "so?"},
    ]
    request = translated(messages=messages, tools=[TOOL])
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"place": "Graz"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "sun"}
    assert request["messages"] == [
        user(text("and now?")),
        {"role": "assistant", "content": [text("Let me look."), use, use | {"id": "c2"}]},
        user(result, result | {"tool_use_id": "c2", "content": "rain"}, text("so?")),
    ]
    function = TOOL["function"]
    assert isinstance(function, dict)
    assert request["tools"] == [
        {
            "name": "weather",
            "description": "How it is outside.",
            "input_schema": function["parameters"],
        }
    ]
    assert request["tool_choice"] == {"type": "auto"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", {"type": "none"}),
        ("required", {"type": "any", "disable_parallel_tool_use": True}),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        ),
    ],
)
def test_tool_choices(choice: object, expected: object) -> None:
    request = translated(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert request["tool_choice"] == expected


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"min_p": 0.1},
        {"min_tokens": 5},
        {"ignore_eos": True},
        {"stop_token_ids": [2]},
        {"tools": [{"type": "custom"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        {"messages": [{"role": "stranger", "content": ""}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}],
                }
            ]
        },
    ],
)
def test_what_has_no_words_there_is_not_sent(members: dict[str, object]) -> None:
    with pytest.raises(Untranslatable):
        translated(**members)


@pytest.mark.parametrize(
    "members",
    [
        {"messages": ["hi"]},
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": ["hi"]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": 1}]}]},
        {"messages": [{"role": ["user"], "content": "hi"}]},
        {"messages": [{"role": "tool", "content": "no id"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": 1}]},
        {"temperature": "warm"},
        {"temperature": {}},
        {"tools": {"type": "function"}},
        {"tools": [{"type": "function"}]},
        {"tools": [TOOL], "tool_choice": ["auto"]},
        {"tools": [TOOL], "tool_choice": {"type": "function"}},
    ],
    ids=str,
)
def test_what_is_malformed_is_untranslatable(members: dict[str, Any]) -> None:
    with pytest.raises(Untranslatable):
        translated(**members)


def test_neutral_values_say_nothing() -> None:
    assert translated(n=1, logprobs=False, response_format={"type": "text"}) == translated()


# Answers


def answer() -> AnthropicAnswer:
    return AnthropicAnswer(created_unix_s=7, max_event_bytes=10_000)


def test_a_whole_answer() -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            text("Let me "),
            text("look."),
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Graz"}},
        ],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 30,
            "output_tokens": 5,
        },
    }
    document = json.loads(answer().document(json.dumps(message).encode()))
    call = {
        "id": "t1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place":"Graz"}'},
    }
    assert document == {
        "id": "chatcmpl-msg_1",
        "object": "chat.completion",
        "created": 7,
        "model": "claude",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "tool_calls": [call],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 60,
            "completion_tokens": 5,
            "total_tokens": 65,
            "prompt_tokens_details": {"cached_tokens": 30},
        },
    }


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def delta(index: int, **members: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": members}


STREAM = sse(
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "model": "claude",
            "content": [],
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 1},
        },
    },
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    delta(0, type="text_delta", text="Gr\N{LATIN SMALL LETTER U WITH DIAERESIS}"),
    delta(0, type="text_delta", text="ezi"),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t1", "name": "weather", "input": {}},
    },
    delta(1, type="input_json_delta", partial_json='{"pla'),
    delta(1, type="input_json_delta", partial_json='ce":1}'),
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_in_pieces_of_any_size(size: int) -> None:
    translation = answer()
    out = b"".join(
        translation.feed(STREAM[start : start + size]) for start in range(0, len(STREAM), size)
    )
    *payloads, done, rest = out.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(payload.removeprefix(b"data: ")) for payload in payloads]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == "Gr\u00fcezi"
    calls = [call for d in deltas for call in d.get("tool_calls", ())]
    assert calls[0]["id"] == "t1"
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"place":1}'
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 14,
        "completion_tokens": 9,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("chatcmpl-msg_1", "claude")}


def test_arguments_of_what_is_no_tool_of_the_client_are_left_out() -> None:
    begun = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": begun}
    argument = delta(0, type="input_json_delta", partial_json="{}")
    assert answer().feed(sse(start, argument)) == b""


def test_an_error_event_is_passed_on_as_one() -> None:
    out = answer().feed(
        sse({"type": "error", "error": {"type": "overloaded_error", "message": "x"}})
    )
    assert json.loads(out.removeprefix(b"data: "))["error"]["message"] == "x"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"content": [{}]}', b"\xff"])
def test_what_is_no_message_is_an_upstreams_error(body: bytes) -> None:
    with pytest.raises(UpstreamError):
        answer().document(body)


@pytest.mark.parametrize("payload", [b"x", b"{}", b'{"type":"content_block_delta"}'])
def test_what_is_no_event_is_an_upstreams_error(payload: bytes) -> None:
    with pytest.raises(UpstreamError):
        answer().feed(b"data: %b\n\n" % payload)
