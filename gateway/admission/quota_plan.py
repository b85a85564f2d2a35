"""Which limits one key's requests to one model meet: worked out once, not once a request."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.names import TenantId, quota_rule_name
from contracts.quota import ModelPrice, QuotaRule, price_of, usd_of_nano
from gateway.admission.record import asked_by
from gateway.admission.resp import pack_arguments
from gateway.errors import InvalidRequest
from gateway.policies import Grant

_MAX_PLANS = 10_000  # a few MB: pairs of key and model that one gateway sees
_MAX_SHADOWS = 32  # of one request: more than anybody reads
_LIMITS = (  # in the order of reserve.lua
    "tokens_per_minute", "requests_per_minute", "concurrent_requests",
    "tokens_per_day", "tokens_per_month", "nano_usd_per_day", "nano_usd_per_month",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class QuotaPlan:
    """``rules``: the tenant's own first; it always limits both rates."""

    tenant_id: TenantId
    rules: tuple[QuotaRule, ...]
    shadows: tuple[QuotaRule, ...]  # that only count what they would refuse
    price: ModelPrice | None
    most_tokens: int  # that one request can ever be granted by rates
    most_budget_tokens: int | None  # and by budgets; None: there are none
    most_nano_usd: int | None
    has_budget: bool
    arguments: bytes  # the rules as reserve.lua reads them, packed
    num_arguments: int

    def check_fits(
        self,
        *,
        tokens: int,
        budget_tokens: int,
        nano_usd: int,
        prompt_tokens: int | None = None,
        num_choices: int = 1,
    ) -> None:
        """Raises InvalidRequest for what waiting would never help, so that it is not a 429.

        ``prompt_tokens``: of both counts, as estimated, for the message to tell.
        """
        if tokens > self.most_tokens:
            raise _never_fits(tokens, prompt_tokens, num_choices, self.most_tokens)
        if self.most_budget_tokens is not None and budget_tokens > self.most_budget_tokens:
            raise _never_fits(budget_tokens, prompt_tokens, num_choices, self.most_budget_tokens)
        if self.most_nano_usd is not None and nano_usd > self.most_nano_usd:
            raise InvalidRequest(
                f"The request may cost {usd_of_nano(nano_usd)} USD, "
                f"more than the budget of {usd_of_nano(self.most_nano_usd)} USD ever allows.",
                code="budget_limit_exceeded",
            )

    def nano_usd(self, *, uncached: int, cached: int, output: int) -> int:
        """Zero where no money is counted."""
        if self.price is None:
            return 0
        return self.price.nano_usd(uncached=uncached, cached=cached, output=output)


class PlanBook:
    """The plans made so far, each as long as its grant is in force."""

    def __init__(
        self,
        *,
        is_recorded: bool = True,
        adapter_of: Callable[[str], str | None] = lambda _model: None,
    ) -> None:
        """``adapter_of``: which model one adapts, as its replicas tell now."""
        self._is_recorded = is_recorded
        self._adapter_of = adapter_of
        self._plans: dict[tuple[str, str, str | None], tuple[Grant, QuotaPlan]] = {}

    def plan_for(self, grant: Grant, model: str) -> QuotaPlan:
        """Raises what ``quota_plan`` raises."""
        has_no_price = grant.prices and model not in grant.prices
        adapted = self._adapter_of(model) if has_no_price else None
        of_what = (grant.key.key_hash, model, adapted)
        known = self._plans.get(of_what)
        if known is not None and known[0] is grant:
            return known[1]
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = quota_plan(grant, model, adapter_of=adapted, is_recorded=self._is_recorded)
        self._plans[of_what] = (grant, plan)
        return plan


