"""What the line of a request tells of the steps that it took."""

import asyncio
from collections.abc import Callable
from typing import Any

from contracts.admission import AdmissionPolicy, TokenCounting
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
