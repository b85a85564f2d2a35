"""Knobs and log fields: declared once, in the place where an operator looks for them."""

import ast
from pathlib import Path

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


def undeclared_fields(module: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in LOG_METHODS and not set(extra_keys(node)) <= LOG_FIELDS:
            found.append(f"{rel(module)}:{node.lineno}")
    return found


def test_log_fields_are_declared_in_contracts() -> None:
    assert [where for module in MODULES for where in undeclared_fields(module)] == []


def uses_of_the_environment(module: Path) -> list[str]:
    return [
        f"{rel(module)}:{node.lineno}"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]


def test_services_read_the_environment_only_through_settings() -> None:
    """``pandal`` starts services and so composes their environment; it is the exception."""
    services = [m for m in MODULES if not m.is_relative_to(ROOT / "pandal")]
    others = [m for m in services if m.name != "settings.py"]
    assert [where for module in others for where in uses_of_the_environment(module)] == []
