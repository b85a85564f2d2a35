"""Learns from an engine of another make what its tokenizer makes of the prompts it is sent.

Its block events tell tokens, and a gateway has no tokenizer on its hot path.  So the engine is
asked, beside the request and one question at a time: where more prompts come than it answers, the
others are not asked about, and what they share with one that was is found all the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from gateway.errors import UpstreamError
from gateway.prompt import PromptText
from gateway.routing.engine_blocks import EngineBlocks
from gateway.upstream.replica_client import ReplicaClient

_PATH: Final = b"/tokenize"  # takes what a completion takes
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024  # of a million tokens


class _Salted(msgspec.Struct):
    cache_salt: str = ""


class _Tokens(msgspec.Struct):
    tokens: Sequence[int]


class PromptTokens:
    """Close it when done."""

    def __init__(self, client: ReplicaClient, blocks: EngineBlocks) -> None:
        self._client = client
        self._blocks = blocks
        self._question: asyncio.Task[None] | None = None

    def ask(self, text: PromptText, body: bytes) -> None:
        """``body``: the request's, as the engine gets it."""
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask(text, body))

    async def close(self) -> None:
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait((self._question,))  # a fault of ours is left for the loop to tell

    async def _ask(self, text: PromptText, body: bytes) -> None:
        try:
            answer = await self._client.ask(_PATH, body, _TIMEOUT_S, _MAX_ANSWER_BYTES)
            if answer.status != 200:
                return  # an engine without it is routed by the ring
            told = msgspec.json.decode(answer.body, type=_Tokens)
            salted = msgspec.json.decode(body, type=_Salted)
        except (UpstreamError, *UNDECODABLE):
            return
        await self._blocks.expect(text, told.tokens, salted.cache_salt)
