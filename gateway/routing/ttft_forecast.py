"""When one replica would give the first token of a prompt, learned from when it gave others.

Prompt tokens ahead and the prompt's own, divided by the rate at which they are prefilled, plus what
a step takes anyway; running answers slow prefilling down.  The rate begins as the replica's own
report and is learned from first tokens seen here when their answers have ended, since what was
cached is known by then; where no rate is reported from each at once, until enough were.  What
others have sent there is known from the replica's report only, which fades as the replica works it
off, and is forgotten when it is old.  Engines of another make prefill prompts in the order in which
they came; a replica of ours next what it has most cached of.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

import msgspec

from contracts.load import ReplicaLoad
from gateway.routing.regression import Regression

_STALE_S: Final = 5.0  # a report from before that says nothing
_ENOUGH: Final = 16  # first tokens, where a replica reports no rate
_SAMPLE_S: Final = 0.01  # between two requests that are learned from: busy replicas teach enough
_TOKENS: Final = 1_000.0  # of features, to keep them of the order of one
_ANSWERS: Final = 10.0
_FADE: Final = 0.9  # of what is known of the work, at each prompt
_LEAST_SLOPE_S: Final = 1e-7  # a token: no prompt is free
# Of the time that a token took lately.  What grows together a regression cannot tell apart: where
# all prompts are alike their tokens may seem to take no time, and twice as many to be through at
# once.  So much would then be sent there that it learned nothing more for minutes.
_LEAST_PACE: Final = 0.5
# A replica of ours lets those go first of whose prompts it has more cached: among so many, if they
# came within so long, unless it is set to another window, which it does not tell.
_LOOK_AHEAD: Final = 16
_WINDOW_S: Final = 5.0
_QUANTILE: Final = 0.9  # of the requests let in for a target, that meet it
_STEP: Final = 0.05  # relative
_MOST_CAUTION: Final = 3.0


class Forecast(msgspec.Struct, frozen=True):
    wait_s: float  # for the prompts ahead
    own_s: float  # for the prompt itself, on a replica that has nothing else to prefill
    per_token_s: float
    caution: float = 1.0  # what nine in ten take at most, in the time predicted
    begun_s: float = 0.0  # of the prompt that is probably being prefilled, until now

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.own_s

    def excess_in_slack_s(self, target_s: float) -> float:
        """As ``excess_s``, for one who should be in nobody's way.

        What has begun counts whole.  Sent a moment before that is through it would share the next
        step with whoever else is waiting by then, and make that longer.
        """
        return self.excess_s(target_s) + self.begun_s

    def excess_s(self, target_s: float) -> float:
        """How much of the wait must pass before the target can be met.

        Nine in ten meet it then: going by the prediction itself, half of those that just may go
        would be late.  A prompt that cannot meet it even alone waits for nobody to be ahead, and no
        longer.
        """
        return self.wait_s - max(0.0, target_s / self.caution - self.own_s)


class _Lesson(msgspec.Struct, frozen=True):
    """What was known when a request was sent, kept until it ends."""

    tokens_before: float  # that had been prefilled there
    answers: float
    predicted_s: float | None

    def features(self, tokens: float) -> tuple[float, float, float]:
        """``tokens``: its own, and those that were prefilled before them.

        Answers that run cost each step of a prompt something: so they do each of its tokens.
        """
        tokens = max(0.0, tokens / _TOKENS)
        return 1.0, tokens, tokens * self.answers / _ANSWERS


@dataclass(slots=True, eq=False)
class Visit:
    """One request at the replica, from when it is sent until it ends."""

    num_tokens: float  # of its prompt, without what is probably cached
    num_cached: float
    sent_s: float
    lesson: _Lesson | None  # most of very many requests teach nothing
    tells_first_token: bool
    is_answering: bool = False
    ttft_s: float | None = None  # None: not seen yet, or it teaches nothing more
    tokens_through: float = 0.0  # prefilled from when it was sent until its first token


class Observation(msgspec.Struct, frozen=True):
    predicted_s: float
    actual_s: float


class TtftForecast:
    def __init__(self) -> None:
        self._pending: dict[Visit, None] = {}  # sent from here, first token not seen, in order
        self._pending_tokens = 0.0
        self._pending_cached = 0.0
        self._in_work: Visit | None = None  # of the pending ones: what is probably prefilled now
        self._through_tokens = 0.0  # of all whose first tokens were seen
        self._working_since_s = 0.0  # on the first of them, and on those that told nothing
        self._untold_tokens = 0.0  # of the latter
        self._worked_tokens = self._worked_s = 0.0  # lately
        self._num_answering = 0  # sent from here, first token seen
        self._silent: deque[tuple[float, Visit]] = deque()  # until when they prefill, probably
        self._load: ReplicaLoad | None = None
        self._loaded_s = 0.0
        self._others_tokens = 0.0  # as of the report
        self._others_answering = 0
        self._regression: Regression | None = None
        self._caution = 1.0
        self._sampled_s = float("-inf")

    # What goes on there

    def send(
        self,
        num_tokens: float,
        now_s: float,
        *,
        tells_first_token: bool,
        num_cached: float = 0.0,
    ) -> Visit:
        """A document comes as a whole: when its first token was there nobody learns.

        ``num_cached``: of the prompt, besides its ``num_tokens``.
        """
        self._end_silence(now_s)
        lesson = None
        if tells_first_token and now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            lesson = self._lesson(num_tokens, now_s, num_cached)
        visit = Visit(num_tokens, num_cached, now_s, lesson, tells_first_token)
        if not tells_first_token:
            forecast = self.predict(num_tokens, now_s, num_cached)
            prefilled_s = now_s if forecast is None else now_s + forecast.ttft_s
            self._silent.append((prefilled_s, visit))
        self._pending[visit] = None
        self._pending_tokens += num_tokens
        self._pending_cached += num_cached
        if len(self._pending) == 1:
            self._begin_work(now_s)
        return visit

    def first_token(self, visit: Visit, now_s: float) -> Observation | None:
        """What was predicted for it, if anything was, and what came."""
        self._end_silence_before(visit)
        self._answered(visit)
        self._note_work(visit.num_tokens, now_s)
        lesson = visit.lesson
        if lesson is None:
            return None
        actual_s = max(1e-6, now_s - visit.sent_s)
        visit.tokens_through = self._through_tokens - lesson.tokens_before
        if self._is_at_a_loss():  # a flood's answers end too late
            self._learn(lesson.features(visit.tokens_through), actual_s)
        else:
            visit.ttft_s = actual_s
        if lesson.predicted_s is None:
            return None
        self._note_ratio(actual_s / max(1e-6, lesson.predicted_s))
        return Observation(lesson.predicted_s, actual_s)

    def end(self, visit: Visit, now_s: float, num_tokens: float | None = None) -> None:
        """Whether or not its first token ever came.

        ``num_tokens``: as it turned out, where that is known by now.  Where a rate is known it is
        learned from only here: a prompt that was cached after all is no lesson about long ones.
        How much was done of one that was broken off nobody knows: it tells nothing of the pace.
        """
        self._end_silence(now_s)  # what is through by now was prefilled
        is_in_work, done = visit is self._in_work, self._done(now_s)
        if not visit.is_answering and (visit.tells_first_token or num_tokens is None):
            self._through_tokens += (done if is_in_work else 0.0) - visit.num_tokens
        self._answered(visit)
        if is_in_work:
            self._begin_work(now_s)
        self._num_answering -= 1
        if visit.lesson is not None and visit.ttft_s is not None:
            more_tokens = 0.0 if num_tokens is None else num_tokens - visit.num_tokens
            self._learn(visit.lesson.features(visit.tokens_through + more_tokens), visit.ttft_s)

    def report(self, load: ReplicaLoad, now_s: float) -> None:
        self._load, self._loaded_s = load, now_s
        ours = self._pending_tokens + self._pending_cached  # it counts them before prefix hits
        self._others_tokens = max(0.0, load.queued_prompt_tokens - ours)
        self._others_answering = max(0, load.num_running - self._num_answering)
        if self._regression is None and load.prefill_tokens_per_s > 0:
            self._regression = Regression([0.0, _TOKENS / load.prefill_tokens_per_s, 0.0])

    # Predicting

    def predict(self, num_tokens: float, now_s: float, num_cached: float = 0.0) -> Forecast | None:
        """Of a prompt that is sent now; ``None``: too little is known."""
        regression = self._regression
        if regression is None or (self._load is None and regression.num_seen < _ENOUGH):
            return None
        step_s, per_token, per_both = regression.weights
        learned_s = (per_token + per_both * self._num_answers(now_s) / _ANSWERS) / _TOKENS
        slope_s = max(_LEAST_SLOPE_S, learned_s, _LEAST_PACE * self._pace_s())
        own_s = step_s + slope_s * num_tokens
        wait_s = slope_s * self._tokens_ahead(now_s, num_cached)
        return Forecast(wait_s, own_s, slope_s, self._caution, slope_s * self._done(now_s))

    def _is_at_a_loss(self) -> bool:
        """It hardly knows more than nothing."""
        if self._regression is None:
            return True
        is_told = self._load is not None and self._load.prefill_tokens_per_s > 0
        return not is_told and self._regression.num_seen < _ENOUGH

    def _lesson(self, num_tokens: float, now_s: float, num_cached: float) -> _Lesson:
        forecast = self.predict(num_tokens, now_s, num_cached)
        tokens_before = self._through_tokens + self._done(now_s) - self._others_left(now_s)
        answers = self._num_answers(now_s)
        predicted_s = None if forecast is None else forecast.ttft_s
        return _Lesson(tokens_before, answers, predicted_s)

    def _learn(self, features: Sequence[float], ttft_s: float) -> None:
        if self._regression is None:
            self._regression = Regression([0.0, 0.0, 0.0])
        self._regression.learn(features, ttft_s)

    def _answered(self, visit: Visit) -> None:
        if not visit.is_answering:
            visit.is_answering = True
            self._num_answering += 1
            del self._pending[visit]
            self._pending_tokens = max(0.0, self._pending_tokens - visit.num_tokens)
            self._pending_cached = max(0.0, self._pending_cached - visit.num_cached)
            self._through_tokens += visit.num_tokens

    def _prefilled_in_silence(self, visit: Visit) -> None:
        if not visit.is_answering:
            self._untold_tokens += visit.num_tokens
        self._answered(visit)
        if visit is self._in_work:
            self._in_work = self._next()

    def _tokens_ahead(self, now_s: float, num_cached: float) -> float:
        self._end_silence(now_s)
        pending = self._pending_tokens - self._done(now_s) - self._overtaken(now_s, num_cached)
        return max(0.0, pending) + self._others_left(now_s)

    def _overtaken(self, now_s: float, num_cached: float) -> float:
        """Tokens of those before which one of which so many are cached is prefilled."""
        if not num_cached or not self._knows_order:
            return 0.0
        tokens = 0.0
        for visit in islice(reversed(self._pending), _LOOK_AHEAD):
            if visit.sent_s < now_s - _WINDOW_S:
                break
            if visit.num_cached < num_cached and visit is not self._in_work:
                tokens += visit.num_tokens
        return tokens

    def _done(self, now_s: float) -> float:
        """Of the prompt that is probably being prefilled."""
        pace_s = self._pace_s()
        if self._in_work is None or pace_s == 0.0:
            return 0.0
        num_worked = (now_s - self._working_since_s) / pace_s - self._untold_tokens
        return min(self._in_work.num_tokens, max(0.0, num_worked))

    def _note_ratio(self, ratio: float) -> None:
        """Its quantile, followed by Robbins and Monro's rule (1951)."""
        step = _QUANTILE if ratio > self._caution else _QUANTILE - 1.0
        self._caution = min(_MOST_CAUTION, max(1.0, self._caution * (1.0 + _STEP * step)))

    def _pace_s(self) -> float:
        """Seconds a token lately; 0: nothing is known."""
        return self._worked_s / self._worked_tokens if self._worked_tokens else 0.0

    def _note_work(self, num_tokens: float, now_s: float) -> None:
        """A prompt is through.  This rate is not the regression's, since that is fed by it."""
        self._worked_tokens = _FADE * self._worked_tokens + self._untold_tokens + num_tokens
        self._worked_s = _FADE * self._worked_s + now_s - self._working_since_s
        self._begin_work(now_s)

    @property
    def _knows_order(self) -> bool:
        """It is one of ours."""
        return self._load is not None

    def _begin_work(self, now_s: float) -> None:
        self._working_since_s, self._untold_tokens = now_s, 0.0
        self._in_work = self._next()

    def _next(self) -> Visit | None:
        first = next(iter(self._pending), None)
        if first is None or not self._knows_order:
            return first
        latest_s = first.sent_s + _WINDOW_S
        in_order = islice(self._pending, _LOOK_AHEAD)
        return max(takewhile(lambda each: each.sent_s <= latest_s, in_order), key=_num_cached)

    def _end_silence_before(self, visit: Visit) -> None:
        """Prompts are prefilled in the order in which they came."""
        if not visit.is_answering:
            before = takewhile(lambda other: other is not visit, self._pending)
            for other in [other for other in before if not other.tells_first_token]:
                self._prefilled_in_silence(other)

    def _end_silence(self, now_s: float) -> None:
        while self._silent and self._silent[0][0] <= now_s:
            self._prefilled_in_silence(self._silent.popleft()[1])

    def _num_answers(self, now_s: float) -> int:
        is_stale = now_s - self._loaded_s > _STALE_S
        return self._num_answering + (0 if is_stale else self._others_answering)

    def _others_left(self, now_s: float) -> float:
        age_s = now_s - self._loaded_s
        if self._load is None or age_s > _STALE_S:
            return 0.0
        return max(0.0, self._others_tokens - age_s * self._load.prefill_tokens_per_s)


def _num_cached(visit: Visit) -> float:
    return visit.num_cached
