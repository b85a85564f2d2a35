"""The schemas that others validate against are those of the structs, to the byte."""

from pathlib import Path

import msgspec
import pytest

import contracts
from contracts.json_schemas import json_schemas
from tests.contracts.test_replica_usage import GOLDEN as REPLICA_USAGE
from tests.contracts.test_usage import FIRST_SHAPE
from tests.contracts.test_usage import GOLDEN as USAGE

FOLDER = Path(contracts.__file__).parent
SCHEMAS = json_schemas()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_file_is_what_the_struct_says(name: str) -> None:
    """After a change: ``(FOLDER / name).write_bytes(json_schemas()[name])``."""
    assert (FOLDER / name).read_bytes() == SCHEMAS[name]


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("usage.v1.schema.json", USAGE),
        ("usage.v1.schema.json", FIRST_SHAPE),
        ("replica-usage.v1.schema.json", REPLICA_USAGE),
    ],
    ids=["usage", "usage, first shape", "replica usage"],
)
def test_golden_messages_have_all_that_is_required_and_only_what_is_known(
    name: str, payload: bytes
) -> None:
    schema = msgspec.json.decode(SCHEMAS[name])
    (definition,) = (d for d in schema["$defs"].values() if d.get("type") == "object")
    message = msgspec.json.decode(payload)
    assert set(definition["required"]) <= message.keys() <= definition["properties"].keys()


def test_no_field_can_hold_money_a_prompt_or_a_secret() -> None:
    schema = msgspec.json.decode(SCHEMAS["usage.v1.schema.json"])
    fields = schema["$defs"]["UsageEvent"]["properties"].keys()
    assert not {f for f in fields if any(w in f for w in ("usd", "price", "prompt", "secret"))}
