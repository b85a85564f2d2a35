"""``python -m pandal.chart``: writes what is made of the values' model, into the chart's folder."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pandal.chart.dashboards import dashboard_files
from pandal.chart.documents import readme_file, values_file
from pandal.chart.schema import schema_file

CHART: Final = Path(__file__).parents[2] / "helm" / "pandal"


def generated_files() -> Mapping[str, str]:
    """By their names in the chart's folder."""
    return {
        "README.md": readme_file(),
        "values.schema.json": schema_file(),
        "values.yaml": values_file(),
        **dashboard_files(),
    }


def main() -> int:
    for name, text in generated_files().items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
