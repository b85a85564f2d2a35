"""The client people use, unchanged."""

from collections.abc import AsyncIterator, Callable

import openai
import pytest

from tests.gateway.conftest import Tenant
from tests.gateway.upstream_server import PROMPT_TOKENS, Upstream, words

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def client(tenant: Tenant) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{tenant.gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=tenant.key, max_retries=0) as client:
        yield client


async def test_a_completion(client: openai.AsyncOpenAI, tenant: Tenant) -> None:
    completion = await client.chat.completions.create(model="default", messages=MESSAGES)
    assert completion.choices[0].message.content == "word word word "
    assert completion.usage is not None
    assert completion.usage.total_tokens == PROMPT_TOKENS + 3
    assert tenant.only_event().total_tokens == completion.usage.total_tokens


async def test_a_stream_with_usage(client: openai.AsyncOpenAI, tenant: Tenant) -> None:
    stream = await client.chat.completions.create(
        model="model-a", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "word word word "
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert tenant.only_event().output_text_tokens == chunks[-1].usage.completion_tokens


async def test_errors_have_their_classes(
    client: openai.AsyncOpenAI, tenant: Tenant, make_tenant: Callable[..., Tenant]
) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="model-z", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="model-a", messages=MESSAGES, max_tokens=0)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-no").models.list()
    limited = make_tenant(requests_per_minute=1)
    await limited.accepted()
    other = client.with_options(api_key=limited.key)
    await other.chat.completions.create(model="model-a", messages=MESSAGES)
    with pytest.raises(openai.RateLimitError) as refused:
        await other.chat.completions.create(model="model-a", messages=MESSAGES)
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.request_id is not None


async def test_a_stream_that_is_closed_early_is_billed(
    client: openai.AsyncOpenAI, tenant: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    stream = await client.chat.completions.create(model="model-a", messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await client.close()
    event = tenant.only_event()
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["default", "model-a"]
