"""A refusal that waiting would not help says which part of the request is too much."""

import pytest

from contracts.names import TenantId
from gateway.admission.quota_plan import QuotaPlan
from gateway.errors import InvalidRequest


def refusal(tokens: int, prompt_tokens: int, num_choices: int = 1) -> InvalidRequest:
    plan = QuotaPlan(
        tenant_id=TenantId("acme"),
        rules=(),
        shadows=(),
        price=None,
        most_tokens=1_000,
        most_budget_tokens=None,
        most_nano_usd=None,
        has_budget=False,
        arguments=b"",
        num_arguments=0,
    )
    with pytest.raises(InvalidRequest) as refused:
        plan.check_fits(
            tokens=tokens,
            budget_tokens=0,
            nano_usd=0,
            prompt_tokens=prompt_tokens,
            num_choices=num_choices,
        )
    return refused.value


def test_an_answer_that_never_fits_is_max_tokens_fault() -> None:
    refused = refusal(1_001, 401)
    assert "need 1001 tokens (about 401 of the prompt, 600 for the answer), more" in str(refused)
    assert refused.param == "max_tokens"


def test_of_several_answers_it_tells_how_many() -> None:
    assert "(about 401 of the prompt, 600 for 4 answers)" in str(refusal(1_001, 401, 4))


def test_a_prompt_that_never_fits_is_not() -> None:
    assert refusal(1_002, 1_001).param is None
