"""An event out of a template is, byte for byte, the event encoded."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.admission import AdmissionPolicy
from contracts.usage import Outcome, UsageSource, decode_usage_event, encode_usage_event
from gateway.api.context import Operation, RequestContext
from gateway.clock import Clock
from gateway.event_encoder import EventEncoder, event_template
from gateway.metering import EventSource, Meter, Usage
from tests.gateway.fleets import context_of, inference_request

CLOCK = Clock(lambda: 1_700_000_000.25, lambda: 77.0)
SOURCE = EventSource("gateway-1", "boot", CLOCK)

_counts = st.integers(0, 10**8)
_names = st.sampled_from(["model-a", "100%d", '"quoted"', "Ünïcode/\u2028", "\\u0001event"])


def context(model: str, *, is_stream: bool, started_s: float, reserved: int) -> RequestContext:
    request = msgspec.structs.replace(
        inference_request(model, reserved_tokens=reserved),
        is_stream=is_stream,
        operation=Operation.CHAT_COMPLETIONS if is_stream else Operation.COMPLETIONS,
    )
    base = context_of("acme", AdmissionPolicy(), request)
    return msgspec.structs.replace(base, started_monotonic_s=started_s)


def meter(replica: str | None, first_byte_s: float | None, is_stream: bool) -> Meter:
    made = Meter()
    made.replica, made.first_byte_monotonic_s = replica, first_byte_s
    made.is_document = not is_stream
    return made


@given(
    _names,
    st.booleans(),
    st.sampled_from([None, "r1", "r%b"]),
    st.none() | st.floats(0.0, 1e6),
    st.tuples(_counts, _counts, _counts, _counts, _counts, st.sampled_from(UsageSource)),
    st.sampled_from(Outcome),
    st.integers(1, 2**53),
)
@settings(max_examples=200, deadline=None)
def test_the_second_of_a_kind_is_the_event_as_well(
    model: str,
    is_stream: bool,
    replica: str | None,
    first_byte_s: float | None,
    counts: tuple[int, int, int, int, int, UsageSource],
    outcome: Outcome,
    seq: int,
) -> None:
    prompt, cached, written, completion, reasoning, source = counts
    usage = Usage(
        prompt + cached + written, cached, completion + reasoning, source, reasoning, written
    )
    encoder = EventEncoder(SOURCE)
    first = context(model, is_stream=is_stream, started_s=0.0, reserved=1)
    encoder.encode(
        first, meter(replica, 0.5, is_stream), Usage(0, 0, 0, source), Outcome.COMPLETED, 1
    )
    again = msgspec.structs.replace(
        context(model, is_stream=is_stream, started_s=0.125, reserved=99), grant=first.grant
    )
    encoded = encoder.encode(again, meter(replica, first_byte_s, is_stream), usage, outcome, seq)
    expected = SOURCE.event(again, meter(replica, first_byte_s, is_stream), usage, outcome, seq)
    assert encoded == encode_usage_event(expected)
    assert decode_usage_event(encoded) == expected


def test_another_grant_or_replica_is_another_kind() -> None:
    encoder, usage = EventEncoder(SOURCE), Usage(1, 0, 1, UsageSource.ENGINE)
    one = context("m", is_stream=False, started_s=0.0, reserved=1)
    other = msgspec.structs.replace(
        one, grant=replace(one.grant, tenant=msgspec.structs.replace(one.grant.tenant, tier="gold"))
    )
    for asked, replica in ((one, "a"), (other, "a"), (one, "b"), (other, None), (one, "a")):
        encoded = encoder.encode(asked, meter(replica, None, False), usage, Outcome.COMPLETED, 1)
        event = decode_usage_event(encoded)
        assert (event.tier, event.replica) == (asked.grant.tenant.tier, replica)


def test_what_has_become_an_adapter_is_another_kind() -> None:
    encoder, usage = EventEncoder(SOURCE), Usage(1, 0, 1, UsageSource.ENGINE)
    asked = context("law", is_stream=False, started_s=0.0, reserved=1)
    for adapter_of in (None, "m", "m", None, "n"):
        served = meter("a", None, False)
        served.adapter_of = adapter_of
        encoded = encoder.encode(asked, served, usage, Outcome.COMPLETED, 1)
        event = decode_usage_event(encoded)
        assert (event.adapter, event.adapter_of) == (adapter_of and "law", adapter_of)


@pytest.mark.parametrize("mark", ["\x01event", "\x01request"])
def test_an_event_that_holds_a_mark_has_no_template(mark: str) -> None:
    asked = context(mark, is_stream=False, started_s=0.0, reserved=1)
    usage = Usage(1, 0, 1, UsageSource.ENGINE)
    event = SOURCE.event(asked, meter("a", None, False), usage, Outcome.COMPLETED, 1)
    assert event_template(event) is None
    encoder = EventEncoder(SOURCE)
    for _ in range(2):
        encoded = encoder.encode(asked, meter("a", None, False), usage, Outcome.COMPLETED, 1)
        assert decode_usage_event(encoded) == event
