"""A service's settings out of its environment, and what is wrong with them, by variable.

A service that ignores ``GATEWAY_DRAIN_TIMEOUT`` runs with a default that nobody asked for, so each
service refuses to start with a variable that nothing reads: it is misspelt, most likely.  Case does
not count: settings are read that way.
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

from contracts.faults import plain_words

_NOT_JSON: Final = re.compile(r'error parsing value for field "(?P<field>\w+)"')  # pydantic's words

Settings = TypeVar("Settings")
Told = TypeVar("Told")


class BadSettings(Exception):
    """By variable, and without what was given: it may hold a secret."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__(", ".join(faults))
        self.faults = faults


def read_settings(read: Callable[[], Settings], prefix: str, unread: Mapping[str, str]) -> Settings:
    """Raises BadSettings with all there is to say: what is wrong, and what nothing reads.

    ``read`` raises pydantic's errors, which are ValueErrors; that package has no place here.
    """
    try:
        settings = read()
    except ValueError as exc:
        raise BadSettings({**_faults(exc, prefix, read), **unread}) from None
    if unread:
        raise BadSettings(unread)
    return settings


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


class Fields(Protocol):
    """pydantic's, of a validator: whose it is, and those that stand before it."""

    @property
    def field_name(self) -> str | None: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


def beside_certificate(key_file: Told, fields: Fields) -> Told:
    """Of ``..._certificate_key_file``.  Raises ValueError where no certificate is told.

    Clients would ignore such a key, or fail at each connect.
    """
    certificate_file = str(fields.field_name).replace("_key_file", "_file")
    if fields.data.get(certificate_file) is None:
        raise ValueError(f"needs {certificate_file} beside it")
    return key_file


def variable_of(prefix: str, location: Sequence[str | int]) -> str:
    """Where a fault is, as whoever set the variable spells it: ``GATEWAY_REPLICAS.0.url``."""
    field, *inside = (str(part) for part in location)
    return ".".join((f"{prefix}{field}".upper(), *inside))


def _variables(prefix: str, known: Iterable[str]) -> set[str]:
    return {f"{prefix}{name}".upper() for name in known}


@runtime_checkable
class _ValidationError(Protocol):
    """pydantic's."""

    def errors(self, *, include_input: bool, include_url: bool) -> list[Mapping[str, Any]]: ...


def _faults(exc: ValueError, prefix: str, read: object) -> dict[str, str]:
    """``read``: what raised it, mostly the settings' class, which knows its fields."""
    if not isinstance(exc, _ValidationError):  # not JSON, where the setting is a list or a mapping
        found = _NOT_JSON.match(str(exc))
        field = None if found is None else getattr(read, "model_fields", {}).get(found["field"])
        if found is None or field is None:
            return {prefix: str(exc)}
        form = json.dumps(_example(field.annotation))
        return {variable_of(prefix, (found["field"],)): f"expected JSON, such as {form}"}
    errors = exc.errors(include_input=False, include_url=False)
    return {variable_of(prefix, e["loc"] or ("settings",)): plain_words(e) for e in errors}


def _example(annotation: Any) -> object:
    """A value of that form."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        return _example(next(each for each in inner if each is not type(None)))
    if kind is Literal:
        return inner[0]
    fields = getattr(kind, "model_fields", None)
    if fields is not None:
        return {name: _of_field(f) for name, f in fields.items() if f.examples or f.is_required()}
    if not isinstance(kind, type) or issubclass(kind, str):
        return "value"
    if issubclass(kind, Mapping):
        return {"name": _example(inner[1]) if inner else "value"}
    if issubclass(kind, Collection):
        return [_example(inner[0]) if inner else "value"]
    return kind(1) if kind in (int, float, bool) else "value"


def _of_field(field: Any) -> object:
    """``field``: pydantic's.  Its own example, where any value of its form would not do."""
    return field.examples[0] if field.examples else _example(field.annotation)
