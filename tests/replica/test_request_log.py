"""What is known of a request after its end, and that nobody is told a count that nobody has."""

import gc
import tracemalloc

import pytest

from replica.engine import request_log
from replica.engine.live_request import LiveRequest, ignore_end
from replica.engine.messages import Delta, FinishReason, Usage
from replica.engine.request_log import RequestLog
from replica.errors import EngineDied


def opened(log: RequestLog, num_choices: int) -> LiveRequest:
    request = LiveRequest("one id", 0.0, is_abort_wanted=False)
    log.open(request)
    request.begin(range(num_choices), ignore_end)
    return request


def end(request: LiveRequest, index: int) -> None:
    usage = Usage(prompt_tokens=5 if index == 0 else 0, completion_tokens=3)
    delta = Delta(sequence_id=index, finish_reason=FinishReason.STOP, usage=usage)
    request.push(request.choices[index], delta)


def test_choices_are_counted_together() -> None:
    log = RequestLog()
    request = opened(log, 2)
    end(request, 0)
    end(request, 1)
    log.close(request)
    assert log.finished_usage("one id") == Usage(prompt_tokens=5, completion_tokens=6)


@pytest.mark.parametrize("num_counted", [0, 1])
def test_a_request_the_engine_did_not_count_is_not_told_as_zero(num_counted: int) -> None:
    log = RequestLog()
    request = opened(log, 2)
    for index in range(num_counted):
        end(request, index)
    request.fail(EngineDied("gone"))
    log.close(request)
    for _ in range(2):
        with pytest.raises(EngineDied):
            log.finished_usage("one id")


@pytest.mark.parametrize("is_counted_first", [False, True])
def test_one_uncounted_request_spoils_the_sum_of_its_id(is_counted_first: bool) -> None:
    log = RequestLog()
    for is_counted in (is_counted_first, not is_counted_first):
        request = opened(log, 1)
        if is_counted:
            end(request, 0)
        else:
            request.fail(EngineDied("gone"))
        log.close(request)
    with pytest.raises(EngineDied):
        log.finished_usage("one id")


def test_a_request_that_never_began_has_used_nothing() -> None:
    log = RequestLog()
    request = LiveRequest("one id", 0.0, is_abort_wanted=False)
    log.open(request)
    log.close(request)
    assert log.finished_usage("one id") == Usage()
    assert log.finished_usage("another") is None


def traced_bytes() -> int:
    """What was allocated here and in the log: other threads of the process allocate, too."""
    own = [tracemalloc.Filter(True, file) for file in (__file__, request_log.__file__)]
    traces = tracemalloc.take_snapshot().filter_traces(own).traces
    return sum(trace.size for trace in traces)


def test_what_is_remembered_levels_off() -> None:
    """A fifth of a kilobyte a request, until there are as many as are remembered."""
    log = RequestLog()

    def serve(first: int, count: int) -> int:
        for index in range(first, first + count):
            request = LiveRequest(f"id {index:020}", 0.0, is_abort_wanted=False)
            log.open(request)
            log.close(request)
            log.bury(f"unknown {index:020}", until_s=0.0)
        gc.collect()
        return traced_bytes()

    tracemalloc.start()
    try:
        full_bytes = serve(0, 12_000)
        assert serve(12_000, 12_000) == pytest.approx(full_bytes, abs=1_000)
    finally:
        tracemalloc.stop()
    assert 2_000_000 < full_bytes < 8_000_000
