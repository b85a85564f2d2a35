"""How an ask is put to ``reserve.lua``, and how its answer reads."""

from typing import Final

from gateway.admission.quota_plan import QuotaPlan, rule_in_words
from gateway.admission.quota_scripts import pack_id, pack_number
from gateway.admission.resp import pack_arguments
from gateway.admission.verdict import LIMIT_BY_NUMBER, Budget, Refusal, Reservation, Verdict
from gateway.errors import QuotaUnavailable

_NUM_OWN_ARGUMENTS: Final = 7  # beside the plan's
_TO_DECIDE, _DECIDED = pack_arguments(0), pack_arguments(1)
_NUM_REPLIED = 12


def num_arguments_of(reservation: Reservation) -> int:
    return _NUM_OWN_ARGUMENTS + reservation.plan.num_arguments


def reserve_arguments(lease: bytes, reservation: Reservation, *, is_decided: bool) -> bytes:
    """``lease``: in milliseconds, packed."""
    return b"%b%b%b%b%b%b%b%b" % (
        lease,
        reservation.plan.arguments,
        _DECIDED if is_decided else _TO_DECIDE,
        pack_number(reservation.reserved_tokens),
        pack_number(reservation.budget_tokens),
        pack_number(reservation.reserved_nano_usd),
        pack_id(reservation.reservation_id),
        pack_number(reservation.turn),
    )


def verdict_of(reply: object, plan: QuotaPlan) -> Verdict:
    """Raises QuotaUnavailable for what is no answer."""
    if not isinstance(reply, list) or len(reply) != _NUM_REPLIED or type(reply[0]) is not int:
        raise QuotaUnavailable("The quota store answered something else.")
    kind, rule, retry_after_ms, allowed, remaining, *rates, shadows = reply
    tokens_limit, tokens_remaining, tokens_reset_ms, *of_requests = rates
    requests_limit, requests_remaining, requests_reset_ms = of_requests
    budget = Budget(
        tokens_limit=tokens_limit,
        tokens_remaining=tokens_remaining,
        tokens_reset_ms=tokens_reset_ms,
        requests_limit=requests_limit,
        requests_remaining=requests_remaining,
        requests_reset_ms=requests_reset_ms,
        retry_after_ms=None if kind == 0 else retry_after_ms,
    )
    if kind == 0:
        return Verdict(budget, None, shadows)
    words = rule_in_words(plan.rules[rule - 1])
    refusal = Refusal(LIMIT_BY_NUMBER[kind], words, allowed, remaining, retry_after_ms)
    return Verdict(budget, refusal)
