"""The images' definitions: each stage's commands, what is in them, and what is said of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    distributions,
    packages_distributions,
)
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pandal.chart.packages import Package, bill_of_materials, main

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES = ("gateway", "replica", "autoscaler", "billing")
VALUES = yaml.safe_load((ROOT / "helm" / "pandal" / "values.yaml").read_text())


def stage(name: str) -> str:
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.S | re.M)
    assert found is not None, f"no stage {name}"
    return found[1]


def named() -> set[str]:
    """What is sent to be built."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("!")}


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_runs_the_service_as_nobody(service: str) -> None:
    assert f'ENTRYPOINT ["python", "-m", "{service}"]' in stage(service)
    assert "USER 10001:10001" in stage("run")
    assert "STOPSIGNAL SIGTERM" in stage("run")


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_one_services_packages_by_the_lock(service: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    command, code = re.findall(r"^RUN (pip install .*)$", stage(f"build-{service}"), re.M)
    assert "-c requirements.lock" in command
    assert "--no-deps" in code, "a change of the code fetches nothing again"
    assert stage(f"build-{service}").index(command) < stage(f"build-{service}").index("COPY . .")
    wanted = re.search(r"'\.\[([a-z,]+)\]'", command)
    assert wanted is not None
    assert service in wanted[1].split(",")
    assert set(wanted[1].split(",")) <= set(extras)


def test_ports_are_the_charts() -> None:
    assert f"EXPOSE {VALUES['gateway']['port']}" in stage("gateway")
    assert f"EXPOSE {VALUES['poolDefaults']['port']}" in stage("replica")
    assert f"EXPOSE {VALUES['autoscaler']['port']}" in stage("autoscaler")


def test_what_is_sent_to_be_built_is_what_is_needed() -> None:
    """The context leaves everything out but what is named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {
        name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert packages <= named()
    assert {"pyproject.toml", "requirements.lock", "README.md", "LICENSE"} <= named()
    assert all((ROOT / name).exists() for name in named())


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_says_what_it_holds(service: str) -> None:
    command = "python -m pandal.chart.packages /opt/pandal"
    assert f"&& {command}\n" in stage(f"build-{service}")


def test_the_bill_of_materials_is_of_what_is_installed(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(c["name"], c["version"]) for c in bill["components"]}
    here = {(d.metadata["Name"], d.version) for d in distributions()}
    assert listed == {(name, version) for name, version in here if name != "pandal"}
    notice = (tmp_path / "NOTICE").read_text()
    said = [component for component in bill["components"] if "licenses" in component]
    assert len(said) > 0.9 * len(listed), "nearly all say"
    for component in said:
        told = component["licenses"][0]["license"]["name"]
        assert f"\n{component['name']} {component['version']}: {told}\n" in notice


def test_a_local_version_is_spelled_as_a_purl() -> None:
    bill = json.loads(bill_of_materials([Package("Torch_X", "2.13.0+cu130", "BSD")]))
    assert bill["components"][0]["purl"] == "pkg:pypi/torch-x@2.13.0%2Bcu130"


def test_a_replica_on_gpus_has_the_compiler_that_triton_asks_for() -> None:
    assert "gcc libc6-dev" in stage("replica-gpu")
    assert stage("replica-gpu").rstrip().endswith("USER 10001:10001")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a builder is sent: what is named, and nothing else."""
    folder = tmp_path_factory.mktemp("context")
    for name in named():
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder / name)
    return folder


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_sent_is_enough_to_run(context: Path, service: str) -> None:
    """Each entry reads its settings, and refuses one that there is not."""
    installed = [path for path in sys.path if path.endswith("site-packages")]
    misspelt = f"{service}_NOPE".upper()
    done = subprocess.run(
        [sys.executable, "-m", service],
        cwd=context,
        env={
            "PYTHONPATH": os.pathsep.join([str(context), *installed]),
            f"{service}_NOPE".upper(): "",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert misspelt in done.stderr


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"no package of this image has {{name}}", name=name)

sys.meta_path.insert(0, Absent())
"""
ELSEWHERE = (
    "billing.migrations.env",  # which Alembic runs, and nobody imports
    "replica.gpu",  # a torch that is built for GPUs brings Triton
)
EVERY_MODULE = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.startswith(tuple(sys.argv[2:])):
        importlib.import_module(found.name)
"""


@pytest.mark.parametrize("service", SERVICES)
def test_no_module_of_a_service_needs_a_package_that_its_image_lacks(
    context: Path, tmp_path: Path, service: str
) -> None:
    held = {"pandal", *held_by(service)}
    absent = {
        module
        for module, found in packages_distributions().items()
        if not held & {canonicalize_name(name) for name in found}
    }
    assert len(absent) > 20, "the tests' own packages, at least"
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(absent=absent))
    installed = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MODULE, service, f"{service}.__main__", *ELSEWHERE],
        cwd=context,
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(context), *installed])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def held_by(service: str) -> set[str]:
    """Names of the packages that its stage installs, as far as they are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = re.search(r"'\.\[([a-z,]+)\]'", stage(f"build-{service}"))
    assert wanted is not None
    waiting = [Requirement(text) for text in project["dependencies"]]
    for extra in wanted[1].split(","):
        waiting += map(Requirement, project["optional-dependencies"][extra])
    held: set[str] = set()
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            needs = distribution(name).requires or ()
        except PackageNotFoundError:
            continue
        held.add(name)
        waiting += [
            need
            for need in map(Requirement, needs)
            if need.marker is None
            or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ]
    return held
