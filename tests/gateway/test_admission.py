"""Admission as a client meets it: what is refused before it costs, and what is reserved."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from contracts import metrics
from contracts.admission import AdmissionPolicy, CompletionBound
from contracts.quota import QuotaRule
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, hang_up, request_bytes
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.waiting import eventually


async def test_a_prompt_over_the_tenants_cap_is_a_400_and_costs_nothing(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(admission=AdmissionPolicy(max_prompt_tokens=200))
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    left = tenant.num_requests_left()
    reply = await tenant.chat(chat("word " * 5_000))
    assert (reply.status, reply.error["code"]) == (400, "prompt_too_long")
    assert tenant.num_requests_left() >= left
    assert len(upstream.generations) == 1


async def test_a_learned_bound_reserves_what_answers_need(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    policy, budget = AdmissionPolicy(completion_bound=CompletionBound.LEARNED), 2_000
    tenant = make_tenant(admission=policy, rules=(QuotaRule(tokens_per_day=budget),))
    await tenant.accepted()
    for _ in range(21):
        assert (await tenant.chat(chat(max_tokens=1_000))).status == 200
    first, *_, last = tenant.events()
    assert first.reserved_tokens > 1_000
    assert last.reserved_tokens < 100
    assert upstream.generations[-1].received.document["max_tokens"] == 1_000
    over = await tenant.chat(chat(max_tokens=budget - 200))
    assert (over.status, over.error["code"]) == (429, "insufficient_quota"), "budgets are hard"


async def test_an_answer_beyond_the_learned_bound_makes_debt_that_is_bounded_and_repaid(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    policy = AdmissionPolicy(completion_bound=CompletionBound.LEARNED)
    tenant = make_tenant(tokens_per_minute=1_200, admission=policy)
    await tenant.accepted()
    ask = {"model": "model-a", "prompt": [7] * 20, "max_tokens": 900}
    for _ in range(20):
        assert (await tenant.complete(ask)).status == 200
    upstream.behaviour = words(5_000)
    assert (await tenant.complete(ask)).status == 200
    assert tenant.events()[-1].output_text_tokens == 5_000
    assert -1_200 <= tenant.level("tokens") < 0, "no more than a burst"
    refused = await tenant.complete(ask)
    assert refused.status == 429
    assert 20 <= int(refused.headers["retry-after"]) <= 90, "refilling repays it"


async def test_cached_tokens_weigh_what_the_policy_says(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """Four of the prompt's eleven tokens are cached; one comes back in 2.4 s."""
    ask = {"model": "model-a", "prompt": [7] * 20, "max_tokens": 3}
    left = []
    for weight in (1.0, 0.0):
        policy = AdmissionPolicy(cached_token_weight=weight)
        tenant = make_tenant(tokens_per_minute=25, admission=policy)
        await tenant.accepted()
        assert (await tenant.complete(ask)).status == 200
        assert tenant.only_event().total_tokens == 14, "the ledger knows all"
        left.append(tenant.level("tokens"))
    assert 2.0 < left[1] - left[0] < 6.0


async def test_a_tiers_priority_reaches_replicas_that_know_priorities(
    make_tenant: Callable[..., Tenant], replica: "Replica"
) -> None:
    replica.release()
    for policy, expected in (
        (AdmissionPolicy(priority=-1), -1),
        (AdmissionPolicy(), None),
        (AdmissionPolicy(priority=7), 7),
    ):
        tenant = await asking(replica, make_tenant, policy)
        assert (await tenant.chat(chat())).status == 200
        assert replica.upstream.generations[-1].received.document.get("priority") == expected


async def test_a_replica_of_another_make_gets_no_priority(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(admission=AdmissionPolicy(priority=-1))
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    assert "priority" not in upstream.generations[-1].received.document


# In time, or in turn


def reported_load(prefill_tokens_per_s: float, queued_prompt_tokens: int = 0) -> dict[str, object]:
    return {
        "type": "replica.load.v1",
        "model": "model-a",
        "is_ready": True,
        "is_draining": False,
        "num_running": 0,
        "num_waiting": 0,
        "queued_prompt_tokens": queued_prompt_tokens,
        "expected_output_tokens": 0,
        "kv_cache_usage": 0.0,
        "num_kv_blocks": 100,
        "block_size": 16,
        "prefill_tokens_per_s": prefill_tokens_per_s,
        "decode_tokens_per_s": 0.0,
    }


IN_TIME = AdmissionPolicy(ttft_target_ms=1)  # less than any prompt takes: one at a time
IN_TURN = AdmissionPolicy(ttft_target_ms=1, max_queue_ms=15_000)


class Replica:
    """Gives no first token before it is told to."""

    def __init__(self, upstream: Upstream, gateway: Gateway) -> None:
        self.upstream = upstream
        self.gateway = gateway
        self._release = threading.Event()
        upstream.behaviour = self._behave

    async def _behave(self, generation: Generation) -> None:
        await asyncio.to_thread(self._release.wait, 20)
        await words(3)(generation)

    def release(self) -> None:
        self._release.set()

    async def has_begun(self, num: int) -> None:
        await asyncio.to_thread(
            eventually, lambda: len(self.upstream.generations) == num, "the generations"
        )

    async def has_waiting(self, num: int) -> None:
        for _ in range(1_000):
            text = (await get(self.gateway.port, "/metrics")).body.decode()
            if f"{metrics.GATEWAY_WAITING_REQUESTS} {num}\n" in text:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"there were never {num} waiting")


