"""A fleet under load and faults at once: afterwards every account says the same, to the token.

``make soak`` runs it whole.  Clients leave in the middle of streams; the model server breaks off
answers, and keeps its own count of all of them; the quota store is restarted, billing is killed,
and a gateway in the middle of answers.  From a thousand requests on there are two gateway
processes, and where there is an Apache Kafka, events go through it and its broker is restarted.
"""

import asyncio
import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from billing.audit_facts import read_waiting
from billing.ledger_database import reading
from contracts.names import USAGE_TOPIC
from pandal.datadir import DataDir
from tests.billing.kafka_topic import create_topic
from tests.support.kafka_brokers import Broker, apache_kafka, running
from tests.support.waiting import eventually
from tests.system.accounts import ledger_account, quota_account
from tests.system.conftest import upstream
from tests.system.fleet_process import FleetProcess, create_key, run_pandal
from tests.system.sdk_client import client

TENANTS = ("faulty-a", "faulty-b", "faulty-c")
PARALLEL = 12
_AHEAD = 8 * PARALLEL  # requests that run into a fault: no more, some faults take longer than all
WHOLE = 1_000  # from this size on with Kafka, which takes seconds to start

Fault = tuple[float, Callable[[], None]]  # after which part of the requests

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

    def run(self, num_requests: int, seed: int, faults: Sequence[Fault]) -> None:
        """Each fault comes when its part of the requests has ended, while others run."""
        seeded = random.Random(seed)
        plans = [(seeded.choice(TENANTS), seeded.random()) for _ in range(num_requests)]
        with ThreadPoolExecutor(PARALLEL) as pool:
            asked: list[Future[None]] = []
            for part, fault in sorted(faults, key=lambda pair: pair[0]):
                due = int(part * num_requests)
                asked += self._ask_all(pool, plans[len(asked) : due + _AHEAD])
                eventually(
                    lambda due=due: self.num_ended >= due,  # type: ignore[misc]
                    f"{due} requests to have ended",
                    patience_s=1_200,
                )
                assert self.num_ended < len(asked), "nothing was running any more"
                fault()
            for each in [*asked, *self._ask_all(pool, plans[len(asked) :])]:
                each.result()

    def _ask_all(
        self, pool: ThreadPoolExecutor, plans: Sequence[tuple[str, float]]
    ) -> list[Future[None]]:
        return [pool.submit(self._ask, tenant, luck) for tenant, luck in plans]

    @property
    def num_ended(self) -> int:
        with self.lock:
            return sum(self.outcomes.values())

    def _ask(self, tenant: str, luck: float) -> None:
        """A fifth of the clients leave, one in twenty answers breaks off, one in ten is slow.

        So there is always one in the middle.
        """
        leaves, breaks, is_slow = luck < 0.2, 0.2 <= luck < 0.25, 0.25 <= luck < 0.35
        words = (
            "break off please" if breaks else "slowly, please" if is_slow else "three words here"
        )
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
            # A gateway that starts refuses in no time: the whole load would be spent on it.
            eventually(self._is_listening, "a gateway to listen again")

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.fleet.port)) == 0

    def _stream(self, sdk: openai.OpenAI, words: str) -> openai.Stream[ChatCompletionChunk]:
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
        journal = DataDir(data_dir).usage_journal("replica-0")
        url = stack.enter_context(upstream("journal", str(journal)))
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


def has_all_arrived(fleet: FleetProcess) -> bool:
    """To Kafka a dead gateway's last segment goes a minute later: nobody can write it then."""
    directory = DataDir(fleet.data_dir)
    with reading(directory.ledger_url) as connection:
        return not read_waiting(connection, directory.spool).keys


def test_after_all_faults_engine_quota_and_ledger_agree_with_what_clients_saw(
    load: Load, kafka: Broker | None, num_requests: int
) -> None:
    fleet = load.fleet

    def bounce_kafka() -> None:
        if kafka is not None:
            kafka.stop()
            kafka.start()

    num_billing_kills = max(1, num_requests // 1_000)
    faults: list[Fault] = [
        (0.1, lambda: kill(fleet, "quota", signal.SIGTERM)),
        *(
            (0.2 + 0.7 * number / num_billing_kills, lambda: kill(fleet, "billing"))
            for number in range(num_billing_kills)
        ),
        (0.4, lambda: bouncing.append(beside.submit(bounce_kafka))),  # slower than the rest
        (0.6, lambda: kill(fleet, "gateway")),
    ]
    bouncing: list[Future[None]] = []
    with ThreadPoolExecutor(1) as beside:
        load.run(num_requests, seed=20261130, faults=faults)
    for each in bouncing:
        each.result()
    assert load.num_ended == num_requests
    assert load.outcomes["finished"] > num_requests / 4, load.outcomes
    assert load.outcomes["left"] > num_requests / 20, load.outcomes
    assert len(load.outcomes) > 2, "nothing broke off"
    eventually(lambda: has_all_arrived(fleet), "all events to be in the ledger", patience_s=300)
    once = ("--json", "--recover", "--patience-s", "120", "--grace-s", "0")
    brokers = {} if kafka is None else {"PANDAL_KAFKA_BOOTSTRAP": kafka.bootstrap}
    audited = run_pandal("audit", *once, data_dir=fleet.data_dir, environment=brokers)
    report = json.loads(audited.stdout)
    assert report["findings"] == [], report["accounts"]
    assert (audited.returncode, report["num_dead_letters"]) == (0, 0)
    for tenant in TENANTS:
        ledger = ledger_account(fleet.data_dir, [tenant])
        assert quota_account(fleet.data_dir, [tenant]) == ledger
        assert report["accounts"][tenant]["engine"]["num_tokens"] == ledger.num_tokens
        # What a client saw the end of is billed, whatever was killed after.
        assert ledger.num_requests >= load.finished[tenant]
        assert ledger.num_tokens >= load.finished_tokens[tenant]
    assert all(report["accounts"][tenant]["engine"]["num_tokens"] > 0 for tenant in TENANTS)
