"""A fresh ledger for each test, and brokers that last the whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from billing.ledger import Ledger
from tests.billing.usage_events import BOOK
from tests.support.kafka_brokers import Broker, apache_kafka, kafka_home, running, tansu


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Knows the prices of ``usage_events.BOOK``."""
    ledger = Ledger(ledger_url)
    ledger.record_prices(BOOK)
    yield ledger
    ledger.close()


@pytest.fixture(scope="session", name="tansu")
def shared_tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tansu(tmp_path_factory.mktemp("tansu"))) as broker:
        yield broker


@pytest.fixture(scope="session", name="apache")
def shared_apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(apache_kafka(kafka_home(), tmp_path_factory.mktemp("kafka"))) as broker:
        yield broker


@pytest.fixture(params=["tansu", "apache"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn, the second where it is installed."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen
