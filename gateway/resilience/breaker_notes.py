"""What becomes of an attempt, as the breaker of whom it was sent to hears of it."""

from gateway.resilience.attempt import Attempt
from gateway.resilience.breaker import Breakers
from gateway.resilience.failures import (
    MAYBE_OF_THIS_PROMPT,
    is_replicas_failure,
    keeps_all_away,
)

_CREDENTIAL_REFUSED = 401
_NO_ANSWER = 0


def note_head(breakers: Breakers, attempt: Attempt) -> None:
    """Its answer has begun."""
    key, status = attempt.breaker_key, attempt.response.status
    if attempt.is_foreign and keeps_all_away(status):
        breakers.turned_away(*key, status, attempt.response.retry_after_s)
    elif attempt.is_foreign and status in MAYBE_OF_THIS_PROMPT:
        breakers.refused(*key, status)
    elif is_replicas_failure(status):
        note_failure(breakers, attempt)
    elif status == 503:
        breakers.undecided(*key)  # full, or leaving: neither well nor ill
    elif status == 200:
        breakers.began(*key)
    else:
        breakers.succeeded(*key)


def note_failure(breakers: Breakers, attempt: Attempt) -> None:
    foreign_status = attempt.response.status if attempt.is_foreign else None
    breakers.failed(*attempt.breaker_key, foreign_status)


def note_unreachable(breakers: Breakers, attempt: Attempt) -> None:
    """A server of another owner is asked by nobody whether it is back: it is left alone at once."""
    if attempt.is_foreign:
        breakers.turned_away(*attempt.breaker_key, _NO_ANSWER)
    else:
        note_failure(breakers, attempt)


def note_credential_refused(breakers: Breakers, attempt: Attempt) -> None:
    """Whatever status it said so with; an answer that only holds it does not say so."""
    status = attempt.response.status
    breakers.turned_away(*attempt.breaker_key, 200 if status == 200 else _CREDENTIAL_REFUSED)


def note_end(breakers: Breakers, attempt: Attempt, *, is_complete: bool) -> None:
    note = breakers.succeeded if is_complete else breakers.undecided
    note(*attempt.breaker_key)
