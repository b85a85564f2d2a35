"""Events that differ in their text alone go on in their frames, and are counted all the same."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api.context import Operation
from gateway.api.event_stream import DONE, EventSplitter, event_payload
from gateway.api.plain_events import has_text
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.text_run import TextRun
from tests.gateway.scene import RecordedTransport

FIRST = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}\n\n'
BEFORE, BEHIND = FIRST.split(b'a"}')
NOT_LEARNT = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"say \\"a\\""}}]}\n\n',
    b': a comment\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 2,
]


def framed(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


class Scene:
    def __init__(self, *, is_chunking_understood: bool = True) -> None:
        head = request_head(
            Operation.CHAT_COMPLETIONS, [], is_chunking_understood=is_chunking_understood
        )
        self.transport = RecordedTransport()
        self.exchange = Exchange(self.transport, head, on_complete=lambda: None)
        self.declined: list[bytes] = []
        self.run = TextRun(self.exchange, self._decline)

    def _decline(self, event: bytes) -> bool:
        self.declined.append(event)
        return False

    def take(self, content: bytes) -> bool:
        return self.run.take(content, framed(content))


def with_text(text: bytes) -> bytes:
    return BEFORE + text + b'"}' + BEHIND


@given(st.text() | st.sampled_from(["usage", "error", "[DONE]", "\\", " word", '"', "\n\ndata: x"]))
def test_a_text_is_passed_on_as_it_came_or_looked_at(text: str) -> None:
    scene = Scene()
    scene.run.learn(FIRST)
    event = with_text(json.dumps(text, ensure_ascii=False).encode(errors="replace")[1:-1])
    is_taken = scene.take(event)
    assert bytes(scene.transport.written) == (framed(event) if is_taken else b"")
    assert scene.declined == ([] if is_taken else [event])
    assert scene.run.end() == is_taken
    assert is_taken == (text != "" and '"' not in text)


@given(st.binary(max_size=40))
@example(b'"}}],"usage":{"prompt_tokens":1},"a":[{"b":{"c":"')
@example(b"\n\ndata: [DONE]\n\ndata: ")
@example(b"\rdata: [DONE]\r")
def test_what_is_taken_is_one_event_with_text_whatever_comes(middle: bytes) -> None:
    scene = Scene()
    scene.run.learn(FIRST)
    event = with_text(middle)
    if scene.take(event):
        assert list(EventSplitter(10_000).feed(event)) == [event]
        assert has_text(event)
        assert event_payload(event) == event[6:-2] != DONE
        assert event.count(b'"') - FIRST.count(b'"') == 0


def test_another_beginning_or_end_is_looked_at() -> None:
    scene = Scene()
    scene.run.learn(FIRST)
    others = [b"event: x\n" + FIRST, FIRST[:-1], FIRST + b"\n"]
    assert [scene.take(other) for other in others] == [False] * 3
    assert scene.declined == others


def test_nothing_is_learnt_of_what_is_not_one_text_on_one_line() -> None:
    for event in NOT_LEARNT:
        scene = Scene()
        scene.run.learn(event)
        assert not scene.take(event)
        assert scene.declined == [event]


def test_a_client_that_knows_no_chunks_gets_none() -> None:
    scene = Scene(is_chunking_understood=False)
    scene.run.learn(FIRST)
    assert not scene.take(FIRST)
    assert scene.declined == [FIRST]


def test_a_client_that_does_not_keep_up_holds_the_run() -> None:
    scene = Scene()
    scene.run.learn(FIRST)
    scene.exchange.is_write_paused = True
    assert not scene.take(FIRST)
    assert scene.declined == [FIRST]


def test_after_its_end_nothing_is_taken() -> None:
    scene = Scene()
    scene.run.learn(FIRST)
    assert scene.take(FIRST)
    assert scene.run.end() == 1
    assert not scene.take(FIRST)
    assert scene.declined == []