def quota_plan(
    grant: Grant, model: str, *, adapter_of: str | None = None, is_recorded: bool = True
) -> QuotaPlan:
    """``is_recorded``: the store keeps what is asked for, for a while and within bounds.

    ``adapter_of``: the model that an adapter without a price of its own is priced as.

    Raises InvalidRequest for a model whose money budget cannot be counted.
    """
    rules, shadows = _matching_rules(grant, model)
    has_money_budget = any(rule.has_money_budget for rule in rules)
    counts_money = has_money_budget or any(rule.has_money_budget for rule in shadows)
    price = price_of(grant.prices, model, adapter_of) if counts_money else None
    if has_money_budget and price is None:
        raise InvalidRequest(
            "A budget in money holds here, and the policy states no price for this model.",
            param="model",
            code="model_not_priced",
        )
    most_tokens = _least(rules, "tokens_per_minute")
    assert most_tokens is not None, "the tenant's own rule limits both rates"
    all_rules = (*rules, *shadows)
    parts = [part for rule in all_rules for part in _script_arguments(rule)]
    who = asked_by(grant.key.key_id, model, adapter_of) if is_recorded else ""
    arguments = [len(all_rules), len(shadows), who, *parts]
    return QuotaPlan(
        tenant_id=grant.tenant.tenant_id,
        rules=rules,
        shadows=shadows,
        price=price,
        most_tokens=most_tokens,
        most_budget_tokens=_least(rules, "tokens_per_day", "tokens_per_month"),
        most_nano_usd=_least(rules, "nano_usd_per_day", "nano_usd_per_month"),
        has_budget=any(rule.has_budget for rule in rules),
        arguments=pack_arguments(*arguments),
        num_arguments=len(arguments),
    )


def _never_fits(
    tokens: int, prompt_tokens: int | None, num_choices: int, most_tokens: int
) -> InvalidRequest:
    parts, param = "", None
    if prompt_tokens is not None:
        answers = "the answer" if num_choices == 1 else f"{num_choices} answers"
        parts = f" (about {prompt_tokens} of the prompt, {tokens - prompt_tokens} for {answers})"
        param = "max_tokens" if prompt_tokens < most_tokens else None  # else no answer would fit
    return InvalidRequest(
        f"The request may need {tokens} tokens{parts}, "
        f"more than the limit of {most_tokens} tokens ever allows.",
        param=param,
        code="tokens_limit_exceeded",
    )


def rule_in_words(rule: QuotaRule) -> str:
    parts = []
    if rule.key_id is not None:
        parts.append(f"key {rule.key_id}")
    if rule.model is not None:
        parts.append(f"model {rule.model}")
    return ", ".join(parts)


def _script_arguments(rule: QuotaRule) -> tuple[str | int, ...]:
    limits: list[int | None] = [getattr(rule, name) for name in _LIMITS]
    none_is_zero = (0 if limit is None else limit for limit in limits)
    name = quota_rule_name(rule.key_id, rule.model, is_shadow=rule.is_shadow)
    return (name, *none_is_zero)


def _matching_rules(
    grant: Grant, model: str
) -> tuple[tuple[QuotaRule, ...], tuple[QuotaRule, ...]]:
    """Those that refuse, and those in shadow."""
    matching = [rule for rule in grant.rules if rule.matches(grant.key.key_id, model)]
    enforced = [rule for rule in matching if not rule.is_shadow]
    whole = next((r for r in enforced if r.key_id is None and r.model is None), None)
    others = [rule for rule in enforced if rule is not whole]
    shadows = [rule for rule in matching if rule.is_shadow]
    return (_with_rates(grant, whole), *others), tuple(shadows[:_MAX_SHADOWS])


def _with_rates(grant: Grant, rule: QuotaRule | None) -> QuotaRule:
    """All of the tenant's requests: the two rates it always has, and what its rule adds."""
    rule = QuotaRule() if rule is None else rule
    return QuotaRule(
        tokens_per_minute=grant.limits.tokens_per_minute,
        requests_per_minute=grant.limits.requests_per_minute,
        concurrent_requests=rule.concurrent_requests,
        tokens_per_day=rule.tokens_per_day,
        tokens_per_month=rule.tokens_per_month,
        nano_usd_per_day=rule.nano_usd_per_day,
        nano_usd_per_month=rule.nano_usd_per_month,
    )


def _least(rules: tuple[QuotaRule, ...], *names: str) -> int | None:
    limits: list[int | None] = [getattr(rule, name) for rule in rules for name in names]
    return min((limit for limit in limits if limit is not None), default=None)
