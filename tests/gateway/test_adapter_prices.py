"""What money an adapter's requests count, under budgets in money."""

import msgspec

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, TenantPolicy
from contracts.quota import ModelPrice, QuotaRule
from gateway.admission.quota_plan import PlanBook
from gateway.admission.record import NotedAsk, asked_by
from tests.gateway.quota_bench import MODEL, grant_of

PRICE = ModelPrice(model=MODEL, input_uncached=20, input_cache_read=5, output_text=60)


def test_an_adapter_without_a_price_is_counted_as_what_it_adapts_now() -> None:
    key = ApiKeyRecord(key_id="k1", key_hash="k1", key_prefix="sk")
    rules = (QuotaRule(nano_usd_per_month=100),)
    policy = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", rules=rules)
    dearer = msgspec.structs.replace(PRICE, model="model-b", output_text=PRICE.output_text + 1)
    grant = grant_of(policy, key, {PRICE.model: PRICE, dearer.model: dearer})
    adapted: dict[str, str] = {"law": PRICE.model}
    plans = PlanBook(adapter_of=adapted.get)
    assert plans.plan_for(grant, "law").price == PRICE
    assert plans.plan_for(grant, "law") is plans.plan_for(grant, "law")
    adapted["law"] = dearer.model
    assert plans.plan_for(grant, "law").price == dearer
    for priced_as in (None, dearer.model):  # and a dry run prices it as it was priced then
        ask = NotedAsk(0, 0, asked_by("k1", "law", priced_as), 0, 1, 1, 0, "", "", 0)
        assert (ask.key_id, ask.model, ask.adapter_of) == ("k1", "law", priced_as)


def test_another_adapter_of_its_name_changes_neither_price_nor_limit() -> None:
    law = msgspec.structs.replace(PRICE, model="law", output_text=900)
    rules = (QuotaRule(nano_usd_per_month=100), QuotaRule(model="law", requests_per_minute=3))
    policy = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", rules=rules)
    key = ApiKeyRecord(key_id="k1", key_hash="k1", key_prefix="sk")
    grant = grant_of(policy, key, {PRICE.model: PRICE, "law": law})
    alone = PlanBook(adapter_of={"law": MODEL}.get).plan_for(grant, "law")
    beside = PlanBook(adapter_of={f"{MODEL}:law": MODEL}.get).plan_for(grant, f"{MODEL}:law")
    assert (beside.price, beside.rules) == (alone.price, alone.rules) == (law, alone.rules)
    assert [rule.requests_per_minute for rule in beside.rules if rule.model] == [3]
