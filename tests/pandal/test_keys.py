import os
import stat
from datetime import timedelta

import pytest

from contracts.api_keys import KeyOrder
from contracts.policy import TIERS, hash_api_key
from pandal.credentials import load_or_create_credentials
from pandal.datadir import DataDir
from pandal.errors import BadOption
from pandal.key_access import LocalKeys
from pandal.keys import KeyRequest, create_key, ensure_demo_key, parse_key_request, read_policies

DAY = timedelta(days=1)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_stored_as_its_hash_only(data_dir: DataDir) -> None:
    created = create_key(data_dir, KeyRequest("acme"))
    credentials = load_or_create_credentials(data_dir)
    (record,) = read_policies(data_dir.policies).tenants[0].keys
    assert record.key_hash == hash_api_key(created.api_key.encode(), credentials.pepper_bytes)
    assert created.api_key not in data_dir.policies.read_text()
    assert created.api_key.startswith(record.key_prefix)


def test_a_key_holds_256_random_bits(data_dir: DataDir) -> None:
    created = create_key(data_dir, KeyRequest("acme"), random_bytes=lambda count: b"\xff" * count)
    assert created.api_key == "sk-pandal-" + "_" * 42 + "8"


def test_a_second_key_leaves_the_first_and_the_limits(data_dir: DataDir) -> None:
    create_key(data_dir, KeyRequest("acme", tier="gold", tokens_per_minute=7))
    second = create_key(data_dir, KeyRequest("acme", requests_per_minute=9))
    (policy,) = read_policies(data_dir.policies).tenants
    assert len(policy.keys) == 2
    assert (policy.tier, policy.tokens_per_minute, policy.requests_per_minute) == ("gold", 7, 9)
    assert (second.tier, second.tokens_per_minute, second.requests_per_minute) == ("gold", 7, 9)


def test_a_new_tier_is_told_beside_the_one_before(data_dir: DataDir) -> None:
    first = create_key(data_dir, KeyRequest("acme", tier="gold"))
    moved = create_key(data_dir, KeyRequest("acme", tier="free"))
    assert (first.tier_before, first.tier) == (None, "gold")
    assert (moved.tier_before, moved.tier) == ("gold", "free")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "n" * 201])
def test_a_name_that_a_terminal_would_obey_is_refused(data_dir: DataDir, name: str) -> None:
    with pytest.raises(BadOption, match="printable"):
        create_key(data_dir, KeyRequest("acme", order=KeyOrder(name)))


def test_a_rotation_ends_every_older_secret_when_its_overlap_ends(data_dir: DataDir) -> None:
    key_id = create_key(data_dir, KeyRequest("acme")).key_id
    keys = LocalKeys(data_dir, os.urandom)
    for overlap, num_retiring in ((DAY, 1), (DAY, 2), (timedelta(0), 0)):
        keys.rotate("acme", key_id, overlap)
        (key,) = keys.keys("acme")
        assert key.num_retiring == num_retiring


def test_limits_not_named_are_the_tiers(data_dir: DataDir) -> None:
    created = create_key(data_dir, KeyRequest("acme", tier="free"))
    assert created.tokens_per_minute == TIERS["free"].tokens_per_minute
    assert created.requests_per_minute == TIERS["free"].requests_per_minute


def test_the_demo_key_is_the_same_at_each_start(data_dir: DataDir) -> None:
    first = ensure_demo_key(data_dir)
    version = read_policies(data_dir.policies).version
    assert ensure_demo_key(data_dir) == first
    assert read_policies(data_dir.policies).version == version


def test_a_demo_key_that_was_revoked_gets_a_successor(data_dir: DataDir) -> None:
    first = ensure_demo_key(data_dir)
    (key,) = read_policies(data_dir.policies).tenants[0].keys
    LocalKeys(data_dir, os.urandom).revoke("demo", key.key_id)
    second = ensure_demo_key(data_dir)
    assert second.demo_api_key != first.demo_api_key
    assert second.key_pepper == first.key_pepper
    assert ensure_demo_key(data_dir) == second
    revoked, good = read_policies(data_dir.policies).tenants[0].keys
    assert (revoked.key_id, good.revoked_at) == (key.key_id, None)


def test_a_lost_policy_file_gets_the_demo_key_back(data_dir: DataDir) -> None:
    first = ensure_demo_key(data_dir)
    data_dir.policies.unlink()
    assert ensure_demo_key(data_dir) == first
    assert read_policies(data_dir.policies).tenants[0].tenant_id == "demo"


def test_files_with_secrets_are_their_owners_alone(data_dir: DataDir) -> None:
    ensure_demo_key(data_dir)
    assert mode(data_dir.credentials) == mode(data_dir.policies) == 0o600
    assert mode(data_dir.root) == 0o700


def test_neither_key_nor_pepper_shows_in_a_repr(data_dir: DataDir) -> None:
    created = create_key(data_dir, KeyRequest("acme"))
    credentials = load_or_create_credentials(data_dir)
    assert created.api_key not in repr(created)
    assert credentials.key_pepper not in repr(credentials)
    assert credentials.demo_api_key not in repr(credentials)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tenant": "Acme"}, "--tenant"),
        ({"tenant": ""}, "--tenant"),
        ({"tenant": "a:b"}, "--tenant"),
        ({"tier": "platinum"}, "--tier"),
        ({"tokens_per_minute": 0}, "--tpm"),
        ({"requests_per_minute": -1}, "--rpm"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_named(options: dict, complaint: str) -> None:
    asked = {"tenant": "acme", "tier": None, "tokens_per_minute": None, "requests_per_minute": None}
    with pytest.raises(BadOption, match=complaint):
        parse_key_request(**(asked | options))


def test_a_limit_under_the_default_max_tokens_is_warned_of(data_dir: DataDir) -> None:
    created = create_key(data_dir, KeyRequest("acme", tokens_per_minute=300))
    (warning,) = created.warnings
    assert "tokens_per_minute 300" in warning
    assert "each is refused" in warning
