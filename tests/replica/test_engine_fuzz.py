"""Thousands of random workloads against the hash model: any wrong read of KV changes an answer.

A failing workload is shrunk by Hypothesis and saved beside this file; whatever lies there is run
again, so a failure that was found once stays found.  With ``--hypothesis-profile soak
--timeout 3600`` many more are tried.
"""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.replica.hash_model import VOCAB_SIZE
from tests.replica.workload import (
    Abortion,
    Clearing,
    Operation,
    Overlap,
    Preemption,
    Steps,
    Submission,
    Workload,
    run,
)

SAVED = Path(__file__).parent / "workloads"
NUM_WORKLOADS = 300

prompts = st.builds(
    lambda shared, own: [1 + i % 7 for i in range(shared)] + own,
    st.integers(0, 24),
    st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=12),
)
sequence_ids = st.integers(1, 20)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Submission,
        prompt=prompts,
        max_tokens=st.integers(1, 24),
        ignore_eos=st.booleans(),
        cache_salt=st.sampled_from(["", "s", "t"]),
        priority=st.integers(-1, 2),
        num_choices=st.sampled_from([1, 1, 1, 2, 3]),
        min_tokens=st.integers(0, 12),
        stop=st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2).map(tuple),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
        time_left_s=st.one_of(st.none(), st.floats(-0.1, 2.0)),
        num_resumed_tokens=st.sampled_from([0, 0, 1, 5, 30]),
    ),
    st.builds(Abortion, sequence_id=sequence_ids),
    st.builds(Preemption, sequence_id=sequence_ids),
    st.builds(Clearing),
    st.builds(Steps, num_steps=st.integers(1, 6)),
)
workloads = st.builds(
    Workload,
    operations=st.lists(operations, max_size=40),
    block_size=st.sampled_from([1, 4, 16]),
    spare_blocks=st.integers(0, 12),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 26),
    is_prefix_caching=st.booleans(),
    is_hash_constant=st.booleans(),
    aging_s=st.sampled_from([0.1, 0.5, 30.0]),
    fair_share_slack_tokens=st.sampled_from([0, 5, 30, 256]),
    num_host_blocks=st.sampled_from([0, 3, 12, 200]),
    overlap=st.sampled_from(Overlap),
)


@settings(
    max_examples=max(NUM_WORKLOADS, settings.default.max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(workload=workloads)
def test_every_workload_generates_what_the_model_alone_would(workload: Workload) -> None:
    try:
        run(workload)
    except AssertionError:
        SAVED.mkdir(exist_ok=True)
        (SAVED / "failing.json").write_bytes(msgspec.json.encode(workload))
        raise


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.json")), ids=lambda path: path.stem)
def test_saved_workload_generates_what_the_model_alone_would(path: Path) -> None:
    run(msgspec.json.decode(path.read_bytes(), type=Workload))
