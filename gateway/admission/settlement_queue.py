"""Settlements on their way to the store: none is lost while the process lives.

Those of one tenant that end in one turn of the event loop go in one command.  What the store does
not confirm at once is owed, and sent again until it does: being idempotent, it may safely be sent
twice.  What this gateway decides by itself is owed from then on.  What one tenant owes holds up no
other, and a node that is away no other node.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from gateway.admission.quota_scripts import RESERVE, SETTLE
from gateway.admission.quota_store import QuotaStore
from gateway.admission.quota_tenants import QuotaTenant, Settlement
from gateway.admission.reserve_call import num_arguments_of, reserve_arguments
from gateway.admission.resp import pack_arguments
from gateway.admission.script_runner import ScriptRunner, is_unknown_script
from gateway.admission.verdict import Reservation
from gateway.completion import Broadcast, Completion
from gateway.errors import QuotaRefused, QuotaUnavailable

logger = logging.getLogger(__name__)

_RETRY_PAUSE_S: Final = 0.1
_MOST_AT_ONCE: Final = 100  # in one call: a millisecond of the store's
_PARTS_PER_SETTLEMENT: Final = 5

_MakeCommand = Callable[[bytes, bytes, int], bytes]  # Script's, of either kind


def spent(reservation_id: str, tokens: int, limited_tokens: int, nano_usd: int) -> bytes:
    """One settlement's part of the command, packed; ``limited_tokens`` count towards limits.

    Numbers with leading zeros: so their length is known, and Lua reads them all the same.
    """
    name = reservation_id.encode()
    return b"$%d\r\n%b\r\n$20\r\n%020d\r\n$20\r\n%020d\r\n$20\r\n%020d\r\n$1\r\n1\r\n" % (
        len(name),
        name,
        tokens,
        limited_tokens,
        nano_usd,
    )


def spent_nothing(reservation_id: str) -> bytes:
    """As ``spent``, of what led to no request."""
    return pack_arguments(reservation_id, 0, 0, 0, 0)


class SettlementQueue:
    def __init__(
        self,
        store: QuotaStore,
        runner: ScriptRunner,
        *,
        lease: bytes,
        max_open: int,
        on_told: Callable[[str, QuotaTenant], None],
    ) -> None:
        """``on_told``: called for a reservation that the store holds from now on.

        ``max_open``: with so many unconfirmed it ``is_full``, and shall be given no new decisions.
        """
        self._store = store
        self._runner = runner
        self._lease = lease
        self._max_open = max_open
        self._on_told = on_told
        self._joining: list[QuotaTenant] = []  # those with settlements to send
        self._owing: dict[QuotaTenant, None] = {}  # those with some to send again
        self._untold: dict[str, Settlement] = {}  # by reservation id: what we decided
        self._num_open = 0
        self._all_closed: asyncio.Event | None = None  # set while somebody waits for it
        self._wake = asyncio.Event()

    @property
    def num_open(self) -> int:
        """What the store has not confirmed yet; a gateway that dies takes it along."""
        return self._num_open

    @property
    def is_owing(self) -> bool:
        """The store has not confirmed something when it was asked to."""
        return bool(self._owing)

    @property
    def is_full(self) -> bool:
        return self._num_open >= self._max_open

    def put_decision(self, tenant: QuotaTenant, reservation: Reservation) -> None:
        """What was admitted without the store: it is told as soon as it answers."""
        settlement = Settlement(reservation.reservation_id, None, reservation, Broadcast())
        self._untold[reservation.reservation_id] = settlement
        self._num_open += 1
        self._owe(tenant, [settlement])

    def put(self, tenant: QuotaTenant, reservation_id: str, spent: bytes) -> Broadcast[bool]:
        """True once the store has confirmed; False if it did not at once.

        Then it goes on in the background, whether or not somebody waits.  ``spent``: as packed.
        """
        untold = self._untold.get(reservation_id)
        if untold is not None:
            untold.spent = spent
            untold.is_confirmed.resolve(False)
            return untold.is_confirmed
        self._num_open += 1
        is_first = not self._joining
        if not tenant.joining:
            tenant.is_confirmed = Broadcast()
            self._joining.append(tenant)
        is_confirmed = tenant.is_confirmed
        tenant.joining.append(Settlement(reservation_id, spent, None, is_confirmed))
        if is_first:
            self._store.before_flush(self._send_joined)
        return is_confirmed

    async def run(self) -> None:
        """Sends again what is owed; runs until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_RETRY_PAUSE_S)
            by_home: dict[object, list[QuotaTenant]] = {}
            for tenant in self._owing:
                by_home.setdefault(self._store.home_of(tenant.slot), []).append(tenant)
            await asyncio.gather(*(self._pay_home(tenants) for tenants in by_home.values()))
            if not self._owing:
                self._wake.clear()

    async def flush(self, timeout_s: float) -> int:
        """Waits for open settlements at shutdown; returns, and logs, how many stay unconfirmed."""
        if self._num_open:
            self._all_closed = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
        if self._num_open:
            logger.error("reservations left unsettled", extra={"num_events": self._num_open})
        return self._num_open

    # At once

    def _send_joined(self) -> None:
        """All settlements of one tenant in one command."""
        joining, self._joining = self._joining, []
        for tenant in joining:
            settlements, tenant.joining = tenant.joining, []
            self._send(tenant, settlements, SETTLE.command)

    def _send(
        self, tenant: QuotaTenant, settlements: Sequence[Settlement], command: _MakeCommand
    ) -> None:
        arguments, num_arguments = _settle_arguments(settlements)
        reply = self._store.call(command(tenant.keys, arguments, num_arguments), tenant.slot)
        reply.then(lambda: self._on_reply(tenant, settlements, reply))

    def _on_reply(
        self, tenant: QuotaTenant, settlements: Sequence[Settlement], reply: Completion[object]
    ) -> None:
        answer = None if reply.exception() is not None else reply.result()
        if isinstance(answer, int):
            self._confirm(settlements)
        elif is_unknown_script(answer):
            self._send(tenant, settlements, SETTLE.command_in_full)
        else:
            self._owe(tenant, settlements)
            for settlement in settlements:
                settlement.is_confirmed.resolve(False)

    # Again

    def _owe(self, tenant: QuotaTenant, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            tenant.owed[settlement.reservation_id] = settlement
        self._owing[tenant] = None
        self._wake.set()

    async def _pay_home(self, tenants: Sequence[QuotaTenant]) -> None:
        """What is owed to one node, until it is away."""
        with contextlib.suppress(QuotaUnavailable):
            for tenant in tenants:
                with contextlib.suppress(QuotaRefused):
                    await self._pay(tenant)

    async def _pay(self, tenant: QuotaTenant) -> None:
        """All that one tenant owes.  Raises QuotaUnavailable; then this tenant's turn is last."""
        try:
            while tenant.owed:
                await self._pay_some(tenant, list(islice(tenant.owed.values(), tenant.num_at_once)))
                tenant.num_at_once = min(_MOST_AT_ONCE, tenant.num_at_once * 2)
        except QuotaUnavailable:
            tenant.num_at_once = 1  # perhaps only one of them fails: it must not block the others
            first = next(iter(tenant.owed))
            tenant.owed[first] = tenant.owed.pop(first)
            self._owing[tenant] = self._owing.pop(tenant)
            raise
        del self._owing[tenant]

    async def _pay_some(self, tenant: QuotaTenant, some: Sequence[Settlement]) -> None:
        """Raises QuotaUnavailable; what was told by then is not told again."""
        tellings = [self._tell(tenant, s, s.decided) for s in some if s.decided is not None]
        for failure in await asyncio.gather(*tellings, return_exceptions=True):
            if failure is not None:
                raise failure
        ended = [settlement for settlement in some if settlement.spent is not None]
        if ended:
            await self._runner.run(SETTLE, tenant, *_settle_arguments(ended))
        for settlement in ended:
            del tenant.owed[settlement.reservation_id]
        self._confirm(ended)

    async def _tell(
        self, tenant: QuotaTenant, settlement: Settlement, decided: Reservation
    ) -> None:
        """What the store did not decide.  Raises QuotaUnavailable."""
        arguments = reserve_arguments(self._lease, decided, is_decided=True)
        await self._runner.run(RESERVE, tenant, arguments, num_arguments_of(decided))
        settlement.decided = None
        del self._untold[settlement.reservation_id]
        if settlement.spent is None:  # its request still runs
            del tenant.owed[settlement.reservation_id]
            self._close(1)
            self._on_told(settlement.reservation_id, tenant)

    # Counting

    def _confirm(self, settlements: Sequence[Settlement]) -> None:
        self._close(len(settlements))
        for settlement in settlements:
            if not settlement.is_confirmed.is_done:  # all of a command share it
                settlement.is_confirmed.resolve(True)

    def _close(self, num_settlements: int) -> None:
        self._num_open -= num_settlements
        if self._num_open == 0 and self._all_closed is not None:
            self._all_closed.set()


def _settle_arguments(settlements: Sequence[Settlement]) -> tuple[bytes, int]:
    """Packed, and their number."""
    spent = [settlement.spent for settlement in settlements if settlement.spent is not None]
    return b"".join(spent), _PARTS_PER_SETTLEMENT * len(spent)
