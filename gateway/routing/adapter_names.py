"""What each model of the replicas goes by here, where several bear one name.

A name means the model that bears it, else the one adapter; adapters whose name others bear, too, go
by their base's name and their own.  Nobody is ever answered by another model than was asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

Told = tuple[str, str | None]  # a model's own name, and whose adapter it is


@dataclass(frozen=True, slots=True)
class AdapterNames:
    """Of all replicas together."""

    names: Mapping[Told, str | None]  # None: a model is called what it would have to go by
    qualified: Mapping[str, str]  # what adapters go by, by their bases' names and their own
    choices: Mapping[str, list[str]]  # of a name that means nobody, for it means several

    @property
    def parents(self) -> dict[str, str]:
        """Whose adapter each is, by what it goes by."""
        named = ((name, base) for (_, base), name in self.names.items())
        return {name: base for name, base in named if name is not None and base is not None}

    @property
    def own_names(self) -> dict[str, str]:
        """What replicas call those that go by another name here."""
        named = ((name, own) for (own, _), name in self.names.items())
        return {name: own for name, own in named if name is not None and name != own}

    def names_for(self, models: Set[str]) -> Set[str]:
        """All that these may be asked for by."""
        return models | {whole for whole, name in self.qualified.items() if name in models}


def adapter_names(all_told: Iterable[Told]) -> AdapterNames:
    bases = defaultdict[str, set[str | None]](set)
    for name, base in all_told:
        bases[name].add(base)
    names: dict[Told, str | None] = {}
    qualified: dict[str, str] = {}
    choices: dict[str, list[str]] = {}
    for name, of in bases.items():
        for base in of:
            whole = f"{base}:{name}"
            is_clear = base is None or len(of) == 1
            goes_by = name if is_clear else whole
            names[name, base] = goes_by if is_clear or whole not in bases else None
            if base is not None and whole not in bases:
                qualified[whole] = goes_by
        if None not in of and len(of) > 1:
            wholes = (f"{base}:{name}" for base in of)
            choices[name] = sorted(whole for whole in wholes if whole in qualified)
    return AdapterNames(names, qualified, choices)
