"""How long a tenant's answers from a model are: the quantile that a reservation may count on.

A reservation of ``max_tokens`` holds tokens that hardly any answer uses, so a tenant waits for what
nobody spends.  Where its policy allows, the learned length is reserved instead; an answer that is
longer makes debt, which settlement charges, the bucket bounds, and refilling repays.
"""

import math
from typing import Final

from contracts.names import TenantId
from gateway.admission.quantile import QuantileTable

QUANTILE: Final = 0.95
_MAX_LEARNED: Final = 8_192  # pairs of tenant and model; the first to come are the first to go
_ENOUGH: Final = 20  # answers: fewer say nothing of one in twenty


class AnswerLengths:
    def __init__(self) -> None:
        self._indices: dict[tuple[TenantId, str], int] = {}
        self._lengths = QuantileTable(_MAX_LEARNED, QUANTILE)

    def expected_tokens(self, tenant: TenantId, model: str, at_most: int) -> int:
        """Of one answer; ``at_most`` as long as too few have been seen."""
        index = self._indices.get((tenant, model))
        if index is None or self._lengths.num_seen(index) < _ENOUGH:
            return at_most
        length = self._lengths.guess(index)
        return at_most if length is None else min(at_most, max(1, math.ceil(length)))

    def learn(self, tenant: TenantId, model: str, num_tokens: float, *, at_most: float) -> None:
        """``num_tokens``: of one answer, which was cut where it had ``at_most``.

        One that was cut says only that it would have been longer: that is news where it is longer
        than what is believed.
        """
        key = tenant, model
        index = self._indices.get(key)
        if num_tokens >= at_most and not self._is_longer(index, num_tokens):
            return
        if index is None:
            index = self._indices[key] = self._free_index()
        length = max(1.0, num_tokens)
        self._lengths.observe(index, length, first_guess=length)

    def _is_longer(self, index: int | None, num_tokens: float) -> bool:
        length = None if index is None else self._lengths.guess(index)
        return length is not None and num_tokens > length

    def _free_index(self) -> int:
        if len(self._indices) < _MAX_LEARNED:
            return len(self._indices)
        index = self._indices.pop(next(iter(self._indices)))
        self._lengths.forget(index)
        return index
