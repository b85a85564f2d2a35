"""Which replicas there are: told by a file, by DNS, or by Kubernetes' EndpointSlices."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from gateway.discovery.dns_source import DnsSource, resolve_addresses
from gateway.discovery.file_source import FileSource
from gateway.discovery.membership import Membership
from gateway.discovery.slices import Slice, members_of
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from tests.gateway.conftest import Tenant
from tests.gateway.fleets import fleet_of
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import eventually


def client(name: str, url: str) -> ReplicaClient:
    return ReplicaClient(name, url, Timeouts(1.0, 1.0, 1.0, 1.0))


async def test_the_pool_follows_what_all_sources_say_together() -> None:
    pool = fleet_of("static").pool
    membership = Membership(pool, client)
    file, dns = membership.publisher("file"), membership.publisher("dns")

    def names() -> set[str]:
        return {endpoint.name for endpoint in pool.endpoints()}

    file({"a": "http://10.0.0.1:1", "b": "http://10.0.0.2:1"})
    dns({"10.0.0.3:1": "http://10.0.0.3:1"})
    assert names() == {"static", "a", "b", "10.0.0.3:1"}
    kept, moved = pool["a"], pool["b"]
    version = pool.version
    file({"a": "http://10.0.0.1:1", "b": "http://10.0.0.9:1"})
    assert pool["a"] is kept, "nothing about it has changed"
    assert pool["b"] is not moved, "another replica of that name"
    assert pool.version > version
    version = pool.version
    file({"a": "http://10.0.0.1:1", "b": "http://10.0.0.9:1"})
    assert pool.version == version, "the same again is no news"
    dns({})
    assert names() == {"static", "a", "b"}
    assert sorted(pool.ring.walk(0)) == ["a", "b", "static"]


def write(path: Path, content: object) -> None:
    replacement = path.with_suffix(".new")
    replacement.write_text(content if isinstance(content, str) else json.dumps(content))
    replacement.replace(path)


A = {"name": "a", "url": "http://127.0.0.1:1001"}
B = {"name": "b", "url": "http://127.0.0.1:1002"}


def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    source = FileSource(path)
    assert source.read() is None, "not there yet"
    write(path, [A])
    assert source.read() == {"a": "http://127.0.0.1:1001"}
    assert source.read() is None
    write(path, [A, B])
    read = source.read()
    assert read is not None
    assert sorted(read) == ["a", "b"]
    write(path, [])
    assert source.read() == {}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="no-json"),
        pytest.param({"a": "http://127.0.0.1:1"}, id="no-list"),
        pytest.param([{"name": "a", "url": "https://127.0.0.1:1"}], id="no-plain-http"),
        pytest.param([{"name": "", "url": "http://127.0.0.1:1"}], id="no-name"),
        pytest.param([{**A, "weight": 3}], id="an-unknown-field"),
        pytest.param([A, {**B, "name": "a"}], id="a-name-twice"),
    ],
)
def test_a_bad_file_leaves_the_last_good_list(
    tmp_path: Path, content: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "replicas.json"
    write(path, content)
    source = FileSource(path)
    assert source.read() is None
    assert source.read() is None
    assert len(caplog.records) == 1, "said once"
    write(path, [A])
    assert source.read() is not None


def test_names_become_addresses_and_a_failed_lookup_changes_nothing() -> None:
    answers: list[Sequence[str] | OSError] = [["10.0.0.1", "10.0.0.2"], OSError("away"), []]

    def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("replicas", 8000)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    source = DnsSource("replicas", 8000, resolve)
    assert source.look_up() == {
        "10.0.0.1:8000": "http://10.0.0.1:8000",
        "10.0.0.2:8000": "http://10.0.0.2:8000",
    }
    assert source.look_up() is None
    assert source.look_up() == {}
    assert list(resolve_addresses("localhost", 80)) == ["127.0.0.1"]


def slice_of(*endpoints: object, ports: object = None, **members: object) -> Slice:
    document = {
        "metadata": {"name": "s", "resourceVersion": "7"},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8000}] if ports is None else ports,
        **members,
    }
    return msgspec.json.decode(json.dumps(document), type=Slice)


def pod(name: str, address: str, **conditions: bool) -> dict[str, object]:
    target = {"kind": "Pod", "name": name}
    return {"addresses": [address], "conditions": conditions, "targetRef": target}


def test_pods_are_members_by_name_unless_they_terminate() -> None:
    found = slice_of(
        pod("replica-0", "10.0.0.1", ready=True),
        pod("replica-1", "10.0.0.2", ready=False),
        pod("replica-2", "10.0.0.3", ready=False, serving=True, terminating=True),
        {"addresses": ["10.0.0.4"]},
    )
    assert members_of([found], "http") == {
        "replica-0": "http://10.0.0.1:8000",
        "replica-1": "http://10.0.0.2:8000",
        "10.0.0.4:8000": "http://10.0.0.4:8000",
    }


def test_the_named_port_counts_or_the_only_one() -> None:
    several = [{"name": "metrics", "port": 9}, {"name": "http", "port": 8}]
    other = [{"name": "metrics", "port": 9}, {"name": "grpc", "port": 7}]
    one = pod("r", "10.0.0.1")
    assert members_of([slice_of(one, ports=several)], "http") == {"r": "http://10.0.0.1:8"}
    assert members_of([slice_of(one, ports=[{"port": 5}])], "http") == {"r": "http://10.0.0.1:5"}
    assert members_of([slice_of(one, ports=other)], "http") == {}
    assert members_of([slice_of(one, addressType="IPv6")], "http") == {}
    assert members_of([slice_of(endpoints=None)], "http") == {}


async def test_a_gateway_takes_up_what_the_file_says_and_lets_go_of_the_rest(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    other = Upstream()
    other.start()
    path = tmp_path / "replicas.json"
    write(path, [{"name": "first", "url": upstream.url}])
    gateway = start_gateway(upstreams={}, GATEWAY_REPLICA_FILE=str(path))
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    assert (await tenant.chat(chat("hello"))).status == 200
    write(path, [{"name": "second", "url": other.url}])
    lines = gateway.log_lines

    def is_said(message: str, replica: str) -> bool:
        return any(n["message"] == message and n.get("replica") == replica for n in lines())

    eventually(lambda: is_said("replica left", "first"), "the first to be let go")
    eventually(lambda: is_said("replica ready", "second"), "the second to be ready")
    assert (await tenant.chat(chat("hello"))).status == 200
    assert [event.replica for event in tenant.events()] == ["first", "second"]
    other.stop()
