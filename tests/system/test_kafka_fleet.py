"""Usage events through a real broker instead of the spool folder."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.names import USAGE_TOPIC
from tests.billing.kafka_topic import create_topic
from tests.support.kafka_brokers import apache_kafka, kafka_home, running
from tests.system.accounts import ledger_account
from tests.system.fleet_process import FleetProcess


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(apache_kafka(kafka_home(), tmp_path_factory.mktemp("kafka"))) as broker:
        asyncio.run(create_topic(broker.bootstrap, USAGE_TOPIC, num_partitions=3))
        yield broker.bootstrap


@pytest.mark.timeout(300)
def test_the_ledger_line_comes_through_kafka(
    bootstrap: str, upstream_url: str, tmp_path: Path
) -> None:
    fleet = FleetProcess.start(
        tmp_path / "data",
        *("--once", "--dev-replica", upstream_url),
        environment={"PANDAL_KAFKA_BOOTSTRAP": bootstrap},
    )
    try:
        assert fleet.wait() == 0, fleet.screen
    finally:
        fleet.end()
    assert "booked for tenant demo" in fleet.screen
    assert ledger_account(fleet.data_dir, ["demo"]).num_requests == 1
