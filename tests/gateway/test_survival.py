"""A stream whose replica dies goes on with another: real replicas, and wires that are cut."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from billing.pricing import TokenClass
from contracts.usage import Outcome, UsageEvent
from gateway.api.context import Operation
from gateway.app import Gateway, create_app
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.settings import ReplicaAddress, Settings
from tests.gateway.http_client import request_bytes
from tests.gateway.posting import posted
from tests.gateway.processes import PEPPER, Policies, Valkey
from tests.gateway.scene import RecordedTransport, Scene, until
from tests.replica.replica_process import ReplicaProcess
from tests.support.cutting_proxy import Cuts, CuttingProxy, cutting_proxy
from tests.support.waiting import PATIENCE_S

NUM_TOKENS = 64
PROMPT = "ab"
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
TEXT = {"prompt": PROMPT}
GREEDY: dict[str, object] = {"temperature": 0}
SEEDED: dict[str, object] = {"temperature": 1.0, "seed": 11}
AT_ONCE = 16  # streams
MOST_RUNS = 4_000

pytestmark = pytest.mark.timeout(600)  # the replica compiles its kernels first


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_tiny_model(folder, context_length=1024)
    return folder


def new_replica(folder: Path, model: Path, **settings: object) -> ReplicaProcess:
    return ReplicaProcess(
        folder / "log",
        model=model,
        max_model_len=1024,
        kv_cache_bytes=16 << 20,
        max_num_seqs=32,
        num_threads=1,
        **settings,
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

    async def stream(self, body: dict[str, object], *, cut_after: Sequence[int] = ()) -> Streamed:
        self.cuts.attempts.clear()
        return await self.ask(body | {"cut_after": cut_after})

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


@pytest.mark.parametrize("body", [CHAT | SEEDED, TEXT | GREEDY], ids=["chat-seeded", "text-greedy"])
async def test_a_stream_survives_a_cut_after_any_token(
    fleet: Fleet, body: dict[str, object]
) -> None:
    """Where an event holds several, the cut is behind them all: that one is tried again."""
    whole = await fleet.stream(body)
    assert whole.is_whole
    assert whole.answer[2] == (len(PROMPT) + 5 * ("messages" in body), NUM_TOKENS)
    wanted = set(range(NUM_TOKENS + 1))
    num_runs = 1
    while wanted:
        assert num_runs < MOST_RUNS, f"no stream was cut after {sorted(wanted)} tokens"
        places = sorted(wanted)[:AT_ONCE]
        num_runs += len(places)
        for cut in await asyncio.gather(*(fleet.ask(body | {"cut_after": [n]}) for n in places)):
            assert cut.is_whole
            assert cut.answer == whole.answer
        wanted -= set(fleet.cuts.resumed_at)
    events = await fleet.events(num_runs)
    assert {event.outcome for event in events} == {Outcome.COMPLETED}
    assert {(e.input_tokens, e.output_text_tokens) for e in events} == {whole.answer[2]}
    assert fleet.settled() == {"requests": num_runs, "tokens": sum(e.total_tokens for e in events)}


async def test_a_stream_survives_two_cuts_and_one_within_an_event(fleet: Fleet) -> None:
    whole = await fleet.stream(CHAT | SEEDED)
    for cuts in ([5, 9], [20, 0], [NUM_TOKENS, 0]):
        for fleet.cuts.is_mid_event in (False, True):
            cut = await fleet.stream(CHAT | SEEDED, cut_after=cuts)
            assert cut.is_whole
            assert cut.answer == whole.answer
            assert len(fleet.cuts.resumed_at) >= len(cuts)


async def test_without_a_seed_one_is_shared_by_all_attempts(fleet: Fleet) -> None:
    cut = await fleet.stream(CHAT | {"temperature": 1.0}, cut_after=[NUM_TOKENS])
    assert cut.is_whole
    assert cut.answer[2] == (len(PROMPT) + 5, NUM_TOKENS)
    (bodies,) = fleet.cuts.attempts.values()
    assert len({body["seed"] for body in bodies}) == 1


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
async def test_what_was_cached_is_saved_once(fleet: Fleet, tmp_path: Path, is_warm: bool) -> None:
    """By the first attempt.  The later ones meet its own traces: there is but one replica."""
    prompt = f"{is_warm}, and it was once upon a time " * 8
    body = GREEDY | {"prompt": prompt}
    if is_warm:
        await fleet.stream(body)
    before = fleet.settled().get("tokens", 0)
    cut = await fleet.stream(body, cut_after=[20, 9])
    assert len(fleet.cuts.resumed_at) >= 2
    told = cut.documents[-1]["usage"]
    cached = told["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < len(prompt) if is_warm else cached == 0
    assert (told["prompt_tokens"], told["completion_tokens"]) == (len(prompt), NUM_TOKENS)
    assert fleet.settled()["tokens"] - before == told["total_tokens"]
    event = (await fleet.events(1 + is_warm))[-1]
    assert posted(tmp_path, fleet.tenant, [event]) == {
        TokenClass.INPUT_UNCACHED: len(prompt) - cached,
        TokenClass.INPUT_CACHE_READ: cached,
        TokenClass.INPUT_CACHE_WRITE: 0,
        TokenClass.OUTPUT_TEXT: NUM_TOKENS,
        TokenClass.OUTPUT_REASONING: 0,
    }


async def test_a_stop_string_across_the_seam_ends_the_answer(fleet: Fleet) -> None:
    text = (await fleet.stream(TEXT | GREEDY)).answer[0]
    start = next(n for n in range(len(text) - 6, 8, -1) if text.find(text[n : n + 4]) == n)
    body = TEXT | GREEDY | {"stop": [text[start : start + 4]]}
    whole = await fleet.stream(body)
    assert whole.answer[:2] == (text[:start], "stop")
    (num_tokens,) = {event.output_text_tokens for event in (await fleet.events(2))[1:]}
    places = range(num_tokens - 5, num_tokens + 1)
    for cut in await asyncio.gather(*(fleet.ask(body | {"cut_after": [n]}) for n in places)):
        assert cut.is_whole
        assert cut.answer == whole.answer


async def test_streams_by_the_dozen_survive(fleet: Fleet) -> None:
    bodies: list[dict[str, object]] = [
        {"prompt": f"p{number}", "temperature": 1.0, "seed": number} for number in range(32)
    ]
    whole = await asyncio.gather(*(fleet.ask(body) for body in bodies))
    cuts = [[3 + number, 5] if number % 2 else [3 + number] for number in range(32)]
    cut = await asyncio.gather(
        *(fleet.ask(body | {"cut_after": after}) for body, after in zip(bodies, cuts, strict=True))
    )
    assert len(fleet.cuts.resumed_at) >= 48
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
    assert fleet.cuts.resumed_at[0] <= event.output_text_tokens <= NUM_TOKENS, (
        "the engine's own count"
    )
    assert fleet.settled() == {"requests": 1, "tokens": event.total_tokens}


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)], ids=["killed", "drained"]
)
async def test_streams_survive_a_replica_that_goes(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    replica: ReplicaProcess,
    tiny_model: Path,
    number: signal.Signals,
    exit_code: int,
) -> None:
    """With no time to finish them, be it dead or drained."""
    bodies: list[dict[str, object]] = [
        {"prompt": f"k{number}", "temperature": 1.0, "seed": number, "max_tokens": 700}
        for number in range(8)
    ]
    with new_replica(tmp_path, tiny_model, drain_timeout_s=0) as victim:
        victim.wait_ready()
        async with fleet_of(tmp_path, valkey, policies, replica, victim) as fleet:
            await until(lambda: min(wire.num_polls for wire in fleet.wires) > 9)
            whole = await asyncio.gather(*(fleet.ask(body) for body in bodies))
            wire, before = fleet.wires[1], fleet.wires[1].num_events
            streams = [asyncio.create_task(fleet.ask(body)) for body in bodies]
            await until(lambda: wire.num_events > before + 100)
            victim.process.send_signal(number)
            cut = await asyncio.gather(*streams)
            events = await fleet.events(16)
            settled = fleet.settled()
        assert await asyncio.to_thread(victim.process.wait, PATIENCE_S) == exit_code, victim.log
    assert all(streamed.is_whole for streamed in cut)
    assert [streamed.answer for streamed in cut] == [streamed.answer for streamed in whole]
    assert {event.output_text_tokens for event in events} == {700}
    assert {event.outcome for event in events} == {Outcome.COMPLETED}
    assert settled == {"requests": 16, "tokens": sum(event.total_tokens for event in events)}
    assert fleet.cuts.resumed_at, "some had to go on elsewhere"
