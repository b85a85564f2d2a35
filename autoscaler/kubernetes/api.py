"""The API server over the official client: the one module that imports it.

Of the client are its configuration (in a pod or from a kubeconfig, with tokens that are read again
when they expire), its TLS and its connections.  Bodies stay bytes here: its models would build all
of a thousand pods for the few fields that are wanted.  Its leader elector goes on leading when it
is cancelled; `autoscaler.kubernetes.lease` does not.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from autoscaler.errors import Absent, BadPolicy, ClusterRefused, Expired, StaleWrite
from autoscaler.kubernetes.objects import Failure
from autoscaler.kubernetes.wire import Json

_REFUSALS: Final = {404: Absent, 409: StaleWrite, 410: Expired}
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_USER_AGENT: Final = "pandal-autoscaler"  # by which the API server tells who wrote a field


@asynccontextmanager
async def connected(
    kubeconfig: Path | None, *, request_timeout_s: float
) -> AsyncIterator["KubernetesApi"]:
    """``None``: from inside a pod.  Raises BadPolicy when there is no such configuration."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(
                config_file=str(kubeconfig), client_configuration=configuration
            )
    except config.ConfigException as exc:
        raise BadPolicy(f"Kubernetes: {exc}") from exc
    unbounded = copy(configuration)
    unbounded.connection_pool_maxsize = 0  # a watch keeps its connection: it shall take no call's
    async with ApiClient(configuration) as calls, ApiClient(unbounded) as watches:
        calls.user_agent = watches.user_agent = _USER_AGENT
        yield KubernetesApi(calls, watches, request_timeout_s)


class KubernetesApi:
    def __init__(self, calls: ApiClient, watches: ApiClient, request_timeout_s: float) -> None:
        self._calls = calls
        self._watches = watches
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)

    async def get(self, path: str, **query: str) -> bytes:
        return await self._exchange("GET", _with(path, query))

    async def create(self, path: str, body: Json) -> bytes:
        return await self._exchange("POST", path, body)

    async def replace(self, path: str, body: Json) -> bytes:
        return await self._exchange("PUT", path, body)

    async def patch(self, path: str, body: Json) -> bytes:
        return await self._exchange("PATCH", path, body)

    async def delete(self, path: str) -> bytes:
        return await self._exchange("DELETE", path)

    async def lines(
        self, path: str, *, silence_s: float, **query: str
    ) -> AsyncGenerator[bytes, None]:
        timeout = aiohttp.ClientTimeout(total=None, connect=silence_s, sock_read=silence_s)
        with _translated(path):
            response = await _opened(self._watches, "GET", _with(path, query), None, timeout)
            async with response:
                try:
                    if response.status >= 400:
                        raise _refusal(path, response.status, await response.read())
                    async for line in response.content:
                        yield line
                finally:
                    _cut(response)

    async def _exchange(self, method: str, path: str, body: Json | None = None) -> bytes:
        with _translated(path):
            response = await _opened(self._calls, method, path, body, self._timeout)
            async with response:
                answer = await response.read()
        if response.status >= 400:
            raise _refusal(path, response.status, answer)
        return answer


async def _opened(
    client: ApiClient, method: str, path: str, body: Json | None, within: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    content = _MERGE_PATCH if method == "PATCH" else _JSON
    request = await client.param_serialize(
        method,
        path,
        header_params={"Accept": _JSON, "Content-Type": content},
        body=body,
        auth_settings=["BearerToken"],
    )
    answer = await client.call_api(*request, _request_timeout=within)
    response: aiohttp.ClientResponse = answer.response
    return response


def _cut(watch: aiohttp.ClientResponse) -> None:
    """What is left before its end: TLS's farewell would wait for a server that may be silent."""
    connection = watch.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _with(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, config.ConfigException, TimeoutError, OSError) as exc:
        raise ClusterRefused(f"{path}: {type(exc).__name__}") from exc


def _refusal(path: str, status: int, body: bytes) -> ClusterRefused:
    """With the API server's reason; its message may quote what was sent, and is left out."""
    try:
        reason = msgspec.json.decode(body, type=Failure).reason
    except msgspec.DecodeError:
        reason = ""
    return _REFUSALS.get(status, ClusterRefused)(f"{path}: {status} {reason}")
