"""The images' definitions: each stage's commands, what is in them, and what is said of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pandal.chart.packages import installed_packages, locked_packages, main

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
    (command,) = re.findall(r"^RUN (pip install .*)$", stage(f"build-{service}"), re.M)
    assert "-c requirements.lock" in command
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
    command = "python -m pandal.chart.packages requirements.lock /opt/pandal"
    assert f"&& {command}\n" in stage(f"build-{service}")


def test_the_bill_of_materials_is_of_the_lock(tmp_path: Path) -> None:
    assert main([str(ROOT / "requirements.lock"), str(tmp_path)]) == 0
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(c["name"], c["version"]) for c in bill["components"]}
    assert listed <= set(locked_packages((ROOT / "requirements.lock").read_text()))
    assert "pydantic" in {name for name, _ in listed}
    notice = (tmp_path / "NOTICE").read_text()
    said = [component for component in bill["components"] if "licenses" in component]
    assert len(said) > 0.95 * len(listed), "nearly all say"
    for component in said:
        told = component["licenses"][0]["license"]["name"]
        assert f"\n{component['name']} {component['version']}: {told}\n" in notice


def test_nothing_is_listed_that_is_not_installed() -> None:
    lock = "# a comment\npydantic==2.14.4\nmade-up-name==1.0\n"
    assert list(locked_packages(lock)) == [("pydantic", "2.14.4"), ("made-up-name", "1.0")]
    assert [package.name for package in installed_packages(lock)] == ["pydantic"]


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
