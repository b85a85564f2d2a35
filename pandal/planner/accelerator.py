"""What a GPU can do at best, from its data sheet, or from what its owner says in a file."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE
from pandal.errors import BadOption
from pandal.planner.precision import Precision

# Finite, and far from where floats overflow: TOML knows nan and inf.
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    memory_gb: Rate
    bandwidth_gb_per_s: Rate
    bf16_tflop_per_s: Rate
    source: str
    link_gb_per_s: Rate = 64.0  # both directions; PCIe 4.0 x16
    fp8_tflop_per_s: Rate | None = None  # None: 8-bit weights are widened, at bf16's speed

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * 1e9

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bandwidth_gb_per_s * 1e9

    @property
    def link_bytes_per_s(self) -> float:
        """One direction of the two that data sheets add up."""
        return self.link_gb_per_s / 2 * 1e9

    def flop_per_s(self, precision: Precision) -> float:
        if precision in {Precision.FP8, Precision.INT8} and self.fp8_tflop_per_s is not None:
            return self.fp8_tflop_per_s * 1e12
        return self.bf16_tflop_per_s * 1e12


def known_accelerators() -> dict[str, Accelerator]:
    text = resources.files("pandal.planner").joinpath("accelerators.toml").read_text()
    return {name: _accelerator(name, table) for name, table in tomllib.loads(text).items()}


def find_accelerator(name_or_path: str) -> Accelerator:
    """A known name, or a .toml file with the members of one.  Raises BadOption."""
    known = known_accelerators()
    for name, found in known.items():
        if name.casefold() == name_or_path.casefold():
            return found
    path = Path(name_or_path).expanduser()
    if path.suffix != ".toml" or not path.is_file():
        raise BadOption(
            f"--gpu: {name_or_path!r} is neither a .toml file nor one of {', '.join(known)}"
        )
    try:
        return _accelerator(path.stem, tomllib.loads(path.read_text()))
    except (*UNDECODABLE, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadOption(f"--gpu: {path}: {exc}") from exc


def _accelerator(name: str, table: dict[str, object]) -> Accelerator:
    return msgspec.convert({"name": name, **table}, Accelerator)
