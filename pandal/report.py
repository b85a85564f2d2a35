"""What ``pandal up`` prints once the fleet has shown that it works."""

from billing.money import trimmed
from billing.pricing import PRICED_AS
from pandal.booking import event_booked
from pandal.demo import DemoAnswer, Usage
from pandal.errors import FleetFailed
from pandal.plan import DEFAULT_ALIAS, FleetPlan
from pandal.screen import Screen


def show_demo_answer(screen: Screen, answer: DemoAnswer) -> None:
    screen.table(
        "measured by this client",
        {
            "time to first token": f"{answer.ttft_s * 1000:.0f} ms",
            "decode": _decode_speed(answer),
            "usage": _usage(answer.usage),
            "request id": answer.request_id,
            **answer.rate_limits,
        },
    )


async def show_ledger_line(screen: Screen, ledger_url: str, answer: DemoAnswer) -> None:
    """Raises FleetFailed unless billing books the request, and books what the client was told."""
    event = await event_booked(ledger_url, answer.request_id)
    tokens = {c.value: f"{n} tokens" for c, n in event.tokens.items() if n or c not in PRICED_AS}
    price = "no price for this model yet" if event.usd is None else f"{trimmed(event.usd)} USD"
    screen.table(f"booked for tenant {event.tenant_id}", {**tokens, "charged": price})
    if answer.usage is None:
        return
    num_told = answer.usage.prompt_tokens + answer.usage.completion_tokens
    num_booked = sum(event.tokens.values())
    if num_booked != num_told:
        raise FleetFailed(f"the answer reported {num_told} tokens, the ledger {num_booked}")


def show_snippets(screen: Screen, plan: FleetPlan, api_key: str) -> None:
    base_url = f"{plan.gateway.url}/v1"
    screen.line("")
    screen.line("try it: curl", "bold")
    screen.line(_curl(base_url=base_url, api_key=api_key, model=DEFAULT_ALIAS))
    screen.line("")
    screen.line("try it: Python", "bold")
    screen.line(_openai_sdk(base_url=base_url, api_key=api_key, model=DEFAULT_ALIAS))
    screen.line("")


def show_admin(screen: Screen, plan: FleetPlan) -> None:
    """Where the token is, and never the token: screens are shared."""
    if plan.admin is not None:
        screen.line(f"admin API on {plan.admin.url}, its token in {plan.data_dir.admin_token}")


def _decode_speed(answer: DemoAnswer) -> str:
    if answer.usage is None:
        return "not known without usage"
    speed = answer.tokens_per_s
    return "too short to tell" if speed is None else f"{speed:.1f} tokens/s"


def _usage(usage: Usage | None) -> str:
    if usage is None:
        return "not told by the server; booked is what the gateway counted"
    return f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} completion tokens"


def _curl(*, base_url: str, api_key: str, model: str) -> str:
    return (
        f"curl {base_url}/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {api_key}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{model}", "messages": '
        '[{"role": "user", "content": "Hello!"}], "temperature": 0}\''
    )


def _openai_sdk(*, base_url: str, api_key: str, model: str) -> str:
    return (
        "from openai import OpenAI\n"
        "\n"
        "client = OpenAI(\n"
        f'    base_url="{base_url}",\n'
        f'    api_key="{api_key}",\n'
        ")\n"
        "answer = client.chat.completions.create(\n"
        f'    model="{model}",\n'
        "    temperature=0,  # a model this small rambles when it samples\n"
        '    messages=[{"role": "user", "content": "Hello!"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
