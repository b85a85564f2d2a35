"""``pandal doctor`` against real servers, sound and unsound."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from gateway.resp_address import RespAddress
from pandal.cli import app
from pandal.datadir import DataDir
from pandal.doctor.command import lines
from pandal.doctor.disk import disk_findings
from pandal.doctor.finding import Level, failure
from pandal.doctor.kafka import findings_of, kafka_findings
from pandal.doctor.replicas import Examined, examine, replica_findings
from pandal.doctor.valkey import valkey_findings
from pandal.kafka import TopicFacts
from pandal.keys import KeyRequest, create_key
from pandal.settings import CommandSettings
from tests.billing.kafka_topic import create_topic
from tests.gateway.processes import Valkey
from tests.support.kafka_brokers import running, tansu
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    found = Valkey(tmp_path_factory.mktemp("valkey"))
    found.start()
    yield found
    found.stop()


def levels(valkey: Valkey) -> dict[str, Level]:
    found = asyncio.run(valkey_findings(RespAddress.parse(valkey.url)))
    return {finding.fact.partition(" (")[0]: finding.level for finding in found}


def is_on_disk(client: redis.Redis) -> bool:
    told = client.info("persistence")
    return not (told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"])


def test_a_sound_store_is_fine(valkey: Valkey) -> None:
    assert set(levels(valkey).values()) == {Level.OK}


def test_an_unsound_store_is_told_from_a_sound_one(valkey: Valkey) -> None:
    with valkey.client as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        try:
            found = levels(valkey)
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("appendonly", "yes")
            eventually(lambda: is_on_disk(client), "all to be on disk again: it ends only then")
    assert found["it keeps nothing on disk"] is Level.FAILURE
    assert found["it may push counters out"] is Level.FAILURE
    assert [v for f, v in found.items() if "of its memory" in f] == [Level.WARNING]


def test_a_store_that_is_away_is_a_failure(tmp_path: Path) -> None:
    (finding,) = asyncio.run(valkey_findings(RespAddress.parse(f"unix://{tmp_path}/no.sock")))
    assert finding.level is Level.FAILURE


def test_replicas_are_held_against_each_other(dev_replica: str) -> None:
    examined = examine({"one": dev_replica, "away": "http://127.0.0.1:1"})
    found = {finding.level: finding.fact for finding in replica_findings(examined)}
    assert "away: " in found[Level.FAILURE]
    others = [
        Examined("a", None, is_ready=True, models=frozenset({"m"}), clock_s=-9.0),
        Examined("b", None, is_ready=True, models=frozenset({"n"})),
    ]
    told = [finding.fact for finding in replica_findings(others)]
    assert told == [
        "a: its clock is -9 s from this machine's",
        "they serve different models (m: 1; n: 1)",
    ]


def test_a_real_broker_tells_of_its_topic(tmp_path: Path) -> None:
    with running(tansu(tmp_path)) as broker:
        asyncio.run(create_topic(broker.bootstrap, "usage", num_partitions=3))
        found = kafka_findings(broker.bootstrap, CommandSettings(), "usage")
        assert found[0].fact.startswith("usage has 3 partitions")
    (away,) = kafka_findings("127.0.0.1:1", CommandSettings(), "usage")
    assert (away.level, "cannot be reached" in away.fact) == (Level.FAILURE, True)


def test_a_topic_that_can_lose_events_is_told() -> None:
    day_ms = 86_400_000
    weak = TopicFacts(3, least_replicas=1, least_in_sync=1, min_in_sync=1, retention_ms=day_ms)
    assert [f.level for f in findings_of(weak, "usage")] == [Level.OK, *[Level.WARNING] * 2]
    sound = TopicFacts(3, least_replicas=3, least_in_sync=3, min_in_sync=2, retention_ms=-1)
    assert [f.level for f in findings_of(sound, "usage")] == [Level.OK]
    stuck = TopicFacts(3, least_replicas=3, least_in_sync=1, min_in_sync=2, retention_ms=None)
    assert Level.FAILURE in [f.level for f in findings_of(stuck, "usage")]


def test_a_full_disk_is_a_failure_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert [f.about for f in disk_findings(tmp_path)] == ["disk"]
    (missing,) = disk_findings(tmp_path / "none")
    assert missing.level is Level.FAILURE


def test_what_is_told_fits_a_terminal_and_keeps_paths_whole() -> None:
    path = "/a/folder/whose/name/is/longer/than/anybody/would/like/it/to/be/but/here/it/is"
    told = list(lines(failure("disk", f"only 3 more files fit into {path}", "remove some " * 9)))
    assert told[0] == "FAIL  disk      only 3 more files fit into"
    assert told[1].strip() == path
    assert told[2].startswith(f"{'':16}-> remove some")
    assert all(len(line) <= 80 for line in told if path not in line)


def test_the_command_fails_where_something_does(data_dir: DataDir) -> None:
    create_key(data_dir, KeyRequest("acme"))
    result = CliRunner().invoke(app, ["doctor", "--json", "--data-dir", str(data_dir.root)])
    assert result.exit_code == 1
    found = {(f["about"], f["level"]) for f in json.loads(result.stdout)}
    assert ("fleet", "failure") in found
    assert ("policies", "ok") in found
    assert {about for about, _ in found} == {"fleet", "policies", "disk"}


def test_where_nothing_runs_one_line_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"FAIL  fleet     none is running on\n{'':16}{tmp_path}")
    assert result.stdout.count("FAIL") == 1
