"""``pandal compile`` fills the cache that a replica reads."""

from pathlib import Path

from tests.pandal.command_line import pandal
from tests.replica.tiny_llama import SHAPES, Kind, write_gguf


def test_kernels_are_compiled_once_and_found_again(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_gguf(model, dict.fromkeys(SHAPES, Kind.Q4_0) | {"token_embd": Kind.Q8_0})
    options = ("--model", str(model), "--precision", "fast", "--kv", "int8")
    environment = {"REPLICA_COMPILE_CACHE_DIR": str(tmp_path / "kernels")}
    first = pandal("compile", *options, **environment)
    assert first.returncode == 0, first.stderr
    assert "keys and values as int8, activations as int8, weights as q4_0" in first.stdout
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert compiled
    assert pandal("compile", *options, **environment).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == compiled


def test_a_model_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    result = pandal("compile", "--model", str(tmp_path / "absent.gguf"))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "absent.gguf" in result.stderr
