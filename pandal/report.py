"""What ``pandal up`` prints once the fleet has shown that it works."""

import asyncio

from billing.errors import LedgerMissing
from billing.lookup import PostedEvent, find_event
from billing.money import plain
from pandal.demo import DemoAnswer
from pandal.errors import FleetFailed
from pandal.plan import DEFAULT_ALIAS, FleetPlan
from pandal.polling import poll_until
from pandal.screen import Screen
from pandal.snippets import curl, openai_sdk

_POLL_INTERVAL_S = 0.1
LEDGER_PATIENCE_S = 15.0  # through the spool under a second; a Kafka group takes some to form


def show_demo_answer(screen: Screen, answer: DemoAnswer) -> None:
    speed = answer.tokens_per_s
    screen.table(
        "measured by this client",
        {
            "time to first token": f"{answer.ttft_s * 1000:.0f} ms",
            "decode": "too short to tell" if speed is None else f"{speed:.1f} tokens/s",
            "usage": f"{answer.num_prompt_tokens} prompt tokens, "
            f"{answer.num_completion_tokens} completion tokens",
            "request id": answer.request_id,
            **answer.rate_limits,
        },
    )


async def show_ledger_line(screen: Screen, ledger_url: str, answer: DemoAnswer) -> None:
    """Raises FleetFailed unless billing books the request, and books what the client was told."""
    event = await _booked(ledger_url, answer.request_id)
    tokens = {token_class.value: f"{count} tokens" for token_class, count in event.tokens.items()}
    price = "no price for this model yet" if event.usd is None else f"{plain(event.usd)} USD"
    screen.table(f"booked for tenant {event.tenant_id}", {**tokens, "charged": price})
    num_told = answer.num_prompt_tokens + answer.num_completion_tokens
    num_booked = sum(event.tokens.values())
    if num_booked != num_told:
        raise FleetFailed(f"the answer reported {num_told} tokens, the ledger {num_booked}")


def show_snippets(screen: Screen, plan: FleetPlan, api_key: str) -> None:
    base_url = f"{plan.gateway.url}/v1"
    screen.line("")
    screen.line("try it", "bold")
    screen.line(curl(base_url=base_url, api_key=api_key, model=DEFAULT_ALIAS))
    screen.line("")
    screen.line(openai_sdk(base_url=base_url, api_key=api_key, model=DEFAULT_ALIAS))
    screen.line("")


async def _booked(ledger_url: str, request_id: str) -> PostedEvent:
    try:
        async with asyncio.timeout(LEDGER_PATIENCE_S):
            return await poll_until(
                lambda: asyncio.to_thread(_find, ledger_url, request_id),
                interval_s=_POLL_INTERVAL_S,
            )
    except TimeoutError as exc:
        raise FleetFailed(
            f"request {request_id} is not in the ledger after {LEDGER_PATIENCE_S:g} s"
        ) from exc


def _find(ledger_url: str, request_id: str) -> PostedEvent | None:
    try:
        return find_event(ledger_url, request_id=request_id)
    except LedgerMissing:
        return None
