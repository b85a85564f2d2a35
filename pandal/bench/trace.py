"""Recorded traffic, one JSON object a line, as arrivals and as a workload.

A line says when (``at_s``; or ``timestamp`` in milliseconds, as the published Mooncake traces do)
and how long (``prompt_tokens``/``output_tokens``, or ``input_length``/``output_length``), or brings
its ``messages``.  ``hash_ids`` name blocks of 512 tokens: equal ids become equal text, so a prefix
that was shared stays shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from pandal.bench.arrivals import Replay
from pandal.bench.text import words
from pandal.bench.workload import Conversation, Message, Turn
from pandal.errors import BadOption

_BLOCK_TOKENS: Final = 512
_DEFAULT_OUTPUT_TOKENS: Final = 128


class TraceMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class TraceLine(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float | None = None
    timestamp: float | None = None  # milliseconds
    prompt_tokens: int | None = None
    input_length: int | None = None
    output_tokens: int | None = None
    output_length: int | None = None
    hash_ids: list[int] = []
    messages: list[TraceMessage] = []
    tenant: str | None = None

    @property
    def offset_s(self) -> float | None:
        if self.at_s is not None:
            return self.at_s
        return None if self.timestamp is None else self.timestamp / 1e3

    @property
    def num_prompt_tokens(self) -> int | None:
        return self.input_length if self.prompt_tokens is None else self.prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        asked = self.output_length if self.output_tokens is None else self.output_tokens
        return _DEFAULT_OUTPUT_TOKENS if asked is None else max(1, asked)


@dataclass(frozen=True, slots=True)
class Trace:
    lines: Sequence[TraceLine]
    name: str = "trace"
    turns_per_conversation: int = 1

    @property
    def tenant_names(self) -> frozenset[str]:
        return frozenset(line.tenant for line in self.lines if line.tenant is not None)

    def arrivals(self, speed: float) -> Replay:
        """Raises BadOption where a line has no time."""
        offsets_s = [line.offset_s for line in self.lines]
        known_s = [at_s for at_s in offsets_s if at_s is not None]
        if len(known_s) < len(offsets_s):
            raise BadOption("--arrivals trace: every line of the trace needs at_s or timestamp")
        return Replay(known_s, speed)

    def conversation(self, number: int, seed: int) -> Conversation:
        """A trace that is too short begins again."""
        line = self.lines[number % len(self.lines)]
        turn = Turn(_messages(line, number, seed), line.num_output_tokens)
        return Conversation((turn,), line.tenant)


def read_trace(path: Path) -> Trace:
    """Sorted by time.  Raises BadOption, naming the line (never quoting it: it holds prompts)."""
    try:
        raw = path.read_bytes().splitlines()
    except OSError as exc:
        raise BadOption(f"--trace: {path}: {exc.strerror}") from exc
    lines = [_line(text, f"--trace: {path}:{n}") for n, text in enumerate(raw, 1) if text.strip()]
    if not lines:
        raise BadOption(f"--trace: {path} has no lines")
    return Trace(sorted(lines, key=_order))


def _order(line: TraceLine) -> float:
    return 0.0 if line.offset_s is None else line.offset_s


def _line(text: bytes, place: str) -> TraceLine:
    try:
        line = msgspec.json.decode(text, type=TraceLine)
    except UNDECODABLE as exc:
        raise BadOption(f"{place}: {exc}") from exc
    if not line.messages and line.num_prompt_tokens is None:
        raise BadOption(f"{place}: expected messages, prompt_tokens or input_length")
    return line


def _messages(line: TraceLine, number: int, seed: int) -> tuple[Message, ...]:
    if line.messages:
        return tuple(Message(message.role, message.content) for message in line.messages)
    num_tokens = line.num_prompt_tokens
    assert num_tokens is not None, "checked when the line was read"
    blocks = [words(_BLOCK_TOKENS, seed, "block", block) for block in line.hash_ids]
    shared = " ".join(blocks).split(" ")[:num_tokens] if blocks else []
    own = words(num_tokens - len(shared), seed, "own", number).split(" ")
    return (Message("user", " ".join([*shared, *own]).strip()),)
