"""Variables of a service's environment that nothing reads: misspelt, most likely.

A service that ignores ``GATEWAY_DRAIN_TIMEOUT`` runs with a default that nobody asked for, so each
service refuses to start with such a variable.  Case does not count: settings are read that way.
"""

import difflib
from collections.abc import Iterable


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


def _variables(prefix: str, known: Iterable[str]) -> set[str]:
    return {f"{prefix}{name}".upper() for name in known}
