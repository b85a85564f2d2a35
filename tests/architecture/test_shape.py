"""The shape of the code is a requirement like any other, so it has tests."""

import ast
import importlib
import inspect
import pkgutil
import re
from importlib.metadata import distributions
from pathlib import Path

import msgspec
import pytest

import contracts
from contracts import names

ROOT = Path(__file__).parents[2]
PACKAGES = ("contracts", "gateway", "replica", "kernels", "autoscaler", "billing", "pandal")
MODULES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
TEST_MODULES = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
KERNELS = sorted(p.parent for p in (ROOT / "kernels").glob("*/op.py"))
CONTRACTS = [
    importlib.import_module(f"contracts.{m.name}") for m in pkgutil.iter_modules(contracts.__path__)
]
MESSAGES = sorted(
    {
        value
        for module in CONTRACTS
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, msgspec.Struct)
    }
    - {msgspec.Struct},
    key=lambda message: message.__name__,
)

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "core"}
CLASHES_WITH_STDLIB = {"platform", "types", "queue", "logging"}


def rel(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(module: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                found.append(f"{rel(module)}: {node.name}")
    return found


def test_no_module_is_too_long() -> None:
    every = MODULES + TEST_MODULES + BENCHMARKS
    assert [rel(m) for m in every if m.read_text().count("\n") > MAX_MODULE_LINES] == []


def test_no_function_is_too_long() -> None:
    every = MODULES + TEST_MODULES + BENCHMARKS
    assert [name for module in every for name in long_functions(module)] == []


def test_no_drawer_modules() -> None:
    assert [rel(m) for m in MODULES if m.stem in DRAWERS | CLASHES_WITH_STDLIB] == []


def test_modules_say_what_they_are_for() -> None:
    """Each begins with its docstring."""
    every = MODULES + BENCHMARKS
    assert [rel(m) for m in every if not ast.get_docstring(ast.parse(m.read_text()))] == []


def test_there_are_modules_to_look_at() -> None:
    for modules in (MODULES, TEST_MODULES, BENCHMARKS):
        assert len(modules) > 10


@pytest.mark.parametrize("folder", KERNELS, ids=rel)
def test_kernel_folder_is_complete(folder: Path) -> None:
    """A kernel for at least one kind of device, or others' ops, beside its tested definition."""
    files = {p.name for p in folder.iterdir()}
    assert {"reference.py", "op.py"} <= files
    is_made_of_others = ".op import" in (folder / "op.py").read_text()
    assert files & {"kernel.py", "cpu.py"} or is_made_of_others
    has_both_kinds = {"kernel.py", "cpu.py"} <= files
    assert ("triton_op.py" in files) == has_both_kinds, "one door, or one for each kind of kernel"
    assert "bench.py" not in files
    assert (ROOT / "tests" / "kernels" / f"test_{folder.name}.py").exists()


def test_importing_kernels_runs_no_code() -> None:
    """``transformers`` probes for another distribution's ``kernels`` and may import ours."""
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text()).body
    assert all(isinstance(node, ast.Expr) for node in body)


def test_the_other_kernels_package_is_not_installed() -> None:
    assert "kernels" not in {d.metadata["Name"] for d in distributions()}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
def test_every_message_is_frozen_and_tagged_with_its_version(message: type[msgspec.Struct]) -> None:
    config = message.__struct_config__
    assert config.frozen
    assert re.fullmatch(r"[a-z_.]+\.v\d+", str(config.tag)), config.tag


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
def test_every_message_has_golden_bytes(message: type[msgspec.Struct]) -> None:
    tag = str(message.__struct_config__.tag)
    goldens = "".join(p.read_text() for p in (ROOT / "tests" / "contracts").glob("test_*.py"))
    assert f'"type":"{tag}"' in goldens or f'"type": "{tag}"' in goldens


def test_every_redis_key_begins_with_its_tenant() -> None:
    builders = [f for name, f in vars(names).items() if name.endswith("_key")]
    assert len(builders) >= 3
    keys = [build(names.tenant_id("acme")) for build in builders]
    assert all(key.startswith("{acme}:") for key in keys)
    assert len(set(keys)) == len(keys)


def test_redis_keys_are_built_in_contracts_only() -> None:
    others = [m for m in MODULES if m != ROOT / "contracts" / "names.py"]
    assert [rel(m) for m in others if "}:quota" in m.read_text()] == []
