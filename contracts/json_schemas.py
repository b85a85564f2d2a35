"""The published JSON Schemas of what leaves us for other people's programs: made from the structs.

``FILES`` lie beside this module; a test holds them equal to ``json_schemas()``, and says how to
write them again after a change.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from contracts.replica_usage import ReplicaUsage
from contracts.usage import SCHEMA_ID, UsageEvent

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MESSAGES: Final[Mapping[str, tuple[str, type[msgspec.Struct]]]] = {
    "usage.v1.schema.json": (SCHEMA_ID, UsageEvent),
    "replica-usage.v1.schema.json": ("urn:pandal:schema:replica-usage.v1", ReplicaUsage),
}


def json_schemas() -> Mapping[str, bytes]:
    """By file name; JSON Schema 2020-12."""
    return {name: _document(*message) for name, message in _MESSAGES.items()}


def _document(schema_id: str, message: type[msgspec.Struct]) -> bytes:
    (schema,), definitions = msgspec.json.schema_components(
        (message,), ref_template="#/$defs/{name}"
    )
    document = {"$schema": _DIALECT, "$id": schema_id, **schema, "$defs": definitions}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
