"""``values.yaml`` and the chart's README: every value with its default and what it is for."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pandal.chart.values import Values

_INTRODUCTION: Final = """\
# Values of the chart pandal, each with its default.
# Made by `make chart`; the model is pandal/chart/values.py.  Unknown keys are refused.
"""
_README: Final = """\
# The chart pandal

How to install, upgrade and operate it is in [docs/chart.md](../../docs/chart.md).
This page is made by `make chart`.

Unknown keys are refused, with their path. A pool needs a `name` and a `model`, and may say
everything that `poolDefaults` says.

| value | default | |
|---|---|---|
"""


def values_file() -> str:
    lines = _block(Values(), "")
    return "\n".join([_INTRODUCTION, *lines]) + "\n"


def readme_file() -> str:
    return _README + "".join(
        f"| `{path}` | `{_scalar(default)}` | {_cell(words)} |\n"
        for path, default, words in _rows(Values(), "")
    )


def _fields(model: BaseModel) -> Iterator[tuple[str, FieldInfo, Any]]:  # values of any type
    for name, info in type(model).model_fields.items():
        yield info.alias or name, info, getattr(model, name)


def _block(model: BaseModel, indent: str) -> Iterator[str]:
    for key, info, value in _fields(model):
        if info.description:
            yield f"{indent}# {info.description}"
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:"
            yield from _block(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _rows(model: BaseModel, path: str) -> Iterator[tuple[str, Any, str]]:  # as above
    for key, info, value in _fields(model):
        if isinstance(value, BaseModel):
            yield from _rows(value, f"{path}{key}.")
        else:
            yield path + key, value, info.description or ""


def _scalar(value: Any) -> str:  # as above
    """JSON, which is YAML, on one line."""
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: Any) -> Any:  # as above
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _cell(words: str) -> str:
    return words.replace("|", "\\|")
