"""A service's settings as a group of values: names, types, bounds, defaults and reasons.

What the chart itself decides (ports, folders, addresses, secrets) has another place among the
values; those fields are named by whoever asks, and left out here.
"""

import ast
import inspect
import io
import tokenize
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    populate_by_name=True,
    alias_generator=AliasGenerator(alias=to_camel),
    protected_namespaces=(),
)


def settings_values(
    name: str, settings: type[BaseSettings], *, without: Iterable[str], **defaults: object
) -> type[BaseModel]:
    """A model of all fields but ``without``; ``defaults`` are the chart's, where it knows better.

    Raises KeyError for a name that is none of the settings: it was renamed, or removed.
    """
    reasons = reasons_of(settings)
    left = dict(settings.model_fields)
    for field in without:
        del left[field]
    fields: dict[str, Any] = {
        field: _field(info, reasons.get(field, ""), defaults.get(field, info.default))
        for field, info in left.items()
    }
    return create_model(name, __config__=STRICT, **fields)


def reasons_of(settings: type[BaseSettings]) -> Mapping[str, str]:
    """The comment of each field: the lines before it, or what follows on its own lines."""
    source = inspect.getsource(settings)
    lines = source.splitlines()
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (cls,) = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    return {
        node.target.id: " ".join(_reason(lines, comments, node))
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _reason(lines: list[str], comments: Mapping[int, str], field: ast.AnnAssign) -> list[str]:
    """``comments`` by line, which count from 1."""
    begin = field.lineno
    while lines[begin - 2].strip().startswith("#"):
        begin -= 1
    found = [comments.get(line, "") for line in range(begin, (field.end_lineno or begin) + 1)]
    return [words.replace("None:", "null:") for words in found if words]


def _field(info: FieldInfo, reason: str, default: object) -> Any:  # what create_model takes
    """Type with bounds, and default."""
    bounded: Any = info.annotation
    if info.metadata:
        bounded = Annotated[(info.annotation, *info.metadata)]
    return bounded, Field(default=default, description=reason or None)
