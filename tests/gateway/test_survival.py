"""A stream whose replica dies goes on with another: real replicas, and wires that are cut."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.usage import Outcome, UsageEvent
from gateway.api.context import Operation
from gateway.app import Gateway, create_app
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.settings import ReplicaAddress, Settings
from tests.gateway.http_client import request_bytes
from tests.gateway.processes import PEPPER, Policies, Valkey
from tests.gateway.scene import RecordedTransport, Scene, until
from tests.replica.replica_process import ReplicaProcess
from tests.support.cutting_proxy import Cuts, CuttingProxy, cutting_proxy

NUM_TOKENS = 64
PROMPT = "ab"
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
TEXT = {"prompt": PROMPT}
GREEDY: dict[str, object] = {"temperature": 0}
SEEDED: dict[str, object] = {"temperature": 1.0, "seed": 11}
MOST_RUNS = 400

pytestmark = pytest.mark.timeout(600)  # the replica compiles its kernels first


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_tiny_model(folder, context_length=1024)
    return folder


def new_replica(folder: Path, model: Path) -> ReplicaProcess:
    return ReplicaProcess(
        folder / "log",
        model=model,
        max_model_len=1024,
        kv_cache_bytes=16 << 20,
        max_num_seqs=32,
        num_threads=1,
    )


@pytest.fixture(scope="module")
def replica(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    with new_replica(tmp_path_factory.mktemp("replica"), tiny_model) as process:
        process.wait_ready()
        yield process


@dataclass(frozen=True)
class Streamed:
    """What one client got."""

    status: bytes
    payloads: Sequence[str]

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads if payload != "[DONE]"]

    @property
    def answer(self) -> tuple[str, str, object]:
        """Its text, why it ended, and what it took."""
        text, reason, usage = "", "", None
        for document in self.documents:
            usage = document.get("usage") or usage
            for choice in document.get("choices", ()):
                text += choice.get("text") or choice.get("delta", {}).get("content", "")
                reason += choice["finish_reason"] or ""
        counts = None if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])
        return text, reason, counts

    @property
    def is_whole(self) -> bool:
        envelopes = {(d["id"], d["created"], d["model"]) for d in self.documents}
        hidden = all("token_ids" not in payload for payload in self.payloads)
        return self.payloads[-1] == "[DONE]" and len(envelopes) == 1 and hidden


@dataclass(frozen=True)
class Fleet:
    """A gateway in this process before one replica, that it takes for two."""

    gateway: Gateway
    cuts: Cuts
    wires: Sequence[CuttingProxy]
    scene: Scene
    tenant: str
    valkey: Valkey

    async def stream(
        self, body: dict[str, object], *, cut_after: Sequence[int | None] = ()
    ) -> Streamed:
        self.cuts.planned[:] = cut_after
        self.cuts.bodies.clear()
        return await self.ask(body)

    async def ask(
        self, body: dict[str, object], transport: RecordedTransport | None = None
    ) -> Streamed:
        transport = RecordedTransport() if transport is None else transport
        members = {
            "model": "tiny",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
        }
        operation = Operation.CHAT_COMPLETIONS if "messages" in body else Operation.COMPLETIONS
        exchange = Exchange(
            transport,
            request_head(operation, [(b"authorization", f"Bearer sk-{self.tenant}".encode())]),
            on_complete=lambda: None,
        )
        exchange.body = request_bytes(members | body, None).partition(b"\r\n\r\n")[2]
        await self.gateway.pipeline.serve(exchange)
        head, _, rest = transport.written.partition(b"\r\n\r\n")
        return Streamed(head.split(b"\r\n")[0], payloads_of(rest))

    @property
    def resumed_at(self) -> list[int]:
        """How many tokens each later generation was given."""
        return [len(json.loads(body).get("resume_tokens", ())) for body in self.cuts.bodies[1:]]

    def settled(self) -> dict[str, int]:
        return self.valkey.settled(self.tenant)

    async def events(self, count: int) -> list[UsageEvent]:
        await until(lambda: len(self.scene.events()) >= count)
        assert len(self.scene.events()) == count
        return self.scene.events()


def payloads_of(chunked: bytes) -> list[str]:
    body = b""
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        length = int(size, 16)
        body, chunked = body + rest[:length], rest[length + 2 :]
    events = body.decode().split("\n\n")
    return [event.removeprefix("data: ") for event in events if event]


@asynccontextmanager
async def fleet_of(
    folder: Path, valkey: Valkey, policies: Policies, *replicas: ReplicaProcess
) -> AsyncIterator[Fleet]:
    tenant = f"t{folder.name[-40:]}".replace("_", "-").lower().strip("-")
    policies.add(tenant, f"sk-{tenant}", tokens_per_minute=10**9, requests_per_minute=10**6)
    cuts = Cuts()
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(cutting_proxy(replica.port, cuts))
            for replica in replicas
        ]
        settings = Settings(
            replicas=tuple(
                ReplicaAddress(name=f"r{number}", url=wire.url) for number, wire in enumerate(wires)
            ),
            policy_file=policies.path,
            key_pepper=PEPPER,
            quota_url=valkey.url,
            quota_call_deadline_s=5.0,
            spool_dir=folder / "spool",
            poll_interval_s=0.05,
            poll_timeout_s=20.0,  # this machine may be busy with other tests
            connect_timeout_s=20.0,
            resume_patience_s=60.0,
        )
        gateway = await stack.enter_async_context(create_app(settings, lambda _: None))
        await until(lambda: not gateway.readiness.reasons_not_ready())
        scene = Scene(gateway, folder / "spool", tenant, valkey)
        yield Fleet(gateway, cuts, wires, scene, tenant, valkey)


@pytest.fixture
async def fleet(
    tmp_path: Path, valkey: Valkey, policies: Policies, replica: ReplicaProcess
) -> AsyncIterator[Fleet]:
    async with fleet_of(tmp_path, valkey, policies, replica, replica) as fleet:
        yield fleet


@pytest.mark.parametrize(
    ("body", "step"), [(CHAT | SEEDED, 1), (TEXT | GREEDY, 8)], ids=["chat-seeded", "text-greedy"]
)
async def test_a_stream_survives_a_cut_after_any_token(
    fleet: Fleet, body: dict[str, object], step: int
) -> None:
    whole = await fleet.stream(body)
    assert whole.is_whole
    assert whole.answer[2] == (len(PROMPT) + 5 * ("messages" in body), NUM_TOKENS)
    wanted = set(range(step, NUM_TOKENS + 1, step))
    num_runs = 1
    while wanted:
        assert num_runs < MOST_RUNS, f"no stream was cut after {sorted(wanted)} tokens"
        num_runs += 1
        cut = await fleet.stream(body, cut_after=[min(wanted)])
        assert cut.is_whole
        assert cut.answer == whole.answer
        wanted -= set(fleet.resumed_at)
    events = await fleet.events(num_runs)
    assert {event.outcome for event in events} == {Outcome.COMPLETED}
    assert {(e.input_tokens, e.output_text_tokens) for e in events} == {whole.answer[2]}
    assert fleet.settled() == {"requests": num_runs, "tokens": sum(e.total_tokens for e in events)}


async def test_a_stream_survives_a_cut_before_its_first_token(fleet: Fleet) -> None:
    whole = await fleet.stream(CHAT | GREEDY)
    cut = await fleet.stream(CHAT | GREEDY, cut_after=[0])
    assert (cut.is_whole, fleet.resumed_at) == (True, [0])
    assert cut.answer == whole.answer


async def test_a_stream_survives_two_cuts_and_one_within_an_event(fleet: Fleet) -> None:
    whole = await fleet.stream(CHAT | SEEDED)
    for cuts in ([5, 9], [20, 0], [NUM_TOKENS, 0]):
        for fleet.cuts.is_mid_event in (False, True):
            cut = await fleet.stream(CHAT | SEEDED, cut_after=cuts)
            assert cut.is_whole
            assert cut.answer == whole.answer
            assert len(fleet.resumed_at) >= len(cuts)


async def test_without_a_seed_one_is_shared_by_all_attempts(fleet: Fleet) -> None:
    cut = await fleet.stream(CHAT | {"temperature": 1.0}, cut_after=[NUM_TOKENS])
    assert cut.is_whole
    assert cut.answer[2] == (len(PROMPT) + 5, NUM_TOKENS)
    assert len({json.loads(body)["seed"] for body in fleet.cuts.bodies}) == 1


async def test_a_stop_string_across_the_seam_ends_the_answer(fleet: Fleet) -> None:
    text = (await fleet.stream(TEXT | GREEDY)).answer[0]
    start = next(n for n in range(len(text) - 6, 8, -1) if text.find(text[n : n + 4]) == n)
    body = TEXT | GREEDY | {"stop": [text[start : start + 4]]}
    whole = await fleet.stream(body)
    assert whole.answer[:2] == (text[:start], "stop")
    (num_tokens,) = {event.output_text_tokens for event in (await fleet.events(2))[1:]}
    for cut_after in range(num_tokens - 5, num_tokens + 1):
        cut = await fleet.stream(body, cut_after=[cut_after])
        assert cut.is_whole
        assert cut.answer == whole.answer


async def test_streams_by_the_dozen_survive(fleet: Fleet) -> None:
    bodies: list[dict[str, object]] = [
        {"prompt": f"p{number}", "temperature": 1.0, "seed": number} for number in range(32)
    ]
    whole = [await fleet.stream(body) for body in bodies]
    fleet.cuts.planned[:] = [3 + number for number in range(48)]
    cut = await asyncio.gather(*(fleet.ask(body) for body in bodies))
    assert not fleet.cuts.planned
    assert all(streamed.is_whole for streamed in cut)
    assert [streamed.answer for streamed in cut] == [streamed.answer for streamed in whole]
    events = await fleet.events(64)
    assert fleet.settled() == {"requests": 64, "tokens": sum(e.total_tokens for e in events)}


async def test_a_stream_that_nobody_can_go_on_with_ends_with_an_error_and_a_bill(
    fleet: Fleet,
) -> None:
    cut = await fleet.stream(CHAT | GREEDY, cut_after=[10, 0, 0])
    assert "[DONE]" not in cut.payloads
    assert json.loads(cut.payloads[-1])["error"]["code"] == "upstream_error"
    (event,) = await fleet.events(1)
    assert event.outcome is Outcome.UPSTREAM_FAILED
    assert event.input_tokens == len(PROMPT) + 5
    assert fleet.resumed_at[0] <= event.output_text_tokens <= NUM_TOKENS, "the engine's own count"
    assert fleet.settled() == {"requests": 1, "tokens": event.total_tokens}


async def test_streams_survive_a_replica_that_is_killed(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    replica: ReplicaProcess,
    tiny_model: Path,
) -> None:
    bodies: list[dict[str, object]] = [
        {"prompt": f"k{number}", "temperature": 1.0, "seed": number, "max_tokens": 700}
        for number in range(8)
    ]
    with new_replica(tmp_path, tiny_model) as victim:
        victim.wait_ready()
        async with fleet_of(tmp_path, valkey, policies, replica, victim) as fleet:
            await until(lambda: min(wire.num_polls for wire in fleet.wires) > 9)
            whole = [await fleet.ask(body) for body in bodies]
            wire, before = fleet.wires[1], fleet.wires[1].num_events
            streams = [asyncio.create_task(fleet.ask(body)) for body in bodies]
            await until(lambda: wire.num_events > before + 100)
            victim.process.kill()
            cut = await asyncio.gather(*streams)
            events = await fleet.events(16)
    assert all(streamed.is_whole for streamed in cut)
    assert [streamed.answer for streamed in cut] == [streamed.answer for streamed in whole]
    assert {event.output_text_tokens for event in events} == {700}
    assert len(fleet.cuts.bodies) > 16, "some had to go on elsewhere"
