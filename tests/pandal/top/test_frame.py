"""One screenful of 80 by 24, however much there is to tell."""

from autoscaler.exposition import parse
from contracts.load import ReplicaLoad
from gateway.admission.levels import Levels
from gateway.api.context import Operation
from gateway.metrics import Metrics, QuotaStanding
from gateway.request_kinds import RequestKinds, by_kind
from gateway.trace import Trace
from pandal.top.frame import HEIGHT, WIDTH, frame
from pandal.top.sample import Counters, Sample, counters_of


def load(**others: object) -> ReplicaLoad:
    usual = {
        "model": "m",
        "is_ready": True,
        "is_draining": False,
        "num_running": 3,
        "num_waiting": 1,
        "queued_prompt_tokens": 0,
        "expected_output_tokens": 0,
        "kv_cache_usage": 0.5,
        "num_kv_blocks": 10,
        "block_size": 16,
        "prefill_tokens_per_s": 1.0,
        "decode_tokens_per_s": 250.0,
    }
    return ReplicaLoad(**{**usual, **others})


def sample(at_s: float, gateway: Counters | None, **others: object) -> Sample:
    usual = {
        "replicas": {"replica-0": load(), "replica-1": None},
        "tenants": {"quiet": None, "busy": Levels(100, 1_000, 29, 30)},
        "is_store_there": True,
        "scaling": {},
    }
    return Sample(at_s=at_s, gateway=gateway, **{**usual, **others})


def test_rates_are_those_between_two_looks() -> None:
    before = Counters(num_requests=10, tokens={"output": 100}, refusals={"rate_limit_exceeded": 1})
    after = Counters(
        num_requests=30,
        tokens={"output": 500, "input": 30, "cached": 10},
        refusals={"rate_limit_exceeded": 5},
        shadow_refusals={"acme": 7},
        num_ttft=4,
        ttft_sum_s=1.0,
        alarms=("quota store lost",),
    )
    told = frame(sample(12, after), sample(10, before))
    assert "10.0 requests/s" in told[1]
    assert "200 tokens/s out" in told[2]
    assert "25% cached  TTFT   250 ms" in told[2]
    assert told[3] == "! quota store lost"
    text = "\n".join(told)
    assert "2.0/s          5 in all  rate_limit_exceeded" in text
    assert "in shadow          7 in all  acme" in text
    assert "replica-1       tells nothing" in text
    assert "busy            ##############.. 900/1,000" in text


def test_the_screen_holds_whatever_there_is() -> None:
    many = sample(
        1,
        Counters(refusals={f"reason-{n}" * 9: n for n in range(40)}),
        replicas={f"replica-{n}" * 3: load() for n in range(40)},
        tenants={f"tenant-{n}" * 9: Levels(n, 10**9, n, 10**9) for n in range(40)},
        scaling={"wanted": 3, "ready": 2, "reasons": [{"message": "x" * 200}]},
    )
    told = frame(many, many)
    assert len(told) <= HEIGHT
    assert max(map(len, told)) <= WIDTH
    assert told[-1].startswith("scaling  3 wanted, 2 ready")


def test_most_refused_come_first_and_take_the_lines_that_are_free() -> None:
    few = {f"reason-{n}": n for n in range(7)}
    told = frame(sample(1, Counters(refusals=few)), None)
    shown = told[told.index("refused") + 1 :]
    assert [line.split()[-1] for line in shown] == [f"reason-{n}" for n in reversed(range(7))]
    many = {f"reason-{n}": n for n in range(40)}
    told = frame(sample(1, Counters(refusals=many)), None)
    num_shown = sum("reason-" in line for line in told)
    assert (len(told), told[-1]) == (HEIGHT, f"  and {40 - num_shown} more")


def test_what_is_away_is_told() -> None:
    told = "\n".join(frame(sample(1, None, is_store_there=False), None))
    assert "gateway does not answer" in told
    assert "the quota store does not answer" in told


def trace(status: int, reason: str | None) -> Trace:
    found = Trace("req_0", Operation.CHAT_COMPLETIONS, 0.0)
    found.status, found.reason = status, reason
    return found


def test_the_gateways_own_metrics_are_understood() -> None:
    metrics = Metrics()
    traces = [trace(status, None) for status in (200, 200, 502)]
    traces.append(trace(429, "rate_limit_exceeded"))
    metrics.count(by_kind(traces, RequestKinds().of(traces)))
    metrics.tokens.num_output = 9
    text = metrics.render(num_spooled=5, num_waiting=2, quota=QuotaStanding(0, 0, is_lost=True))
    found = counters_of(parse(text))
    assert (found.num_requests, found.num_failures, found.num_waiting) == (4, 1, 2)
    assert found.tokens["output"] == 9
    assert found.refusals == {"rate_limit_exceeded": 1}
    assert found.alarms == ("quota store lost",)
