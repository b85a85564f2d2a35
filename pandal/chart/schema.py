"""``values.schema.json``: what Helm holds every installation to.

Draft 7, which Helm 3 and Helm 4 both know.  Objects that Kubernetes checks are free; everything
else refuses a key that it does not know, and Helm names the path.
"""

from typing import Any

import msgspec

from pandal.chart.values import Values

Json = dict[str, Any]


def schema() -> Json:
    found = _untitled(Values.model_json_schema(by_alias=True))
    assert isinstance(found, dict), "a model's schema is an object"
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart pandal",
        **found,
    }


def schema_file() -> str:
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


def _untitled(node: Any) -> Any:  # any part of a schema
    """Without pydantic's titles, which repeat names; a property may be called title."""
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _named(value) if key in {"properties", "$defs"} else _untitled(value)
        for key, value in node.items()
        if key != "title"
    }


def _named(nodes: Json) -> Json:
    return {name: _untitled(node) for name, node in nodes.items()}
