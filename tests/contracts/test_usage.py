"""Golden bytes: a change here is a change to the wire, and needs a version."""

import json
from datetime import UTC, datetime

import pytest

from contracts.errors import ContractError
from contracts.usage import (
    Outcome,
    UsageEvent,
    UsageSource,
    decode_usage_event,
    encode_usage_event,
)

EVENT = UsageEvent(
    event_id="e1",
    request_id="r1",
    tenant_id="acme",
    key_id="k1",
    tier="standard",
    model_requested="default",
    model="m",
    replica="replica-0",
    endpoint="chat.completions",
    is_stream=True,
    admitted_at=datetime(2026, 11, 29, tzinfo=UTC),
    occurred_at=datetime(2026, 11, 29, 0, 0, 1, tzinfo=UTC),
    outcome=Outcome.COMPLETED,
    usage_source=UsageSource.ENGINE,
    input_uncached_tokens=2,
    input_cache_read_tokens=16,
    output_text_tokens=5,
    reserved_tokens=60,
    ttft_ms=12.5,
    gateway_id="gateway-0",
    gateway_boot_id="0a",
    gateway_seq=1,
)
GOLDEN = (
    b'{"type":"usage.recorded.v1","event_id":"e1","request_id":"r1","tenant_id":"acme",'
    b'"key_id":"k1","tier":"standard","model_requested":"default","model":"m",'
    b'"replica":"replica-0","endpoint":"chat.completions","is_stream":true,'
    b'"admitted_at":"2026-11-29T00:00:00Z","occurred_at":"2026-11-29T00:00:01Z",'
    b'"outcome":"completed","usage_source":"engine","input_uncached_tokens":2,'
    b'"input_cache_read_tokens":16,"output_text_tokens":5,"reserved_tokens":60,"ttft_ms":12.5,'
    b'"gateway_id":"gateway-0","gateway_boot_id":"0a","gateway_seq":1}'
)


def test_golden_bytes() -> None:
    assert encode_usage_event(EVENT) == GOLDEN
    assert decode_usage_event(GOLDEN) == EVENT


@pytest.mark.parametrize(
    "outcome", ["completed", "client_disconnected", "upstream_failed", "refused", "cancelled"]
)
def test_every_outcome_has_its_name_on_the_wire(outcome: str) -> None:
    payload = GOLDEN.replace(b"completed", outcome.encode())
    assert decode_usage_event(payload).outcome == outcome
    assert outcome in set(Outcome)


def test_totals_are_sums_of_disjoint_classes() -> None:
    assert EVENT.input_tokens == 18
    assert EVENT.total_tokens == 23


def test_unknown_fields_are_ignored() -> None:
    payload = json.dumps({**json.loads(GOLDEN), "added_later": 1}).encode()
    assert decode_usage_event(payload) == EVENT


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"not json", id="not-json"),
        pytest.param(b"\xff", id="not-utf8"),
        pytest.param(GOLDEN[:-1] + b',"x":' + b"[" * 100_000, id="nested"),
        pytest.param(GOLDEN.replace(b".v1", b".v2"), id="other-version"),
        pytest.param(GOLDEN.replace(b'_text_tokens":5', b'_text_tokens":-5'), id="negative"),
        pytest.param(GOLDEN.replace(b"00:00:01Z", b"00:00:01"), id="no-time-zone"),
        pytest.param(GOLDEN.replace(b'"gateway_seq":1', b'"gateway_seq":0'), id="seq-from-0"),
    ],
)
def test_rejects_what_it_does_not_understand(payload: bytes) -> None:
    with pytest.raises(ContractError):
        decode_usage_event(payload)
