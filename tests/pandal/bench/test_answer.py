"""One streamed answer, cut anywhere: what is counted, when, and how it ended."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandal.bench.answer import Answer, Outcome

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def stream(*events: object, end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


WHOLE = stream(
    delta(role="assistant", content=""),
    delta(content="a b"),
    delta(content=None, reasoning_content="c"),
    delta(tool_calls=[{"index": 0}]),
    delta(),
    {"choices": [], "usage": USAGE},
)


def read(body: bytes, status: int = 200) -> Answer:
    answer = Answer()
    answer.status = status
    answer.add(body, 1.0)
    return answer


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12).map(sorted))
def test_where_the_bytes_are_cut_makes_no_difference(cuts: list[int]) -> None:
    answer = Answer()
    answer.status = 200
    for moment, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(WHOLE)], strict=True)):
        answer.add(WHOLE[start:end], float(moment))
    assert answer.outcome is Outcome.COMPLETED
    assert answer.num_chunks == 3
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.cached_tokens) == (5, 3)
    assert answer.first_token_s is not None
    assert answer.last_token_s == pytest.approx(answer.first_token_s + sum(answer.gaps_s))


def test_times_are_those_of_chunks_that_bear_tokens() -> None:
    answer = Answer()
    answer.status = 200
    answer.add(stream(delta(role="assistant"), end=": a comment\n\n"), 1.0)
    answer.add(stream(delta(content="x"), end=""), 2.0)
    answer.add(stream(delta(content="y"), end=""), 5.0)
    answer.add(stream({"choices": [], "usage": USAGE}), 9.0)
    assert (answer.first_token_s, answer.last_token_s) == (2.0, 5.0)
    assert list(answer.gaps_s) == [3.0]


@pytest.mark.parametrize(
    "body",
    [
        stream(delta(content="x"), end=""),  # no [DONE]
        stream(delta(content="x"), {"error": {"message": "engine died"}}),
        stream(),  # no token at all
        stream(delta(content="x"), end="data: {not json\n\ndata: [DONE]\n\n"),
        b"<html>",
        b"data: " + b"x" * (2 << 20),
    ],
)
def test_what_is_no_whole_answer_is_broken(body: bytes) -> None:
    assert read(body).outcome is Outcome.BROKEN


def test_windows_line_ends_are_line_ends() -> None:
    assert read(WHOLE.replace(b"\n", b"\r\n")).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("status", "retry_after_s", "outcome"),
    [
        (429, None, Outcome.REFUSED),
        (503, 2.0, Outcome.REFUSED),
        (503, None, Outcome.ERROR),
        (401, None, Outcome.ERROR),
        (None, None, Outcome.BROKEN),
    ],
)
def test_the_status_says_how_it_went(
    status: int | None, retry_after_s: float | None, outcome: Outcome
) -> None:
    answer = Answer()
    answer.status, answer.retry_after_s = status, retry_after_s
    assert answer.outcome is outcome
