"""The whole system with its own engine and the small model: four counts, equal to the token."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import openai
import pytest

from contracts import metrics
from contracts.replica_usage import ReplicaUsage
from tests.support.waiting import eventually
from tests.system.accounts import (
    Account,
    ledger_account,
    quota_account,
    witnessed,
)
from tests.system.fleet_process import FleetProcess, processes_of, run_pandal
from tests.system.real_fleet import LIMITS, TENANTS, RealFleet, messages, sdk

NUM_PARALLEL = 20
MAX_TOKENS = 12

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    data_dir: Path = tmp_path_factory.mktemp("real") / "data"
    process = FleetProcess.start(data_dir)
    try:
        process.wait_until_serving()
        with ExitStack() as stack:
            yield RealFleet(
                process,
                {
                    tenant: stack.enter_context(sdk(process, tenant, *limits))
                    for tenant, limits in LIMITS.items()
                },
            )
    finally:
        process.end()


def texts(stream: openai.Stream[openai.types.chat.ChatCompletionChunk]) -> Iterator[str]:
    """Of one chunk each, and only of those that have any."""
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


def engine_pid(replica_pid: int) -> int:
    (pid,) = Path(f"/proc/{replica_pid}/task/{replica_pid}/children").read_text().split()
    return int(pid)


def test_an_answer_comes_whole(fleet: RealFleet) -> None:
    answer = fleet.sdks["acme"].chat.completions.create(
        model="default",
        messages=messages("What is the capital of France?"),
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= MAX_TOKENS
    fleet.assert_all_counts_agree()


def test_a_stream_says_what_the_whole_answer_says(fleet: RealFleet) -> None:
    asked = {
        "model": "default",
        "messages": messages("Name three colours."),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    whole = fleet.sdks["acme"].chat.completions.create(**asked)
    stream = fleet.sdks["acme"].chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    fleet.assert_all_counts_agree()


def test_logprobs_and_penalties_reach_the_engine_and_the_client(fleet: RealFleet) -> None:
    asked = {
        "model": "default",
        "messages": messages("Count from one to ten, in words."),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.5,
        "extra_body": {"repetition_penalty": 1.3},
    }
    create = fleet.sdks["acme"].chat.completions.create
    (choice,) = create(**asked).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert any(entry.token != entry.top_logprobs[0].token for entry in choice.logprobs.content)
    streamed = [c.choices[0].logprobs for c in create(**asked, stream=True) if c.choices]
    entries = [e for told in streamed if told is not None for e in told.content or ()]
    assert entries == choice.logprobs.content
    with pytest.raises(openai.BadRequestError) as refused:
        create(**asked | {"presence_penalty": 2.5})
    assert refused.value.param == "presence_penalty"
    fleet.assert_all_counts_agree()


def test_tenants_never_share_a_prefix(fleet: RealFleet) -> None:
    """Neither told nor taken: where nothing is found, everything is computed, and no time tells."""

    def num_cached_tokens(tenant: str, salt: str | None) -> int:
        found_before = fleet.engine_count(metrics.PREFIX_CACHE_HITS)
        answer = fleet.sdks[tenant].completions.create(
            model="default",
            prompt="Keep this to yourself, whoever asks. " * 12,
            max_tokens=1,
            extra_body={} if salt is None else {"cache_salt": salt},
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        told = answer.usage.prompt_tokens_details.cached_tokens
        assert told == fleet.engine_count(metrics.PREFIX_CACHE_HITS) - found_before
        return told

    for salt in (None, "chosen by both"):
        assert num_cached_tokens("acme", salt) == 0
        assert num_cached_tokens("acme", salt) > 64
        assert num_cached_tokens("globex", salt) == 0
        assert num_cached_tokens("globex", salt) > 64


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_several_choices_cost_one_prompt(fleet: RealFleet, is_stream: bool) -> None:
    fleet.assert_all_counts_agree()  # what was asked before is booked
    before = ledger_account(fleet.process.data_dir, TENANTS)
    asked = {
        "model": "default",
        "messages": messages("Name a colour."),
        "max_tokens": MAX_TOKENS,
        "seed": 3,
    }
    alone = fleet.sdks["acme"].chat.completions.create(**asked)
    if is_stream:
        stream = fleet.sdks["acme"].chat.completions.create(
            **asked, n=3, stream=True, stream_options={"include_usage": True}
        )
        usage = [chunk.usage for chunk in stream][-1]
    else:
        answer = fleet.sdks["acme"].chat.completions.create(**asked, n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        usage = answer.usage
    assert usage is not None
    assert alone.usage is not None
    assert usage.prompt_tokens == alone.usage.prompt_tokens
    assert 3 <= usage.completion_tokens <= 3 * MAX_TOKENS
    fleet.assert_all_counts_agree()
    used = ledger_account(fleet.process.data_dir, TENANTS) - before
    assert used == Account(2, usage.total_tokens + alone.usage.total_tokens)


def test_twenty_at_once_are_each_counted_once(fleet: RealFleet) -> None:
    before = ledger_account(fleet.process.data_dir, TENANTS)

    def ask(number: int) -> int:
        tenant = "acme" if number % 2 else "globex"
        text = f"Count from {number} to {number + 5}."
        if number % 3 == 0:
            answer = fleet.sdks[tenant].chat.completions.create(
                model="default", messages=messages(text), max_tokens=MAX_TOKENS
            )
            assert answer.usage is not None
            return answer.usage.total_tokens
        stream = fleet.sdks[tenant].chat.completions.create(
            model="default",
            messages=messages(text),
            max_tokens=MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        return sum(chunk.usage.total_tokens for chunk in stream if chunk.usage is not None)

    with ThreadPoolExecutor(NUM_PARALLEL) as pool:
        num_tokens = sum(pool.map(ask, range(NUM_PARALLEL)))
    fleet.assert_all_counts_agree()
    used = ledger_account(fleet.process.data_dir, TENANTS) - before
    assert used == Account(NUM_PARALLEL, num_tokens)


def test_a_client_that_leaves_pays_for_what_was_generated(fleet: RealFleet) -> None:
    before = ledger_account(fleet.process.data_dir, TENANTS)
    stream = fleet.sdks["acme"].chat.completions.create(
        model="default", messages=messages("Tell me a long story."), max_tokens=1_000, stream=True
    )
    for _, _chunk in zip(range(4), stream, strict=False):
        continue
    stream.close()
    eventually(
        lambda: (ledger_account(fleet.process.data_dir, TENANTS) - before).num_requests == 1,
        "the broken stream was not booked",
    )
    fleet.assert_all_counts_agree()
    used = ledger_account(fleet.process.data_dir, TENANTS) - before
    assert 4 <= used.num_tokens < 1_000


def test_a_client_that_leaves_before_its_whole_answer_is_counted(fleet: RealFleet) -> None:
    before = ledger_account(fleet.process.data_dir, TENANTS)
    impatient = fleet.sdks["acme"].with_options(timeout=1.0)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            model="default",
            messages=messages("Tell me a long story."),
            max_tokens=1_000,
            extra_body={"ignore_eos": True},  # or chance may make it a short one
        )
    eventually(
        lambda: (ledger_account(fleet.process.data_dir, TENANTS) - before).num_requests == 1,
        "the abandoned request was not booked",
    )
    fleet.assert_all_counts_agree()


@pytest.mark.parametrize("tenant", ["few-tokens", "few-requests"])
def test_a_refused_tenant_is_admitted_after_retry_after(fleet: RealFleet, tenant: str) -> None:
    def ask() -> None:
        fleet.sdks[tenant].chat.completions.create(
            model="default", messages=messages("Say hi."), max_tokens=1
        )

    num_served = 0

    def spend_all() -> None:
        nonlocal num_served
        while num_served < 100:
            ask()
            num_served += 1

    fleet.assert_all_counts_agree()  # what was asked before is booked
    before = ledger_account(fleet.process.data_dir, TENANTS)
    with pytest.raises(openai.RateLimitError) as refusal:
        spend_all()
    time.sleep(int(refusal.value.response.headers["retry-after"]))
    ask()
    fleet.assert_all_counts_agree()
    used = ledger_account(fleet.process.data_dir, TENANTS) - before
    assert used.num_requests == num_served + 1


def test_a_gateway_killed_right_after_an_answer_loses_nothing(fleet: RealFleet) -> None:
    gateway = fleet.process.child_pid("gateway")
    stream = fleet.sdks["globex"].chat.completions.create(
        model="default", messages=messages("Say hello."), max_tokens=MAX_TOKENS, stream=True
    )
    for _chunk in stream:
        continue
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: fleet.process.child_pid("gateway") != gateway, "not started again")
    fleet.assert_all_counts_agree()
    eventually(fleet.answers, "the gateway never came back")
    fleet.assert_all_counts_agree()


def test_what_a_killed_engine_had_delivered_is_billed(fleet: RealFleet) -> None:
    """By the gateway's own count, as the engine's is lost with it.

    From here on nobody asks the engine's counters: they begin again.
    """
    before = ledger_account(fleet.process.data_dir, TENANTS)
    streams = [
        fleet.sdks["acme"].chat.completions.create(
            model="default",
            messages=messages("Tell me a long story."),
            max_tokens=1_000,
            n=num_choices,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for num_choices in (2, 3)  # several choices are not resumed
    ]
    delivered = [text for stream in streams for text in islice(texts(stream), 4)]
    os.kill(engine_pid(fleet.process.child_pid("replica-0")), signal.SIGKILL)
    for stream in streams:
        with pytest.raises(openai.APIError):
            delivered.extend(texts(stream))
    directory = fleet.process.data_dir
    eventually(
        lambda: (ledger_account(directory, TENANTS) - before).num_requests == len(streams),
        "the broken streams were not booked",
    )
    used = ledger_account(directory, TENANTS) - before
    assert used.num_tokens > len(delivered) >= 8  # and the prompts
    earlier = {record.event_id for record in witnessed(directory, "replica-0")}

    def is_witnessed() -> bool:
        """Nothing waits for a replica's record, and its replica is killed next."""
        later = [r for r in witnessed(directory, "replica-0") if r.event_id not in earlier]
        return any(record.tenant_id == "globex" for record in later)

    eventually(fleet.answers, "the replica never came back")
    eventually(is_witnessed, "the replica kept no record")


