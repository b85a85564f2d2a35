"""What gateways tell each other of idempotency keys, byte for byte."""

import msgspec

from contracts.idempotency import KeyAnswer, KeyClaim, KeyRecord
from contracts.names import idempotency_record, tenant_id


def check(record: KeyRecord, golden: bytes) -> None:
    assert msgspec.json.encode(record) == golden
    packed = msgspec.msgpack.encode(record)
    assert msgspec.msgpack.Decoder(KeyClaim | KeyAnswer).decode(packed) == record


def test_golden_bytes_of_a_claim() -> None:
    check(
        KeyClaim(body_digest=b"d", holder="req_1"),
        b'{"type":"idempotency.claim.v1","body_digest":"ZA==","holder":"req_1"}',
    )


def test_golden_bytes_of_an_answer() -> None:
    check(
        KeyAnswer(body_digest=b"d", is_stream=True, headers=b"a: b\r\n", parts=(b"x",)),
        b'{"type":"idempotency.answer.v1","body_digest":"ZA==","is_stream":true,'
        b'"headers":"YTogYg0K","parts":["eA=="]}',
    )


def test_the_tenant_comes_first() -> None:
    assert idempotency_record(tenant_id("acme"), "ab") == "{acme}:idempotency:ab"
