"""Who else may serve a request whose own replicas cannot: a policy's chain, step by step.

A step is another model of our replicas, or a provider's.  One that the request does not fit, that
nobody prices although money is counted, or whose API has no words for it, is passed over.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from contracts.fallbacks import FallbackChain, FallbackStep
from gateway.admission.quota_plan import PlanBook, QuotaPlan
from gateway.api.context import RequestContext
from gateway.errors import InvalidRequest
from gateway.providers.anthropic_request import Untranslatable
from gateway.providers.provider import Provider, with_model


@dataclass(frozen=True, slots=True)
class Target:
    """The request as somebody else gets it, and how it is billed."""

    context: RequestContext
    plan: QuotaPlan
    body: bytes
    provider: Provider | None
    headers: bytes  # that tell the client so

    @property
    def is_home(self) -> bool:
        """The request as it came."""
        return not self.headers


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """What all requests of a gateway share."""

    plans: PlanBook
    providers: Mapping[str, Provider]  # by name
    goes_by: Callable[[str], str] = str  # of a model that may be asked for by several names
    own_name: Callable[[str], str] = str  # what replicas call it

    def chain_of(self, context: RequestContext) -> FallbackChain | None:
        model = context.request.model
        chains = context.grant.tenant.fallbacks
        return next((chain for chain in chains if self.goes_by(chain.model) == model), None)

    def home(self, context: RequestContext, body: bytes) -> Target:
        """The request as it came."""
        plan = self.plans.plan_for(context.grant, context.request.model)
        return Target(context, plan, body, None, b"")

    def targets(
        self, chain: FallbackChain, context: RequestContext, body: bytes
    ) -> Iterator[Target]:
        for step in chain.steps:
            target = self._target(step, context, body)
            if target is not None:
                yield target

    def _target(self, step: FallbackStep, context: RequestContext, body: bytes) -> Target | None:
        request = context.request
        provider = None if step.provider is None else self.providers.get(step.provider)
        model = self.goes_by(step.model) if step.provider is None else step.priced_as
        max_tokens = _max_tokens(step, context)
        scope = context.grant.scope
        is_allowed = scope is None or scope.has_model(model)
        if not is_allowed or max_tokens < 1 or (step.provider is not None and provider is None):
            return None
        try:
            plan = self.plans.plan_for(context.grant, model)
            if provider is None:
                body = with_model(body, self.own_name(model), max_tokens)
            else:
                body = provider.request(request.operation, body, step.model, max_tokens)
        except (InvalidRequest, Untranslatable):
            return None
        served = msgspec.structs.replace(
            request,
            model=model,
            max_completion_tokens=max_tokens * request.num_choices,
            text=None,  # of another tokenizer
        )
        moved = msgspec.structs.replace(context, request=served)
        return Target(moved, plan, body, provider, _headers(model, request.model))


def _max_tokens(step: FallbackStep, context: RequestContext) -> int:
    """Of each choice: what was asked for, as far as there is room behind the prompt."""
    request = context.request
    asked = request.max_completion_tokens // request.num_choices
    if step.max_context_tokens is None:
        return asked
    return min(asked, step.max_context_tokens - request.estimated_prompt_tokens)


def _headers(served: str, wanted: str) -> bytes:
    lines = f"x-pandal-model: {served}\r\nx-pandal-fallback-from: {wanted}\r\n"
    return lines.encode("latin-1", "replace")
