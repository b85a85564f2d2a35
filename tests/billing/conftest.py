"""A fresh ledger for each test, databases and brokers that last the whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from billing.ledger import Ledger
from tests.billing.usage_events import BOOK
from tests.billing.webhook_receiver import Receiver, receiving
from tests.support.kafka_brokers import (
    Broker,
    SecuredListener,
    apache_kafka,
    kafka_home,
    running,
    secured_listener,
    tansu,
)
from tests.support.postgres import Postgres, running_postgres


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Of a webhook's calls."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, ledger_url: str) -> str:
    """A ledger in each database in turn, the second where there is one."""
    if request.param == "sqlite":
        return ledger_url
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Knows the prices of ``usage_events.BOOK``."""
    yield from _ledger(ledger_url)


@pytest.fixture
def either(either_url: str) -> Iterator[Ledger]:
    """As ``ledger``, at ``either_url``."""
    yield from _ledger(either_url)


def _ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger(url)
    ledger.record_prices(BOOK)
    yield ledger
    ledger.close()


@pytest.fixture(scope="session", name="tansu")
def shared_tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tansu(tmp_path_factory.mktemp("tansu"))) as broker:
        yield broker


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> SecuredListener:
    """Of the shared Apache Kafka."""
    return secured_listener(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="session", name="apache")
def shared_apache(
    tmp_path_factory: pytest.TempPathFactory, secured: SecuredListener
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("kafka")
    with running(apache_kafka(kafka_home(), folder, secured=secured)) as broker:
        yield broker


@pytest.fixture(params=["tansu", "apache"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn, the second where it is installed."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen
