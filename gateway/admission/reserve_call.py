"""How an ask is put to ``reserve.lua``, and how its answer reads."""

from typing import Final

import msgspec

from gateway.admission.quota_plan import QuotaPlan, rule_in_words
from gateway.admission.quota_scripts import RESERVE
from gateway.admission.quota_tenants import QuotaTenant
from gateway.admission.resp import pack_arguments
from gateway.admission.verdict import LIMIT_BY_NUMBER, Budget, Refusal, Reservation, Verdict
from gateway.errors import QuotaUnavailable

_NUM_OWN_ARGUMENTS: Final = 7  # beside the plan's
_TO_DECIDE, _DECIDED = pack_arguments(0), pack_arguments(1)
_NUM_REPLIED, _NUM_OF_REFUSAL = 12, 5  # between it and the shadows: a Budget's fields


class ReserveCall(msgspec.Struct, frozen=True, eq=False):
    """The asks of one plan, packed as far as they are the same."""

    tenant: QuotaTenant
    beginning: bytes  # of the command: ``asked`` follows


def reserve_call(lease: bytes, tenant: QuotaTenant, plan: QuotaPlan) -> ReserveCall:
    """``lease``: in milliseconds, packed."""
    constant = b"%b%b%b" % (lease, plan.arguments, _TO_DECIDE)
    num_arguments = _NUM_OWN_ARGUMENTS + plan.num_arguments
    return ReserveCall(tenant, RESERVE.command(tenant.keys, constant, num_arguments))


def num_arguments_of(reservation: Reservation) -> int:
    return _NUM_OWN_ARGUMENTS + reservation.plan.num_arguments


def reserve_arguments(lease: bytes, reservation: Reservation, *, is_decided: bool) -> bytes:
    """``lease``: in milliseconds, packed."""
    how = _DECIDED if is_decided else _TO_DECIDE
    return b"%b%b%b%b" % (lease, reservation.plan.arguments, how, asked(reservation))


def asked(reservation: Reservation) -> bytes:
    """What differs from ask to ask, packed.

    Numbers with leading zeros: so their length is known, and Lua reads them all the same."""
    name = reservation.reservation_id.encode()
    return b"$20\r\n%020d\r\n$20\r\n%020d\r\n$20\r\n%020d\r\n$%d\r\n%b\r\n$10\r\n%010d\r\n" % (
        reservation.reserved_tokens,
        reservation.budget_tokens,
        reservation.reserved_nano_usd,
        len(name),
        name,
        reservation.turn,
    )


def verdict_of(reply: object, plan: QuotaPlan) -> Verdict:
    """Raises QuotaUnavailable for what is no answer."""
    if type(reply) is not list or len(reply) != _NUM_REPLIED or type(reply[0]) is not int:
        raise QuotaUnavailable("The quota store answered something else.")
    if reply[0] == 0:
        return Verdict(Budget(*reply[_NUM_OF_REFUSAL:-1]), None, reply[-1])
    kind, rule, retry_after_ms, allowed, remaining = reply[:_NUM_OF_REFUSAL]
    words = rule_in_words(plan.rules[rule - 1])
    refusal = Refusal(LIMIT_BY_NUMBER[kind], words, allowed, remaining, retry_after_ms)
    return Verdict(Budget(*(*reply[_NUM_OF_REFUSAL:-1], retry_after_ms)), refusal)
