"""What is wrong with what somebody wrote, for people who know none of our tools.

By the kind of the fault, as pydantic names it: its messages change, speak of inputs and fields, and
some of them repeat what was written, which may be a secret.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

# Their messages tell what was expected, and nothing of what came.
_CLEAR: Final = frozenset(
    {
        "enum", "finite_number", "greater_than", "greater_than_equal", "int_from_float",
        "less_than", "less_than_equal", "literal_error", "multiple_of",
    }
)  # fmt: skip

_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "it is missing": ("missing",),
    "there is no such member": ("extra_forbidden",),
    "expected JSON": ("json_invalid", "json_type"),
    "expected null": ("none_required",),
    "expected true or false": ("bool_parsing", "bool_type"),
    "expected a valid integer": ("int_parsing", "int_type"),
    "expected an integer with fewer digits": ("int_parsing_size",),
    "expected a valid number": ("decimal_parsing", "decimal_type", "float_parsing", "float_type"),
    "expected at most {max_digits} digits": ("decimal_max_digits",),
    "expected at most {decimal_places} digits after the point": ("decimal_max_places",),
    "expected at most {whole_digits} digits before the point": ("decimal_whole_digits",),
    "expected a valid string": ("string_type", "string_unicode"),
    "expected pattern '{pattern}'": ("string_pattern_mismatch",),
    "expected bytes": ("bytes_type",),
    "expected a length of at least {min_length}": ("bytes_too_short", "string_too_short"),
    "expected a length of at most {max_length}": ("bytes_too_long", "string_too_long"),
    "expected a length of at least {min_length}, got {actual_length}": ("too_short",),
    "expected a length of at most {max_length}, got {actual_length}": ("too_long",),
    "expected an object": (
        "dataclass_type", "dict_type", "mapping_type", "model_attributes_type", "model_type",
    ),
    "expected a list": ("frozen_set_type", "iterable_type", "list_type", "set_type", "tuple_type"),
    "expected {discriminator} to be one of {expected_tags}": ("union_tag_invalid",),
    "its {discriminator} is missing": ("union_tag_not_found",),
    "expected a date, such as 2030-01-31": (
        "date_from_datetime_inexact", "date_from_datetime_parsing", "date_parsing", "date_type",
    ),
    "expected a date and time, such as 2030-01-31T12:00:00Z": (
        "datetime_from_date_parsing", "datetime_object_invalid", "datetime_parsing",
        "datetime_type", "timezone_aware",
    ),
    "expected a time that has passed": ("date_past", "datetime_past"),
    "expected a time that is yet to come": ("date_future", "datetime_future"),
    "expected a time of day, such as 12:00:00": ("time_parsing", "time_type"),
    "expected a time span, such as PT30S": ("time_delta_parsing", "time_delta_type"),
    "expected a valid URL": ("url_parsing", "url_syntax_violation", "url_type"),
    "expected a URL of at most {max_length} characters": ("url_too_long",),
    "expected a URL that begins with {expected_schemes}": ("url_scheme",),
    "expected a path": ("path_type",),
    "expected a file that is there": ("path_not_file",),
    "expected a directory that is there": ("path_not_directory",),
    "expected an IP address": ("ip_any_address", "ip_v4_address", "ip_v6_address"),
    "expected a UUID": ("uuid_parsing", "uuid_type", "uuid_version"),
}  # fmt: skip
_WORDS: Final = {kind: words for words, kinds in _OF_KIND.items() for kind in kinds}


def plain_words(fault: Mapping[str, Any]) -> str:  # Any: one of pydantic's ``errors()``
    """What a validator of ours has raised stays as it is."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in ("value_error", "assertion_error") and "error" in context:
        return str(context["error"])
    if kind in _CLEAR:
        return f"expected {fault['msg'].removeprefix('Input should be ')}"
    return _WORDS.get(kind, "it is not valid").format_map(context)


_SCHEMA_TYPES: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a text",
}
_SCHEMA_TYPE: Final = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_AT_PATH: Final = re.compile(r" - at `([^`]+)`$")
_MISSING: Final = re.compile(r"^Object missing required field `([^`]+)`$")


def schema_words(message: str) -> str:
    """Of msgspec's, which names Python's types: the path first, if it is told."""
    at = _AT_PATH.search(message)
    words = _AT_PATH.sub("", message)
    words = _MISSING.sub(r"\1 is missing", words)
    words = words.replace("Invalid RFC3339 encoded datetime", _WORDS["datetime_parsing"])
    words = _SCHEMA_TYPE.sub(lambda found: _types(found[1]), words)
    words = re.sub("^Expected ", "expected ", words)
    return words if at is None else f"{at[1]}: {words}"


def _types(names: str) -> str:
    return " or ".join(_SCHEMA_TYPES.get(name, name) for name in names.split(" | "))
