"""A replica's load and its cache, told to those who choose replicas."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.blocks import (
    BLOCKS_PATH,
    BlockChanges,
    BlockRemoved,
    BlocksCleared,
    BlockSnapshot,
    BlockStored,
)
from contracts.load import LOAD_PATH, ReplicaLoad
from replica.engine.block_mirror import BlockMirror, Subscription
from replica.engine.messages import BlockStored as EngineBlockStored
from replica.engine.messages import SamplingParams
from replica.engine.output_forecast import OutputForecast
from replica.engine.scheduler import SchedulerLimits
from replica.engine.step_meter import StepMeter
from tests.replica.engine_harness import STEP_S, EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.launchers import EarlyLauncher
from tests.replica.replica_process import ReplicaProcess, next_event
from tests.replica.test_engine_fuzz import prompts
from tests.support.waiting import eventually

Line = BlockSnapshot | BlockChanges
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


class Follower:
    """Knows the cache from the stream alone."""

    def __init__(self) -> None:
        self.hashes: set[str] = set()
        self._seq: int | None = None

    def take(self, line: bytes) -> None:
        message = msgspec.json.decode(line, type=Line)
        if isinstance(message, BlockSnapshot):
            self.hashes = {block.hash for block in message.blocks}
        else:
            assert self._seq is not None
            assert message.seq == self._seq + 1
            for change in message.changes:
                self._change(change)
        self._seq = message.seq

    def _change(self, change: BlockStored | BlockRemoved | BlocksCleared) -> None:
        match change:
            case BlockStored(hash=hash_):
                self.hashes.add(hash_)
            case BlockRemoved(hash=hash_):
                self.hashes.remove(hash_)
            case BlocksCleared():
                self.hashes.clear()


def engine_with_mirror(mirror: BlockMirror, num_blocks: int) -> EngineHarness:
    limits = SchedulerLimits(4, 4, 16)
    engine = EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks)
    engine.on_report = lambda report: mirror.apply(report.block_changes)
    return engine


def drain(subscription: Subscription, follower: Follower) -> None:
    while not subscription.changes.empty():
        line = subscription.changes.get_nowait()
        assert line is not None
        follower.take(line)


@settings(max_examples=100, deadline=None)
@given(
    work=st.lists(st.one_of(prompts, st.integers(1, 8), st.none()), max_size=25),
    joined_at=st.integers(0, 24),
)
def test_mirror_made_of_events_alone_equals_the_cache(
    work: list[list[int] | int | None], joined_at: int
) -> None:
    """Also for who joins in the middle.  None clears the cache."""
    mirror = BlockMirror()
    engine = engine_with_mirror(mirror, num_blocks=20)
    followers: list[tuple[Subscription, Follower]] = []

    subscriptions = ExitStack()

    def join() -> None:
        subscription = subscriptions.enter_context(mirror.subscribe())
        follower = Follower()
        for part in subscription.snapshot:
            follower.take(part)
        followers.append((subscription, follower))

    join()
    for index, item in enumerate(work):
        if index == joined_at:
            join()
        if item is None:
            engine.clear_cache()
        elif isinstance(item, int):
            for _ in range(item):
                engine.step()
        else:
            engine.submit(item, PARAMS)
    engine.run()
    truth = {content.digest.hex() for content in engine.blocks.contents}
    for subscription, follower in followers:
        drain(subscription, follower)
        assert follower.hashes == truth
    subscriptions.close()


@pytest.mark.parametrize(("num_steps", "num_parts"), [(0, 2), (1, 3), (5_000, 3)])
def test_a_large_snapshot_comes_in_parts_and_goes_on_where_it_was_taken(
    num_steps: int, num_parts: int
) -> None:
    mirror = BlockMirror()
    for step in range(num_steps):
        mirror.apply([EngineBlockStored(b"%d" % step, b"", 16)])
    if num_steps < 2:
        mirror.apply([EngineBlockStored(b"x%d" % n, b"", 16) for n in range(5_000)])
    follower = Follower()
    with mirror.subscribe() as subscription:
        mirror.apply([EngineBlockStored(b"late", b"", 16)])
        parts = list(subscription.snapshot)
        for part in parts:
            follower.take(part)
        assert b"late".hex() not in follower.hashes
        drain(subscription, follower)
    assert len(follower.hashes) == 5_000 + (num_steps == 1) + 1
    assert len(parts) == num_parts, "no more than there were steps"


def test_reader_that_falls_behind_is_cut_off() -> None:
    mirror = BlockMirror()
    engine = engine_with_mirror(mirror, num_blocks=400)
    with mirror.subscribe() as slow:
        for token in range(1, 60):
            engine.submit([token] * 9, SamplingParams(max_tokens=80, ignore_eos=True))
            engine.run()
        lines = [slow.changes.get_nowait() for _ in range(slow.changes.qsize())]
    assert lines[-1] is None
    assert None not in lines[:-1]


def test_expected_output_follows_the_lengths_of_answers() -> None:
    forecast = OutputForecast()
    forecast.enter(100, 0)
    assert forecast.expected_tokens == 100
    for _ in range(20):
        forecast.generate()
    assert forecast.expected_tokens == 80
    forecast.leave(100, 20, is_complete=True)
    assert forecast.expected_tokens == 0
    forecast.enter(100, 0)
    assert forecast.expected_tokens == 20
    forecast.enter(5, 0)
    assert 5 < forecast.expected_tokens <= 40


def test_rates_are_measured_apart() -> None:
    meter = StepMeter()
    assert meter.prefill.tokens_per_s == meter.decode.tokens_per_s == 0.0
    meter.note(num_prefilled=100, num_decoded=4, duration_s=0.5)
    meter.note(num_prefilled=0, num_decoded=4, duration_s=0.1)
    assert meter.prefill.tokens_per_s == pytest.approx(200)
    assert meter.decode.tokens_per_s == pytest.approx(40)
    for _ in range(2000):
        meter.note(num_prefilled=0, num_decoded=4, duration_s=0.2)
    assert meter.decode.tokens_per_s == pytest.approx(20)


def engine_a_step_ahead() -> EngineHarness:
    """In which each step takes time."""
    limits = SchedulerLimits(4, 4, 16)
    return EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, 64, new_launcher=EarlyLauncher)


def test_the_last_token_of_a_prompt_is_not_decoded() -> None:
    engine = engine_a_step_ahead()
    engine.submit(list(range(1, 18)), SamplingParams(max_tokens=1))
    engine.run()
    assert engine.stats.decode_tokens_per_s == 0.0
    assert engine.stats.prefill_tokens_per_s == pytest.approx(17 / (2 * STEP_S), rel=0.02)


def test_what_was_decoded_in_vain_is_not_counted() -> None:
    """One of the two ends by itself at its second token, when its third is under way."""
    params = SamplingParams(max_tokens=3)
    prompts = ([1 + i % 60, 1 + i // 60] for i in range(600))
    of_length = {len(reference_completion(prompt, params)): prompt for prompt in prompts}
    engine = engine_a_step_ahead()
    engine.submit_together([of_length[2], of_length[3]], params)
    engine.run()
    assert engine.stats.decode_tokens_per_s == pytest.approx((2 + 1) / (2 * STEP_S), rel=0.02)


def load_of(replica: ReplicaProcess) -> ReplicaLoad:
    answer = replica.get(LOAD_PATH)
    assert answer.status == 200
    return msgspec.json.decode(answer.body, type=ReplicaLoad)


def test_load_over_http(replica: ReplicaProcess) -> None:
    body = {"prompt": "Count on:", "max_tokens": 900, "ignore_eos": True, "stream": True}
    connection = replica.connect()
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    next_event(response)
    next_event(response)
    next_event(response)
    busy = load_of(replica)
    connection.close()
    assert (busy.num_running, busy.is_ready, busy.is_draining) == (1, True, False)
    assert busy.kv_cache_usage > 0
    assert busy.expected_output_tokens > 0
    assert busy.prefill_tokens_per_s > 0
    assert busy.decode_tokens_per_s > 0
    eventually(lambda: load_of(replica).num_running == 0, "the client's leaving to be noticed")
    idle = load_of(replica)
    assert idle.expected_output_tokens == idle.queued_prompt_tokens == 0
    assert idle.num_kv_blocks > 0


@contextmanager
def following(replica: ReplicaProcess) -> Iterator[tuple[http.client.HTTPResponse, Follower]]:
    connection = replica.connect()
    connection.request("GET", BLOCKS_PATH)
    response = connection.getresponse()
    follower = Follower()
    follower.take(response.readline())
    yield response, follower
    response.close()
    connection.close()


def test_blocks_over_http(replica: ReplicaProcess) -> None:
    prompt = "A prefix that nobody else in these tests has. " * 10
    with following(replica) as (response, follower):
        before = set(follower.hashes)
        usage = replica.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json["usage"]
        while len(follower.hashes - before) < usage["prompt_tokens"] // 16:
            follower.take(response.readline())
        with following(replica) as (_, late):
            assert late.hashes == follower.hashes
        assert replica.request("POST", "/reset_prefix_cache").status == 200
        while follower.hashes:
            follower.take(response.readline())
    again = replica.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == 0
