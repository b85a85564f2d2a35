"""Anthropic's answers in OpenAI's words: whole, and event by event.

https://docs.anthropic.com/en/api/messages-streaming.  A client that could read the one answer can
read the other: tools keep their ids and names, arguments come in the same pieces.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from contracts.errors import UNDECODABLE
from gateway.api.event_stream import DONE, EventSplitter, EventTooLarge, event_payload
from gateway.errors import UpstreamError

Json = dict[str, Any]  # JSON of two APIs, of which neither is ours

_FINISH: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_encode = msgspec.json.Encoder().encode


class AnthropicAnswer:
    """The translation of one answer."""

    def __init__(self, created_unix_s: int, max_event_bytes: int) -> None:
        self._created_unix_s = created_unix_s
        self._splitter = EventSplitter(max_event_bytes)
        self._id = ""
        self._model = ""
        self._usage: Json = {}
        self._tools: dict[int, int] = {}  # numbers of tool calls, by those of their blocks
        self._unargued: set[int] = set()  # tool calls of which no argument has come

    def document(self, body: bytes) -> bytes:
        """Raises UpstreamError."""
        try:
            message: Json = msgspec.json.decode(body)
            if message.get("type") == "error":
                return body  # alike enough
            self._begin(message)
            choice = {
                "index": 0,
                "message": _message(message["content"]),
                "logprobs": None,
                "finish_reason": _finish_reason(message.get("stop_reason")),
            }
        except (KeyError, AttributeError, TypeError, *UNDECODABLE) as exc:
            raise UpstreamError("The provider's answer is not understood.") from exc
        return _encode(self._envelope("chat.completion", [choice]) | {"usage": self._openai_usage})

    def feed(self, chunk: bytes) -> bytes:
        """The events that follow from what has come; maybe none.  Raises UpstreamError."""
        translated: list[bytes] = []
        try:
            for event in self._splitter.feed(chunk):
                payload = event_payload(event)
                if payload is not None:
                    translated += self._events(msgspec.json.decode(payload))
        except EventTooLarge as exc:
            raise UpstreamError("The provider sent an event without end.") from exc
        except (KeyError, AttributeError, TypeError, *UNDECODABLE) as exc:
            raise UpstreamError("The provider's answer is not understood.") from exc
        return b"".join(translated)

    def _events(self, event: Json) -> list[bytes]:
        match event["type"]:
            case "message_start":
                self._begin(event["message"])
                return [self._chunk({"role": "assistant", "content": ""})]
            case "content_block_start":
                return self._block_start(event["index"], event["content_block"])
            case "content_block_delta":
                return self._block_delta(event["index"], event["delta"])
            case "content_block_stop":
                return self._block_stop(event["index"])
            case "message_delta":
                self._usage |= _counts(event.get("usage"))
                reason = _finish_reason(event["delta"].get("stop_reason"))
                return [self._chunk({}, reason)]
            case "message_stop":
                usage = self._envelope("chat.completion.chunk", []) | {"usage": self._openai_usage}
                return [_event(_encode(usage)), _event(DONE)]
            case "error":
                return [_event(_encode({"error": event["error"]}))]
        return []  # pings, and what will be added

    def _begin(self, message: Json) -> None:
        self._id, self._model = message["id"], message["model"]
        self._usage |= _counts(message.get("usage"))

    def _block_start(self, index: int, block: Json) -> list[bytes]:
        if block["type"] == "text" and block.get("text"):
            return [self._chunk({"content": block["text"]})]
        if block["type"] != "tool_use":
            return []
        self._tools[index] = number = len(self._tools)
        self._unargued.add(number)
        function = {"name": block["name"], "arguments": ""}
        call = {"id": block["id"], "type": "function", "function": function}
        return [self._chunk({"tool_calls": [{"index": number} | call]})]

    def _block_delta(self, index: int, delta: Json) -> list[bytes]:
        if delta["type"] == "text_delta":
            return [self._chunk({"content": delta["text"]})]
        if delta["type"] == "thinking_delta":
            return [self._chunk({"reasoning_content": delta["thinking"]})]
        number = self._tools.get(index)  # None: of a block that is no call of ours to tell
        if delta["type"] != "input_json_delta" or not delta["partial_json"] or number is None:
            return []
        self._unargued.discard(number)
        return [self._arguments(number, delta["partial_json"])]

    def _block_stop(self, index: int) -> list[bytes]:
        """A tool that was called with nothing: clients parse what they get."""
        number = self._tools.get(index)
        return [self._arguments(number, "{}")] if number in self._unargued else []

    def _arguments(self, number: int, arguments: str) -> bytes:
        call = {"index": number, "function": {"arguments": arguments}}
        return self._chunk({"tool_calls": [call]})

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(_encode(self._envelope("chat.completion.chunk", [choice])))

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": f"chatcmpl-{self._id}",
            "object": kind,
            "created": self._created_unix_s,
            "model": self._model,
            "choices": choices,
        }

    @property
    def _openai_usage(self) -> Json:
        """Their input is without what came from the cache, or went there; OpenAI's is with."""
        counts = self._usage
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        prompt_tokens = counts.get("input_tokens", 0) + cached + written
        completion_tokens = counts.get("output_tokens", 0)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _event(payload: bytes) -> bytes:
    return b"data: %b\n\n" % payload


def _counts(usage: Json | None) -> dict[str, int]:
    """A later count of a class replaces an earlier one: they are sums so far, not steps."""
    return {name: n for name, n in (usage or {}).items() if type(n) is int and n >= 0}


def _finish_reason(reason: str | None) -> str | None:
    return None if reason is None else _FINISH.get(reason, "stop")


def _message(blocks: list[Json]) -> Json:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": _encode(block["input"]).decode()},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    message: Json = {"role": "assistant", "content": text or None}
    return message | {"tool_calls": calls} if calls else message
