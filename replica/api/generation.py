"""A generation request, step by step.  Read this first."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from contracts.names import HEADER_REQUEST_ID
from contracts.replica_api import RESUME_TOKENS_FIELD
from replica.api.body import read_body
from replica.api.context import ReplicaContext, context_of
from replica.api.event_stream import EventStream, abort_on_disconnect, events
from replica.api.headers import printable
from replica.api.parameters import (
    cache_salt,
    check_prompt_fits,
    check_token_ids,
    completion_budget,
    max_time_s,
    num_choices,
    priority,
    requested_tokens,
    resume_tokens,
    sampling_params,
)
from replica.api.replies import Replies, ReplyOptions
from replica.api.schemas import GenerationBody, decode_body, refuse_unsupported
from replica.engine.engine import Engine
from replica.engine.live_request import LiveRequest, Piece, join
from replica.engine.submission import Work
from replica.errors import InvalidRequest, NotReady
from replica.model.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """Where chat and plain completions differ."""

    name: str
    body_type: type[Body]
    prompt_param: str  # the field to blame for a prompt that does not fit
    prompt: Callable[[Body, Tokenizer], str | list[int]]  # or token ids; raises InvalidRequest
    max_tokens: Callable[[Body], tuple[int | None, str]]  # and the field it came from
    num_top_logprobs: Callable[[Body], int | None]  # None: no logprobs; raises InvalidRequest
    replies: Callable[[ReplyOptions], Replies]


async def serve_generation(request: Request, endpoint: Endpoint[Body]) -> Response:
    context = context_of(request)
    given_id = printable(request, HEADER_REQUEST_ID)
    request_id = context.new_id() if given_id is None else given_id
    asked = context.witness.asked(request, endpoint.name)
    live = context.engine.open(request_id)
    is_handed_over = False
    try:
        body = decode_body(await read_body(request, context), endpoint.body_type)
        adapter = context.engine.names.adapter(body.model)
        work = await _work(context, body, endpoint, adapter)
        on_end = context.witness.on_end(asked, work, is_stream=bool(body.stream))
        context.engine.submit(live, work, on_end)
        options = _reply_options(context, body, work, request_id)
        replies = endpoint.replies(options)
        if body.stream:
            is_handed_over = True
            stream = events(live, replies, has_usage=options.has_usage)
            return EventStream(context.engine, live, stream, request_id)
        return await _whole(request, context.engine, live, replies)
    finally:
        if not is_handed_over:
            context.engine.close(live)


def tokenizer_of(engine: Engine) -> Tokenizer:
    """Raises NotReady."""
    engine.check_accepting()
    if engine.tokenizer is None:
        raise NotReady("the tokenizer is still loading")
    return engine.tokenizer


async def _work(
    context: ReplicaContext, body: Body, endpoint: Endpoint[Body], adapter: int | None
) -> Work:
    """Raises InvalidRequest or NotReady."""
    engine = context.engine
    refuse_unsupported(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream", param="stream_options")
    tokenizer = tokenizer_of(engine)
    wanted, param = endpoint.max_tokens(body)
    max_tokens = requested_tokens(wanted, param)
    assert engine.ready is not None
    max_model_len = engine.ready.max_model_len
    prompt = await asyncio.to_thread(_encode, body, endpoint, tokenizer, max_model_len)
    budget = completion_budget(len(prompt), max_tokens, max_model_len, endpoint.prompt_param)
    check_token_ids(body.resume_tokens or (), tokenizer, RESUME_TOKENS_FIELD)
    params = sampling_params(
        body,
        tokenizer,
        max_tokens=budget,
        random_seed=context.new_seed(),
        num_top_logprobs=endpoint.num_top_logprobs(body),
    )
    return Work(
        prompt_token_ids=prompt,
        params=params,
        num_choices=num_choices(body, context.max_choices),
        cache_salt=cache_salt(body),
        priority=priority(body),
        max_time_s=max_time_s(body),
        resume_token_ids=resume_tokens(body, params, tokenizer),
        adapter=adapter,
    )


def _reply_options(
    context: ReplicaContext, body: GenerationBody, work: Work, request_id: str
) -> ReplyOptions:
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    has_logprobs = work.params.num_top_logprobs is not None
    return ReplyOptions(
        request_id=request_id,
        model=context.engine.names.of(work.adapter),
        created=context.unix_time_s(),
        has_usage=bool(body.stream) and has_usage,
        prompt_token_ids=work.prompt_token_ids if body.return_token_ids else None,
        logprobs_tokenizer=context.engine.tokenizer if has_logprobs else None,
        resumed_token_ids=work.resume_token_ids,
    )


def _encode(
    body: Body, endpoint: Endpoint[Body], tokenizer: Tokenizer, max_model_len: int
) -> list[int]:
    """Raises InvalidRequest, before tokenizing what cannot fit: a megabyte takes a second."""
    prompt = endpoint.prompt(body, tokenizer)
    if not isinstance(prompt, str):
        return prompt
    check_prompt_fits(tokenizer.min_num_tokens(prompt), max_model_len, endpoint.prompt_param)
    return tokenizer.encode(prompt)


async def _whole(request: Request, engine: Engine, live: LiveRequest, replies: Replies) -> Response:
    pieces_by_choice: list[list[Piece]] = [[] for _ in live.choices]
    async with (
        abort_on_disconnect(request.receive, engine, live),
        aclosing(live.pieces()) as pieces,
    ):
        async for piece in pieces:
            pieces_by_choice[piece.index].append(piece)
    return Response(
        replies.whole([join(pieces) for pieces in pieces_by_choice], live.usage),
        headers={HEADER_REQUEST_ID: live.request_id},
        media_type="application/json",
    )
