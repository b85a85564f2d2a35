"""What the chart's page tells a newcomer to type is taken, and changes what it says."""

import re
from pathlib import Path

import pytest

from tests.support.helm import CHART, Helm

PAGE = (Path(__file__).parents[2] / "docs" / "chart.md").read_text(encoding="utf-8")
TYPED = re.findall(r"^\| [\w\' ]+ \| `(--set [^`]+)` \|$", PAGE, re.M)


@pytest.mark.parametrize("typed", TYPED)
def test_what_a_newcomer_types_is_taken(helm4: Helm, typed: str) -> None:
    assert helm4.template([], *typed.split()) != helm4.template([])


def test_the_page_has_changes_to_type() -> None:
    assert len(TYPED) >= 10


def test_notes_end_with_the_next_commands(helm4: Helm) -> None:
    told = helm4.run("install", "r", str(CHART), "-n", "llm", "--dry-run=client").stdout
    notes = told.partition("NOTES:")[2]
    commands = [line.split()[0] for line in notes.splitlines() if line.startswith("  ")]
    assert commands[-4:] == ["kubectl", "helm", "kubectl", "curl"]
