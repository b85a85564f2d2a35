"""Names that clients may use for models, and canaries: a name for several, by weight."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

Target = str | Mapping[str, float]  # one model, or several with their weights


class Aliases:
    def __init__(self, targets: Mapping[str, Target]) -> None:
        """Weights are not negative, and not all zero."""
        self._weights: dict[str, Mapping[str, float]] = {
            name: {target: 1.0} if isinstance(target, str) else target
            for name, target in targets.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def models(self, name: str) -> Sequence[str]:
        """The heaviest first; the name itself if it is no alias."""
        weights = self._weights.get(name)
        return [name] if weights is None else sorted(weights, key=lambda m: -weights[m])

    def names_for(self, models: Collection[str]) -> set[str]:
        """Those of which some model is among these."""
        return {
            name for name, weights in self._weights.items() if not weights.keys().isdisjoint(models)
        }

    def resolve(
        self,
        name: str,
        share: Callable[[], float],
        served: Collection[str],
        withheld: Collection[str] = (),
    ) -> str:
        """Of several models one that is ``served``, if any is: by the conversation's ``share``
        (0..1), so that it stays with one.  ``withheld``: not all of them, and none of these."""
        weights = self._weights[name]
        if withheld:
            weights = {model: w for model, w in weights.items() if model not in withheld}
        if len(weights) == 1:
            return next(iter(weights))
        choice = {m: w for m, w in weights.items() if m in served and w > 0.0} or weights
        sums = list(accumulate(choice.values()))
        drawn = share() * sums[-1]
        return next(
            m for m, upto in zip(choice, sums, strict=True) if drawn < upto or upto == sums[-1]
        )
