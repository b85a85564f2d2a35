"""Exact routing before a real vLLM: its block events, followed by the gateway's own reader.

    VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model PATH --port 8000 \
        --enable-prompt-tokens-details --kv-events-config '{"enable_kv_cache_events": true, \
        "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}' \
        --num-gpu-blocks-override 40
    python -m benchmarks.peers.engine_events http://127.0.0.1:8000 PORT REPLAY_PORT

To an endpoint without a star vLLM's publisher connects, and nobody can subscribe; with one for the
port it listens where any is free, and ``ss -ltnp`` tells which two its EngineCore has; the wrong
way round nothing is ever told.
Prints what the gateway believes to be cached beside what the engine then reports, for a prompt and
one that begins alike; after others have displaced them (few blocks: soon); after a new subscriber
has asked for all again; and after a reset.
The exit status tells whether it never believed more than there was, nor less by a boundary.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.clock import SYSTEM_CLOCK
from gateway.routing.block_streams import BlockStreams
from gateway.routing.engine_streams import EngineStreams, Publisher
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.text_chain import prompt_text
from gateway.upstream.replica_client import ReplicaClient, Timeouts

NAME = "vllm"
PATIENCE_S = 300.0  # on a CPU that others work, too
MAX_ANSWER_BYTES = 1_000_000
MAX_OTHERS = 40  # prompts, until those before them are displaced
BOUNDARY_TOKENS = 256  # of such a text, and a block
TIMEOUTS = Timeouts(connect_s=5.0, head_s=PATIENCE_S, idle_s=PATIENCE_S, keep_alive_s=5.0)


class Follower:
    def __init__(self, pool: ReplicaPool, index: PrefixIndex) -> None:
        self.index = index
        self._replica = pool[NAME]

    @property
    def is_following(self) -> bool:
        return self._replica.endpoint.block_bit > 0

    def believed(self, messages: bytes) -> int:
        """Tokens."""
        bit = self._replica.endpoint.block_bit
        holders = self.index.anchors.find(prompt_text(b"", messages).chain, bit).holders
        return holders[0][1] if holders else 0

    async def ask(self, prompt: str) -> int:
        """Cached tokens, as the engine reports them."""
        (model,) = self._replica.models or ()
        messages = [{"role": "user", "content": prompt}]
        fields = {"model": model, "max_tokens": 2, "cache_salt": "salt", "messages": messages}
        body = json.dumps(fields).encode()
        if self._replica.prompt_tokens is not None:
            self._replica.prompt_tokens.ask(prompt_text(b"", written(prompt)), body)
        answer = await self._replica.client.ask(
            b"/v1/chat/completions", body, PATIENCE_S, MAX_ANSWER_BYTES
        )
        usage = json.loads(answer.body)["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    async def reset(self) -> None:
        await self._replica.client.ask(b"/reset_prefix_cache", b"", PATIENCE_S, MAX_ANSWER_BYTES)


def written(prompt: str) -> bytes:
    """As in the request's body, without what follows the prompt."""
    return json.dumps([{"role": "user", "content": prompt}]).encode()[:-3]


@asynccontextmanager
async def following(url: str, publisher: Publisher) -> AsyncIterator[Follower]:
    pool = ReplicaPool(
        [ReplicaClient(NAME, url, TIMEOUTS)], {}, PoolTimings(0.2, 5.0, 1.0), SYSTEM_CLOCK
    )
    index = PrefixIndex(100_000)
    streams = BlockStreams(pool, index, [EngineStreams(index, {NAME: publisher})])
    tasks = [asyncio.create_task(pool.watch(lambda: None)), asyncio.create_task(streams.run())]
    follower = Follower(pool, index)
    try:
        await until(lambda: follower.is_following)
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for is a reader's, and tells nobody
            await asyncio.sleep(0.05)


async def measure(url: str, publisher: Publisher) -> int:
    prompt = " ".join(f"word {number}" for number in range(200))
    longer = prompt + " and on"
    status = 0

    def compare(what: str, believed: int, cached: int) -> None:
        nonlocal status
        holds = cached - BOUNDARY_TOKENS <= believed <= cached
        status |= not holds
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}: {believed} believed, {cached} are")

    async with following(url, publisher) as follower:
        await follower.reset()
        await follower.ask("The first block tells how many tokens blocks have. " * 40)
        await until(lambda: len(follower.index.blocks) > 0)
        compare("nothing yet", follower.believed(written(prompt)), await follower.ask(prompt))
        await until(lambda: follower.believed(written(prompt)) > 0)
        compare("told by events", follower.believed(written(longer)), await follower.ask(longer))
        num_others = 0
        while follower.believed(written(prompt)) > 0 and num_others < MAX_OTHERS:
            num_others += 1
            await follower.ask(f"{num_others}: {prompt}")
        compare(
            f"displaced by {num_others} others",
            follower.believed(written(prompt)),
            await follower.ask(prompt),
        )
        num_blocks = len(follower.index.blocks)
    async with following(url, publisher) as follower:
        await until(lambda: len(follower.index.blocks) >= num_blocks)
        await follower.ask(longer)
        await until(lambda: follower.believed(written(prompt)) > 0)
        compare("told by a replay", follower.believed(written(prompt)), await follower.ask(prompt))
        await follower.reset()
        await follower.ask("vLLM tells of a reset with its next step.")
        await until(lambda: follower.believed(written(prompt)) == 0)
        compare("after a reset", 0, await follower.ask(prompt))
    return status


def main() -> int:
    url, port, replay_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    host = urlsplit(url).hostname or "127.0.0.1"
    return asyncio.run(measure(url, Publisher(host, port, replay_port)))


if __name__ == "__main__":
    sys.exit(main())
