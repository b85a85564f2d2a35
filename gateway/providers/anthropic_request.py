"""An OpenAI chat request in the words of Anthropic's Messages API.

https://docs.anthropic.com/en/api/messages.  What it has no words for, and what would change the
answer, makes a request untranslatable: better no answer than another one.  A ``seed`` is left out:
OpenAI's own definition promises its best effort and no more.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from contracts.errors import UNDECODABLE

Json = dict[str, Any]  # JSON of two APIs, of which neither is ours

_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "stop_token_ids": (None, []),
    "response_format": (None, {"type": "text"}),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
}
_SAME = ("top_p", "top_k", "stream")
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
_DATA_URL = "data:"


class Untranslatable(ValueError):
    """The request wants what the other API does not have.  Names the member."""


def messages_request(body: bytes, model: str, max_tokens: int) -> bytes:
    """Raises Untranslatable.  ``body`` is a JSON object with messages: nobody has looked deeper."""
    try:
        return _translated(msgspec.json.decode(body), model, max_tokens)
    except (AttributeError, LookupError, TypeError, *UNDECODABLE) as exc:
        raise Untranslatable("messages") from exc


def _translated(wanted: Json, model: str, max_tokens: int) -> bytes:
    for name, neutral in _NEUTRAL.items():
        if wanted.get(name) not in neutral:
            raise Untranslatable(name)
    system, messages = _messages(wanted["messages"])
    translated: Json = {"model": model, "max_tokens": max_tokens, "messages": messages}
    if system:
        translated["system"] = system
    translated |= {name: wanted[name] for name in _SAME if wanted.get(name) is not None}
    if wanted.get("temperature") is not None:
        translated["temperature"] = min(1.0, wanted["temperature"])  # of 2 here, of 1 there
    stop = wanted.get("stop")
    if stop:
        translated["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if wanted.get("tools"):
        translated["tools"] = [_tool(tool) for tool in wanted["tools"]]
        translated["tool_choice"] = _tool_choice(wanted)
    return msgspec.json.encode(translated)


def _messages(messages: Sequence[Json]) -> tuple[str, list[Json]]:
    """The system prompt, and the turns: one after another of one role are one."""
    system: list[str] = []
    turns: list[Json] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer"):
            system.append(_text(message.get("content")))
            continue
        if role == "tool":
            role, blocks = "user", [_tool_result(message)]
        elif role == "user":
            blocks = _blocks(message.get("content"))
        elif role == "assistant":
            blocks = _assistant_blocks(message)
        else:
            raise Untranslatable("messages")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or any(part.get("type") != "text" for part in content):
        raise Untranslatable("messages")
    return "".join(part["text"] for part in content)


def _blocks(content: object) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Untranslatable("messages")
    return [_block(part) for part in content]


def _block(part: Json) -> Json:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") != "image_url":
        raise Untranslatable("messages")
    url: str = part["image_url"]["url"]
    if not url.startswith(_DATA_URL):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type, _, payload = url.removeprefix(_DATA_URL).partition(";base64,")
    source = {"type": "base64", "media_type": media_type, "data": payload}
    return {"type": "image", "source": source}


def _assistant_blocks(message: Json) -> list[Json]:
    content = message.get("content")
    blocks: list[Json] = [] if not content else [{"type": "text", "text": _text(content)}]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            given = msgspec.json.decode(function.get("arguments") or "{}")
        except UNDECODABLE as exc:
            raise Untranslatable("tool_calls") from exc
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        )
    return blocks


def _tool_result(message: Json) -> Json:
    return {
        "type": "tool_result",
        "tool_use_id": message["tool_call_id"],
        "content": _text(message.get("content")),
    }


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise Untranslatable("tools")
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    translated = {"name": function["name"], "input_schema": schema}
    if function.get("description"):
        translated["description"] = function["description"]
    return translated


def _tool_choice(wanted: Json) -> Json:
    choice = wanted.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        translated: Json = {"type": "tool", "name": choice["function"]["name"]}
    elif choice in _CHOICES:
        translated = {"type": _CHOICES[choice]}
    else:
        raise Untranslatable("tool_choice")
    if wanted.get("parallel_tool_calls") is False and translated["type"] != "none":
        translated["disable_parallel_tool_use"] = True
    return translated
