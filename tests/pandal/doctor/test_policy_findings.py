"""Policies that are valid, and still wrong: each with what to do."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.terms import Terms
from pandal.doctor.finding import Finding, Level
from pandal.doctor.policies import policy_findings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY = timedelta(days=1)
KEY = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk", created_at=NOW - 90 * DAY)
ACME = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", keys=(KEY,))


def examined(used: dict[str, datetime] | None = None, **tenant: object) -> list[Finding]:
    policy = msgspec.structs.replace(ACME, **tenant)
    document = PolicyDocument(version=1, tenants=(policy,))
    last_used = {"k1": NOW} if used is None else used
    return list(policy_findings(document, at=NOW, served={"m"}, last_used=last_used))


@pytest.mark.parametrize(
    "rule",
    [
        QuotaRule(key_id="k1", tokens_per_minute=10_000),
        QuotaRule(nano_usd_per_day=1_000, is_shadow=True),  # refuses nothing without a price
    ],
)
def test_a_sound_policy_is_fine(rule: QuotaRule) -> None:
    (finding,) = examined(rules=(rule,))
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("tenant", "level", "words"),
    [
        pytest.param({"keys": ()}, Level.WARNING, "no valid key", id="no-key"),
        pytest.param(
            {"keys": (msgspec.structs.replace(KEY, expires_at=NOW + DAY),)},
            Level.WARNING,
            "key k1 expires",
            id="expires",
        ),
        pytest.param({"tokens_per_minute": 100}, Level.WARNING, "less than a request", id="small"),
        pytest.param(
            {"rules": (QuotaRule(tokens_per_day=500),)}, Level.WARNING, "tokens_per_day", id="day"
        ),
        pytest.param(
            {"rules": (QuotaRule(key_id="k1", tokens_per_minute=600_000),)},
            Level.WARNING,
            "never reached",
            id="looser-than-all",
        ),
        pytest.param(
            {"rules": (QuotaRule(model="m", tokens_per_day=9_999, tokens_per_month=9_999),)},
            Level.WARNING,
            "a month has 9,999",
            id="day-over-month",
        ),
        pytest.param(
            {
                "keys": (msgspec.structs.replace(KEY, models=("a",)),),
                "terms": (Terms(allowed_models=("b",)),),
            },
            Level.WARNING,
            "no model at all",
            id="nothing-in-common",
        ),
        pytest.param(
            {"terms": (Terms(allowed_models=("b",)),)},
            Level.WARNING,
            "only models that nobody serves",
            id="nobody-serves",
        ),
        pytest.param(
            {"rules": (QuotaRule(key_id="gone", requests_per_minute=1),)},
            Level.WARNING,
            "key gone",
            id="no-such-key",
        ),
        pytest.param(
            {"terms": (Terms(model="typo", weight=2),)}, Level.WARNING, "model typo", id="model"
        ),
        pytest.param(
            {"rules": (QuotaRule(nano_usd_per_day=1_000),)}, Level.WARNING, "no price", id="price"
        ),
    ],
)
def test_what_is_wrong_is_told(tenant: dict, level: Level, words: str) -> None:
    (finding,) = examined(**tenant)
    assert (finding.level, words in finding.fact) == (level, True), finding
    assert finding.advice


def test_a_key_that_nobody_uses_is_told() -> None:
    (finding,) = examined(used={"other": NOW})
    assert "was not used for 30 days" in finding.fact
    assert examined(used={})[0].level is Level.OK  # nobody notes it


def test_golden_bytes() -> None:
    (finding,) = examined(rules=(QuotaRule(key_id="gone", requests_per_minute=1),))
    assert msgspec.json.encode(finding) == (
        b'{"type":"finding.v1","level":"warning","about":"policies","fact":"acme: a rule is for '
        b'key gone, which is not there","advice":"take the rule away"}'
    )
