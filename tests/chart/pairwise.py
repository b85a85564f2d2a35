"""Combinations of options in which every two choices of two options meet."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Options = Mapping[str, Sequence[Any]]
Choice = tuple[int, ...]  # an index for each option, in order


def combinations(options: Options, at_least: int, seed: int) -> list[dict[str, Any]]:
    """All pairs, and then at random until there are enough."""
    source = random.Random(seed)
    sizes = [len(choices) for choices in options.values()]
    chosen = list(_covering(sizes, source))
    seen = set(chosen)
    while len(chosen) < at_least:
        choice = tuple(source.randrange(size) for size in sizes)
        if choice not in seen:
            seen.add(choice)
            chosen.append(choice)
    return [
        {name: choices[i] for (name, choices), i in zip(options.items(), choice, strict=True)}
        for choice in chosen
    ]


def _covering(sizes: Sequence[int], source: random.Random) -> Iterator[Choice]:
    """Greedy: the best of some random candidates, each begun with a pair that is still missing."""
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(sizes)), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }
    while missing:
        (a, i), (b, j) = min(missing)
        candidates = []
        for _ in range(30):
            choice = [source.randrange(size) for size in sizes]
            choice[a], choice[b] = i, j
            candidates.append(tuple(choice))
        best = max(candidates, key=lambda choice: len(missing & _pairs(choice)))
        missing -= _pairs(best)
        yield best


def _pairs(choice: Choice) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(choice), 2))
