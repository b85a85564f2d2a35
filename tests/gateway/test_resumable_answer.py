"""Whatever is cut off where, and however tokens share events: the client reads one answer."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.usage import UsageSource
from gateway.errors import UpstreamError
from gateway.metering import Usage
from gateway.resilience.resumable_answer import ResumableAnswer
from replica.api.replies import ChatReplies, CompletionReplies, ReplyOptions
from replica.engine.detokenizer import Detokenizer
from replica.engine.live_request import Piece, join
from replica.engine.messages import FinishReason
from replica.engine.messages import Usage as EngineUsage

EOS = 256
TOKEN_BYTES = [*(bytes([n]) for n in range(256)), b""]
PROMPT = [7, 8, 9]
FIRST_CACHED = 2  # of the prompt's tokens; whoever comes later finds all
REQUEST_ID = "req_0199aaaaaaaa7bbb8ccccccccccccccc"
KINDS: dict[str, type[ChatReplies | CompletionReplies]] = {
    "chat": ChatReplies,
    "text": CompletionReplies,
}


@dataclass(frozen=True)
class Undisturbed:
    """What a replica generates, whoever asks: its tokens, and what ends it."""

    tokens: Sequence[int]
    stop: str | None
    kind: str

    def pieces(self, num_resumed: int) -> list[Piece]:
        detokenizer = Detokenizer(TOKEN_BYTES, () if self.stop is None else (self.stop,))
        assert not detokenizer.resume(self.tokens[:num_resumed], 0)
        pieces = []
        for position in range(num_resumed, len(self.tokens)):
            token, is_last = self.tokens[position], position == len(self.tokens) - 1
            text = detokenizer.push(token, may_stop=True, is_last=is_last or token == EOS)
            reason = FinishReason.LENGTH if is_last else None
            if text.is_stopped or token == EOS:
                reason = FinishReason.STOP
            pieces.append(Piece(0, text.text, [token], reason))
            if reason is not None:
                break
        return pieces

    @property
    def whole(self) -> Piece:
        return join(self.pieces(0))

    def events(self, attempt: int, body: bytes, sizes: Iterator[int]) -> list[bytes] | None:
        """``None``: refused, for it has ended already."""
        resumed = json.loads(body).get("resume_tokens", [])
        whole = list(self.whole.token_ids)
        assert resumed == whole[: len(resumed)], "resumed from what was never generated"
        if len(resumed) == len(whole):
            return None
        pieces, replies = self.pieces(len(resumed)), self._replies(attempt)
        cached = FIRST_CACHED if attempt == 0 else len(PROMPT) + len(resumed)
        opening, finish = replies.opening(0, cached), pieces[-1].finish_reason
        payloads = [] if opening is None else [opening]
        while pieces:
            size = next(sizes)
            payloads.append(replies.piece(join(pieces[:size])))
            pieces = pieces[size:]
        assert finish is not None
        num_new = len(whole) - len(resumed)
        payloads.append(replies.finish(0, finish))
        usage = EngineUsage(
            prompt_tokens=len(PROMPT) + len(resumed),
            cached_prompt_tokens=cached,
            completion_tokens=num_new,
        )
        payloads.append(replies.usage(usage))
        return [b"data: %b\n\n" % payload for payload in payloads if payload is not None]

    def _replies(self, attempt: int) -> ChatReplies | CompletionReplies:
        options = ReplyOptions(
            request_id=f"{REQUEST_ID}-{attempt}",
            model='a "model"',
            created=1_000 + attempt,
            has_usage=True,
            prompt_token_ids=PROMPT,
        )
        return KINDS[self.kind](options)


def reported(event: bytes) -> Usage | None:
    usage = json.loads(event[6:])["usage"]
    if usage is None:
        return None
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Usage(usage["prompt_tokens"], cached, usage["completion_tokens"], UsageSource.ENGINE)


def relayed(
    run: Undisturbed, cuts: Sequence[int], sizes: Iterator[int]
) -> tuple[list[bytes], Usage]:
    """What the client gets when each attempt but the last is cut after so many events."""
    answer = ResumableAnswer(REQUEST_ID, has_seed=False)
    shown: list[bytes] = []
    for attempt, cut in enumerate([*cuts, None]):
        events = run.events(attempt, answer.body(b'{"a":1}'), sizes)
        if events is None:
            assert answer.repeat_last()
            events = run.events(attempt, answer.body(b'{"a":1}'), sizes)
            assert events is not None
        for event in events[:cut]:
            usage = reported(event)
            if usage is not None:
                whole = answer.whole(usage)
                shown.append(
                    answer.usage_event(whole) if answer.is_recounted else answer.take(event)
                )
                return [event for event in shown if event], whole
            shown.append(answer.take(event))
        answer.break_off()
    raise AssertionError("the last attempt was not cut")


def check(run: Undisturbed, cuts: Sequence[int], sizes: Iterator[int]) -> None:
    events, usage = relayed(run, cuts, sizes)
    documents = [json.loads(event[6:]) for event in events]
    choices = [choice for document in documents for choice in document["choices"]]
    texts = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    whole = run.whole
    assert "".join(texts) == whole.text
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert reasons == [whole.finish_reason]
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, len(whole.token_ids))
    told = documents[-1]["usage"]
    assert told["completion_tokens"] == len(whole.token_ids)
    is_first_read = not cuts or cuts[0] > 0
    assert usage.cached_prompt_tokens == (FIRST_CACHED if is_first_read else len(PROMPT))
    assert told["prompt_tokens_details"]["cached_tokens"] == usage.cached_prompt_tokens
    assert len({(d["id"], d["created"], d["model"]) for d in documents}) == 1
    assert b"token_ids" not in b"".join(events)
    assert sum("role" in c.get("delta", {}) for c in choices) == (run.kind == "chat")


@given(
    text=st.text(min_size=1, max_size=24),
    stop=st.text(min_size=1, max_size=3) | st.none(),
    ends_itself=st.booleans(),
    kind=st.sampled_from(sorted(KINDS)),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
@settings(deadline=None)
def test_the_client_reads_one_answer(
    text: str, stop: str | None, ends_itself: bool, kind: str, cuts: list[int], sizes: list[int]
) -> None:
    tokens = [*text.encode(), *([EOS] if ends_itself else [])]

    def cycle() -> Iterator[int]:
        while True:
            yield from sizes

    check(Undisturbed(tokens, stop, kind), cuts, cycle())


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_of_an_undisturbed_stream_gets_what_it_would_without_ids(kind: str) -> None:
    run = Undisturbed("tra\N{GREEK SMALL LETTER LAMDA}la".encode(), None, kind)
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    with_ids = run.events(0, answer.body(b'{"a":1}'), iter([1] * 9)) or []
    shown = b"".join(answer.take(event) for event in with_ids[:-1])
    options = ReplyOptions(f"{REQUEST_ID}-0", 'a "model"', 1_000, True, None)
    replies = KINDS[kind](options)
    payloads = [replies.opening(0, 0), *(replies.piece(piece) for piece in run.pieces(0))]
    payloads.append(replies.finish(0, FinishReason.LENGTH))
    assert shown == b"".join(b"data: %b\n\n" % p for p in payloads if p is not None)


def text_event(text: str, ids: str | None = "[1]") -> bytes:
    members = "" if ids is None else f'"token_ids":{ids},'
    return (
        b'data: {"id":"x","choices":[{"index":0,"logprobs":null,%b"text":"%b",'
        b'"finish_reason":null}],"usage":null}\n\n' % (members.encode(), text.encode())
    )


def test_an_event_of_logprobs_alone_goes_to_the_client() -> None:
    told = text_event("").replace(b"null", b'{"tokens":["bytes:\\xe2"]}', 1)
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    answer.take(text_event("a"))
    assert answer.take(text_event("")) == b""
    assert b'"tokens":["bytes:' in answer.take(told)
    assert answer.num_tokens == 3


def test_text_without_ids_cannot_be_resumed() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    answer.take(text_event("a"))
    assert answer.break_off()
    answer.take(text_event("b", ids=None))
    assert not answer.break_off()


def test_what_kills_three_replicas_in_a_row_is_the_request() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    answer.take(text_event("a"))
    assert [answer.break_off() for _ in range(3)] == [True, True, False]


def test_progress_is_a_reason_to_go_on() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    breaks = []
    for _ in range(9):
        answer.take(text_event("a"))
        breaks.append(answer.break_off())
    assert breaks == [True] * 8 + [False]


def test_an_answer_that_is_given_up_is_broken_off() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    with pytest.raises(UpstreamError):
        answer.take(b'data: {"choices":[{"text":"","finish_reason":"abort"}],"usage":null}\n\n')


def test_another_answer_in_place_of_the_repeated_token_is_noticed() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    answer.take(text_event("a", ids="[5]"))
    answer.break_off()
    assert answer.repeat_last()
    assert not answer.repeat_last()
    with pytest.raises(UpstreamError):
        answer.take(text_event("b", ids="[6]"))


@pytest.mark.parametrize(
    ("has_seed", "expected"),
    [(True, {"a": 1, "return_token_ids": True}), (False, {"a": 1, "return_token_ids": True})],
)
def test_all_attempts_share_a_seed(has_seed: bool, expected: dict[str, object]) -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=has_seed)
    first = json.loads(answer.body(b'{"a":1}'))
    seed = first.pop("seed", None)
    assert (first, seed is None) == (expected, has_seed)
    answer.take(text_event("a", ids="[5,6]"))
    again = json.loads(answer.body(b'{"a":1}'))
    assert again.pop("resume_tokens") == [5, 6]
    assert again.pop("seed", None) == seed


def test_an_attempt_that_had_not_begun_has_used_nothing() -> None:
    answer = ResumableAnswer(REQUEST_ID, has_seed=True)
    answer.take(text_event("a", ids="[5,6]"))
    answer.break_off()
    answer.body(b'{"a":1}')
    assert answer.whole(Usage(0, 0, 0, UsageSource.ENGINE)).completion_tokens == 2
    assert answer.whole(Usage(13, 13, 4, UsageSource.ENGINE)) == Usage(
        11, 11, 6, UsageSource.ENGINE
    )
