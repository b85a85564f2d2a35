"""The whole system with its own engine and the small model: three counts, equal to the token."""

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from contracts import metrics
from tests.system.accounts import Account, ledger_account, quota_account
from tests.system.fleet_process import FleetProcess, create_key, eventually, processes_of

TENANTS = ("demo", "acme", "globex", "tiny")
NUM_PARALLEL = 20
MAX_TOKENS = 12

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class RealFleet:
    process: FleetProcess
    keys: dict[str, str]

    def sdk(self, tenant: str) -> openai.OpenAI:
        url = f"{self.process.url}/v1"
        return openai.OpenAI(base_url=url, api_key=self.keys[tenant], max_retries=0, timeout=300)

    def engine_tokens(self) -> int:
        """The engine's own counters since it was started."""
        (url,) = self.process.state()["replica_urls"].values()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        return sum(counter(text, n) for n in (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS))

    def assert_all_counts_agree(self) -> None:
        directory = self.process.data_dir

        def is_settled() -> bool:
            quota = quota_account(directory, TENANTS)
            return quota == ledger_account(directory, TENANTS) and (
                quota.num_tokens == self.engine_tokens()
            )

        try:
            eventually(is_settled, "the counts never agreed")
        except AssertionError:
            # Once more, for a message that shows all three.
            quota, ledger = quota_account(directory, TENANTS), ledger_account(directory, TENANTS)
            assert self.engine_tokens() == quota.num_tokens == ledger.num_tokens
            assert quota == ledger


def counter(text: str, name: str) -> int:
    values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert values, f"{name} is not in /metrics"
    return int(sum(map(float, values)))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    data_dir: Path = tmp_path_factory.mktemp("real") / "data"
    process = FleetProcess.start(data_dir)
    try:
        process.wait_until_serving()
        keys = {
            "acme": create_key(data_dir, "acme", "--tier", "gold"),
            "globex": create_key(data_dir, "globex", "--tier", "gold"),
            # Two seconds refill 100 tokens: long enough to be refused, short enough to wait for.
            "tiny": create_key(data_dir, "tiny", "--tpm", "3000"),
        }
        yield RealFleet(process, keys)
    finally:
        process.end()


def messages(text: str) -> list[openai.types.chat.ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


def test_an_answer_comes_whole(fleet: RealFleet) -> None:
    answer = fleet.sdk("acme").chat.completions.create(
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
    whole = fleet.sdk("acme").chat.completions.create(**asked)
    stream = fleet.sdk("acme").chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    fleet.assert_all_counts_agree()


def test_twenty_at_once_are_each_counted_once(fleet: RealFleet) -> None:
    before = ledger_account(fleet.process.data_dir, TENANTS)

    def ask(number: int) -> int:
        tenant = "acme" if number % 2 else "globex"
        text = f"Count from {number} to {number + 5}."
        if number % 3 == 0:
            answer = fleet.sdk(tenant).chat.completions.create(
                model="default", messages=messages(text), max_tokens=MAX_TOKENS
            )
            assert answer.usage is not None
            return answer.usage.total_tokens
        stream = fleet.sdk(tenant).chat.completions.create(
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
    stream = fleet.sdk("acme").chat.completions.create(
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
    impatient = fleet.sdk("acme").with_options(timeout=1.0)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            model="default", messages=messages("Tell me a long story."), max_tokens=1_000
        )
    eventually(
        lambda: (ledger_account(fleet.process.data_dir, TENANTS) - before).num_requests == 1,
        "the abandoned request was not booked",
    )
    fleet.assert_all_counts_agree()


def test_over_quota_is_refused_until_retry_after_and_not_longer(fleet: RealFleet) -> None:
    sdk = fleet.sdk("tiny")

    def ask() -> None:
        # Reserves most of a minute's 3000 tokens, uses few: the refusal is the reservation's.
        sdk.chat.completions.create(
            model="default", messages=messages("Say hi."), max_tokens=1_000, stop=["\n", ".", "!"]
        )

    holder = threading.Event()
    refusals: list[openai.RateLimitError] = []

    def hold() -> None:
        with sdk.chat.completions.create(
            model="default", messages=messages("Tell a story."), max_tokens=1_000, stream=True
        ) as stream:
            for _chunk in stream:
                if holder.is_set():
                    return

    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(hold) for _ in range(4)]
        try:
            eventually(lambda: _is_refused(ask, refusals), "four reservations left room")
        finally:
            holder.set()
        for each in held:
            try:
                each.result()
            except openai.RateLimitError as exc:
                refusals.append(exc)
    response = refusals[0].response
    assert response.status_code == 429
    retry_after_s = int(response.headers["retry-after"])
    assert retry_after_s >= 1
    time.sleep(retry_after_s)
    ask()
    fleet.assert_all_counts_agree()


def _is_refused(ask: object, refusals: list[openai.RateLimitError]) -> bool:
    try:
        ask()
    except openai.RateLimitError as exc:
        refusals.append(exc)
    return bool(refusals)


def test_a_gateway_killed_right_after_an_answer_loses_nothing(fleet: RealFleet) -> None:
    gateway = fleet.process.child_pid("gateway")
    stream = fleet.sdk("globex").chat.completions.create(
        model="default", messages=messages("Say hello."), max_tokens=MAX_TOKENS, stream=True
    )
    for _chunk in stream:
        continue
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: fleet.process.child_pid("gateway") != gateway, "not started again")
    fleet.assert_all_counts_agree()


def test_sigterm_leaves_no_process(fleet: RealFleet) -> None:
    """Last: the fleet is gone after it."""
    fleet.assert_all_counts_agree()
    assert fleet.process.terminate() == 0
    assert processes_of(fleet.process.data_dir) == []
