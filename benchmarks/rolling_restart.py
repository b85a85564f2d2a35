"""All replicas and both gateways are restarted, one by one, while clients go on asking.

    python -m benchmarks.rolling_restart [--clients 6] [--tokens 24] [--model SmolLM2-135M-Instruct]

Two replicas with their own engine, two gateways that share a quota store and no spool, and clients
that ask either gateway, streamed and whole in turn.  Each process is ended with SIGTERM and started
again on its port (a gateway on a new one).  Afterwards every answer must have been whole, and the
counts of engine, quota and ledger the same, to the token.  Exit status 1 where they are not.
"""

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.local_fleet import MODEL
from benchmarks.waiting import wait_until
from contracts.replica_usage import ReplicaUsage, decode_replica_usage
from contracts.spool import unframe
from contracts.usage import Outcome, UsageEvent
from tests.gateway.balancer import Balancer, Noticed, num_of
from tests.gateway.http_client import Reply
from tests.gateway.posting import posted
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.replica.replica_process import ReplicaProcess

TENANT, KEY = "rolling", "sk-rolling"
NO_LIMIT = {"tokens_per_minute": 100_000_000, "requests_per_minute": 1_000_000}
PATIENCE_S = 120.0


class Replica:
    """One place in the fleet: its port and its journal outlast the process."""

    def __init__(self, folder: Path, model: str) -> None:
        folder.mkdir()
        self.journal = folder / "journal"
        self._folder, self._model, self._num_starts = folder, model, 0
        self.process = self._started({})

    def restart(self, gateways: Sequence[Gateway]) -> int:
        """The exit code of the one that went.  Returns when both gateways send to the new one."""
        noticed, old = Noticed(list(gateways)), self.process
        old.terminate()
        code = old.process.wait(PATIENCE_S)
        self.process = self._started({"port": old.port})
        self.process.port = old.port
        self.process.wait_ready()
        wait_until(lambda: noticed.by_all("replica ready"), "it to be noticed", PATIENCE_S)
        return code

    def stop(self) -> None:
        """The process that is there now, if it still runs."""
        self.process.terminate()
        self.process.process.wait(PATIENCE_S)

    def records(self) -> list[ReplicaUsage]:
        """Of all its processes."""
        whole = b"".join(path.read_bytes() for path in sorted(self.journal.glob("*.spool")))
        return [decode_replica_usage(unframe(line)) for line in whole.splitlines(keepends=True)]

    def _started(self, settings: Mapping[str, object]) -> ReplicaProcess:
        self._num_starts += 1
        return ReplicaProcess(
            self._folder / f"log-{self._num_starts}",
            model=self._model,
            max_model_len=1024,
            kv_cache_bytes=128 << 20,
            num_threads=1,
            usage_journal_dir=self.journal,
            **settings,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    engine: int
    quota: int
    ledger: int

    @property
    def agree(self) -> bool:
        return self.engine == self.quota == self.ledger


def engine_tokens(records: Sequence[ReplicaUsage]) -> int:
    """All that was generated, and each request's prompt once, however often it was taken up."""
    by_event: dict[str | None, list[ReplicaUsage]] = defaultdict(list)
    for record in records:
        by_event[record.event_id].append(record)
    return sum(map(_tokens_of_one, by_event.values()))


def _tokens_of_one(records: Sequence[ReplicaUsage]) -> int:
    first = min(records, key=lambda record: record.resumed_tokens)
    prompt = first.input_uncached_tokens + first.input_cache_read_tokens
    return prompt + sum(record.output_text_tokens for record in records)


def is_whole(reply: Reply) -> bool:
    is_stream = reply.headers["content-type"].startswith("text/event-stream")
    return reply.status == 200 and (not is_stream or reply.payloads[-1] == "[DONE]")


async def roll(replicas: Sequence[Replica], gateways: Sequence[Gateway], load: Balancer) -> None:
    """Says how many were answered while each was away."""
    for number, replica in enumerate(replicas):
        before = len(load.replies)
        code = await asyncio.to_thread(replica.restart, gateways)
        print(f"replica {number}: exit code {code}, {len(load.replies) - before} answers meanwhile")
    for number, gateway in enumerate(gateways):
        before = len(load.replies)
        code = await asyncio.to_thread(gateway.stop)
        await asyncio.to_thread(gateway.start)
        await asyncio.to_thread(
            wait_until, lambda g=gateway: num_of(g, "replica ready") >= 4, "both", PATIENCE_S
        )
        print(f"gateway {number}: exit code {code}, {len(load.replies) - before} answers meanwhile")


async def under_load(
    replicas: Sequence[Replica], gateways: list[Gateway], given: argparse.Namespace
) -> Sequence[Reply]:
    members = {"model": given.model, "max_tokens": given.tokens, "temperature": 0}
    load = Balancer(gateways, KEY, members)
    clients = [asyncio.create_task(load.keep_asking(n)) for n in range(given.clients)]
    await roll(replicas, gateways, load)
    load.is_over = True
    await asyncio.gather(*clients)
    return load.replies


def counts_of(
    folder: Path, replicas: Sequence[Replica], events: Sequence[UsageEvent], valkey: Valkey
) -> Counts:
    records = [record for replica in replicas for record in replica.records()]
    return Counts(
        engine_tokens(records),
        valkey.settled(TENANT).get("tokens", 0),
        sum(posted(folder, TENANT, events).values()),
    )


def verdict(replies: Sequence[Reply], events: Sequence[UsageEvent], counts: Counts) -> bool:
    num_failed = sum(not is_whole(reply) for reply in replies)
    num_lost = len(replies) - len({event.event_id for event in events})
    is_completed = {event.outcome for event in events} == {Outcome.COMPLETED}
    print(f"{len(replies)} answers, {num_failed} failed; {len(events)} events, {num_lost} lost")
    print(f"tokens: engine {counts.engine}, quota {counts.quota}, ledger {counts.ledger}")
    return num_failed == num_lost == 0 and is_completed and counts.agree


def run(folder: Path, given: argparse.Namespace) -> bool:
    with ExitStack() as stack:
        valkey, policies = Valkey(folder), Policies(folder / "policy.json")
        policies.add(TENANT, KEY, **NO_LIMIT)
        valkey.start()
        stack.callback(valkey.stop)
        replicas = []
        for number in range(2):
            replicas.append(Replica(folder / f"replica-{number}", given.model))
            stack.callback(replicas[-1].stop)
        for replica in replicas:
            replica.process.wait_ready()
        gateways = [gateway(folder / f"gateway-{n}", replicas, valkey, policies) for n in range(2)]
        for each in gateways:
            stack.callback(each.stop)
            each.start()
            wait_until(lambda g=each: num_of(g, "replica ready") == 2, "both", PATIENCE_S)
        replies = asyncio.run(under_load(replicas, gateways, given))
        for each in gateways:
            each.stop()
        events = [event for each in gateways for event in each.events(TENANT)]
        for replica in replicas:
            replica.stop()
        return verdict(replies, events, counts_of(folder, replicas, events, valkey))


def gateway(
    folder: Path, replicas: Sequence[Replica], valkey: Valkey, policies: Policies
) -> Gateway:
    folder.mkdir()
    addresses = [{"name": f"r{n}", "url": r.process.url} for n, r in enumerate(replicas)]
    return Gateway(
        folder,
        quota_url=valkey.url,
        policy_file=policies.path,
        upstreams={},
        GATEWAY_REPLICAS=json.dumps(addresses),
        GATEWAY_GATEWAY_ID=folder.name,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--model", default=MODEL)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(Path(folder), parser.parse_args()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
