"""Dataclasses as Kubernetes spells them: names, structural schema, and values both ways (pure).

``num_slots: int`` is ``slots: integer`` there, ``cold_start_s`` is ``coldStartSeconds``.  A field's
rules (its description and bounds) stand with the definition; a field without a rule is a mistake.
What a structural schema is:
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from autoscaler.errors import BadPolicy

Json = dict[str, Any]  # a JSON object: any value inside

_UNITS: Final = {"s": "Seconds", "h": "Hour", "usd": "Usd"}
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
_PREFIXES: Final = ("num_", "is_")


@dataclass(frozen=True, slots=True)
class Rule:
    """What the API server says of a field, and holds it to."""

    description: str
    minimum: float | None = None
    maximum: float | None = None
    more: Mapping[str, object] | None = None  # any other keyword of the schema


Rules = Mapping[str, Rule]  # by the name of the field


def wire_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    words = name.split("_")
    if words[-2:-1] == ["per"]:  # a rate: the unit after it is one
        words[-1] = {"s": "Second", "h": "Hour"}.get(words[-1], words[-1])
    first, *others = words
    return first + "".join(_UNITS.get(word, word[:1].upper() + word[1:]) for word in others)


def schema_of(cls: type, rules: Rules, *, without: frozenset[str] = frozenset()) -> Json:
    """Of an object with the dataclass's fields.  Raises KeyError for a field without a rule."""
    hints = get_type_hints(cls)
    properties, required = {}, []
    for field in _wired(cls, without):
        schema = {**_schema_of_type(hints[field.name], rules), **_said_of(rules[field.name])}
        if _is_required(field):
            required.append(wire_name(field.name))
        elif _is_plain(field.default):
            schema["default"] = field.default
        properties[wire_name(field.name)] = schema
    found: Json = {"type": "object", "properties": properties}
    return {**found, "required": required} if required else found


def to_wire(value: Any) -> Any:  # whatever a field holds
    """JSON; what is ``None`` is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        items = ((f.name, getattr(value, f.name)) for f in _wired(type(value), frozenset()))
        return {wire_name(name): to_wire(item) for name, item in items if item is not None}
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [to_wire(item) for item in value]
    return value


def from_wire(cls: type, found: Any, **more: object) -> Any:  # an instance of ``cls``
    """``more``: fields that the wire does not tell.  Raises BadPolicy.

    What the schema let pass has the right shape; an older schema may have let more pass.
    """
    if not isinstance(found, Mapping):
        raise BadPolicy(f"{cls.__name__}: an object expected")
    hints = get_type_hints(cls)
    values = {
        field.name: _value_of(hints[field.name], found[wire_name(field.name)])
        for field in _wired(cls, frozenset(more))
        if found.get(wire_name(field.name)) is not None
    }
    try:
        return cls(**values, **more)
    except TypeError as exc:
        raise BadPolicy(f"{cls.__name__}: {exc}") from exc


def _wired(cls: type, without: frozenset[str]) -> Iterator[Field[Any]]:  # of any type
    return (f for f in fields(cls) if f.init and f.name not in without)


def _schema_of_type(hint: Any, rules: Rules) -> Json:  # no type says what a hint is
    hint = _bare(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if is_dataclass(hint):
        assert isinstance(hint, type), "a hint names a class"
        return schema_of(hint, rules)
    item = get_args(hint)[0] if get_origin(hint) is tuple else get_args(hint)[1]
    inner = _schema_of_type(item, rules)
    if get_origin(hint) is tuple:
        return {"type": "array", "items": inner}
    return {"type": "object", "additionalProperties": inner}


def _value_of(hint: Any, found: Any) -> Any:  # JSON, into whatever the hint says
    hint = _bare(hint)
    if is_dataclass(hint):
        assert isinstance(hint, type), "a hint names a class"
        return from_wire(hint, found)
    if get_origin(hint) is tuple:
        return tuple(_value_of(get_args(hint)[0], item) for item in found)
    if get_origin(hint) is not None:
        return {key: _value_of(get_args(hint)[1], item) for key, item in found.items()}
    return float(found) if hint is float else found


def _bare(hint: Any) -> Any:  # a hint
    """Without ``| None``."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
    return hint


def _is_required(field: Field[Any]) -> bool:  # of any type
    return field.default is MISSING and field.default_factory is MISSING


def _is_plain(default: object) -> bool:
    return isinstance(default, str | int | float)


def _said_of(rule: Rule) -> Json:
    bounds = {"minimum": rule.minimum, "maximum": rule.maximum}
    told = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"description": rule.description, **told, **(rule.more or {})}
