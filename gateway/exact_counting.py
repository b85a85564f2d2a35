"""Prompts counted by the model's own tokenizer, for tenants whose policy says so.

The tokenizer is the replica's own, asked for once.  Messages are counted in worker threads, never
on the event loop, and their counts are kept by content: a growing conversation costs its new turn.
What the chat template adds is learned from what engines count.  Where nothing can be counted in
time (no tokenizer yet, the threads have too much to do, also for this tenant) the learned estimate
stands.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from contracts.tokenizer import TOKENIZER_PATH, TokenizerFile
from gateway.admission.hf_tokenizer import HfTokenizer, load_tokenizer
from gateway.admission.part_counter import PartCounter
from gateway.admission.prompt_parts import is_system, split
from gateway.admission.template_overhead import TemplateOverhead
from gateway.api.context import InferenceRequest
from gateway.completion import Completion
from gateway.errors import TokenizerUnavailable, UpstreamError
from gateway.policies import Grant
from gateway.prompt import CountedPrompt, TemplateForm
from gateway.routing.pool import ReplicaPool
from gateway.routing.replica import Replica

logger = logging.getLogger(__name__)

_RETRY_S: Final = 10.0
_FETCH_S: Final = 30.0
_MAX_TOKENIZER_BYTES: Final = 64 * 1024 * 1024


Watch = Callable[[Completion[int | None]], Awaitable[int | None]]


class _Prompt(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")


_prompt_decoder = msgspec.json.Decoder(_Prompt)


class ExactCounting:
    def __init__(self, pool: ReplicaPool) -> None:
        self._pool = pool
        self._counter = PartCounter()
        self._overhead = TemplateOverhead()
        self._tokenizers: dict[str, HfTokenizer] = {}
        self._wanted: set[str] = set()
        self._is_wanted = asyncio.Event()

    async def counted(
        self, request: InferenceRequest, body: bytes, grant: Grant, watch: Watch
    ) -> InferenceRequest:
        """With the exact number of its prompt's tokens, if it can be had now.

        ``watch`` waits for it and may end the wait by raising.
        """
        model = request.model
        if request.prompt.mix is None:
            return request  # token ids: they have been counted
        tokenizer = self._tokenizers.get(model)
        if tokenizer is None:
            self._wanted.add(model)
            self._is_wanted.set()
            return request
        parts, has_tools = _parts_of(body)
        num_tokens = await watch(self._counter.num_tokens(tokenizer, model, grant.salt, parts))
        if num_tokens is None:
            return request
        form = TemplateForm(request.operation, is_system(parts[0]), has_tools)
        counted = CountedPrompt(num_tokens, len(parts), form)
        total = num_tokens + self._overhead.tokens(model, counted)
        return msgspec.structs.replace(request, estimated_prompt_tokens=total, counted=counted)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """``prompt_tokens``: the engine's count."""
        if request.counted is not None:
            self._overhead.learn(request.model, request.counted, prompt_tokens)

    async def run(self) -> None:
        """Fetches tokenizers that are asked for; runs until cancelled."""
        try:
            while True:
                await self._is_wanted.wait()
                self._is_wanted.clear()
                for model in list(self._wanted):
                    await self._fetch(model)
                if self._wanted:
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._counter.stop()

    async def _fetch(self, model: str) -> None:
        for replica in self._pool.serving(model):
            try:
                tokenizer = await self._fetch_from(replica)
            except (UpstreamError, TokenizerUnavailable, *UNDECODABLE) as error:
                fields = {"model": model, "replica": replica.name, "error": str(error)}
                logger.warning("no tokenizer, prompts are estimated", extra=fields)
            else:
                self._tokenizers[model] = tokenizer
                self._wanted.discard(model)
                logger.info("tokenizer loaded", extra={"model": model, "replica": replica.name})
                return

    async def _fetch_from(self, replica: Replica) -> HfTokenizer:
        """Raises UpstreamError, TokenizerUnavailable, or what ``msgspec`` raises."""
        answer = await replica.client.fetch(TOKENIZER_PATH, _FETCH_S, _MAX_TOKENIZER_BYTES)
        if answer.status != 200:
            raise TokenizerUnavailable(f"the replica answered {answer.status}")
        file = msgspec.json.decode(answer.body, type=TokenizerFile)
        return await asyncio.to_thread(load_tokenizer, file.tokenizer_json)


def _parts_of(body: bytes) -> tuple[list[bytes], bool]:
    """And whether the last of them is the tools."""
    prompt = _prompt_decoder.decode(body)
    parts = split(bytes(prompt.messages) or bytes(prompt.prompt)) or [b'""']
    tools = bytes(prompt.tools)
    return ([*parts, tools], True) if tools else (parts, False)
