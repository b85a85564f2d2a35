from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat


async def test_a_document_is_relayed_settled_and_recorded(tenant: Tenant) -> None:
    reply = await tenant.chat(chat())
    assert reply.status == 200, reply
    assert reply.document["usage"]["completion_tokens"] == 3
    event = tenant.only_event()
    assert (event.input_uncached_tokens, event.input_cache_read_tokens) == (7, 4)


async def test_a_stream_is_relayed_settled_and_recorded(tenant: Tenant) -> None:
    reply = await tenant.chat(chat(stream=True))
    assert reply.status == 200, reply
    assert reply.payloads[-1] == "[DONE]"
    assert len(reply.payloads) == 4
    assert tenant.only_event().output_text_tokens == 3
