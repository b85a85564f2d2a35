"""Both stores of policy documents, held to one contract."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from contracts.names import policy_changes, policy_current, policy_versions
from contracts.policy import (
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
    encode_policy_document,
)
from contracts.policy_change import Editing, PolicyChange, change_of, etag_of
from gateway.errors import (
    PolicyAbsent,
    PolicyConflict,
    PolicyStoreUnavailable,
    UnknownPolicyVersion,
)
from gateway.keys_used import KeysUsed
from gateway.policy_documents.file import FileDocuments
from gateway.policy_documents.policy_file import PolicyFile
from gateway.policy_documents.port import PolicyDocuments
from gateway.policy_documents.valkey import ValkeyDocuments
from gateway.resp_address import RespAddress
from tests.gateway.processes import Valkey
from tests.gateway.scene import until

AT = datetime(2026, 11, 30, 8, tzinfo=UTC)


def document(version: int, *tenants: str) -> PolicyDocument:
    policies = tuple(TenantPolicy(tenant_id=name, tier="free") for name in tenants)
    return PolicyDocument(version=version, tenants=policies)


def stored(before: PolicyDocument, after: PolicyDocument) -> tuple[bytes, PolicyChange]:
    payload = encode_policy_document(after)
    return payload, change_of(before, after, payload, Editing(AT, "ann", "edit", "because"))


async def written(documents: PolicyDocuments, *steps: PolicyDocument) -> str | None:
    """The etag of the last."""
    etag, before = None, PolicyDocument(version=0)
    for step in steps:
        payload, change = stored(before, step)
        await documents.write(payload, change, expected=etag)
        etag, before = etag_of(payload), step
    return etag


@pytest.fixture(params=["file", "valkey"])
async def documents(
    request: pytest.FixtureRequest, tmp_path: Path, valkey: Valkey
) -> AsyncIterator[PolicyDocuments]:
    found: FileDocuments | ValkeyDocuments
    if request.param == "file":
        found = FileDocuments(tmp_path / "policies.json")
    else:
        with valkey.client as client:
            client.delete(policy_current(), policy_versions(), policy_changes())
        found = ValkeyDocuments(RespAddress.parse(valkey.url))
    running = asyncio.create_task(found.run())
    for _ in itertools.count():
        try:
            await found.read()
        except PolicyAbsent:
            break
        except PolicyStoreUnavailable:
            await asyncio.sleep(0.01)
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_written_is_read(documents: PolicyDocuments) -> None:
    etag = await written(documents, document(1, "acme"))
    found = await documents.read()
    assert found is not None
    assert (decode_policy_document(found.payload), found.etag) == (document(1, "acme"), etag)
    assert await documents.read(unless=etag) is None
    assert await documents.read(unless="other") == found


async def test_of_two_edits_of_one_document_one_is_refused(documents: PolicyDocuments) -> None:
    etag = await written(documents, document(1))
    edits = [stored(document(1), document(2, name)) for name in ("one", "two")]
    done = await asyncio.gather(
        *(documents.write(payload, change, expected=etag) for payload, change in edits),
        return_exceptions=True,
    )
    assert sorted(type(result) for result in done if result is not None) == [PolicyConflict]
    assert len(await documents.history(10)) == 2


async def test_the_first_document_takes_nobodys_place(documents: PolicyDocuments) -> None:
    await written(documents, document(1))
    with pytest.raises(PolicyConflict):
        await written(documents, document(1, "late"))


async def test_history_tells_who_when_what_and_why_newest_first(
    documents: PolicyDocuments,
) -> None:
    await written(documents, document(1), document(2, "acme"), document(3))
    newest, middle, _ = await documents.history(3)
    assert (newest.version, newest.who, newest.at, newest.why) == (3, "ann", AT, "because")
    assert [c.words for c in middle.changes] == [
        'tenants[acme]: (none) -> {"tenant_id":"acme","tier":"free"}'
    ]
    assert [entry.version for entry in await documents.history(1)] == [3]


async def test_every_version_can_be_had(documents: PolicyDocuments) -> None:
    await written(documents, document(1, "acme"), document(2))
    assert decode_policy_document(await documents.version(1)) == document(1, "acme")
    assert decode_policy_document(await documents.version(2)) == document(2)
    with pytest.raises(UnknownPolicyVersion):
        await documents.version(3)


async def test_a_change_ends_the_wait_for_one(documents: PolicyDocuments) -> None:
    etag = await written(documents, document(1))
    waiting = asyncio.create_task(documents.wait_changed(0.3))
    await asyncio.sleep(0)  # it is on its way
    payload, change = stored(document(1), document(2))
    await documents.write(payload, change, expected=etag)
    await waiting
    found = await documents.read(unless=etag)
    assert found is not None


def test_an_edit_by_hand_is_kept_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    path.write_bytes(encode_policy_document(document(7, "by-hand")))
    file = PolicyFile(path)
    found = file.read()
    assert found is not None
    payload, change = stored(document(7, "by-hand"), document(8))
    file.write(payload, change, expected=found.etag)
    assert [entry.action for entry in file.history(9)] == ["edit", "found"]
    assert decode_policy_document(file.version(7)) == document(7, "by-hand")


def test_what_a_killed_writer_left_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    file = PolicyFile(path)
    payload, change = stored(document(0), document(1))
    file.write(payload, change, expected=None)
    audit = tmp_path / "policies.json.history" / "audit.jsonl"
    ahead = msgspec.structs.replace(change, version=2)
    audit.write_bytes(audit.read_bytes() + msgspec.json.encode(ahead) + b'\n{"type":"pol')
    (tmp_path / "policies.json.history" / "000000002.json").write_bytes(payload)
    assert [entry.version for entry in file.history(9)] == [1]
    with pytest.raises(UnknownPolicyVersion):
        file.version(2)


def test_a_file_replaced_by_one_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    path, other = tmp_path / "policy.json", tmp_path / "other.json"
    path.write_bytes(b"1")
    file = PolicyFile(path)
    first = file.read()
    assert first is not None
    other.write_bytes(b"2")
    stamp = path.stat()
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)
    second = file.read(unless=first.etag)
    assert second is not None
    assert second.payload == b"2"


async def test_a_folder_that_is_gone_ends_no_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    documents = FileDocuments(folder / "policy.json")
    turns = 0

    def turn() -> dict[str, float]:
        nonlocal turns
        turns += 1
        return {"key-1": float(turns)}

    folder.rmdir()
    with pytest.raises(PolicyAbsent):
        await documents.read()
    noting = asyncio.create_task(KeysUsed(turn, documents, turn_s=0.001).run())
    await until(lambda: turns >= 3)
    assert [r.message for r in caplog.records] == ["when keys were used is not noted"]
    folder.mkdir()
    noted = turns
    await until(lambda: turns > noted + 1)
    assert await documents.keys_used()
    noting.cancel()
    running = asyncio.create_task(documents.run())
    running.cancel()
    await asyncio.gather(noting, running, return_exceptions=True)


async def test_an_outage_of_the_policy_store_is_not_called_the_quota_stores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = ValkeyDocuments(RespAddress.parse(f"unix://{tmp_path}/nobody.sock"))
    running = asyncio.create_task(documents.run())
    await until(lambda: bool(caplog.records))
    assert caplog.records[0].message == "policy store not usable"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
