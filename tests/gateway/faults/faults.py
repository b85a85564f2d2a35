"""What an upstream can do wrong, once; afterwards it answers as it should."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.gateway.upstream_server import Behaviour, Generation, words

NUM_WORDS = 3
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
HALF_A_CHARACTER = b'data: {"choices":[{"index":0,"delta":{"content":"\xe4\xb8'
TRICKLE_S = 0.02  # between two bytes: a second's worth, and a time-out a fiftieth of the usual

Act = Callable[[Generation], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """``begin`` is what comes before the client may leave, ``act`` what comes after."""

    name: str
    act: Act
    begin: Act | None = None
    is_dead: bool = False  # nobody is there to say what has been used


async def _some_words(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.start_stream()
        for _ in range(NUM_WORDS):
            await generation.word()


async def _hang(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def _reset_after_headers(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.start_stream()
    else:
        await generation.send(JSON_HEAD)
    generation.reset()


async def _reset(generation: Generation) -> None:
    if not generation.received.document.get("stream"):
        await generation.send(JSON_HEAD + b'{"choices":[')
    generation.reset()


async def _half_a_character(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.chunk(HALF_A_CHARACTER)
    else:
        await generation.send(JSON_HEAD + b'{"choices":[{"message":{"content":"\xe4\xb8')
    generation.writer.close()


async def _error_body(generation: Generation) -> None:
    await generation.answer(200, b'{"error": {"message": "oops", "code": 500}}')


async def _error_event(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.event({"error": {"message": "oops", "code": 500}})
        await generation.is_stopped.wait()
    else:
        await _error_body(generation)


async def _trickle(generation: Generation) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nx-filler: " + b"x" * 1_000:
        if generation.is_stopped.is_set():
            return
        await generation.send(bytes([byte]))
        await asyncio.sleep(TRICKLE_S)


async def _garbage(generation: Generation) -> None:
    await generation.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    generation.writer.close()


async def _close_without_done(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.send(b"0\r\n\r\n")
    else:
        await generation.send(JSON_HEAD + b'{"choices":[]')
    generation.writer.close()


def _status(status: int, retry_after: str | None) -> Act:
    line = "" if retry_after is None else f"retry-after: {retry_after}\r\n"
    head = f"HTTP/1.1 {status} X\r\n{line}content-type: application/json\r\ncontent-length: 2"

    async def act(generation: Generation) -> None:
        await generation.send(head.encode() + b"\r\n\r\n{}")

    return act


FAULTS = [
    Fault("hangs", _hang),
    Fault("resets-after-headers", _reset_after_headers, is_dead=True),
    Fault("resets-mid-stream", _reset, _some_words, is_dead=True),
    Fault("half-a-character", _half_a_character, _some_words, is_dead=True),
    Fault("error-body", _error_body),
    Fault("error-event", _error_event, _some_words),
    Fault("trickles", _trickle),
    Fault("garbage", _garbage, is_dead=True),
    Fault("closes-without-done", _close_without_done, _some_words, is_dead=True),
    *(
        Fault(f"{status}{'' if asked is None else '-retry-after'}", _status(status, asked))
        for status in (429, 500, 503)
        for asked in (None, "0")
    ),
]


class Faulty:
    """A behaviour: the fault for the first generation, then good answers.

    ``may_act``: set by the test when the fault may happen.
    """

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._is_first = True
        self.may_act = False

    async def __call__(self, generation: Generation) -> None:
        if not self._is_first:
            await _GOOD(generation)
            return
        self._is_first = False
        if self._fault.begin is not None:
            await self._fault.begin(generation)
        while not self.may_act:  # noqa: ASYNC110  # set by another thread
            await asyncio.sleep(0.001)
        await self._fault.act(generation)


_GOOD: Behaviour = words(NUM_WORDS)