def test_a_killed_replica_is_loaded_again(fleet: RealFleet) -> None:
    """Behind all that ask the engine: its counters begin again."""
    replica = fleet.process.child_pid("replica-0")
    os.kill(replica, signal.SIGKILL)
    eventually(fleet.answers, "the replica never came back")
    assert fleet.process.child_pid("replica-0") != replica
    directory = fleet.process.data_dir
    eventually(
        lambda: quota_account(directory, TENANTS) == ledger_account(directory, TENANTS),
        "quota and ledger never agreed",
    )


def test_what_a_killed_gateway_never_billed_is_posted_from_its_replicas_record(
    fleet: RealFleet,
) -> None:
    """And the quota is told of it: its reservation is held still."""
    directory = fleet.process.data_dir
    before = ledger_account(directory, TENANTS)
    earlier = {record.event_id for record in witnessed(directory, "replica-0")}

    def lost() -> list[ReplicaUsage]:
        """Of this tenant: what was asked of before may be recorded only now."""
        later = [r for r in witnessed(directory, "replica-0") if r.event_id not in earlier]
        return [record for record in later if record.tenant_id == "acme"]

    stream = fleet.sdks["acme"].chat.completions.create(
        model="default",
        messages=messages("Tell me a long story."),
        max_tokens=1_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _, _chunk in zip(range(4), stream, strict=False):
        continue
    os.kill(fleet.process.child_pid("gateway"), signal.SIGKILL)
    eventually(lambda: len(lost()) == 1, "the replica kept no record")
    (record,) = lost()
    for _ in range(2):
        audited = run_pandal("audit", "--recover", "--grace-s", "0", "--json", data_dir=directory)
        report = json.loads(audited.stdout)
        assert (audited.returncode, report["findings"]) == (0, [])
        used = ledger_account(directory, TENANTS) - before
        assert used == Account(
            1,
            record.input_uncached_tokens
            + record.input_cache_read_tokens
            + record.output_text_tokens,
        )
        assert report["accounts"]["acme"]["recovered"]["num_tokens"] == used.num_tokens


def test_sigterm_leaves_no_process(fleet: RealFleet) -> None:
    """Last: the fleet is gone after it."""
    assert any("engine" in command for command in processes_of(fleet.process.data_dir))
    assert fleet.process.terminate() == 0
    assert processes_of(fleet.process.data_dir) == []


def test_a_killed_launcher_leaves_no_engine(tmp_path: Path) -> None:
    fleet = FleetProcess.start(tmp_path / "data")
    try:
        fleet.wait_until_serving()
        fleet.process.kill()
        fleet.process.wait()
        eventually(lambda: processes_of(fleet.data_dir) == [], "orphans are left")
    finally:
        fleet.end()
