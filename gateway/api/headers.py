"""The headers a client gets: ours only.  What the replica sent stays inside."""

from gateway.admission.limiter import Budget


def request_id_header(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n" % request_id.encode()


def rate_limit_headers(budget: Budget | None) -> bytes:
    """OpenAI's six, or nothing where no decision was made."""
    if budget is None:
        return b""
    return (
        b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-limit-tokens: %d\r\n"
        b"x-ratelimit-remaining-requests: %d\r\nx-ratelimit-remaining-tokens: %d\r\n"
        b"x-ratelimit-reset-requests: %b\r\nx-ratelimit-reset-tokens: %b\r\n"
    ) % (
        budget.requests_limit,
        budget.tokens_limit,
        budget.requests_remaining,
        budget.tokens_remaining,
        format_duration(budget.requests_reset_ms),
        format_duration(budget.tokens_reset_ms),
    )


def format_duration(duration_ms: int) -> bytes:
    """As OpenAI writes them: ``120ms``, ``1s``, ``1.5s``, ``6m0s``."""
    if duration_ms < 1000:
        return b"%dms" % duration_ms
    minutes, rest_ms = divmod(duration_ms, 60_000)
    seconds = f"{rest_ms / 1000:g}s".encode()
    return b"%dm%b" % (minutes, seconds) if minutes else seconds
