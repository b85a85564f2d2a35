"""A stream that broke off goes on with another of our replicas, if one takes it up."""

from typing import Final

from contracts.replica_api import RESUME_TOKENS_FIELD
from gateway.api.upstream_errors import refusal
from gateway.errors import GatewayError, NoReplicaAvailable, UpstreamError, UpstreamRefused
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.resilience.attempts import MAX_ERROR_BYTES, Attempts
from gateway.resilience.failures import is_retriable
from gateway.resilience.pause import pause
from gateway.resilience.resumable_answer import ResumableAnswer
from gateway.upstream.replica_client import read_body
from gateway.upstream.response import UpstreamResponse

_RESUME_REFUSED: Final = f'"param":"{RESUME_TOKENS_FIELD}"'.encode()
_LOOK_S: Final = 0.1  # for a replica, while none is ready


async def resumed(
    attempts: Attempts, fleet: Fleet, exchange: Exchange, failure: GatewayError
) -> UpstreamResponse:
    """The stream in which it goes on.  Raises ``failure`` where there is none, Interrupted."""
    answer = attempts.answer
    if answer is None or not answer.break_off():
        raise failure
    clock = fleet.clock
    tried = {attempts.break_off()}
    deadline_s = clock.monotonic_s() + fleet.limits.resume_patience_s
    has_looked = False
    while True:
        try:
            response = await attempts.reopen(tried)
        except NoReplicaAvailable:
            if clock.monotonic_s() >= deadline_s:
                raise failure from None
            tried.clear()  # whoever broke off may be back, or be another by now
            if has_looked:
                await exchange.watch(pause(_LOOK_S))
            has_looked = True
        except UpstreamError:
            tried.add(_passed_over(attempts, answer, failure))
        else:
            if response.status == 200:
                return response
            if is_retriable(response.status):
                tried.add(_passed_over(attempts, answer, failure))
            else:
                await _learn_end(attempts, answer, exchange, failure)


def _passed_over(attempts: Attempts, answer: ResumableAnswer, failure: GatewayError) -> str:
    """One that does not take it up now, by name.  Raises ``failure``: no other will."""
    name = attempts.give_up()
    if not answer.break_off():
        raise failure from None
    return name


async def _learn_end(
    attempts: Attempts, answer: ResumableAnswer, exchange: Exchange, failure: GatewayError
) -> None:
    """An answer that has all its tokens, but not its end, is refused: ask for the last again.

    Raises ``failure`` for any other refusal.
    """
    assert attempts.current is not None
    response = attempts.current.response
    body = await read_body(response, MAX_ERROR_BYTES, exchange.watch)
    error = refusal(response.status, body, response.retry_after_s)
    attempts.leave()
    is_at_end = isinstance(error, UpstreamRefused) and _RESUME_REFUSED in error.error
    if not is_at_end or not answer.repeat_last():
        raise failure
