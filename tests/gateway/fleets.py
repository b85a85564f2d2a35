"""Replicas that were never asked for anything: a fleet for decisions alone."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import Any

from contracts.admission import AdmissionPolicy
from contracts.load import ReplicaLoad
from contracts.names import tenant_id
from contracts.policy import TIERS, ApiKeyRecord, TenantPolicy
from gateway.api.context import InferenceRequest, Operation, RequestContext
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.fleet import Fleet, Forecasting, ObserveTtft, RelayLimits
from gateway.policies import Grant
from gateway.prompt import Affinity, Prompt
from gateway.routing.aliases import Target
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.outside import Outside
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profile import RoutingProfile
from gateway.routing.profiles import RoutingOptions, routing_profile
from gateway.routing.replica import Replica
from gateway.routing.router import Router
from gateway.upstream.replica_client import ReplicaClient, Timeouts

LOAD = ReplicaLoad(
    model="m",
    is_ready=True,
    is_draining=False,
    num_running=0,
    num_waiting=0,
    queued_prompt_tokens=0,
    expected_output_tokens=0,
    kv_cache_usage=0.0,
    num_kv_blocks=100,
    block_size=16,
    prefill_tokens_per_s=1_000.0,
    decode_tokens_per_s=0.0,
)


def profile_of(
    random: Callable[[], float],
    index: PrefixIndex | None = None,
    reuse: PrefixReuse | None = None,
    **options: Any,
) -> tuple[RoutingProfile, HotPrefixes]:
    hot, reuse = HotPrefixes(), reuse or PrefixReuse(lambda: 1.0)
    usual: dict[str, Any] = {"load_factor": 1.3, "least_prefix_tokens": 0}
    return routing_profile(RoutingOptions(**(usual | options)), hot, reuse, random, index), hot


def fleet_of(
    *names: str,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Callable[[], None] = lambda: None,
    aliases: Mapping[str, Target] | None = None,
    observe_ttft: ObserveTtft = lambda predicted, actual: None,
    outside: Mapping[str, float] = MappingProxyType({}),
    barred: Callable[[str], frozenset[str]] = lambda model: frozenset(),
) -> Fleet:
    """Its replicas are ready and serve ``m``, as if they had told so; nobody asks them.

    ``outside``: weights of other owners' that serve it, too.
    """
    timeouts = Timeouts(connect_s=1.0, head_s=1.0, idle_s=1.0, keep_alive_s=1.0)
    clients = [ReplicaClient(name, "http://127.0.0.1:1", timeouts) for name in names]
    theirs = [
        Replica(
            ReplicaClient(name, "http://127.0.0.1:1", timeouts), frozenset({"m"}), Outside(weight)
        )
        for name, weight in outside.items()
    ]
    pool = ReplicaPool(clients, aliases or {}, PoolTimings(1.0, 1.0, 30.0), clock, theirs)
    for name in names:
        pool[name].models = frozenset({"m"})
        pool[name].set_ready(is_ready=True)
    limits = RelayLimits(1, 1, 1.0, 1.0)
    profile, hot = profile_of(Random(1).random)
    router = Router(pool, profile, hot, PrefixReuse(lambda: 1.0))
    forecasting = Forecasting(lambda model, prompt: prompt.size, barred, observe_ttft, on_progress)
    return Fleet(pool, router, limits, clock, forecasting)


def inference_request(
    model: str,
    *,
    prompt_tokens: int = 1,
    reserved_tokens: int = 1,
    is_stream: bool = False,
    key: bytes = b"k",
) -> InferenceRequest:
    return InferenceRequest(
        operation=Operation.COMPLETIONS,
        model_requested=model,
        model=model,
        is_stream=is_stream,
        wants_usage_chunk=False,
        prompt=Prompt(prompt_tokens, None),
        num_choices=1,
        estimated_prompt_tokens=prompt_tokens,
        max_completion_tokens=reserved_tokens,
        reserved_completion_tokens=reserved_tokens,
        affinity=Affinity(key, key),
    )


@lru_cache
def grant_of(tenant: str, admission: AdmissionPolicy) -> Grant:
    """The same for the same: a policy that is in force."""
    key = ApiKeyRecord(key_id="k", key_hash="h", key_prefix="p")
    policy = TenantPolicy(tenant_id=tenant_id(tenant), tier="free")
    return Grant(policy, key, TIERS["free"], admission, b"s" * 32)


def context_of(
    tenant: str, admission: AdmissionPolicy, request: InferenceRequest
) -> RequestContext:
    return RequestContext(
        request_id=f"req_{tenant}",
        event_id=tenant,
        grant=grant_of(tenant, admission),
        request=request,
        admitted_at=SYSTEM_CLOCK.now(),
        started_monotonic_s=0.0,
    )
