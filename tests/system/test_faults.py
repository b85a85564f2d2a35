"""A fleet under load and faults at once: afterwards every account says the same, to the token.

``--num-faulty-requests 10000`` runs it whole.  Clients leave in the middle of streams; the model
server breaks off answers; the quota store is restarted, gateway and billing are killed.  From a
thousand requests on there are two gateway processes, and where there is an Apache Kafka, events go
through it and its broker is restarted as well.
"""

import asyncio
import json
import os
import random
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from billing.audit_facts import read_waiting
from billing.ledger_database import reading
from contracts import metrics
from contracts.names import USAGE_TOPIC
from pandal.datadir import DataDir
from tests.billing.kafka_topic import create_topic
from tests.support.kafka_brokers import Broker, apache_kafka, running
from tests.support.waiting import eventually
from tests.system.accounts import ledger_account, quota_account
from tests.system.conftest import upstream
from tests.system.fleet_process import FleetProcess, create_key, run_pandal
from tests.system.real_fleet import counter
from tests.system.sdk_client import client

TENANTS = ("faulty-a", "faulty-b", "faulty-c")
PARALLEL = 12
WHOLE = 1_000  # from this size on with Kafka, which takes seconds to start

pytestmark = pytest.mark.timeout(1_800)


@dataclass
class Load:
    """Requests from many clients; what became of each."""

    fleet: FleetProcess
    sdks: dict[str, openai.OpenAI]  # by tenant
    outcomes: Counter[str] = field(default_factory=Counter)
    finished_tokens: Counter[str] = field(default_factory=Counter)  # by tenant, as clients saw it
    finished: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, num_requests: int, seed: int, faults: Callable[[], None]) -> None:
        """``faults`` happen while it runs."""
        seeded = random.Random(seed)
        plans = [(seeded.choice(TENANTS), seeded.random()) for _ in range(num_requests)]
        with ThreadPoolExecutor(PARALLEL) as pool:
            waiting = [pool.submit(self._ask, tenant, luck) for tenant, luck in plans]
            faults()
            for each in waiting:
                each.result()

    def _ask(self, tenant: str, luck: float) -> None:
        """A fifth of the clients leave, one in twenty answers breaks off."""
        leaves, breaks = luck < 0.2, 0.2 <= luck < 0.25
        words = "break off please" if breaks else "three words here"
        try:
            with self._stream(self.sdks[tenant], words) as stream:
                usage = None
                for number, chunk in enumerate(stream):
                    usage = chunk.usage or usage
                    if leaves and number == 2:
                        self._note("left")
                        return
            assert usage is not None
            self._note("finished", tenant, usage.total_tokens)
        except openai.APIError as exc:
            self._note(type(exc).__name__)

    def _stream(self, sdk: openai.OpenAI, words: str) -> openai.Stream[object]:
        return sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": words}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )

    def _note(self, outcome: str, tenant: str | None = None, tokens: int = 0) -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if tenant is not None:
                self.finished[tenant] += 1
                self.finished_tokens[tenant] += tokens


@pytest.fixture(scope="module")
def num_requests(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--num-faulty-requests"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, num_requests: int) -> Iterator[Broker | None]:
    if "KAFKA_HOME" not in os.environ or num_requests < WHOLE:
        yield None  # the spool, then
        return
    home = Path(os.environ["KAFKA_HOME"])
    with running(apache_kafka(home, tmp_path_factory.mktemp("kafka"))) as broker:
        asyncio.run(create_topic(broker.bootstrap, USAGE_TOPIC, num_partitions=4))
        yield broker


@pytest.fixture(scope="module")
def load(
    kafka: Broker | None, num_requests: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Load]:
    data_dir = tmp_path_factory.mktemp("faults") / "data"
    environment = {"GATEWAY_WORKERS": "2" if num_requests >= WHOLE else "1"}
    if kafka is not None:
        environment["PANDAL_KAFKA_BOOTSTRAP"] = kafka.bootstrap
    with ExitStack() as stack:
        url = stack.enter_context(upstream())
        fleet = FleetProcess.start(data_dir, "--dev-replica", url, environment=environment)
        stack.callback(fleet.end)
        fleet.wait_until_serving()
        rates = ("--tpm", "100000000", "--rpm", "10000000")
        yield Load(
            fleet,
            {
                tenant: stack.enter_context(client(fleet.url, create_key(data_dir, tenant, *rates)))
                for tenant in TENANTS
            },
        )


def kill(fleet: FleetProcess, name: str, number: signal.Signals = signal.SIGKILL) -> None:
    pid = fleet.child_pid(name)
    os.kill(pid, number)
    eventually(lambda: fleet.child_pid(name) != pid, f"{name} was not started again")


def has_told_its_quota(fleet: FleetProcess) -> bool:
    """A gateway that is killed before takes along what the store was not told (decision 0014)."""
    with urllib.request.urlopen(f"{fleet.url}/metrics") as answer:
        text = answer.read().decode()
    return (
        counter(text, metrics.GATEWAY_QUOTA_LOST) == counter(text, metrics.GATEWAY_QUOTA_OPEN) == 0
    )


def has_all_arrived(fleet: FleetProcess) -> bool:
    """To Kafka a dead gateway's last segment goes a minute later: nobody can write it then."""
    directory = DataDir(fleet.data_dir)
    with reading(directory.ledger_url) as connection:
        return not read_waiting(connection, directory.spool).keys


def test_after_all_faults_quota_and_ledger_agree_with_what_clients_saw(
    load: Load, kafka: Broker | None, num_requests: int
) -> None:
    fleet = load.fleet

    def faults() -> None:
        kill(fleet, "quota", signal.SIGTERM)
        eventually(lambda: has_told_its_quota(fleet), "what was served meanwhile to be told")
        for _ in range(max(1, num_requests // 1_000)):
            kill(fleet, "billing")
        if kafka is not None:
            kafka.stop()
            kafka.start()
        kill(fleet, "gateway")

    load.run(num_requests, seed=20261130, faults=faults)
    assert sum(load.outcomes.values()) == num_requests
    assert load.outcomes["finished"] > num_requests / 4, load.outcomes
    eventually(lambda: has_all_arrived(fleet), "all events to be in the ledger", patience_s=300)
    audited = run_pandal("audit", "--json", "--patience-s", "60", data_dir=fleet.data_dir)
    report = json.loads(audited.stdout)
    assert (audited.returncode, report["findings"], report["num_dead_letters"]) == (0, [], 0)
    for tenant in TENANTS:
        ledger = ledger_account(fleet.data_dir, [tenant])
        assert quota_account(fleet.data_dir, [tenant]) == ledger
        # What a client saw the end of is billed, whatever was killed after.
        assert ledger.num_requests >= load.finished[tenant]
        assert ledger.num_tokens >= load.finished_tokens[tenant]