@pytest.fixture
def replica(start_gateway: Callable[..., Gateway], upstream: Upstream) -> Iterator[Replica]:
    """Its report says that it prefills a thousand tokens a second."""
    upstream.load = reported_load(prefill_tokens_per_s=1_000.0)
    gateway = start_gateway()
    eventually(lambda: upstream.num_load_reports >= 2, "the first report to be read")
    replica = Replica(upstream, gateway)
    yield replica
    replica.release()


async def asking(
    replica: Replica,
    make_tenant: Callable[..., Tenant],
    admission: AdmissionPolicy,
    **limits: int,
) -> Tenant:
    tenant = make_tenant(replica.gateway, admission=admission, **limits)
    await tenant.accepted()
    return tenant


async def test_a_request_that_would_be_late_is_refused_at_once_and_costs_nothing(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = await asking(replica, make_tenant, IN_TIME, requests_per_minute=2)
    first = asyncio.create_task(tenant.chat(chat(stream=True)))
    await replica.has_begun(1)
    late = await tenant.chat(chat(stream=True))
    assert (late.status, late.error["code"]) == (429, "server_is_overloaded")
    assert int(late.headers["retry-after"]) >= 1
    replica.release()
    assert (await first).status == 200
    assert (await tenant.chat(chat(stream=True))).status == 200, "its second of two a minute"
    assert len(replica.upstream.generations) == 2


async def test_of_three_times_what_can_begin_in_time_two_thirds_are_refused_and_reach_nobody(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    """A tenth of a second each, and little more than one the target: ten, before the first ends."""
    tenant = await asking(replica, make_tenant, AdmissionPolicy(ttft_target_ms=1_050))
    ask = {"model": "model-a", "prompt": [7] * 99, "max_tokens": 3, "stream": True}
    asked = [asyncio.create_task(tenant.complete(ask)) for _ in range(30)]
    await replica.has_begun(10)
    first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result().status for task in first} == {429}
    assert (await get(replica.gateway.port, "/health")).status == 200
    replica.release()
    replies = await asyncio.gather(*asked)
    assert Counter(reply.status for reply in replies) == {200: 10, 429: 20}
    waits_s = [int(reply.headers["retry-after"]) for reply in replies if reply.status == 429]
    assert min(waits_s) >= 1
    assert len(replica.upstream.generations) == len(tenant.events()) == 10


async def test_a_request_may_wait_for_its_turn(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = await asking(replica, make_tenant, IN_TURN)
    asked = [asyncio.create_task(tenant.chat(chat(stream=True))) for _ in range(3)]
    await replica.has_begun(1)
    await replica.has_waiting(2)
    replica.release()
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200, 200, 200]
    assert len(tenant.events()) == 3


async def test_nobody_waits_past_the_deadline(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    policy = AdmissionPolicy(ttft_target_ms=1, max_queue_ms=300)
    tenant = await asking(replica, make_tenant, policy)
    first = asyncio.create_task(tenant.chat(chat(stream=True)))
    await replica.has_begun(1)
    late = await tenant.chat(chat(stream=True))
    assert (late.status, late.error["code"]) == (429, "server_is_overloaded")
    replica.release()
    assert (await first).status == 200
    assert len(tenant.events()) == 1


async def test_who_leaves_while_waiting_frees_its_place(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = await asking(replica, make_tenant, IN_TURN)
    first = asyncio.create_task(tenant.chat(chat(stream=True)))
    await replica.has_begun(1)
    _, writer = await asyncio.open_connection("127.0.0.1", replica.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    await replica.has_waiting(1)
    await hang_up(writer)
    await replica.has_waiting(0)
    replica.release()
    assert (await first).status == 200
    assert len(replica.upstream.generations) == 1


async def test_without_a_target_nobody_waits(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = await asking(replica, make_tenant, AdmissionPolicy())
    asked = [asyncio.create_task(tenant.chat(chat(stream=True))) for _ in range(3)]
    await replica.has_begun(3)
    replica.release()
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200, 200, 200]
