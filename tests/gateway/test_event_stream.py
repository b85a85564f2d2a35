"""The splitter: same events, however the bytes were cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.event_stream import EventSplitter, EventTooLarge, event_payload

LINE_ENDS = [b"\n", b"\r\n", b"\r"]
lines = st.one_of(
    st.binary(max_size=12).map(lambda b: b"data: " + b.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from([b"data:x", b"data", b": comment", b"event: e", b"", "data: 中".encode()]),
)
streams = st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)), max_size=30).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


def split(raw: bytes, cuts: list[int]) -> list[bytes]:
    splitter = EventSplitter(1_000_000)
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    events = []
    for start, end in itertools.pairwise(edges):
        events += splitter.feed(raw[start:end])
    return [*events, splitter.flush()]


@given(streams, st.lists(st.integers(min_value=0), max_size=20))
def test_events_do_not_depend_on_the_chunks(raw: bytes, cuts: list[int]) -> None:
    assert split(raw, cuts) == split(raw, [])


@given(streams, st.lists(st.integers(min_value=0), max_size=20))
def test_no_byte_is_lost_or_added(raw: bytes, cuts: list[int]) -> None:
    assert b"".join(split(raw, cuts)) == raw


def whatwg_payloads(raw: bytes) -> list[bytes]:
    """The specification's own algorithm, line by line, on a whole stream."""
    text = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *complete, rest = text.split(b"\n")
    payloads, data = [], []
    for line in complete:
        if line == b"":
            payloads += [b"\n".join(data)] if data else []
            data = []
        elif line == b"data" or line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    if rest == b"data" or rest.startswith(b"data:"):
        data.append(rest[5:].removeprefix(b" "))
    return payloads + ([b"\n".join(data)] if data else [])  # we relay an unfinished last event


@given(streams)
def test_payloads_are_those_of_the_specification(raw: bytes) -> None:
    payloads = [event_payload(event) for event in split(raw, [])]
    assert [p for p in payloads if p is not None] == whatwg_payloads(raw)


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\r\n\r\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: e\ndata: x\nid: 1\n\n", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"data\n\n", b""),
        (b": ping\n\n", None),
        (b"", None),
    ],
)
def test_a_payload_is_the_joined_data_lines(event: bytes, payload: bytes | None) -> None:
    assert event_payload(event) == payload


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(1_000)
    list(splitter.feed(b"data: " + b"x" * 900))
    with pytest.raises(EventTooLarge):
        list(splitter.feed(b"x" * 200))
