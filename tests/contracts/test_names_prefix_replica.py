"""Names, block hashes and the replica's messages: equal in every process, never by accident."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ContractError
from contracts.names import (
    quota_bucket_key,
    quota_reservations_key,
    quota_settled_key,
    spool_source_id,
    tenant_id,
)
from contracts.prefix import block_hash, root_hash
from contracts.replica_api import AbortedUsage, Phase, ReplicaState, abort_path


@pytest.mark.parametrize("value", ["a", "acme", "acme-eu_1", "0", "a" * 63])
def test_tenant_ids(value: str) -> None:
    assert tenant_id(value) == value


@pytest.mark.parametrize(
    "value", ["", "A", "acme corp", "{acme}", "a:b", "-a", "a-", "ü", "a" * 64, "a\n"]
)
def test_what_is_not_a_tenant_id(value: str) -> None:
    with pytest.raises(ContractError):
        tenant_id(value)


def test_redis_keys() -> None:
    acme = tenant_id("acme")
    assert quota_bucket_key(acme) == "{acme}:quota:bucket"
    assert quota_reservations_key(acme) == "{acme}:quota:reservations"
    assert quota_settled_key(acme) == "{acme}:quota:settled"


def test_a_spool_segment_is_a_source_by_its_file_name() -> None:
    assert spool_source_id("0a-000000.spool") == "spool/0a-000000.spool"


def test_golden_hashes() -> None:
    root = root_hash(model_revision="m@1", cache_salt="t", kv_dtype="float32")
    assert root.hex() == "7dce60638094e46d47cf0312267fa7de"
    assert block_hash(root, [1, 2, 3]).hex() == "1b5ea8f40e41b56681ec45244fdd77b6"


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_roots_are_equal_only_for_equal_fields(
    a: tuple[str, str, str], b: tuple[str, str, str]
) -> None:
    """Fields are length-prefixed: moving a character from one to the next changes the hash."""

    def root(fields: tuple[str, str, str]) -> bytes:
        revision, salt, dtype = fields
        return root_hash(model_revision=revision, cache_salt=salt, kv_dtype=dtype)

    assert (root(a) == root(b)) == (a == b)
    assert root((a[0] + "x", a[1], a[2])) != root((a[0], "x" + a[1], a[2]))


@given(st.text(), st.text(), st.text(), st.one_of(st.none(), st.text()))
def test_adapters_share_no_root(revision: str, salt: str, adapter: str, other: str | None) -> None:
    def root(cache_salt: str, adapter_digest: str | None) -> bytes:
        return root_hash(
            model_revision=revision,
            cache_salt=cache_salt,
            kv_dtype="float32",
            adapter_digest=adapter_digest,
        )

    assert (root(salt, adapter) == root(salt, other)) == (adapter == other)
    assert root(salt, None) == root_hash(
        model_revision=revision, cache_salt=salt, kv_dtype="float32"
    ), "the absent adapter changes no hash"
    assert (root(salt, adapter) == root(adapter, salt)) == (salt == adapter)
    assert root("a", None) != root("", "a"), "vllm#44701"


def test_a_block_depends_on_its_parent() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        block_hash(b"short", [1])
    root = root_hash(model_revision="m", cache_salt="", kv_dtype="float32")
    assert block_hash(block_hash(root, [1]), [2]) != block_hash(root, [2])


def test_golden_replica_messages() -> None:
    state = ReplicaState(phase=Phase.LOADING, progress_ratio=0.5)
    assert msgspec.json.encode(state) == (
        b'{"type":"replica.state.v1","phase":"loading","progress_ratio":0.5,'
        b'"model":null,"detail":""}'
    )
    usage = AbortedUsage(
        request_id="r", prompt_tokens=1, cached_prompt_tokens=0, completion_tokens=2
    )
    assert msgspec.json.encode(usage) == (
        b'{"type":"replica.aborted.v1","request_id":"r","prompt_tokens":1,'
        b'"cached_prompt_tokens":0,"completion_tokens":2}'
    )


def test_a_request_id_cannot_change_the_path() -> None:
    assert abort_path("req_1") == "/pandal/v1/requests/req_1/abort"
    assert abort_path("../../x?y") == "/pandal/v1/requests/..%2F..%2Fx%3Fy/abort"
