"""A request at a server of another owner, with nothing of ours or the tenant's but what was asked.

Where it is a member of the pool, it gets the request that one of our own would get; where a policy
falls back on it, the one that the policy's step makes of it.
"""

from gateway.api.context import InferenceRequest, RequestContext
from gateway.fleet import Fleet
from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.providers.prompt_bound import most_prompt_tokens
from gateway.providers.provider import Api, Provider
from gateway.resilience.attempt import Attempt
from gateway.resilience.breaker import Breakers


def member_body(provider: Provider, request: InferenceRequest, body: bytes) -> bytes:
    """``request``: for one of the models that it is a member for."""
    max_tokens = request.max_completion_tokens // request.num_choices
    return provider.request(request.operation, body, provider.models[request.model], max_tokens)


def begin_at(
    provider: Provider,
    fleet: Fleet,
    breakers: Breakers,
    context: RequestContext,
    request_id: str,
    body: bytes,
) -> Attempt:
    """Sends it there."""
    request, replica = context.request, provider.replica
    began_s = fleet.clock.monotonic_s()
    path = provider.path_of(request.operation).encode()
    response = replica.client.post(path, provider.headers, body)
    probe = breakers.begin(request.model, provider.name)
    stay = fleet.begin(replica, request, began_s)
    translation = None
    if provider.api is Api.ANTHROPIC:
        translation = AnthropicAnswer(int(fleet.clock.wall_s()), fleet.limits.max_event_bytes)
    return Attempt(
        model=request.model,
        replica=replica,
        request_id=request_id,
        response=response,
        began_monotonic_s=began_s,
        stay=stay,
        probe=probe,
        translation=translation,
        credential=provider.credential,
        most_prompt_tokens=most_prompt_tokens(body),
    )
