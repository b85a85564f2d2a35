"""When one tenant's refused requests may come back: each at a time of its own.

Told the same time they would all come back together, and most be refused again.  So they stand in
line, which moves as fast as the tenant was let in lately; but only a part of that is promised, for
else who comes anew would have to wait in any case, and be refused first: two attempts for each
admission.  As ``lua/turns.lua`` does for quotas.

Pure: it does not know the time.
"""

import math
from collections import OrderedDict
from typing import Final

from contracts.names import TenantId

_MEMORY_S: Final = 10.0  # of how fast the tenant is let in
_LINE_RATIO: Final = 0.4  # of that; attempts for each admission are 1 + this, at the most
_SHORT_LINE_S: Final = 1.0  # a line up to here gets all of it: clients wait a second at least
_MAX_PROMISE_S: Final = 60.0
_MAX_PROMISES: Final = 1_000
_MAX_LINES: Final = 10_000
GRACE_S: Final = 2.0  # a client that counts in whole seconds comes up to one second late


class PromisedTurns:
    """A turn is known by what was asked: the same number when the same is asked again."""

    def __init__(self) -> None:
        self._due_s: OrderedDict[int, float] = OrderedDict()  # first come, first due
        self._last_s = 0.0
        self._num_lately = 0.0  # let in, fading
        self._lately_s = 0.0

    def __len__(self) -> int:
        return len(self._due_s)

    def let_in(self, turn: int, now_s: float) -> None:
        """Whether or not it was its time."""
        self._due_s.pop(turn, None)
        self._num_lately = self._num_let_in(now_s) + 1.0
        self._lately_s = now_s

    def claim(self, turn: int, now_s: float) -> bool:
        """It has waited as told: once."""
        self._forget(now_s)
        is_due = self.is_due(turn, now_s)
        if is_due:
            del self._due_s[turn]
        return is_due

    def is_due(self, turn: int, now_s: float) -> bool:
        due_s = self._due_s.get(turn)
        return due_s is not None and due_s <= now_s

    def promise_s(self, turn: int, least_s: float, now_s: float) -> float:
        """How long it is to wait, ``least_s`` at least; beyond a minute nothing is promised."""
        due_s = self._due_s.get(turn)
        if due_s is not None and due_s > now_s:
            return due_s - now_s  # it came too early
        self._due_s.pop(turn, None)  # it came too late, and is the last again
        wait_s = least_s
        if self._due_s:
            line_s = max(0.0, self._last_s - now_s)
            ratio = 1.0 if line_s < _SHORT_LINE_S else _LINE_RATIO
            wait_s = max(least_s, line_s + self._pause_s(least_s, now_s) / ratio)
        if wait_s <= _MAX_PROMISE_S and len(self._due_s) < _MAX_PROMISES:
            self._due_s[turn] = self._last_s = now_s + wait_s
        return wait_s

    def _pause_s(self, unknown_s: float, now_s: float) -> float:
        """From one that is let in to the next."""
        num_lately = self._num_let_in(now_s)
        return _MEMORY_S / num_lately if num_lately >= 1.0 else unknown_s

    def _num_let_in(self, now_s: float) -> float:
        return self._num_lately * math.exp((self._lately_s - now_s) / _MEMORY_S)

    def _forget(self, now_s: float) -> None:
        """Those who did not come."""
        while self._due_s:
            turn, due_s = next(iter(self._due_s.items()))
            if now_s - due_s < GRACE_S:
                return
            del self._due_s[turn]


class PromiseBook:
    """The line of each tenant and model; of very many that of whoever asked last."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, TenantId], PromisedTurns] = OrderedDict()

    def line_of(self, model: str, tenant: TenantId) -> PromisedTurns:
        key = model, tenant
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = PromisedTurns()
            if len(self._lines) > _MAX_LINES:
                self._lines.popitem(last=False)
        else:
            self._lines.move_to_end(key)
        return line
