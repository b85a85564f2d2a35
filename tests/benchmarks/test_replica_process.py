"""The one way in which benchmarks start a replica."""

from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks.replica_process import replica
from replica.settings import Settings
from tests.replica.tiny_hf import save_tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_replica_is_ready_and_ends_with_its_block(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, context_length=64)
    with replica(model=tmp_path, max_num_seqs=2, cpu_backend="torch") as server:
        with urlopen(f"{server.url}/ready") as answer:
            assert answer.status == 200
        assert server.process.poll() is None
    assert server.process.poll() is not None


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nowhere"), replica(model=tmp_path / "nowhere"):
        pass


def test_a_setting_the_replica_does_not_know_is_no_setting() -> None:
    """In the environment it would be passed over in silence, and a benchmark compare nothing."""
    with pytest.raises(ValueError, match="async_scheduling"), replica(async_scheduling="on"):
        pass
    assert "is_async_scheduling" in Settings.model_fields


def test_no_benchmark_has_a_way_of_its_own() -> None:
    starting = [p.name for p in BENCHMARKS.glob("*.py") if '"-m", "replica"' in p.read_text()]
    assert starting == ["replica_process.py"]
