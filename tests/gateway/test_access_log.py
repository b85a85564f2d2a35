"""What the line of a request tells of the steps that it took."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from contracts.admission import AdmissionPolicy, TokenCounting
from gateway.access_log import AccessLog
from gateway.api.context import Operation
from gateway.clock import Clock
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.request_head import request_head
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import Reply, chat, post
from tests.support.waiting import eventually


async def line_of(tenant: Tenant, reply: Reply) -> dict[str, Any]:
    """Lines are written a moment later, many at a time."""
    request_id = reply.headers["x-request-id"]

    def found() -> list[dict[str, Any]]:
        return [x for x in tenant.gateway.log_lines() if x.get("request_id") == request_id]

    await asyncio.to_thread(eventually, lambda: bool(found()), "the line")
    return found()[-1]


async def test_each_step_ends_after_the_one_before(tenant: Tenant) -> None:
    line = await line_of(tenant, await tenant.chat(chat(stream=True)))
    steps = [line[name] for name in ("auth_ms", "admit_ms", "send_ms", "ttft_ms", "latency_ms")]
    assert steps == sorted(steps)
    assert steps[0] > 0
    assert "queue_ms" not in line
    assert "count_ms" not in line


async def test_a_step_that_was_not_reached_is_not_told(tenant: Tenant) -> None:
    line = await line_of(tenant, await post(tenant.gateway.port, chat(), "sk-nobody"))
    assert (line["status"], line["reason"]) == (401, "invalid_api_key")
    assert not {"auth_ms", "admit_ms", "send_ms", "ttft_ms", "tenant_id"} & line.keys()


async def test_an_exact_count_is_timed(make_tenant: Callable[..., Tenant]) -> None:
    tenant = make_tenant(admission=AdmissionPolicy(counting=TokenCounting.EXACT))
    await tenant.accepted()
    line = await line_of(tenant, await tenant.chat(chat()))
    assert 0 <= line["count_ms"] <= line["admit_ms"]


async def test_many_are_told_of_at_once_and_each_of_its_own_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "gateway.access_log")  # else it writes no lines
    now_s, blocks = 10.0, list[bytes]()
    clock = Clock(wall_s=lambda: 1_700_000_000.0 + now_s, monotonic_s=lambda: now_s)
    log = AccessLog(Metrics(), clock, blocks.append)
    exchange = Exchange(asyncio.Transport(), request_head(Operation.COMPLETIONS, []), lambda: None)
    for number in range(65):
        trace = log.begin(f"req_{number}", exchange)
        now_s += 0.25
        log.finish(trace)
    log.tell()
    assert [block.count(b"\n") for block in blocks] == [64, 1]
    first, last = json.loads(blocks[0].splitlines()[0]), json.loads(blocks[1])
    assert first["at"] == "2023-11-14T22:13:30.250000Z"
    assert last["at"] == "2023-11-14T22:13:46.250000Z"
    assert (first["latency_ms"], first["status"], last["request_id"]) == (250.0, 499, "req_64")


async def test_a_request_begins_when_all_of_it_was_here() -> None:
    now_s = 12.0
    log = AccessLog(Metrics(), Clock(lambda: now_s, lambda: now_s), lambda _: None)
    head = request_head(Operation.COMPLETIONS, [])
    exchange = Exchange(asyncio.Transport(), head, lambda: None)
    exchange.came_monotonic_s = 10.0
    assert log.begin("req_0", exchange).started_monotonic_s == 10.0
