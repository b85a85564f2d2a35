"""The cache's policy and what it keeps, byte for byte."""

import msgspec

from contracts.response_cache import CachePolicy, HitCharge, KeptAnswer


def test_golden_bytes_of_the_policy() -> None:
    policy = CachePolicy(ttl_s=60, hit_charge=HitCharge.FULL)
    golden = b'{"type":"cache.policy.v1","ttl_s":60,"hit_charge":"full"}'
    assert msgspec.json.encode(policy) == golden
    assert msgspec.json.decode(golden, type=CachePolicy) == policy


def test_golden_bytes_of_an_answer() -> None:
    answer = KeptAnswer(
        is_stream=True,
        parts=(b"a",),
        prompt_tokens=3,
        cached_prompt_tokens=1,
        completion_tokens=2,
        event_id="e1",
    )
    golden = (
        b'{"type":"cache.answer.v1","is_stream":true,"parts":["YQ=="],'
        b'"prompt_tokens":3,"cached_prompt_tokens":1,"completion_tokens":2,'
        b'"event_id":"e1"}'
    )
    assert msgspec.json.encode(answer) == golden
    packed = msgspec.msgpack.encode(answer)
    assert msgspec.msgpack.decode(packed, type=KeptAnswer) == answer
