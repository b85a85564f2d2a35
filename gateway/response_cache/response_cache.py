"""Exact repeats, from a store of their own; whatever is wrong with it is a miss.

Of identical requests that run at the same time one is made, for all of them: it ends when the
last of its readers has left.  In the store answers expire, and it may drop any of them before.
"""

from functools import partial
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from contracts.names import TenantId, cached_answer
from contracts.response_cache import CachePolicy, KeptAnswer
from contracts.usage import UsageSource
from gateway.admission.resp import RespClient, error_text, pack
from gateway.errors import QuotaUnavailable
from gateway.exchange import Exchange
from gateway.metering import Usage
from gateway.resilience.shared_answer import Recording, SharedAnswer

_decode = msgspec.msgpack.Decoder(KeptAnswer).decode
_encode = msgspec.msgpack.Encoder().encode
CACHE_HIT: Final = b"x-pandal-cache: hit\r\n"
CACHE_MISS: Final = b"x-pandal-cache: miss\r\n"
CACHE_SHARED: Final = b"x-pandal-cache: shared\r\n"  # with a request that was under way


class ResponseCache:
    def __init__(self, store: RespClient | None) -> None:
        """``None``: nothing is kept, but what runs is still shared."""
        self._store = store
        self._running: dict[str, SharedAnswer] = {}
        self.num_hits = self.num_misses = self.num_shared = 0

    def running(self, tenant: TenantId, digest: str) -> SharedAnswer | None:
        """Of the same request, under way."""
        answer = self._running.get(cached_answer(tenant, digest))
        return None if answer is None or answer.is_too_large else answer

    async def find(self, tenant: TenantId, digest: str, exchange: Exchange) -> KeptAnswer | None:
        """Raises Interrupted."""
        if self._store is None:
            return None
        try:
            reply = await exchange.watch(
                self._store.call(pack("GET", cached_answer(tenant, digest)))
            )
        except QuotaUnavailable:  # as the client of both stores calls it
            reply = None
        try:
            found = _decode(reply) if isinstance(reply, bytes) else None
        except UNDECODABLE:
            found = None  # of another version, maybe
        if found is None:
            self.num_misses += 1
        else:
            self.num_hits += 1
        return found

    def begin(
        self, tenant: TenantId, digest: str, policy: CachePolicy, exchange: Exchange
    ) -> SharedAnswer:
        """The answer that the caller has made, for all who ask meanwhile, and to be kept."""
        name = cached_answer(tenant, digest)
        keep = partial(self._keep, name, policy)
        self._running[name] = answer = SharedAnswer(exchange, keep, outlives_readers=False)
        return answer

    def _keep(self, name: str, policy: CachePolicy, answer: SharedAnswer) -> None:
        if self._running.get(name) is answer:
            del self._running[name]
        recording, usage = answer.recording, answer.usage
        if self._store is None or recording is None or usage is None or not recording.is_good:
            return
        if answer.served is not None:
            return  # another model's is no answer to this request once its own is back
        kept = _encode(_kept(recording, usage, answer.event_id))
        if len(kept) <= policy.max_answer_bytes:
            reply = self._store.call(pack("SET", name, kept, "EX", policy.ttl_s))
            reply.then(lambda: error_text(reply))  # whether it was kept makes no difference here


def send_kept(exchange: Exchange, kept: KeptAnswer, head: bytes) -> None:
    """``head``: complete lines."""
    recording = Recording(200, b"", kept.parts, kept.is_stream)
    recording.send_to(exchange, head + CACHE_HIT)


def usage_of(kept: KeptAnswer) -> Usage:
    cached = kept.cached_prompt_tokens
    return Usage(kept.prompt_tokens, cached, kept.completion_tokens, UsageSource.ENGINE)


def _kept(recording: Recording, usage: Usage, event_id: str | None) -> KeptAnswer:
    return KeptAnswer(
        is_stream=recording.is_stream,
        parts=tuple(recording.parts),
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
        event_id=event_id,
    )
