"""What each key stands for: its scope, its models, its time."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, RetiringSecret, TenantPolicy
from contracts.quota import QuotaRule
from contracts.resolution import statements_about, view_of
from contracts.terms import Terms
from contracts.usage import Endpoint
from contracts.windows import TimeWindow
from gateway.admission.quota_plan import quota_plan
from gateway.api.context import Operation
from gateway.errors import EndpointNotAllowed, ModelNotAllowed
from gateway.grants import Grant, PolicySnapshot, snapshot_of

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PEPPER = b"sixteen bytes ok"
KEY = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk")
OTHER = ApiKeyRecord(key_id="k2", key_hash="h2", key_prefix="sk")
ACME = TenantPolicy(tenant_id=tenant_id("acme"), tier="free", keys=(KEY, OTHER))


def snapshot(at: datetime = NOON, **tenant: object) -> PolicySnapshot:
    policy = msgspec.structs.replace(ACME, **tenant)
    return snapshot_of(PolicyDocument(version=1, tenants=(policy,)), PEPPER, at)


def grant(**key: object) -> Grant:
    return snapshot(keys=(msgspec.structs.replace(KEY, **key),)).grants["h1"]


def test_what_is_said_of_a_model_holds_for_it_alone() -> None:
    terms = (Terms(model="m", max_completion_tokens=5), Terms(key_id="k2", weight=9))
    grants = snapshot(terms=terms).grants
    assert grants["h1"].for_model("m").limits.max_completion_tokens == 5
    assert grants["h1"].for_model("n") is grants["h1"]
    assert grants["h1"].for_model("base:m").limits.max_completion_tokens == 5, "once another has m"
    assert grants["h2"].for_model("m").admission.weight == 9
    assert grants["h2"].for_model("m").limits.max_completion_tokens == 5
    assert grants["h1"].admission.weight == 1


@pytest.mark.parametrize("model", ["m", "base:m", "other:m", "n", "base:n"])
def test_what_holds_for_a_model_is_what_an_explanation_goes_by(model: str) -> None:
    night = TimeWindow(opens="22:00", closes="06:00")
    terms = (
        Terms(model="m", max_completion_tokens=5, cached_token_weight=0.5),
        Terms(model="other:m", weight=9, window=night),
    )
    policy = msgspec.structs.replace(ACME, terms=terms)
    document = PolicyDocument(version=1, tenants=(policy,))
    found = snapshot(terms=terms).grants["h1"].for_model(model)
    view = view_of(statements_about(document, policy, key=KEY, model=model, at=NOON))
    assert (found.limits, found.admission) == (view.limits, view.admission)


def test_a_key_is_for_its_models_and_endpoints() -> None:
    scope = grant(models=("m",), endpoints=("completions",)).scope
    assert scope is not None
    scope.check("completions", "m")
    with pytest.raises(ModelNotAllowed):
        scope.check("completions", "n")
    with pytest.raises(EndpointNotAllowed):
        scope.check("chat.completions", "m")
    assert grant().scope is None
    assert {str(name) for name in Endpoint} == {str(name) for name in Operation}


def test_a_key_that_is_over_is_nobodys() -> None:
    keys = (
        msgspec.structs.replace(KEY, expires_at=NOON + HOUR),
        msgspec.structs.replace(OTHER, revoked_at=NOON),
    )
    now = snapshot(keys=keys)
    assert set(now.grants) == {"h1"}
    assert now.valid_until == NOON + HOUR
    assert set(snapshot(NOON + HOUR, keys=keys).grants) == set()


def test_after_a_rotation_both_secrets_are_one_key_for_a_while() -> None:
    old = RetiringSecret(key_hash="h0", key_prefix="sk", expires_at=NOON + HOUR)
    keys = (msgspec.structs.replace(KEY, retiring=(old,)),)
    now = snapshot(keys=keys)
    assert now.grants["h0"] is now.grants["h1"]
    assert set(snapshot(now.valid_until, keys=keys).grants) == {"h1"}


def test_a_window_is_looked_at_every_minute() -> None:
    lunch = TimeWindow(opens="12:00", closes="13:00")
    rules = (QuotaRule(window=lunch, tokens_per_minute=77),)
    now = snapshot(NOON, rules=rules)
    assert now.grants["h1"].limits.tokens_per_minute == 77
    assert now.valid_until == NOON + timedelta(minutes=1)
    assert snapshot(NOON + HOUR, rules=rules).grants["h1"].limits.tokens_per_minute == 10_000


def test_a_plan_has_the_rules_that_match_the_key() -> None:
    rules = (QuotaRule(key_id="k2", requests_per_minute=3), QuotaRule(concurrent_requests=2))
    grants = snapshot(rules=rules).grants
    assert [r.concurrent_requests for r in quota_plan(grants["h1"], "m").rules] == [2]
    assert [r.requests_per_minute for r in quota_plan(grants["h2"], "m").rules] == [30, 3]
