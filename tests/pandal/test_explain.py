"""The local autoscaler's last decision, kept and told."""

from pathlib import Path

import pytest

from autoscaler.pool import Phase, PoolState, Replica, VariantState
from autoscaler.reconciler import Report
from pandal.datadir import DataDir
from pandal.errors import NotFound, StateUnreadable
from pandal.explain import LOCAL_POOL, lines, read_local
from pandal.scaling_record import ScalingRecord
from tests.autoscaler.pools import Scene


def report(scene: Scene, *phases: Phase) -> Report:
    decision = scene.look(6.0)
    pods = tuple(Replica(f"r{i}", phase) for i, phase in enumerate(phases))
    state = PoolState(scene.now_s, (VariantState("h200", len(pods), pods),), None)
    return Report(state, decision, (), (), None, None)


def test_what_was_decided_is_told_with_its_reasons(tmp_path: Path) -> None:
    directory = DataDir(tmp_path)
    record = ScalingRecord(directory.scaling)
    scene = Scene(ordered=2)
    record.note(report(scene, Phase.READY, Phase.UNSCHEDULABLE))
    told = list(lines(LOCAL_POOL, read_local(directory, LOCAL_POOL)))
    assert told[0].startswith("local: ")
    assert "2 ordered, 1 ready" in told[0]
    assert any("1 unschedulable" in line for line in told)
    assert any(line.startswith("  outlook: ") and "tokens/s" in line for line in told)
    assert any("Schedulable is False" in line for line in told)


def test_the_file_is_written_for_news_only(tmp_path: Path) -> None:
    path = DataDir(tmp_path).scaling
    record = ScalingRecord(path)
    scene = Scene(ordered=2)
    for _ in range(3):
        record.note(report(scene, Phase.READY, Phase.READY))
    before = path.read_bytes()
    record.note(report(scene, Phase.READY, Phase.READY))
    assert path.read_bytes() == before
    record.note(report(scene, Phase.READY, Phase.STARTING))
    assert path.read_bytes() != before


def test_where_there_is_nothing_to_tell_it_says_so(tmp_path: Path) -> None:
    directory = DataDir(tmp_path)
    with pytest.raises(NotFound, match="pool is 'local'"):
        read_local(directory, "chat")
    with pytest.raises(NotFound, match="--autoscale"):
        read_local(directory, LOCAL_POOL)
    directory.scaling.write_text("half a ")
    with pytest.raises(StateUnreadable):
        read_local(directory, LOCAL_POOL)
