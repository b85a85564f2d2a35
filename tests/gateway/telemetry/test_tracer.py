"""Trace contexts as the specification wants them, and histograms within bounds."""

import pytest

from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import Sampler, untraced

DIGITS = "019a22b306007abc8def0123456789ab"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_callers_trace_goes_on() -> None:
    context = Sampler(1.0).context(f"00-{TRACE}-{PARENT}-00".encode(), DIGITS)
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
    context = Sampler(1.0).context(malformed, DIGITS)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (DIGITS, None, True)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = Sampler(0.0).context(f"01-{TRACE}-{PARENT}-01-more".encode(), DIGITS)
    assert (context.trace_id, context.is_sampled) == (TRACE, True)


@pytest.mark.parametrize(("ratio", "num_taken"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_a_share_is_sampled(ratio: float, num_taken: int) -> None:
    sampler = Sampler(ratio)
    endings = ("00000000", "7fffffff", "80000000", "ffffffff")
    taken = [sampler.takes(DIGITS[:-8] + ending) for ending in endings]
    assert taken == [True] * num_taken + [False] * (4 - num_taken)


def test_a_trace_that_nobody_looks_at_is_told_all_the_same() -> None:
    assert untraced(DIGITS) == Sampler(0.0).context(None, DIGITS).header()


def test_so_many_series_and_one_for_all_the_others() -> None:
    histograms = Histograms("h", "s", (1.0, 2.0))
    for number in range(300):
        histograms.of((("model", str(number)),)).observe([1.5])
    assert len(histograms.by_labels) == 201
    assert histograms.by_labels[("otel.metric.overflow", True),].counts == [0, 100, 0]
    assert histograms.by_labels[("model", "0"),].counts == [0, 1, 0]
