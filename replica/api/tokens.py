"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them; the tokenizer as a file."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.tokenizer import TokenizerFile
from replica.api.body import read_body
from replica.api.chat import render_messages
from replica.api.context import context_of
from replica.api.generation import tokenizer_of
from replica.api.parameters import check_token_ids
from replica.api.schemas import DetokenizeBody, TokenizeBody, decode_body
from replica.errors import InvalidRequest
from replica.model.tokenizer import Tokenizer


class _Tokens(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]


class _Text(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


async def tokenize(request: Request) -> Response:
    context = context_of(request)
    body = decode_body(await read_body(request, context), TokenizeBody)
    context.engine.names.check(body.model)
    tokenizer = tokenizer_of(context.engine)
    token_ids = await asyncio.to_thread(_encode, body, tokenizer)
    assert context.engine.ready is not None
    max_model_len = context.engine.ready.max_model_len
    return _json(_Tokens(count=len(token_ids), max_model_len=max_model_len, tokens=token_ids))


async def detokenize(request: Request) -> Response:
    context = context_of(request)
    body = decode_body(await read_body(request, context), DetokenizeBody)
    context.engine.names.check(body.model)
    tokenizer = tokenizer_of(context.engine)
    check_token_ids(body.tokens, tokenizer, "tokens")
    return _json(_Text(prompt=await asyncio.to_thread(tokenizer.decode, body.tokens)))


async def tokenizer_file(request: Request) -> Response:
    engine = context_of(request).engine
    tokenizer_json = await asyncio.to_thread(tokenizer_of(engine).to_json)
    return _json(TokenizerFile(model=engine.names.model, tokenizer_json=tokenizer_json))


def _encode(body: TokenizeBody, tokenizer: Tokenizer) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("expected either prompt or messages", param="prompt")
    if body.messages is not None:
        return tokenizer.encode(render_messages(body.messages, tokenizer))
    assert body.prompt is not None
    return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
