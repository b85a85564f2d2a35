"""Every expression of alerts and dashboards is PromQL, and names metrics that a service exports."""

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import metrics
from pandal.chart.dashboards import BOARDS
from tests.chart import manifests
from tests.chart.test_rendering import CI, scenario
from tests.support.helm import Helm

promql = pytest.importorskip("promql_parser", reason="a package of the dev extra")

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
EXPORTERS = ("gateway", "replica", "autoscaler", "billing")
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@functools.cache
def exported() -> set[str]:
    """Names in contracts.metrics that a service's source uses: all that /metrics can say."""
    names = {
        key: value
        for key, value in vars(metrics).items()
        if key.isupper() and isinstance(value, str)
    }
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for package in EXPORTERS
        for module in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    found = {value for key, value in names.items() if key in used}
    return found | {name + part for name in found for part in HISTOGRAM_PARTS}


def selected(expression: str) -> set[str]:
    """Names of the metrics in it.  Raises ValueError for what is no PromQL."""
    return set(_names(promql.parse(re.sub(r"\$__rate_interval", "5m", expression))))


def _names(node: Any) -> Iterator[str]:
    """Of any kind of node: the parser's classes have no common way to their parts."""
    if hasattr(node, "name") and hasattr(node, "matchers"):
        yield node.name
    for part in ("expr", "lhs", "rhs", "vs", "vector_selector", "args", "param"):
        found = getattr(node, part, None)
        for child in found if isinstance(found, list) else [found]:
            if child is not None and not isinstance(child, str | int | float):
                yield from _names(child)


def panels() -> Iterator[tuple[str, str]]:
    for name in BOARDS:
        board = json.loads((ROOT / f"helm/pandal/files/dashboards/{name}.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]


def test_every_panel_names_what_is_exported() -> None:
    known = exported()
    shown = list(panels())
    assert len(shown) > 30
    for title, expression in shown:
        names = selected(expression)
        assert names, title
        assert names <= known, title


@pytest.fixture(scope="module")
def rules(helm4: Helm) -> list[dict[str, Any]]:
    (everything,) = (path for path in CI if scenario(path) == "everything")
    (found,) = manifests.of_kind(helm4.template([everything]), "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def test_every_alert_names_what_is_exported(rules: list[dict[str, Any]]) -> None:
    known = exported()
    for rule in rules:
        assert selected(rule["expr"]) <= known, rule["alert"]


def test_every_alert_has_its_page(rules: list[dict[str, Any]]) -> None:
    told = {re.sub("(Fast|Slowly)$", "", rule["alert"]) for rule in rules}
    assert {page.stem for page in RUNBOOKS.glob("Pandal*.md")} == told
    for rule in rules:
        page = rule["annotations"]["runbook_url"].removeprefix("https://docs.example.com/runbooks/")
        text = (RUNBOOKS / page).read_text()
        for heading in ("## What it means", "## What to look at", "## What to do"):
            assert heading in text, page


def test_a_name_that_nobody_exports_would_be_found() -> None:
    assert selected("sum(rate(made_up_total[5m])) / 2 > 1") == {"made_up_total"}
    assert not selected("made_up_total") <= exported()
    with pytest.raises(ValueError, match="unclosed"):
        selected("sum(rate(")


def test_an_objectives_bound_is_a_bucket() -> None:
    from pandal.chart.control_values import Objectives

    bounds = Objectives.model_fields["ttft_s"].annotation.__args__  # type: ignore[union-attr]
    assert {float(bound) for bound in bounds} <= set(metrics.LATENCY_BUCKETS_S)
