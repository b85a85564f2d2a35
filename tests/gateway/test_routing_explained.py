"""Header, log and metric tell of one decision the same: why, from where, and among whom."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import msgspec
from msgspec.structs import replace

from contracts import metrics as names
from gateway.api.headers import route_costs
from gateway.routing.decision import Decision, Reason
from gateway.routing.endpoint import Endpoint
from tests.gateway.conftest import Tenant
from tests.gateway.fleets import LOAD
from tests.gateway.http_client import chat, get, post
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import eventually

_ROUTE = re.compile(
    r"replica=(?P<replica>\w+); reason=(?P<reason>\w+)(?:; home=(?P<home>\w+))?; "
    r"cached=\d+; costs=(?P<costs>[\w:,-]+)"
)
_PATIENCE = 60  # questions, one after another
_numbers = count()


@contextmanager
def three() -> Iterator[dict[str, Upstream]]:
    upstreams = {name: Upstream() for name in "abc"}
    for upstream in upstreams.values():
        tell(upstream)  # from the beginning, or it is taken for one of another make
        upstream.start()
    yield upstreams
    for upstream in upstreams.values():
        upstream.stop()


@dataclass(frozen=True)
class Asked:
    reason: str
    replica: str
    home: str | None
    session: str | None


async def ask(tenant: Tenant, session: str | None) -> Asked:
    """And looks whether all three agree."""
    gateway = tenant.gateway
    before = await routes(gateway)
    headers = {"x_pandal_explain": "1"} | ({} if session is None else {"x_session_id": session})
    reply = await post(gateway.port, chat(), tenant.key, **headers)
    assert reply.status == 200
    told = _ROUTE.fullmatch(reply.headers["x-pandal-route"])
    assert told is not None, reply.headers["x-pandal-route"]
    request_id = reply.headers["x-request-id"]

    def lines() -> list[dict[str, object]]:
        return [x for x in gateway.log_lines() if x.get("request_id") == request_id]

    eventually(lambda: bool(lines()), "the log line")
    (line,) = lines()
    logged = [line.get(field) for field in ("replica", "route", "home", "route_costs")]
    assert logged == [told["replica"], told["reason"], told["home"], told["costs"]]
    costs = {part.split(":")[0]: int(part.split(":")[1]) for part in told["costs"].split(",")}
    assert costs[told["replica"]] == min(costs.values())
    after = await routes(gateway)
    changed = {reason: num - before.get(reason, 0) for reason, num in after.items()}
    assert {reason: num for reason, num in changed.items() if num} == {told["reason"]: 1}
    return Asked(told["reason"], told["replica"], told["home"], session)


async def routes(gateway: Gateway) -> dict[str, int]:
    exposition = (await get(gateway.port, "/metrics")).body.decode()
    found = re.findall(rf'^{names.GATEWAY_ROUTES}{{reason="(\w+)"}} (\d+)$', exposition, re.M)
    return {reason: int(num) for reason, num in found}


def unheard_of() -> str:
    return f"session-{next(_numbers)}"


async def ask_until(
    tenant: Tenant, reason: str, session: Callable[[], str | None] = unheard_of
) -> Asked:
    reasons = set()
    for _ in range(_PATIENCE):
        asked = await ask(tenant, session())
        if asked.reason == reason:
            return asked
        reasons.add(asked.reason)
    raise AssertionError(f"never routed by {reason}, but by {reasons}")


def tell(upstream: Upstream, **members: object) -> None:
    upstream.load = msgspec.to_builtins(replace(LOAD, model="model-a", **members))


async def test_header_log_and_metric_tell_of_the_same_route(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant]
) -> None:
    with three() as upstreams:
        gateway = start_gateway(
            upstreams=upstreams,
            GATEWAY_ROUTING_EXPLAINED="1",
            GATEWAY_ROUTING_LEAST_PREFIX_TOKENS="100000",  # but for sessions
            GATEWAY_POLL_INTERVAL_S="0.05",
        )
        tenant = make_tenant(on=gateway)
        await tenant.accepted()
        asked = await ask_until(tenant, "home")
        assert asked.replica == asked.home
        assert (await ask(tenant, None)).reason == "no_prefix"

        for name in "ab":  # so that their keys go to the next on the ring, or to whoever is free
            tell(upstreams[name], num_running=50, queued_prompt_tokens=50_000)
        tell(upstreams["c"])
        asked = await ask_until(tenant, "spill")
        assert asked.replica == "c"
        assert asked.home in {"a", "b"}
        popular = (await ask_until(tenant, "grown")).session
        asked = await ask_until(tenant, "owner", lambda: popular)
        assert asked.replica == "c"
        assert asked.home in {"a", "b"}

        upstreams["b"].is_ready = upstreams["c"].is_ready = False
        asked = await ask_until(tenant, "only")
        assert asked.replica == "a"


def test_the_one_that_was_chosen_is_among_those_that_are_told() -> None:
    endpoints = [Endpoint(f"r{n}", True, frozenset({"m"})) for n in range(100)]
    costs = [float(200 - n) for n in range(100)]
    decision = Decision(endpoints[99], Reason.CACHED, None, endpoints, range(100), costs)
    told = route_costs(decision).split(",")
    assert told[:2] == ["r99:101", "r98:102"]
    assert len(told) == 16
