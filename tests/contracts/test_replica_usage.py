"""Golden bytes of the second witness: a change here is a change to what auditors read."""

from datetime import UTC, datetime

import pytest

from contracts.errors import ContractError
from contracts.replica_usage import ReplicaUsage, decode_replica_usage, encode_replica_usage

USAGE = ReplicaUsage(
    event_id="e1",
    request_id="r1-0",
    tenant_id="acme",
    model="m",
    endpoint="chat.completions",
    is_stream=True,
    finish_reasons=("stop", None),
    is_final=False,
    input_uncached_tokens=2,
    input_cache_read_tokens=16,
    output_text_tokens=5,
    resumed_tokens=0,
    arrived_at=datetime(2026, 11, 29, tzinfo=UTC),
    finished_at=datetime(2026, 11, 29, 0, 0, 1, tzinfo=UTC),
    replica_boot_id="0a",
    replica_seq=7,
)
GOLDEN = (
    b'{"type":"replica.usage.v1","event_id":"e1","request_id":"r1-0","tenant_id":"acme",'
    b'"model":"m","endpoint":"chat.completions","is_stream":true,"finish_reasons":["stop",null],'
    b'"is_final":false,"input_uncached_tokens":2,"input_cache_read_tokens":16,'
    b'"output_text_tokens":5,"resumed_tokens":0,"arrived_at":"2026-11-29T00:00:00Z",'
    b'"finished_at":"2026-11-29T00:00:01Z","replica_boot_id":"0a","replica_seq":7,'
    b'"is_locally_admitted":false,"adapter":null,"adapter_of":null}'
)


def test_golden_bytes() -> None:
    assert encode_replica_usage(USAGE) == GOLDEN
    assert decode_replica_usage(GOLDEN) == USAGE


@pytest.mark.parametrize(
    "payload",
    [
        GOLDEN.replace(b"replica.usage.v1", b"replica.usage.v2"),
        GOLDEN.replace(b'"output_text_tokens":5', b'"output_text_tokens":-1'),
        GOLDEN.replace(b'"event_id":"e1",', b""),
        GOLDEN[:-1],
        b"\xff",
    ],
)
def test_rejects_what_it_does_not_understand(payload: bytes) -> None:
    with pytest.raises(ContractError):
        decode_replica_usage(payload)
