"""The local autoscaler's last decision, kept and told."""

import os
from pathlib import Path

import pytest

from autoscaler.pool import Phase, PoolState, Replica, VariantState
from autoscaler.reconciler import Report
from pandal.datadir import DataDir
from pandal.errors import NotFound, StateUnreadable
from pandal.explain import LOCAL_POOL, kubeconfig_at, lines, read_local
from pandal.scaling_record import ScalingRecord
from tests.autoscaler.pools import Scene


def report(scene: Scene, *phases: Phase) -> Report:
    decision = scene.look(6.0)
    pods = tuple(Replica(f"r{i}", phase) for i, phase in enumerate(phases))
    state = PoolState(scene.now_s, (VariantState("h200", len(pods), pods),), None)
    return Report(state, decision, (), (), None, None)


async def test_what_was_decided_is_told_with_its_reasons(tmp_path: Path) -> None:
    directory = DataDir(tmp_path)
    record = ScalingRecord(directory.scaling, tell=pytest.fail)
    scene = Scene(ordered=2)
    record.note(report(scene, Phase.READY, Phase.UNSCHEDULABLE))
    await record.write_noted()
    told = list(lines(LOCAL_POOL, read_local(directory, LOCAL_POOL)))
    assert told[0].startswith("local: ")
    assert "2 ordered, 1 ready" in told[0]
    assert any("1 unschedulable" in line for line in told)
    assert any(line.startswith("  outlook: ") and "tokens/s" in line for line in told)
    assert any("Schedulable is False" in line for line in told)


async def test_the_file_is_written_for_news_only(tmp_path: Path) -> None:
    path = DataDir(tmp_path).scaling
    record = ScalingRecord(path, tell=pytest.fail)
    scene = Scene(ordered=2)
    for _ in range(3):
        record.note(report(scene, Phase.READY, Phase.READY))
        await record.write_noted()
    before = path.read_bytes()
    record.note(report(scene, Phase.READY, Phase.READY))
    await record.write_noted()
    assert path.read_bytes() == before
    record.note(report(scene, Phase.READY, Phase.STARTING))
    await record.write_noted()
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


async def test_a_disk_that_takes_nothing_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    path, told = tmp_path / "later" / "scaling.json", []
    record = ScalingRecord(path, tell=told.append)
    scene = Scene(ordered=2)
    for _ in range(3):
        record.note(report(scene, Phase.READY))
        await record.write_noted()
    assert told == ["what the autoscaler decides is not kept: No such file or directory"]
    path.parent.mkdir()
    record.note(report(scene, Phase.READY))
    await record.write_noted()
    assert path.exists()


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "confg"
    with pytest.raises(NotFound, match="confg"):
        kubeconfig_at(missing)


def test_without_a_kubeconfig_the_usual_one_or_the_pods_own_is_meant(tmp_path: Path) -> None:
    usual = tmp_path / "config"
    assert kubeconfig_at(None, usual=usual) is None
    usual.touch()
    assert kubeconfig_at(None, usual=usual) == usual
    several = Path(f"{tmp_path / 'other'}{os.pathsep}{usual}")
    assert kubeconfig_at(several, usual=usual) == several
