"""The headers a client gets: ours only.  What the replica sent stays inside."""

from gateway.admission.verdict import Budget
from gateway.errors import whole_seconds


def request_id_header(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n" % request_id.encode()


def rate_limit_headers(budget: Budget | None) -> bytes:
    """OpenAI's six and the IETF's two, or nothing where no decision was made.

    https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/: a policy is a quota
    of units in a window of seconds; ``r`` are left of it for the next ``t`` seconds.
    """
    if budget is None:
        return b""
    return (
        b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-limit-tokens: %d\r\n"
        b"x-ratelimit-remaining-requests: %d\r\nx-ratelimit-remaining-tokens: %d\r\n"
        b"x-ratelimit-reset-requests: %b\r\nx-ratelimit-reset-tokens: %b\r\n"
        b'ratelimit-policy: "requests";q=%d;w=60, "tokens";q=%d;w=60;qu="tokens"\r\n'
        b'ratelimit: "requests";r=%d;t=%d, "tokens";r=%d;t=%d\r\n'
    ) % (
        budget.requests_limit,
        budget.tokens_limit,
        budget.requests_remaining,
        budget.tokens_remaining,
        format_duration(budget.requests_reset_ms),
        format_duration(budget.tokens_reset_ms),
        budget.requests_limit,
        budget.tokens_limit,
        budget.requests_remaining,
        _window_s(budget, budget.requests_reset_ms),
        budget.tokens_remaining,
        _window_s(budget, budget.tokens_reset_ms),
    )


def format_duration(duration_ms: int) -> bytes:
    """As OpenAI writes them: ``120ms``, ``1s``, ``1.5s``, ``6m0s``."""
    if duration_ms < 1000:
        return b"%dms" % duration_ms
    minutes, rest_ms = divmod(duration_ms, 60_000)
    seconds = f"{rest_ms / 1000:g}s".encode()
    return b"%dm%b" % (minutes, seconds) if minutes else seconds


def _window_s(budget: Budget, reset_ms: int) -> int:
    """Until the quota is whole again; never beyond Retry-After, which the draft forbids."""
    if budget.retry_after_ms is not None:
        reset_ms = min(reset_ms, budget.retry_after_ms)
    return whole_seconds(reset_ms)
