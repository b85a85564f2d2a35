"""Pick the highest total; the first in order where totals tie."""

from collections.abc import Mapping


class BestScore:
    name = "best_score"

    def pick(self, totals: Mapping[str, float]) -> str:
        return max(totals, key=totals.__getitem__)
