"""Trace contexts as the specification wants them, and histograms within bounds."""

import pytest

from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import span_context

DIGITS = "019a22b306007abc8def0123456789ab"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_callers_trace_goes_on() -> None:
    context = span_context(f"00-{TRACE}-{PARENT}-00".encode(), DIGITS, 1.0)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (TRACE, PARENT, False)
    assert context.header() == f"00-{TRACE}-{DIGITS[16:]}-00".encode()


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        b"",
        b"00-abc",
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE}-{PARENT}-01-more".encode(),
    ],
)
def test_what_is_malformed_begins_a_trace_of_its_own(malformed: bytes | None) -> None:
    context = span_context(malformed, DIGITS, 1.0)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (DIGITS, None, True)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = span_context(f"01-{TRACE}-{PARENT}-01-more".encode(), DIGITS, 0.0)
    assert (context.trace_id, context.is_sampled) == (TRACE, True)


def test_a_share_is_sampled() -> None:
    low, high = DIGITS[:-8] + "10000000", DIGITS[:-8] + "f0000000"
    assert [span_context(None, d, 0.5).is_sampled for d in (low, high)] == [True, False]


def test_so_many_series_and_one_for_all_the_others() -> None:
    histograms = Histograms("h", "s", (1.0, 2.0))
    for number in range(300):
        histograms.of((("model", str(number)),)).observe(1.5)
    assert len(histograms.by_labels) == 201
    assert histograms.by_labels[("otel.metric.overflow", True),].counts == [0, 100, 0]
    assert histograms.by_labels[("model", "0"),].counts == [0, 1, 0]
