"""Several processes behind one port are one gateway: one quota, one spool, one set of metrics."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.workers.siblings import added_up
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, eventually

NUM_REQUESTS = 60
ALLOWED_A_MINUTE = 30


@pytest.fixture(scope="module")
def pair(new_gateway: Callable[..., Gateway]) -> Iterator[Gateway]:
    """A gateway of two workers."""
    gateway = new_gateway("pair", GATEWAY_WORKERS="2")
    gateway.start()
    eventually(lambda: num_logged(gateway, "listening") == 2, "both workers to listen")
    yield gateway
    assert gateway.stop() == 0


def num_logged(gateway: Gateway, message: str) -> int:
    return sum(line["message"] == message for line in gateway.log_lines())


def worker_pids(gateway: Gateway) -> list[int]:
    started = [line for line in gateway.log_lines() if line["message"] == "worker started"]
    return [int(str(line["pid"])) for line in started]


async def num_served(gateway: Gateway) -> int:
    exposition = (await get(gateway.port, "/metrics")).body.decode()
    samples = [line for line in exposition.splitlines() if 'status="200"' in line]
    return sum(int(line.rpartition(" ")[2]) for line in samples)


async def accepted_by_both(tenant: Tenant) -> None:
    """The kernel deals connections to either: sixteen in a row miss none."""
    num_in_a_row = 0
    while num_in_a_row < 16:
        await tenant.accepted()
        listed = await get(tenant.gateway.port, "/v1/models", tenant.key)
        num_in_a_row = num_in_a_row + 1 if listed.status == 200 else 0


async def test_two_workers_keep_one_quota_and_fill_one_spool(
    pair: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(on=pair, requests_per_minute=ALLOWED_A_MINUTE)
    await accepted_by_both(tenant)
    before = await num_served(pair)
    began_s = time.monotonic()
    replies = [await tenant.chat(chat()) for _ in range(NUM_REQUESTS)]
    refilled = (time.monotonic() - began_s) * ALLOWED_A_MINUTE / 60
    num_admitted = sum(reply.status == 200 for reply in replies)
    assert {reply.status for reply in replies} == {200, 429}
    assert ALLOWED_A_MINUTE <= num_admitted <= ALLOWED_A_MINUTE + refilled + 1
    eventually(lambda: len(tenant.events()) == num_admitted, "all events")
    events = tenant.events()
    assert len({event.gateway_boot_id for event in events}) == 2, "the kernel deals to both"
    assert len({event.event_id for event in events}) == num_admitted
    assert tenant.valkey.settled(tenant.name)["tokens"] == sum(e.total_tokens for e in events)
    for _ in range(6):  # whichever worker is asked
        assert await num_served(pair) - before == num_admitted


async def has_become(gateway: Gateway, status: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await get(gateway.port, "/ready")).status != status:
            pass


async def test_ready_says_that_whichever_worker_is_asked_can_answer(
    pair: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """They look at their replicas at times of their own."""
    tenant = make_tenant(on=pair)
    await accepted_by_both(tenant)
    for _ in range(3):
        upstream.is_ready = False
        await has_become(pair, 503)
        upstream.is_ready = True
        await has_become(pair, 200)
        replies = [await tenant.chat(chat()) for _ in range(12)]
        assert {reply.status for reply in replies} == {200}


async def test_a_worker_that_dies_is_replaced(
    pair: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    num_listening = num_logged(pair, "listening")
    os.kill(worker_pids(pair)[-1], signal.SIGKILL)
    eventually(lambda: num_logged(pair, "worker ended, starting another") == 1, "its end")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = (await get(pair.port, "/ready")).status
            if num_logged(pair, "listening") > num_listening:
                break
            assert status == 200, "the one that is being started gets no client yet"
    tenant = make_tenant(on=pair)
    await accepted_by_both(tenant)
    for _ in range(8):
        assert (await tenant.chat(chat())).status == 200


def test_workers_end_with_the_process_that_started_them(
    start_gateway: Callable[..., Gateway], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_WORKERS="2", GATEWAY_PORT=str(free_port()))
    pids = worker_pids(gateway)
    gateway.stop(signal.SIGKILL)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "their end")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway.port)) != 0


def test_a_port_that_another_gateway_has_is_taken(pair: Gateway, tmp_path: Path) -> None:
    """Not shared with it: the kernel would let us."""
    second = Gateway(
        tmp_path,
        quota_url="unix:///nowhere",
        policy_file=tmp_path / "policy.json",
        upstreams={},
        GATEWAY_WORKERS="2",
        GATEWAY_PORT=str(pair.port),
    )
    with second.log_path.open("ab") as log:
        second.spawn(log.fileno())
    assert second.process is not None
    assert second.process.wait(PATIENCE_S) == 3


def test_samples_are_added_up_by_name_and_labels() -> None:
    one = '# TYPE a counter\na{x="1"} 2\n# TYPE h histogram\nh_sum 0.5\nh_count 1\n'
    other = '# TYPE a counter\na{x="1"} 3\na{x="2"} 7\n# TYPE h histogram\nh_sum 1.5\nh_count 2\n'
    assert added_up([one, other]) == (
        '# TYPE a counter\na{x="1"} 5\na{x="2"} 7\n# TYPE h histogram\nh_sum 2.0\nh_count 3\n'
    )
