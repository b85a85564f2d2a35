"""Brokers that are not there are told of before anything is started, with Kafka's name."""

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from contracts.names import USAGE_TOPIC
from pandal.datadir import DataDir
from pandal.errors import BadOption
from pandal.installation import check_bootstrap
from tests.billing.kafka_topic import create_topic
from tests.pandal.command_line import assert_refused, pandal
from tests.support.kafka_brokers import apache_kafka, kafka_home, running, tansu

DEAD = "127.0.0.1:1"  # privileged, and nobody serves tcpmux


def up(data_dir: DataDir, port: int, bootstrap: str) -> subprocess.CompletedProcess[str]:
    return pandal(
        *("up", "--once", "--data-dir", str(data_dir.root), "--port", str(port)),
        *("--model", "no-such-model"),
        PANDAL_KAFKA_BOOTSTRAP=bootstrap,
    )


@pytest.mark.parametrize(
    "bootstrap", ["kafka", "kafka://localhost:9092", "a:1,b", "a:0", "a:65536", "a b:1", ":1", "a:"]
)
def test_what_is_no_list_of_brokers_is_named(bootstrap: str) -> None:
    with pytest.raises(BadOption, match="HOST:PORT") as refusal:
        check_bootstrap(bootstrap)
    assert repr(bootstrap) in str(refusal.value)


@pytest.mark.parametrize("bootstrap", ["a:1", "a.example:9092, b-2:9092", "10.0.0.1:1", "[::1]:1"])
def test_lists_of_brokers_are_taken(bootstrap: str) -> None:
    check_bootstrap(bootstrap)


def test_a_malformed_address_is_wrong_usage(data_dir: DataDir, free_port: int) -> None:
    result = up(data_dir, free_port, "localhost")
    assert_refused(result, 2, "PANDAL_KAFKA_BOOTSTRAP: expected Kafka brokers", data_dir)


def test_a_dead_broker_is_named(data_dir: DataDir, free_port: int) -> None:
    assert_refused(
        up(data_dir, free_port, DEAD),
        1,
        f"Kafka at {DEAD} (PANDAL_KAFKA_BOOTSTRAP) cannot",
        data_dir,
    )


def test_a_broker_that_answers_nothing_is_named(data_dir: DataDir, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert_refused(up(data_dir, free_port, address), 1, f"Kafka at {address}", data_dir)


def test_a_server_that_is_no_broker_is_named(
    data_dir: DataDir, free_port: int, dev_replica: str
) -> None:
    address = dev_replica.removeprefix("http://")
    assert_refused(up(data_dir, free_port, address), 1, f"Kafka at {address}", data_dir)


def test_a_missing_topic_is_named(data_dir: DataDir, free_port: int, tmp_path: Path) -> None:
    """Brokers that make a topic when it is first asked for do so here, as they would later."""
    settings = "auto.create.topics.enable=false"
    with running(apache_kafka(kafka_home(), tmp_path, settings=settings)) as broker:
        result = up(data_dir, free_port, broker.bootstrap)
    assert_refused(result, 1, f"has no topic '{USAGE_TOPIC}'; create it first", data_dir)


async def test_a_broker_with_the_topic_is_no_hindrance(
    data_dir: DataDir, free_port: int, tmp_path: Path
) -> None:
    with running(tansu(tmp_path)) as broker:
        await create_topic(broker.bootstrap, USAGE_TOPIC, num_partitions=1)
        result = await asyncio.to_thread(up, data_dir, free_port, broker.bootstrap)
    assert_refused(result, 1, "no-such-model", data_dir)
