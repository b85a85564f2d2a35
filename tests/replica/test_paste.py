"""Thirty thousand tokens arrive among running streams: no step is longer for it than its budget."""

import json
import re
from contextlib import ExitStack, closing
from pathlib import Path

from replica.engine.messages import SamplingParams, StepReport
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel
from tests.replica.replica_process import ReplicaProcess, next_event
from tests.replica.tiny_hf import save_tiny_model

NUM_PASTED = 30_000
BUDGET = 512
NUM_STREAMS = 4


def test_streams_gain_a_token_in_every_step_of_a_paste() -> None:
    limits = SchedulerLimits(16, 8, BUDGET)
    engine = EngineHarness(HashModel(16), TOKEN_BYTES, [EOS], limits, num_blocks=2_200)
    params = SamplingParams(max_tokens=1_000, ignore_eos=True)
    streams = engine.submit_together([[i, 2, 3] for i in range(1, 1 + NUM_STREAMS)], params)
    paste = engine.enqueue([5] * NUM_PASTED, SamplingParams(max_tokens=1))
    steps: list[StepReport] = []
    engine.on_report = steps.append
    while not engine.outcomes[paste].num_tokens:
        before = [engine.outcomes[i].num_tokens for i in streams]
        engine.step()
        assert [engine.outcomes[i].num_tokens for i in streams] == [n + 1 for n in before]
    assert max(step.num_batched_tokens for step in steps) == BUDGET
    assert len(steps) == -(-NUM_PASTED // (BUDGET - NUM_STREAMS)), "no step is wasted either"


def test_no_step_of_a_real_model_exceeds_the_budget(tmp_path: Path) -> None:
    """The budget is a bound of a bucket, so that the metric tells."""
    save_tiny_model(tmp_path / "tiny", context_length=32_768)
    settings = {"model": tmp_path / "tiny", "max_num_batched_tokens": BUDGET, "max_num_seqs": 8}
    settings |= {"kv_cache_bytes": 48 << 20}
    stream = {"prompt": "abc", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    with ReplicaProcess(tmp_path / "log", **settings) as replica, ExitStack() as stack:
        replica.wait_ready()
        responses = []
        for _ in range(NUM_STREAMS):
            connection = stack.enter_context(closing(replica.connect()))
            connection.request("POST", "/v1/completions", json.dumps(stream))
            responses.append(connection.getresponse())
            next_event(responses[-1])
        body = {"prompt": [5] * NUM_PASTED, "max_tokens": 1}
        assert replica.post("/v1/completions", body).status == 200
        for response in responses:
            next_event(response)
        text = replica.get("/metrics").body.decode()
    name = "vllm:iteration_tokens_total"
    within, all_ = (
        re.search(rf"^{name}_{suffix}.*}} (\d+)$", text, re.MULTILINE)
        for suffix in (f'bucket.*le="{BUDGET}"', "count")
    )
    assert within is not None
    assert all_ is not None
    assert int(within[1]) == int(all_[1]) > NUM_PASTED // BUDGET
