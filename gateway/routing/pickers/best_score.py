"""Pick the highest total; the first in order where totals tie."""

from collections.abc import Sequence


class BestScore:
    name = "best_score"

    def pick(self, totals: Sequence[float]) -> int:
        return totals.index(max(totals))
