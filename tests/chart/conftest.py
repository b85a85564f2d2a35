"""Helm, and what it makes of the chart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import Helm, helm


@pytest.fixture(scope="session")
def helm3(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return helm(3, tmp_path_factory.mktemp("helm3"))


@pytest.fixture(scope="session")
def helm4(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return helm(4, tmp_path_factory.mktemp("helm4"))


Written = Callable[[Any], list[Path]]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Values as the files that Helm reads."""

    def write(values: Any) -> list[Path]:
        path = tmp_path / f"values-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(yaml.safe_dump(values))
        return [path]

    return write
