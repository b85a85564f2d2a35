"""What is known of one finished request.  Offsets count from the start of the run."""

from array import array
from dataclasses import dataclass
from enum import StrEnum

from pandal.bench.answer import Answer, Outcome, Usage
from pandal.bench.tenants import Slo


class RetryOutcome(StrEnum):
    """What a client that obeys ``Retry-After`` to the letter met."""

    NOT_TOLD = "not_told"  # refused without a time to come back
    NOT_FOLLOWED = "not_followed"  # switched off, or longer than the run would wait
    ADMITTED = "admitted"
    REFUSED_AGAIN = "refused_again"
    FAILED = "failed"  # not refused, but not served either


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Latencies count from the intended moment, through a refusal and its wait if there was one."""

    tenant: str
    session: int
    turn: int
    intended_s: float
    send_lag_s: float  # of the generator: from the intended moment to its own first step
    outcome: Outcome  # of the last attempt
    status: int | None
    retry: RetryOutcome | None  # None: not refused at first
    retry_after_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    usage: Usage | None
    num_chunks: int
    gaps_s: "array[float]"  # no generic before Python 3.12
    num_dropped_turns: int  # later ones of its conversation, not sent because this one failed

    @property
    def is_completed(self) -> bool:
        return self.outcome is Outcome.COMPLETED

    @property
    def completion_tokens(self) -> int:
        """As the server counted; chunks, of at least a token each, where it tells nothing."""
        return self.num_chunks if self.usage is None else self.usage.completion_tokens

    def is_good(self, slo: Slo) -> bool:
        if not self.is_completed or self.ttft_s is None:
            return False
        return self.ttft_s <= slo.ttft_s and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The first attempt's refusal, and what came of obeying it."""

    retry: RetryOutcome
    retry_after_s: float | None


def tpot_s(answer: Answer) -> float | None:
    """Mean time per token after the first.  ``None``: there was none after the first."""
    num_tokens = answer.num_chunks if answer.usage is None else answer.usage.completion_tokens
    if answer.first_token_s is None or answer.last_token_s is None or num_tokens < 2:
        return None
    return (answer.last_token_s - answer.first_token_s) / (num_tokens - 1)
