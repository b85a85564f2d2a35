"""One name for several models: a canary, by weight and conversation."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from contracts.admission import ADMISSION_TIERS
from contracts.fallbacks import FallbackChain, FallbackStep
from gateway.admission.cost import CostModel
from gateway.admission.quota_plan import PlanBook
from gateway.api.context import Operation
from gateway.api.request_body import RequestReader
from gateway.resilience.fallback import Fallbacks
from gateway.routing.aliases import Aliases
from gateway.settings import Settings
from tests.gateway.fleets import context_of, fleet_of, inference_request

CANARY = Aliases({"chat": {"stable": 90.0, "canary": 10.0}, "plain": "stable"})
BOTH = {"stable", "canary"}


def test_each_model_gets_its_weight() -> None:
    drawn = Counter(CANARY.resolve("chat", lambda n=n: n / 1_000, BOTH) for n in range(1_000))
    assert drawn == {"stable": 900, "canary": 100}
    assert CANARY.resolve("chat", lambda: 0.999999, BOTH) == "canary"
    assert CANARY.resolve("plain", lambda: 0.5, BOTH) == "stable"
    assert "other" not in CANARY


def test_a_canary_that_nobody_serves_gets_nothing() -> None:
    assert CANARY.resolve("chat", lambda: 0.95, {"stable"}) == "stable"
    assert CANARY.resolve("chat", lambda: 0.05, {"canary"}) == "canary"
    assert CANARY.resolve("chat", lambda: 0.95, set()) == "canary", "it will be said that none is"
    off = Aliases({"chat": {"stable": 1.0, "canary": 0.0}})
    assert {off.resolve("chat", lambda n=n: n / 50, BOTH) for n in range(50)} == {"stable"}


def test_an_alias_is_listed_while_any_of_its_models_is_served() -> None:
    assert CANARY.names_for({"canary"}) == {"chat"}
    assert CANARY.names_for(BOTH) == {"chat", "plain"}
    assert CANARY.models("chat") == ["stable", "canary"]
    assert CANARY.models("stable") == ["stable"]


CONTEXT = context_of("t", ADMISSION_TIERS["free"], inference_request("m"))
GRANT = CONTEXT.grant


async def test_a_conversation_stays_with_its_model_and_adapters_are_models() -> None:
    pool = fleet_of("a", aliases={"chat": {"m": 50.0, "m-adapter": 50.0}}).pool
    pool["a"].models = frozenset({"m", "m-adapter"})  # as vLLM lists a base and what it adapts
    reader = RequestReader(pool, CostModel(0.95))

    def model_of(*messages: object) -> str:
        raw = json.dumps({"model": "chat", "messages": messages}).encode()
        return reader.read(Operation.CHAT_COMPLETIONS, raw, GRANT)[0].model

    seen: Counter[str] = Counter()
    for number in range(60):
        first = {"role": "user", "content": f"question {number}"}
        answer = {"role": "assistant", "content": "so it is"}
        model = model_of(first)
        assert model == model_of(first, answer, first)
        seen[model] += 1
    assert min(seen["m"], seen["m-adapter"]) > 10


async def test_an_adapter_behind_its_models_name_has_its_weight() -> None:
    """Whether or not it is the only one of its name."""
    pool = fleet_of("a", "b", aliases={"chat": {"m": 0.5, "m:law": 0.5}, "law-chat": "m:law"}).pool

    def names(base_of_another: str | None) -> set[str]:
        for name, base in ("a", "m"), ("b", base_of_another):
            pool[name].models = frozenset({base or "m"} | ({"law"} if base else set()))
            pool[name].adapters = {"law": base} if base else {}
        pool.follow((), ())
        return {pool.resolve("chat", lambda n=n: n / 10) for n in range(10)}  # type: ignore[misc]

    assert names(base_of_another=None) == {"m", "law"}
    assert {pool.parent(model) for model in ("law", "m:law", "law-chat")} == {"m"}
    assert "law-chat" in pool.served_models()
    assert names(base_of_another="other") == {"m", "m:law"}


async def test_a_step_behind_its_models_name_goes_to_the_only_one_of_its_name() -> None:
    pool = fleet_of("a").pool
    pool["a"].models, pool["a"].adapters = frozenset({"m", "law"}), {"law": "m"}
    pool.follow((), ())
    fallbacks = Fallbacks(PlanBook(), {}, pool.goes_by, pool.own_name)
    chain = FallbackChain(model="m", steps=(FallbackStep(model="m:law"),))
    (target,) = fallbacks.targets(chain, CONTEXT, b'{"model":"m"}')
    assert target.context.request.model == "law"
    assert json.loads(target.body)["model"] == "law"


NO_WEIGHTS: list[dict[str, float]] = [
    {},
    {"a": 0.0},
    {"a": 2.0, "b": -1.0},
    {"a": 1.0, "b": float("inf")},
    {"a": float("nan"), "b": 1.0},
]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [*((weights, "chat: an alias's weights") for weights in NO_WEIGHTS), ("chat", "chat: .* own")],
    ids=str,
)
def test_an_alias_that_says_nothing_is_no_setting(
    target: str | dict[str, float], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Settings(
            model_aliases={"chat": target},
            policy_file=Path("p"),
            key_pepper=SecretStr("p" * 32),
            quota_url=SecretStr("redis://127.0.0.1:1"),
            spool_dir=Path("s"),
        )
