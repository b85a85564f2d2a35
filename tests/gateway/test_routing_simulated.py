"""Whole fleets on a virtual clock: what the policies promise, in small; and the same as servers."""

import asyncio
import json
from functools import partial

import pytest

from benchmarks.routing import CHANGES, Scene, simulate
from benchmarks.routing_claims import Row
from benchmarks.routing_fleet import BLOCK_TOKENS
from benchmarks.routing_servers import Connection, Fleet
from benchmarks.routing_steps import stored_steps
from gateway.clock import SYSTEM_CLOCK
from gateway.routing.block_streams import BlockStreams
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.replica_events import ReplicaEvents
from gateway.routing.text_chain import prompt_text
from gateway.upstream.replica_client import ReplicaClient, Timeouts, read_body
from tests.gateway.scene import until


def row_of(mix: str, policy: str) -> Row:
    return simulate(mix, policy, Scene(stored_steps().times, until_s=80.0), seed=1)


@pytest.mark.parametrize("mix", ["multi-turn", "shared prompts"])
def test_prefixes_are_found_again_far_more_often_than_by_load_alone(mix: str) -> None:
    plain, bounded, exact = (row_of(mix, p) for p in ("least tokens", "bounded", "exact"))
    assert bounded.hit_ratio > plain.hit_ratio + 0.15
    assert exact.hit_ratio > plain.hit_ratio + 0.15
    assert max(bounded.ttft_p95_s, exact.ttft_p95_s) < plain.ttft_p95_s


def test_popular_prefixes_drown_nobody() -> None:
    """production-stack#957: one system prompt, one pod."""
    unbounded, bounded = (row_of("zipf", policy) for policy in ("ring", "bounded"))
    assert unbounded.max_over_mean > 3
    assert bounded.max_over_mean < 1.8
    assert bounded.ttft_p95_s < unbounded.ttft_p95_s / 3


def test_cold_and_small_caches_serve_the_popular_no_worse_than_a_public_router() -> None:
    """A burst for a new prompt meets in one place, and few copies displace others."""
    scene = Scene(stored_steps().times, 80.0, warm_up_s=16.0, cache_tokens=16_000, num_gateways=1)
    public, exact = (simulate("shared prompts", p, scene, seed=1) for p in ("cache aware", "exact"))
    assert exact.hit_ratio > public.hit_ratio - 0.02
    assert exact.ttft_p95_s < public.ttft_p95_s * 1.1


def test_a_replica_that_dies_and_one_that_joins_cost_little() -> None:
    steady, changing = (row_of(mix, "bounded") for mix in ("multi-turn", CHANGES))
    assert changing.num_requests >= steady.num_requests * 0.9
    assert changing.hit_ratio > steady.hit_ratio - 0.12


async def test_as_servers_they_tell_what_they_have_as_replicas_do() -> None:
    """What ``benchmarks/routing_peers.py`` puts behind routers."""
    fleet = Fleet(1, speed=50.0, warm_up_s=0.0, duration_s=60.0)
    make = partial(Connection, fleet.replicas[0], fleet)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    client = ReplicaClient("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeouts)
    pool = ReplicaPool([client], {}, PoolTimings(0.05, 5.0, 1.0), SYSTEM_CLOCK)
    index = PrefixIndex(10_000)

    async def ask(request_id: str, prompt: str) -> int:
        """Cached tokens."""
        body = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": 3})
        head = f"x-request-id: {request_id}\r\n".encode()
        response = client.post(b"/v1/chat/completions", head, body.encode())
        await response.head
        events = (await read_body(response, 100_000)).split(b"\n\n")
        usage = json.loads(events[-3].removeprefix(b"data: "))["usage"]
        assert usage["completion_tokens"] == 3
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    watching = [
        asyncio.create_task(pool.watch(lambda: None)),
        asyncio.create_task(BlockStreams(pool, index, [ReplicaEvents(index)]).run()),
    ]
    await until(lambda: pool["a"].endpoint.block_bit > 0)
    prompt = "word " * 300
    text = prompt_text(b"", prompt.encode())
    index.expect("r-0", text, 300, pool["a"].endpoint.block_bit)
    assert await ask("r-0", prompt) == 0
    await until(lambda: not index.underway.links)
    believed = index.anchors.find(text.chain, ~0).holders[0][1]
    found = await ask("r-1", prompt + "and on")
    assert found - 3 * BLOCK_TOKENS < believed <= found == 300 // BLOCK_TOKENS * BLOCK_TOKENS
    counted = fleet.counted()
    assert (counted.prompt_tokens, counted.cached_tokens) == (301 + 303, found)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    await pool.close()
    server.close()
    await server.wait_closed()
