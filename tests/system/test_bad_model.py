"""A model that cannot be served: the fleet says why and is gone."""

import json
import re
from pathlib import Path

import pytest

from tests.system.fleet_process import FleetProcess, processes_of


def truncated_gguf(folder: Path) -> Path:
    path = folder / "cut-off.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(8))
    return path


def unknown_architecture(folder: Path) -> Path:
    path = folder / "odd-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["OddForCausalLM"]}))
    return path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", [truncated_gguf, unknown_architecture], ids=lambda f: f.__name__)
def test_a_model_that_cannot_be_served_ends_the_fleet_with_its_reason(make, tmp_path: Path) -> None:
    model = make(tmp_path)
    fleet = FleetProcess.start(tmp_path / "data", "--model", str(model))
    try:
        assert fleet.wait() == 1
    finally:
        fleet.end()
    last_line = fleet.screen.splitlines()[-1]
    assert last_line.startswith("pandal: replica-0 ")
    named = re.search(r"\(log: (.+)\)$", last_line)
    assert named is not None, last_line
    assert model.stem in Path(named[1]).read_text()
    assert processes_of(fleet.data_dir) == []
