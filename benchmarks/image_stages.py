"""The images' build stages without a container engine: each one's commands, by themselves.

    python -m benchmarks.image_stages [SERVICE ...] [--build-arg NAME=VALUE ...]

Of each (gateway, autoscaler, billing, replica): a fresh virtual environment, the stage's steps in
their order on what is sent to be built, and the service started from it, which must know its
settings.  Packages come from pip's index; torch's from TORCH, an argument as docker has it.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVICES = ("gateway", "autoscaler", "billing", "replica")


def steps(service: str, arguments: Mapping[str, str]) -> list[str]:
    """``COPY`` and ``RUN``, as the Dockerfile has them; what is copied before comes with them."""
    text = (ROOT / "Dockerfile").read_text()
    found = re.search(rf"^FROM build AS build-{service}\n(.*?)(?=^FROM|\Z)", text, re.S | re.M)
    base = re.search(r"^COPY .*$", text, re.M)
    assert found is not None, service
    assert base is not None
    values = {**dict(re.findall(r"^ARG (\w+)=(\S+)$", found[1], re.M)), **arguments}
    lines = [base[0], *re.findall(r"^(?:RUN|COPY) .*$", found[1], re.M)]
    return [re.sub(r"\$(\w+)", lambda name: values[name[1]], line) for line in lines]


def sent_to_be_built() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("!")]


def copied(names: list[str], context: Path) -> None:
    for name in sent_to_be_built() if names == ["."] else names:
        place = ROOT / name
        if place.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(place, context / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(place, context / name)


def built(service: str, folder: Path, arguments: Mapping[str, str]) -> None:
    """Prints a line.  Raises CalledProcessError."""
    context, home = folder / "context", folder / "pandal"
    context.mkdir()
    venv.create(home, with_pip=True)
    variables = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    variables.pop("PYTHONPATH", None)
    began_s = time.monotonic()
    for step in steps(service, arguments):
        kind, rest = step.split(" ", 1)
        if kind == "COPY":
            copied(rest.split()[:-1], context)
            continue
        told = ["sh", "-c", rest.replace("/opt/pandal", str(home))]
        subprocess.run(told, cwd=context, env=variables, check=True, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - began_s
    started = subprocess.run(
        [home / "bin" / "python", "-m", service],
        cwd=folder, env={f"{service}_NOPE".upper(): "1"}, capture_output=True, text=True,
    )  # fmt: skip
    knows = started.returncode == 2 and f"{service}_NOPE".upper() in started.stderr
    num_packages = len(list(home.glob("lib/python*/site-packages/*.dist-info")))
    size_bytes = sum(p.stat().st_size for p in home.rglob("*") if p.is_file())
    print(
        f"{service:12s}{num_packages:4d} packages {size_bytes / 2**20:7.0f} MiB {took_s:6.0f} s  "
        f"{'starts' if knows else f'does not start: {started.stderr[-400:]}'}, "
        f"{'with' if (home / 'sbom.cdx.json').exists() else 'without'} a bill of materials",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("service", nargs="*", default=SERVICES)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    arguments = dict(given.split("=", 1) for given in asked.build_arg)
    for service in asked.service:
        with tempfile.TemporaryDirectory() as folder:
            built(service, Path(folder), arguments)


if __name__ == "__main__":
    main()
