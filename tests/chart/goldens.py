"""``python -m tests.chart.goldens``: writes the golden renders anew, to be read before a commit."""

import tempfile
from pathlib import Path

from tests.chart.test_rendering import CI, GOLDEN, golden_of, scenario
from tests.support.helm import helm

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        for values in CI:
            found = helm(4, Path(home)).template([values])
            (GOLDEN / f"{scenario(values)}.yaml").write_text(golden_of(found))
