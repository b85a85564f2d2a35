"""Accounting of blocks that is off is told, and nobody dies of it."""

import pytest

from replica.engine.block_manager import BlockManager
from replica.engine.idle_audit import IdleAudit
from replica.engine.messages import SamplingParams
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel
from tests.replica.replica_process import ReplicaProcess
from tests.support.waiting import eventually


def test_a_lost_block_is_a_fault_each_time_it_is_looked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = BlockManager(8)
    audit = IdleAudit(lambda: blocks.check_invariants([]))
    audit.owe()
    assert audit.run_if_due(100.0)
    assert (audit.num_audits, audit.num_faults) == (1, 0)
    blocks.allocate()
    audit.owe()
    assert not audit.run_if_due(109.0)
    assert audit.due_in_s(109.0) == 1.0
    assert audit.run_if_due(110.0)
    assert (audit.num_audits, audit.num_faults) == (2, 1)
    assert vars(caplog.records[-1])["error"] == "block 1: 1 references, 0 owners"


def test_nothing_is_owed_for_nothing() -> None:
    audit = IdleAudit(lambda: None)
    assert audit.due_in_s(5.0) is None
    assert not audit.run_if_due(5.0)


def test_the_engine_audits_itself_when_it_becomes_idle() -> None:
    engine = EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], SchedulerLimits(4, 8, 16), 64)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=5))
    assert engine.stats.num_audits == 0
    engine.run()
    assert (engine.stats.num_audits, engine.stats.num_audit_faults) == (1, 0)


def test_audits_are_metrics(replica: ReplicaProcess) -> None:
    replica.post("/v1/completions", {"prompt": "One", "max_tokens": 1})
    eventually(lambda: replica.metric("pandal:block_audits_total") >= 1, "an audit")
    assert replica.metric("pandal:block_audit_faults_total") == 0
    assert replica.get("/metrics").body.count(b"pandal:preemptions_total{") == 2
