"""A change is in force a moment later; a store that is away or wrong leaves the last good one."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contracts.names import policy_changes, policy_current, policy_versions
from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    encode_policy_document,
    hash_api_key,
)
from contracts.policy_change import etag_of
from gateway.policies import LivePolicies
from gateway.policy_documents.file import FileDocuments
from gateway.policy_documents.valkey import ValkeyDocuments
from gateway.policy_watch import PolicyWatch
from gateway.resp_address import RespAddress
from tests.gateway.hanging_file import replace_by_pipe, wait_for_reader
from tests.gateway.processes import Valkey
from tests.gateway.scene import until

PEPPER = b"sixteen bytes ok"


def policy_of(version: int, *keys: str) -> bytes:
    records = tuple(
        ApiKeyRecord(key_id=f"id-{k}", key_hash=hash_api_key(k.encode(), PEPPER), key_prefix="sk")
        for k in keys
    )
    tenant = TenantPolicy(tenant_id="acme", tier="free", keys=records)
    return encode_policy_document(PolicyDocument(version=version, tenants=(tenant,)))


def key_ids(policies: LivePolicies) -> set[str]:
    current = policies.current
    return set() if current is None else {g.key.key_id for g in current.grants.values()}


@asynccontextmanager
async def watching(
    documents: FileDocuments | ValkeyDocuments, interval_s: float, last_good: Path | None = None
) -> AsyncIterator[LivePolicies]:
    policies = LivePolicies(documents.where, PEPPER, time.time)
    async with looking(documents, policies, interval_s, last_good):
        yield policies


@asynccontextmanager
async def looking(
    documents: FileDocuments | ValkeyDocuments,
    policies: LivePolicies,
    interval_s: float,
    last_good: Path | None = None,
) -> AsyncIterator[None]:
    watch = PolicyWatch(documents, policies, interval_s=interval_s, last_good=last_good)
    tasks = [asyncio.create_task(documents.run()), asyncio.create_task(watch.run())]
    await watch.start(0.5)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def in_valkey(valkey: Valkey) -> Callable[[bytes], None]:
    """Stores a document without telling anybody: as a notification that was missed."""
    with valkey.client as client:
        client.delete(policy_current(), policy_versions(), policy_changes())

    def store(payload: bytes) -> None:
        with valkey.client as client:
            client.hset(policy_current(), mapping={"etag": etag_of(payload), "document": payload})

    return store


async def test_a_change_that_nobody_was_told_of_is_seen(
    valkey: Valkey, in_valkey: Callable[[bytes], None]
) -> None:
    in_valkey(policy_of(1, "sk-1"))
    async with watching(ValkeyDocuments(RespAddress.parse(valkey.url)), 0.05) as policies:
        await until(lambda: key_ids(policies) == {"id-sk-1"})
        in_valkey(policy_of(2, "sk-2"))
        await until(lambda: key_ids(policies) == {"id-sk-2"})


async def test_an_invalid_document_leaves_the_last_good_one(
    valkey: Valkey, in_valkey: Callable[[bytes], None]
) -> None:
    in_valkey(policy_of(1, "sk-1"))
    async with watching(ValkeyDocuments(RespAddress.parse(valkey.url)), 0.05) as policies:
        await until(lambda: key_ids(policies) == {"id-sk-1"})
        in_valkey(b'{"version": -1}')
        await until(lambda: policies.is_refused)
        assert key_ids(policies) == {"id-sk-1"}
        in_valkey(policy_of(3))
        await until(lambda: not policies.is_refused)
        assert key_ids(policies) == set()


async def test_without_its_store_a_gateway_begins_with_the_last_good_one(
    valkey: Valkey, in_valkey: Callable[[bytes], None], tmp_path: Path
) -> None:
    copy = tmp_path / "last-good.json"
    in_valkey(policy_of(1, "sk-1"))
    async with watching(ValkeyDocuments(RespAddress.parse(valkey.url)), 0.05, copy) as policies:
        await until(lambda: key_ids(policies) == {"id-sk-1"})
        await until(copy.exists)  # written beside it: a disk may hang
    away = ValkeyDocuments(RespAddress.parse(f"unix://{tmp_path}/nobody.sock"))
    async with watching(away, 0.05, copy) as policies:
        assert key_ids(policies) == {"id-sk-1"}
        assert policies.is_store_lost


async def test_a_file_that_hangs_holds_up_nobody_who_is_known(tmp_path: Path) -> None:
    path, other = tmp_path / "policy.json", tmp_path / "other.json"
    path.write_bytes(policy_of(1, "sk-1"))
    other.write_bytes(policy_of(2, "sk-2"))
    async with watching(FileDocuments(path), 0.001) as policies:
        before = policies.current
        replace_by_pipe(path)
        pipe = await wait_for_reader(path)
        assert policies.current is before
        os.write(pipe, other.read_bytes())
        other.replace(path)  # what is read next hangs no more
        os.close(pipe)
        await until(lambda: key_ids(policies) == {"id-sk-2"})


async def test_all_is_worked_out_in_one_thread(tmp_path: Path) -> None:
    """Of two, the slower one could put an old document back in force: a revoked key would live."""
    path = tmp_path / "policy.json"
    path.write_bytes(policy_of(1, "sk-1"))
    asked: list[str] = []  # in which thread it was

    def wall_s() -> float:
        asked.append(threading.current_thread().name)
        return time.time()

    documents = FileDocuments(path)
    policies = LivePolicies(documents.where, PEPPER, wall_s)
    async with looking(documents, policies, 0.01):
        await until(lambda: len(asked) >= 3)
        path.write_bytes(policy_of(2, "sk-2"))
        await until(lambda: key_ids(policies) == {"id-sk-2"})
    assert set(asked) == {"policy-reader"}


async def test_the_last_good_one_is_kept_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path, copy = tmp_path / "policy.json", tmp_path / "copy.json"
    copy.write_bytes(policy_of(0))
    copy.chmod(0o644)
    (tmp_path / "copy.json.tmp").mkdir()  # as if another worker were at it
    path.write_bytes(policy_of(1, "sk-1"))
    async with watching(FileDocuments(path), 0.01, copy):
        await until(lambda: copy.read_bytes() == path.read_bytes())
    assert copy.stat().st_mode & 0o777 == 0o600


async def test_an_older_copy_takes_nobodys_place(tmp_path: Path) -> None:
    """A first look that was given up goes on unheard; what it finds is newer."""
    copy = tmp_path / "copy.json"
    copy.write_bytes(policy_of(1, "sk-1"))
    may_go_on, has_begun = threading.Event(), threading.Event()

    def wall_s() -> float:
        has_begun.set()
        assert may_go_on.wait(60)
        return time.time()

    path = tmp_path / "policy.json"
    path.write_bytes(policy_of(2, "sk-2"))
    documents = FileDocuments(path)
    policies = LivePolicies(documents.where, PEPPER, wall_s)
    watch = PolicyWatch(documents, policies, interval_s=60, last_good=copy)
    starting = asyncio.create_task(watch.start(0.05))
    await until(has_begun.is_set)
    await asyncio.wait([starting], timeout=0.2)
    may_go_on.set()
    await starting
    assert key_ids(policies) == {"id-sk-2"}
    running = asyncio.create_task(watch.run())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
