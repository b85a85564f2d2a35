"""What can be bounded by bytes is text, and nothing that a provider looks up or looks at."""

import json
from typing import Any

import openai
import pytest

from gateway.providers.anthropic_request import messages_request
from gateway.providers.prompt_bound import most_prompt_tokens

USER: dict[str, Any] = {"role": "user", "content": "hello"}
PART = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
OPENAI_SAYS = openai.types.chat.ChatCompletionMessage.model_validate(
    {"role": "assistant", "content": "hi", "annotations": [], "reasoning": "a greeting"}
)
KNOWN = {  # vLLM's and OpenAI's own
    "chat_template_kwargs": {"enable_thinking": False},
    "guided_choice": ["a", "b"],
    "guided_grammar": "root ::= x",
    "guided_regex": "a+",
    "length_penalty": 1.0,
    "prompt_cache_retention": "24h",
    "skip_special_tokens": True,
    "stop_token_ids": [2],
}
TOOL = {"role": "tool", "tool_call_id": "1", "content": "42"}


def chat(*messages: object, **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 7} | members).encode()


@pytest.mark.parametrize(
    "sent",
    [
        chat(USER),
        chat({"role": "system", "content": "be brief"}, {"role": "user", "content": [PART, PART]}),
        chat(USER, OPENAI_SAYS.model_dump(), USER),
        chat({"role": "user", "content": [PART | {"cache_control": {"type": "ephemeral"}}]}),
        chat(USER, **KNOWN),
        chat(USER, CALLING, TOOL, tools=[FUNCTION], response_format={"type": "json_object"}),
        messages_request(chat(USER, CALLING, TOOL, tools=[FUNCTION]), "claude", 7),
        json.dumps({"model": "m", "prompt": [1, 2, 3], "max_tokens": 7}).encode(),
    ],
)
def test_text_is_bounded_by_its_bytes(sent: bytes) -> None:
    assert most_prompt_tokens(sent) == len(sent) + 1_024


@pytest.mark.parametrize(
    "sent",
    [
        chat({"role": "user", "content": [PART, IMAGE]}),
        chat({"role": "user", "content": [PART, IMAGE]}).replace(b'"type"', b'"\\u0074ype"'),
        chat({"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}),
        chat(USER, {"role": "assistant", "audio": {"id": "a-1"}}),
        chat(USER, web_search_options={}),
        chat(USER, tools=[{"type": "web_search"}]),
        messages_request(chat({"role": "user", "content": [PART, IMAGE]}), "claude", 7),
        b"{",
    ],
)
def test_what_may_be_more_than_text_is_not_bounded(sent: bytes) -> None:
    assert most_prompt_tokens(sent) is None
