"""What settled requests teach: how many tokens prompts have, how long answers are, what is cached.

Only the engine's own counts teach anything, and only those of requests that came to their end.
"""

from dataclasses import dataclass

from contracts.usage import Outcome, UsageSource
from gateway.admission.cost import CostModel
from gateway.api.context import RequestContext
from gateway.exact_counting import ExactCounting
from gateway.fleet import Fleet
from gateway.metering import Usage


@dataclass(frozen=True, slots=True)
class Experience:
    costs: CostModel
    exact: ExactCounting
    fleet: Fleet

    def note(
        self, context: RequestContext, replica: str | None, usage: Usage, outcome: Outcome
    ) -> None:
        if replica is not None:
            self.fleet.ended(replica, outcome)
        if outcome is not Outcome.COMPLETED or usage.source is not UsageSource.ENGINE:
            return
        request, tenant = context.request, context.grant.tenant.tenant_id
        self.exact.learn(request, usage.prompt_tokens)
        self.costs.learn_prompt(request.model, request.prompt, usage.prompt_tokens)
        self.costs.learn_answer(
            tenant,
            request.model,
            usage.completion_tokens / request.num_choices,
            at_most=request.max_completion_tokens / request.num_choices,
        )
        if replica is not None:
            self.fleet.processed(request, replica, usage)
