"""Golden bytes: a change here is a change to the wire, and needs a version."""

import json
from datetime import UTC, datetime

import pytest

from contracts.errors import ContractError
from contracts.usage import (
    Outcome,
    OutputCharge,
    UsageEvent,
    UsageSource,
    cloud_event_headers,
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
    input_cache_write_tokens=3,
    output_reasoning_tokens=4,
    settled_tokens=30,
    delivered_tokens=8,
    output_charge=OutputCharge.DELIVERED,
    tpot_ms=2.5,
    priority=-1,
    attempt=2,
    adapter="law",
    parent_event_id="e0",
    adapter_of="base",
)
GOLDEN = (
    b'{"type":"usage.recorded.v1","event_id":"e1","request_id":"r1","tenant_id":"acme",'
    b'"key_id":"k1","tier":"standard","model_requested":"default","model":"m",'
    b'"replica":"replica-0","endpoint":"chat.completions","is_stream":true,'
    b'"admitted_at":"2026-11-29T00:00:00Z","occurred_at":"2026-11-29T00:00:01Z",'
    b'"outcome":"completed","usage_source":"engine","input_uncached_tokens":2,'
    b'"input_cache_read_tokens":16,"output_text_tokens":5,"reserved_tokens":60,"ttft_ms":12.5,'
    b'"gateway_id":"gateway-0","gateway_boot_id":"0a","gateway_seq":1,'
    b'"input_cache_write_tokens":3,"output_reasoning_tokens":4,"settled_tokens":30,'
    b'"delivered_tokens":8,"output_charge":"delivered","tpot_ms":2.5,"provider":null,'
    b'"priority":-1,"attempt":2,"is_recovered":false,"is_locally_admitted":false,'
    b'"adapter":"law","parent_event_id":"e0","adapter_of":"base"}'
)
FIRST_SHAPE = GOLDEN[: GOLDEN.index(b',"input_cache_write_tokens"')] + b"}"
"""As the first gateways wrote it: spools and topics still hold such."""


def test_golden_bytes() -> None:
    assert encode_usage_event(EVENT) == GOLDEN
    assert decode_usage_event(GOLDEN) == EVENT


def test_an_event_of_the_first_shape_is_read_as_what_it_meant() -> None:
    event = decode_usage_event(FIRST_SHAPE)
    assert (event.input_tokens, event.output_tokens, event.total_tokens) == (18, 5, 23)
    assert event.settled_tokens is None
    assert event.delivered_tokens is None
    assert event.output_charge is OutputCharge.GENERATED
    assert event.provider is None
    assert event.attempt == 1
    assert not event.is_recovered
    assert event.adapter is None
    assert event.parent_event_id is None
    assert event.adapter_of is None


@pytest.mark.parametrize(
    "outcome",
    [
        "completed",
        "client_disconnected",
        "upstream_failed",
        "refused",
        "cancelled",
        "refused_midway",
        "response_cache_hit",
        "gateway_lost",
    ],
)
def test_every_outcome_has_its_name_on_the_wire(outcome: str) -> None:
    payload = GOLDEN.replace(b"completed", outcome.encode())
    assert decode_usage_event(payload).outcome == outcome
    assert outcome in set(Outcome)


def test_totals_are_sums_of_disjoint_classes() -> None:
    assert EVENT.input_tokens == 21
    assert EVENT.output_tokens == 9
    assert EVENT.total_tokens == 30


@pytest.mark.parametrize("source", ["engine", "provider", "partial", "counted"])
def test_every_source_of_a_count_has_its_name_on_the_wire(source: str) -> None:
    payload = GOLDEN.replace(b'"usage_source":"engine"', f'"usage_source":"{source}"'.encode())
    assert decode_usage_event(payload).usage_source == source


def test_a_kafka_record_is_a_cloud_event_in_binary_mode() -> None:
    assert cloud_event_headers(EVENT) == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"e1"),
        ("ce_source", b"/gateways/gateway-0/0a"),
        ("ce_type", b"usage.recorded.v1"),
        ("ce_time", b"2026-11-29T00:00:01+00:00"),
        ("ce_subject", b"acme"),
        ("ce_partitionkey", b"acme"),
        ("ce_dataschema", b"urn:pandal:schema:usage.v1"),
        ("content-type", b"application/json"),
    ]


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
        pytest.param(GOLDEN.replace(b'"attempt":2', b'"attempt":0'), id="attempt-from-0"),
        pytest.param(GOLDEN.replace(b'"delivered"', b'"promised"'), id="unknown-charge"),
    ],
)
def test_rejects_what_it_does_not_understand(payload: bytes) -> None:
    with pytest.raises(ContractError):
        decode_usage_event(payload)
