"""What settled requests teach: how many tokens prompts have, how long answers are, what is cached.

Only the engine's own counts teach anything, and only those of requests that came to their end.
Of very many alike some teach enough: of those that end within milliseconds of another, one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from contracts.names import TenantId
from contracts.usage import Outcome, UsageSource
from gateway.admission.cost import CostModel
from gateway.api.context import InferenceRequest, RequestContext
from gateway.exact_counting import ExactCounting
from gateway.fleet import Fleet
from gateway.metering import Usage

_ENOUGH: Final = 128  # lessons of a tenant, model and kind of prompt, before they are thinned out
_LESSON_S: Final = 0.005  # between two from then on
_MAX_KINDS: Final = 10_000


class _Kind:
    num_lessons = 0
    next_lesson_s = 0.0


class Experience:
    def __init__(
        self,
        costs: CostModel,
        exact: ExactCounting,
        fleet: Fleet,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._costs = costs
        self._exact = exact
        self._fleet = fleet
        self._monotonic_s = monotonic_s
        self._kinds: dict[tuple[str, str, int | None, int], _Kind] = {}
        self._ended: deque[tuple[RequestContext, str | None, Usage, Outcome]] = deque()

    def note_soon(
        self, context: RequestContext, replica: str | None, usage: Usage, outcome: Outcome
    ) -> None:
        """In the event loop's next turn, with all others that end in this one."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._note_all)
        self._ended.append((context, replica, usage, outcome))

    def _note_all(self) -> None:
        ended, self._ended = self._ended, deque()
        try:
            while ended:
                self.note(*ended.popleft())
        finally:
            for left in ended:  # one that fails keeps nobody else from being noted
                self.note_soon(*left)

    def note(
        self, context: RequestContext, replica: str | None, usage: Usage, outcome: Outcome
    ) -> None:
        if replica is not None:
            self._fleet.ended(replica, outcome)
        if outcome is not Outcome.COMPLETED or usage.source is not UsageSource.ENGINE:
            return
        request, tenant = context.request, context.grant.tenant.tenant_id
        if not self._is_lesson(tenant, request):
            return
        if replica is not None:
            self._fleet.found_cached(request, replica, usage)
        self._exact.learn(request, usage.prompt_tokens)
        self._costs.learn_prompt(request.model, request.prompt, usage.prompt_tokens)
        self._costs.learn_answer(
            tenant,
            request.model,
            usage.completion_tokens / request.num_choices,
            at_most=request.max_completion_tokens / request.num_choices,
        )

    def _is_lesson(self, tenant: TenantId, request: InferenceRequest) -> bool:
        prompt, now_s = request.prompt, self._monotonic_s()
        kind = (tenant, request.model, prompt.mix, prompt.size.bit_length())
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            known = self._kinds[kind] = _Kind()
        if now_s < known.next_lesson_s:
            return False
        known.num_lessons += 1
        if known.num_lessons >= _ENOUGH:
            known.next_lesson_s = now_s + _LESSON_S
        return True
