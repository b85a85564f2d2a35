"""Keys, prompts and answers: in no log, no event, no metric."""

import asyncio
from collections.abc import Callable

from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, post
from tests.gateway.processes import PEPPER, Gateway
from tests.gateway.upstream_server import Generation, Upstream, words

PROMPT = "zanzibar-prompt"
ANSWER = "quetzal-answer"


async def fail(generation: Generation) -> None:
    await generation.answer(400, b'{"error": {"message": "bad prompt: zanzibar-prompt"}}')


async def speak(generation: Generation) -> None:
    await generation.start_stream()
    await generation.word(ANSWER)
    await generation.end_stream()


async def test_nothing_a_client_said_or_got_is_kept(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_LOG_LEVEL="debug")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    for behaviour in (speak, fail, words(1)):
        upstream.behaviour = behaviour
        await asyncio.gather(*(tenant.chat(chat(PROMPT, stream=True)) for _ in range(2)))
    await post(gateway.port, chat(PROMPT), "sk-stolen-key")
    await tenant.chat(chat(PROMPT, max_tokens=-1))
    await tenant.chat(b'{"model": "zanzibar-prompt", "messages": [')
    metrics = await get(gateway.port, "/metrics")
    gateway.stop()
    segments = b"".join(path.read_bytes() for path in gateway.spool_dir.iterdir())
    kept = gateway.log_path.read_bytes() + segments + metrics.body
    for secret in (PROMPT, ANSWER, tenant.key, "sk-stolen-key", PEPPER):
        assert secret.encode() not in kept
    assert tenant.name.encode() in kept
