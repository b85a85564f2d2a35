"""What ``helm test`` runs in the cluster, against a gateway of ours."""

import subprocess
import sys
from pathlib import Path

from tests.gateway.conftest import Tenant

PROGRAM = Path(__file__).parents[2] / "helm" / "pandal" / "files" / "stream_test.py"


def ask(tenant: Tenant, **environment: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{tenant.gateway.port}"
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM)],
        capture_output=True, text=True, env={"URL": url, "MODEL": "model-a", **environment},
    )  # fmt: skip


def test_the_charts_test_reads_a_stream_to_its_usage(tenant: Tenant) -> None:
    done = ask(tenant, API_KEY=tenant.key)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
    assert tenant.only_event().output_text_tokens == 3
    assert ask(tenant).stdout == "ready: 200\n"
    assert ask(tenant, API_KEY="sk-wrong").returncode == 1
