"""The headers a client gets: ours only.  What the replica sent stays inside."""

from functools import lru_cache

from contracts.names import HEADER_ROUTE
from gateway.admission.verdict import Budget
from gateway.routing.decision import Decision

_MAX_EXPLAINED = 16


def request_id_header(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n" % request_id.encode()


def route_costs(decision: Decision) -> str:
    """Of the candidates that were in question, a screenful at most, the one chosen among them.

    In tokens to be done; where all are late, in milliseconds past the target.
    """
    cheapest = sorted(zip(decision.costs, decision.places, strict=True))[:_MAX_EXPLAINED]
    names = decision.candidates
    return ",".join(f"{names[place].name}:{cost:.0f}" for cost, place in cheapest)


def route_header(decision: Decision, costs: str) -> bytes:
    home = "" if decision.home is None else f"; home={decision.home}"
    line = (
        f"replica={decision.endpoint.name}; reason={decision.reason}{home}; "
        f"cached={decision.cached_tokens:.0f}; costs={costs}"
    )
    printable = "".join(sign if " " <= sign <= "~" else "?" for sign in line)
    return f"{HEADER_ROUTE}: {printable}\r\n".encode()


def rate_limit_headers(budget: Budget, request_id: str) -> bytes:
    """OpenAI's six and the IETF's two, behind the request's id.

    https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/: a policy is a quota
    of units in a window of seconds; ``r`` are left of it for the next ``t`` seconds.
    """
    requests_ms, tokens_ms = budget.requests_reset_ms, budget.tokens_reset_ms
    requests_left, tokens_left = budget.requests_remaining, budget.tokens_remaining
    limits, policy = _of_limits(budget.requests_limit, budget.tokens_limit)
    requests_s, tokens_s = -(-requests_ms // 1000), -(-tokens_ms // 1000)
    if budget.retry_after_ms is not None:  # never beyond it, which the draft forbids
        most_s = -(-budget.retry_after_ms // 1000)
        requests_s, tokens_s = min(requests_s, most_s), min(tokens_s, most_s)
    return (
        b"x-request-id: %b\r\n%b"
        b"x-ratelimit-remaining-requests: %d\r\nx-ratelimit-remaining-tokens: %d\r\n"
        b"x-ratelimit-reset-requests: %b\r\nx-ratelimit-reset-tokens: %b\r\n"
        b'%bratelimit: "requests";r=%d;t=%d, "tokens";r=%d;t=%d\r\n'
    ) % (
        request_id.encode(),
        limits,
        requests_left,
        tokens_left,
        b"%dms" % requests_ms if requests_ms < 1000 else format_duration(requests_ms),
        b"%dms" % tokens_ms if tokens_ms < 1000 else format_duration(tokens_ms),
        policy,
        requests_left,
        requests_s,
        tokens_left,
        tokens_s,
    )


@lru_cache(maxsize=1_000)
def _of_limits(requests: int, tokens: int) -> tuple[bytes, bytes]:
    return (
        b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-limit-tokens: %d\r\n" % (requests, tokens),
        b'ratelimit-policy: "requests";q=%d;w=60, "tokens";q=%d;w=60;qu="tokens"\r\n'
        % (requests, tokens),
    )


def format_duration(duration_ms: int) -> bytes:
    """As OpenAI writes them: ``120ms``, ``1s``, ``1.5s``, ``6m0s``."""
    if duration_ms < 1000:
        return b"%dms" % duration_ms
    seconds, rest_ms = divmod(duration_ms, 1000)
    decimals = (b".%03d" % rest_ms).rstrip(b"0") if rest_ms else b""
    if seconds < 60:
        return b"%d%bs" % (seconds, decimals)
    return b"%dm%d%bs" % (seconds // 60, seconds % 60, decimals)
