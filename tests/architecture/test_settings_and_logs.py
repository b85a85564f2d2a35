"""Knobs and log fields: declared once, in the place where an operator looks for them."""

import ast
from pathlib import Path

import pytest

from contracts.logs import LOG_FIELDS

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "replica", "autoscaler", "billing", "pandal")
MODULES = sorted(p for package in SERVICES for p in (ROOT / package).rglob("*.py"))
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def rel(path: Path) -> str:
    return str(path.relative_to(ROOT))


def extra_keys(call: ast.Call) -> list[str]:
    """The literal keys of a logging call's ``extra={...}``."""
    extras = [k.value for k in call.keywords if k.arg == "extra" and isinstance(k.value, ast.Dict)]
    return [k.value for d in extras for k in d.keys if isinstance(k, ast.Constant)]


@pytest.mark.parametrize("module", MODULES, ids=rel)
def test_log_fields_are_declared_in_contracts(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in LOG_METHODS:
            assert set(extra_keys(node)) <= LOG_FIELDS, f"line {node.lineno}"


@pytest.mark.parametrize("module", MODULES, ids=rel)
def test_services_read_the_environment_only_through_settings(module: Path) -> None:
    """``pandal`` starts services and so composes their environment; it is the exception."""
    if module.is_relative_to(ROOT / "pandal"):
        return
    uses = [
        node.lineno
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    if module.name != "settings.py":
        assert not uses
