"""Of very many requests alike some teach enough."""

import pytest

from contracts.admission import AdmissionPolicy
from contracts.usage import Outcome, UsageSource
from gateway.admission.cost import CostModel
from gateway.exact_counting import ExactCounting
from gateway.experience import Experience
from gateway.metering import Usage
from gateway.prompt import Prompt
from tests.gateway.fleets import context_of, fleet_of, inference_request


class CountingModel(CostModel):
    """Also counts its lessons."""

    num_lessons = 0

    def learn_prompt(self, model: str, prompt: Prompt, num_tokens: int) -> None:
        self.num_lessons += 1
        super().learn_prompt(model, prompt, num_tokens)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def costs() -> CountingModel:
    return CountingModel(0.95)


async def test_a_kind_is_learned_from_all_at_first_and_then_from_some(
    costs: CountingModel,
) -> None:
    clock, fleet = Clock(), fleet_of("a")
    experience = Experience(costs, ExactCounting(fleet.pool), fleet, clock)
    usage = Usage(11, 0, 3, UsageSource.ENGINE)

    def note(tenant: str, times: int) -> None:
        context = context_of(tenant, AdmissionPolicy(), inference_request("m", reserved_tokens=99))
        for _ in range(times):
            experience.note(context, "a", usage, Outcome.COMPLETED)

    note("acme", 1_000)
    learned_at_once = costs.num_lessons
    assert 100 < learned_at_once < 200
    note("acme", 1_000)
    assert costs.num_lessons == learned_at_once, "no time has passed"
    for _ in range(10):
        clock.now_s += 0.01
        note("acme", 5)
    assert costs.num_lessons == learned_at_once + 10
    note("other", 1)
    assert costs.num_lessons == learned_at_once + 11, "a flood crowds out nobody's lessons"


async def test_only_what_the_engine_counted_to_the_end_is_a_lesson(costs: CountingModel) -> None:
    fleet = fleet_of("a")
    experience = Experience(costs, ExactCounting(fleet.pool), fleet, Clock())
    context = context_of("acme", AdmissionPolicy(), inference_request("m", reserved_tokens=99))
    experience.note(context, "a", Usage(11, 0, 3, UsageSource.COUNTED), Outcome.COMPLETED)
    experience.note(context, "a", Usage(11, 0, 3, UsageSource.ENGINE), Outcome.CANCELLED)
    assert costs.num_lessons == 0
