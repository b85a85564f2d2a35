"""Each client has one home."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gateway"
HOMES = {
    "hiredis": {"admission/resp.py"},
    "redis": set(),
    "uhashring": {"routing/ring.py"},
    "aiokafka": {"outbox/kafka.py"},
    "uvicorn": {"admin/__main__.py", "client_connection.py", "protocol.py", "server.py"},
    "uvloop": {"__main__.py"},
}


def importers(client: str) -> set[str]:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names.append(node.module)
            if any(name.split(".")[0] == client for name in names):
                found.add(str(path.relative_to(PACKAGE)))
    return found


@pytest.mark.parametrize("client", sorted(HOMES))
def test_a_client_is_imported_at_home_only(client: str) -> None:
    assert importers(client) == HOMES[client]
