"""The client against a server that is none, and one that holds many watches."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from autoscaler.errors import ClusterRefused
from autoscaler.kubernetes.api import KubernetesApi, connected
from autoscaler.kubernetes.lease_store import KubernetesLease

NUM_WATCHES = 110  # the client's own bound is 100 connections


@asynccontextmanager
async def serving(folder: Path, body: str) -> AsyncIterator[Path]:
    """A kubeconfig of a server that answers everything so; watches it leaves without an end."""
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"watch=true" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{\n\r\n")
        else:
            length = len(body)
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}".encode())
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = folder / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    try:
        yield config
    finally:
        server.close()
        for writer in connections:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_a_page_of_a_proxy_is_a_refusal(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, "<html>sign in</html>") as config,
        connected(config, request_timeout_s=60.0) as api,
    ):
        with pytest.raises(ClusterRefused, match="Lease"):
            await KubernetesLease(api, "fleet", "lease").read()


async def test_watches_take_no_connection_from_calls(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, "{}") as config,
        connected(config, request_timeout_s=60.0) as api,
        AsyncExitStack() as stack,
    ):
        for number in range(NUM_WATCHES):
            lines = api.lines(f"/watched/{number}", silence_s=30.0, watch="true")
            stack.push_async_callback(lines.aclose)
            assert await anext(lines) == b"{\n"
        assert await api.get("/called") == b"{}"


async def test_a_token_file_that_is_empty_is_a_refusal(tmp_path: Path) -> None:
    token, cert = tmp_path / "token", tmp_path / "cert"
    token.write_text("t")
    cert.write_text("c")
    place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    loader = InClusterConfigLoader(str(token), str(cert), environ={**os.environ, **place})
    loader._token_refresh_period = timedelta(0)
    configuration = Configuration()
    loader.load_and_set(configuration)
    configuration.ssl_ca_cert = None  # nothing is connected to
    token.write_text("")  # as a kubelet may leave it for an instant
    async with ApiClient(configuration) as client:
        with pytest.raises(ClusterRefused, match="ConfigException"):
            await KubernetesApi(client, client, 5.0).get("/called")
