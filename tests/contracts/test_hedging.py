"""The policy of second attempts, byte for byte."""

import msgspec

from contracts.hedging import HedgePolicy


def test_golden_bytes() -> None:
    golden = b'{"type":"hedge.policy.v1","after_ms":300}'
    assert msgspec.json.encode(HedgePolicy(after_ms=300)) == golden
    assert msgspec.json.decode(golden, type=HedgePolicy) == HedgePolicy(after_ms=300)
