"""The one request that shows a fleet working: streamed, timed, metered, booked."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from contracts.errors import UNDECODABLE
from contracts.names import HEADER_REQUEST_ID
from pandal.errors import DemoRefused, FleetFailed, Unreachable
from pandal.http_client import Address, Stream, post_streamed
from pandal.plan import DEFAULT_ALIAS

PROMPT = "Explain in two sentences what an API gateway does."
MAX_TOKENS = 96
_TIMEOUT_S = 120.0  # for the first token on a slow machine
_RATE_LIMIT_PREFIX = "x-ratelimit-"
_DONE = b"data: [DONE]"


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    request_id: str
    ttft_s: float
    generation_s: float  # from the first piece to the last
    usage: Usage | None  # as the client was told; ``None``: a server that does not count
    rate_limits: Mapping[str, str]

    @property
    def tokens_per_s(self) -> float | None:
        """Of the decode phase: the first token's time is TTFT.  ``None``: too short to tell."""
        if self.usage is None or self.usage.completion_tokens < 2 or self.generation_s <= 0:
            return None
        return (self.usage.completion_tokens - 1) / self.generation_s


def ask(
    gateway: Address,
    api_key: str,
    *,
    show: Callable[[str], None],
    monotonic_s: Callable[[], float] = time.monotonic,
) -> DemoAnswer:
    """Blocks until the answer is whole; ``show`` gets each piece as it comes.

    Raises FleetFailed: whatever goes wrong here, the fleet does not do its work.
    """
    started_monotonic_s = monotonic_s()
    try:
        with post_streamed(
            gateway,
            "/v1/chat/completions",
            headers={"authorization": f"Bearer {api_key}", "content-type": "application/json"},
            body=_body(),
            timeout_s=_TIMEOUT_S,
        ) as stream:
            return _read(stream, _Transcript(show, monotonic_s), started_monotonic_s)
    except Unreachable as exc:
        raise FleetFailed(f"the demo request failed: {exc}") from exc


def _body() -> bytes:
    return msgspec.json.encode(
        {
            "model": DEFAULT_ALIAS,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: Usage | None = None
    error: _Error | None = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class _Transcript:
    """What has come of a streamed answer so far, and when."""

    def __init__(self, show: Callable[[str], None], monotonic_s: Callable[[], float]) -> None:
        self._show = show
        self._monotonic_s = monotonic_s
        self.usage: Usage | None = None
        self.text_at_monotonic_s: tuple[float, float] | None = None  # first piece, last piece

    def add(self, chunk: _Chunk) -> None:
        if chunk.error is not None:
            raise FleetFailed(f"the demo's answer broke off: {chunk.error.message}")
        if chunk.usage is not None:
            self.usage = chunk.usage
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        if text:
            now = self._monotonic_s()
            first = now if self.text_at_monotonic_s is None else self.text_at_monotonic_s[0]
            self.text_at_monotonic_s = (first, now)
            self._show(text)


def _read(stream: Stream, transcript: _Transcript, started_monotonic_s: float) -> DemoAnswer:
    if stream.status != 200:
        error = DemoRefused if 400 <= stream.status < 500 else FleetFailed
        raise error(f"the demo request was answered {stream.status}: {_refusal(stream)}")
    is_complete = False
    for line in stream.lines:
        if line.strip() == _DONE:
            is_complete = True
            break
        transcript.add(_chunk(line))
    text_at = transcript.text_at_monotonic_s
    if not is_complete or text_at is None:
        raise FleetFailed("the demo's answer ended early: no text or no [DONE]")
    first_monotonic_s, last_monotonic_s = text_at
    return DemoAnswer(
        request_id=stream.headers.get(HEADER_REQUEST_ID, ""),
        ttft_s=first_monotonic_s - started_monotonic_s,
        generation_s=last_monotonic_s - first_monotonic_s,
        usage=transcript.usage,
        rate_limits={
            name: value
            for name, value in stream.headers.items()
            if name.startswith(_RATE_LIMIT_PREFIX)
        },
    )


def _chunk(line: bytes) -> _Chunk:
    if not line.startswith(b"data:"):
        return _Chunk()
    try:
        return _chunk_decoder.decode(line[len(b"data:") :])
    except UNDECODABLE as exc:
        raise FleetFailed(f"the demo's answer is not a chat completion: {exc}") from exc


def _refusal(stream: Stream) -> str:
    body = b"".join(stream.lines)
    try:
        chunk = _chunk_decoder.decode(body)
    except UNDECODABLE:
        return body[:300].decode("utf-8", "replace")
    return "" if chunk.error is None else chunk.error.message
