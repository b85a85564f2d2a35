"""One quota store, two replicas and one gateway for the whole package; a tenant for each test."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.usage import UsageEvent
from tests.gateway.falling import Falls, falls_of
from tests.gateway.http_client import Reply, get, post, request_bytes, send
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import PATIENCE_S, eventually

_POLL_S = 0.02

_numbers = itertools.count()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("valkey"))
    valkey.start()
    yield valkey
    valkey.stop()


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("policy") / "policy.json")


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    upstream.start()
    yield upstream
    upstream.stop()


@pytest.fixture
def upstream(shared_upstream: Upstream) -> Upstream:
    shared_upstream.reset()
    return shared_upstream


@pytest.fixture(scope="session")
def new_gateway(
    tmp_path_factory: pytest.TempPathFactory,
    valkey: Valkey,
    policies: Policies,
    shared_upstream: Upstream,
) -> Callable[..., Gateway]:
    """Not started, in front of the shared upstream: its folder's name, its settings."""
    return lambda name, **settings: Gateway(
        tmp_path_factory.mktemp(name),
        quota_url=valkey.url,
        policy_file=policies.path,
        upstreams={"replica-0": shared_upstream},
        **settings,
    )


@pytest.fixture(scope="session")
def gateway(new_gateway: Callable[..., Gateway]) -> Iterator[Gateway]:
    gateway = new_gateway("gateway", GATEWAY_MAX_BODY_BYTES="200000")
    gateway.start()
    yield gateway
    assert gateway.stop() == 0


@pytest.fixture(scope="session")
def impatient_gateway(new_gateway: Callable[..., Gateway]) -> Iterator[Gateway]:
    timeouts = dict.fromkeys(("HEAD", "IDLE", "READ"), "1.5")
    settings = {f"GATEWAY_{what}_TIMEOUT_S": seconds for what, seconds in timeouts.items()}
    gateway = new_gateway("impatient", **settings)
    gateway.start()
    yield gateway
    assert gateway.stop() == 0


@pytest.fixture
def start_gateway(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream
) -> Iterator[Callable[..., Gateway]]:
    """Starts a gateway of the test's own; named settings replace the usual ones."""
    started: list[Gateway] = []

    def start(**settings: object) -> Gateway:
        folder = tmp_path / f"gateway-{len(started)}"
        folder.mkdir()
        parts: dict[str, object] = {
            "quota_url": valkey.url,
            "policy_file": policies.path,
            "upstreams": {"replica-0": upstream},
            **settings,
        }
        gateway = Gateway(folder, **parts)  # type: ignore[arg-type]
        started.append(gateway)
        gateway.start()
        return gateway

    yield start
    for gateway in started:
        gateway.stop()


@dataclass(frozen=True)
class Tenant:
    """A tenant of the shared gateway, or of one given to ``on``."""

    name: str
    key: str
    gateway: Gateway
    valkey: Valkey

    async def chat(self, body: object, **headers: str) -> Reply:
        return await post(self.gateway.port, body, self.key, **headers)

    async def complete(self, body: object) -> Reply:
        return await send(self.gateway.port, request_bytes(body, self.key, "/v1/completions"))

    async def accepted(self) -> None:
        """Waits until the gateway knows the key and has a ready replica."""
        for _ in range(int(PATIENCE_S / _POLL_S)):
            listed = await get(self.gateway.port, "/v1/models", self.key)
            if listed.status == 200 and (await get(self.gateway.port, "/ready")).status == 200:
                return
            await asyncio.sleep(_POLL_S)
        raise AssertionError("the gateway does not become ready")

    def num_requests_left(self) -> int:
        return int(self.level("requests"))

    def level(self, kind: str) -> float:
        """In the bucket as of its last change."""
        with self.valkey.client as client:
            level = client.hget(f"{{{self.name}}}:quota:bucket", kind)
            assert level is not None
            return int(level) / 60_000

    def events(self) -> list[UsageEvent]:
        return self.gateway.events(self.name)

    def only_event(self) -> UsageEvent:
        """The tenant's one event, once it is there; its tokens are what the quota settled."""
        eventually(lambda: bool(self.events()), "a usage event")
        (event,) = self.events()
        expected = {"requests": 1, "tokens": event.total_tokens}
        eventually(lambda: self.valkey.settled(self.name) == expected, "the settlement")
        eventually(
            lambda: self.valkey.num_open_reservations(self.name) == 0, "open reservations to close"
        )
        return event


@pytest.fixture
def make_tenant(
    gateway: Gateway, valkey: Valkey, policies: Policies, upstream: Upstream
) -> Callable[..., Tenant]:
    """Before an upstream that is well again, whatever the last test made of it."""

    def make(on: Gateway | None = None, name: str | None = None, **limits: object) -> Tenant:
        name = f"tenant-{next(_numbers)}" if name is None else name
        policies.add(name, f"sk-{name}", **limits)
        return Tenant(name, f"sk-{name}", gateway if on is None else on, valkey)

    return make


@pytest.fixture
async def tenant(make_tenant: Callable[..., Tenant]) -> Tenant:
    tenant = make_tenant()
    await tenant.accepted()
    return tenant


@pytest.fixture
async def impatient(make_tenant: Callable[..., Tenant], impatient_gateway: Gateway) -> Tenant:
    """Of a gateway that waits for nobody: for what has to run into its timeouts."""
    tenant = make_tenant(on=impatient_gateway)
    await tenant.accepted()
    return tenant


# Fallbacks


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, Upstream]]:
    started = {name: Upstream(name) for name in ("small", "openai", "anthropic")}
    for upstream in started.values():
        upstream.start()
    yield started
    for upstream in started.values():
        upstream.stop()


@pytest.fixture
def falls(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Falls:
    return falls_of(tmp_path, valkey, policies, upstream, others)
