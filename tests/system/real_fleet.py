"""A fleet with its own engine and the small model, and what it counts in four places."""

import re
import urllib.request
from dataclasses import dataclass

import openai

from contracts import metrics
from tests.support.waiting import eventually
from tests.system.accounts import ledger_account, quota_account, witness_account
from tests.system.fleet_process import FleetProcess, create_key

LIMITS = {
    "acme": ("--tier", "gold"),
    "globex": ("--tier", "gold"),
    # Used up by a dozen small requests, and refilled within seconds.
    "few-tokens": ("--tpm", "600"),
    "few-requests": ("--rpm", "20"),
}
TENANTS = ("demo", *LIMITS)


@dataclass(frozen=True)
class RealFleet:
    process: FleetProcess
    sdks: dict[str, openai.OpenAI]  # by tenant

    def engine_count(self, *names: str) -> int:
        """The sum of the engine's own counters since it was started."""
        (url,) = self.process.state()["replica_urls"].values()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        return sum(counter(text, name) for name in names)

    def engine_tokens(self) -> int:
        return self.engine_count(metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)

    def answers(self) -> bool:
        try:
            self.sdks["globex"].chat.completions.create(
                model="default", messages=messages("Say hello."), max_tokens=1
            )
        except openai.APIError:
            return False
        return True

    def assert_all_counts_agree(self) -> None:
        directory = self.process.data_dir

        def is_settled() -> bool:
            quota = quota_account(directory, TENANTS)
            witness = witness_account(directory, "replica-0")
            return quota == ledger_account(directory, TENANTS) and (
                quota.num_tokens == self.engine_tokens() == witness.num_tokens
            )

        try:
            eventually(is_settled, "the counts never agreed")
        except AssertionError:
            # Once more, for a message that shows all four.
            quota, ledger = quota_account(directory, TENANTS), ledger_account(directory, TENANTS)
            witness = witness_account(directory, "replica-0")
            engine_tokens = self.engine_tokens()
            assert engine_tokens == witness.num_tokens == quota.num_tokens == ledger.num_tokens
            assert quota == ledger


def counter(text: str, name: str) -> int:
    values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert values, f"{name} is not in /metrics"
    return int(sum(map(float, values)))


def sdk(process: FleetProcess, tenant: str, *limits: str) -> openai.OpenAI:
    api_key = create_key(process.data_dir, tenant, *limits)
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key=api_key, max_retries=0, timeout=300)


def messages(text: str) -> list[openai.types.chat.ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]
