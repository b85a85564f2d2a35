"""What is told of events by their bytes is what their parts would tell one by one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.event_stream import EventSplitter
from gateway.api.plain_events import has_text, is_plain, num_with_text, plain_end

_ANY_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"[^"]')
_EVENTS = [
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":""}},{"delta":{"content": "b"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n',
    b'data: {"choices":[{"text":"say \\"usage\\": 3"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
    b'data: {"choices":[],"usage": null}\n\n',
    b'data: {"error":{"message":"m"}}\n\n',
    b": a comment\n\n",
    b"data: [DONE]\n\n",
]
_chunks = st.lists(st.sampled_from(_EVENTS), max_size=8).map(b"".join)


@given(_chunks, st.integers(0, 600))
def test_the_plain_beginning_is_all_events_before_the_first_that_is_not(
    events: bytes, cut: int
) -> None:
    chunk = events[: len(events) - cut] if cut < len(events) else events
    whole = list(EventSplitter(10_000).feed(chunk))
    plain = 0
    for event in whole:
        if not is_plain(event):
            break
        plain += len(event)
    assert plain_end(chunk) <= plain
    assert plain_end(chunk) == plain or b"[DONE]" in chunk or b"error" in chunk or b"usage" in chunk
    assert is_plain(chunk) == (bool(chunk) and plain_end(chunk) == len(chunk) == plain)


@given(_chunks)
def test_texts_are_counted_by_event(events: bytes) -> None:
    whole = list(EventSplitter(10_000).feed(events))
    expected = [_ANY_TEXT.search(event) is not None for event in whole]
    assert [has_text(event) for event in whole] == expected
    assert num_with_text(events) == sum(expected)


def test_other_line_ends_are_never_plain() -> None:
    for chunk in (b"data: a\r\n\r\n", b"data: a\n\ndata: b\r\r"):
        assert not is_plain(chunk)
        assert plain_end(chunk) == 0
