"""Variables of a service's environment that nothing reads: misspelt, most likely.

A service that ignores ``GATEWAY_DRAIN_TIMEOUT`` runs with a default that nobody asked for, so each
service refuses to start with such a variable.  Case does not count: settings are read that way.
"""

import difflib
from collections.abc import Iterable, Sequence


def unknown_variables(environ: Iterable[str], prefix: str, known: Iterable[str]) -> list[str]:
    """The names that begin with ``prefix`` and are not those of a setting, sorted.

    ``environ``: names, or a mapping by name, as ``os.environ`` is.  ``known``: the settings' names
    without the prefix.
    """
    names = _variables(prefix, known)
    return sorted(
        name
        for name in environ
        if name.upper().startswith(prefix.upper()) and name.upper() not in names
    )


def nearest_variable(name: str, prefix: str, known: Iterable[str]) -> str | None:
    """What ``name`` was probably meant to be; ``None`` if it is like none of them."""
    near = difflib.get_close_matches(name.upper(), sorted(_variables(prefix, known)), n=1)
    return near[0] if near else None


def unread_variables(environ: Iterable[str], prefix: str, known: Iterable[str]) -> dict[str, str]:
    """The unknown variables, each with what to do about it."""
    settings = list(known)
    faults = {}
    for name in unknown_variables(environ, prefix, settings):
        nearest = nearest_variable(name, prefix, settings)
        hint = "" if nearest is None else f"; did you mean {nearest}?"
        faults[name] = f"there is no such setting{hint}"
    return faults


def variable_of(prefix: str, location: Sequence[str | int]) -> str:
    """Where a fault is, as whoever set the variable spells it: ``GATEWAY_REPLICAS.0.url``."""
    field, *inside = (str(part) for part in location)
    return ".".join((f"{prefix}{field}".upper(), *inside))


def _variables(prefix: str, known: Iterable[str]) -> set[str]:
    return {f"{prefix}{name}".upper() for name in known}
