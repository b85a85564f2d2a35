"""A model whose next token is a hash of the context it reads back through the block tables.

Any wrong block, slot, length or stale content changes the token, at no cost.
"""

import zlib
from collections.abc import Sequence

from replica.engine.batch import FlatBatch
from replica.engine.kv_operations import CopyIn, CopyOut, KvOperation, Vacate
from replica.engine.messages import SamplingParams, TokenLogprobs
from replica.engine.step import SampledToken

VOCAB_SIZE = 64
EOS = 0
TOKEN_BYTES = [b"", *(bytes([97 + i % 26]) for i in range(1, VOCAB_SIZE))]
NOT_FINITE = SampledToken(token_id=0, is_finite=False)


def next_token(context: Sequence[int], *, is_eos_banned: bool) -> int:
    token = zlib.crc32(repr(list(context)).encode()) % VOCAB_SIZE
    return 1 if token == EOS and is_eos_banned else token


def reference_completion(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """What any correct engine generates, stop strings aside."""
    context = list(prompt)
    while len(context) - len(prompt) < params.max_tokens:
        num_generated = len(context) - len(prompt)
        read = [*context, len(prompt)] if params.has_penalties else context
        context.append(next_token(read, is_eos_banned=num_generated < params.min_tokens))
        if context[-1] == EOS and not params.ignore_eos:
            break
    return context[len(prompt) :]


class HashModel:
    """A ModelRunner."""

    def __init__(self, block_size: int, poisoned_token: int | None = None) -> None:
        """Contexts that hold ``poisoned_token`` come out as numbers that are not finite."""
        self._block_size = block_size
        self._poisoned_token = poisoned_token
        self._cache: dict[int, tuple[int, int]] = {}
        self._host: dict[int, dict[int, tuple[int, int]]] = {}

    def execute(self, batch: FlatBatch) -> list[SampledToken | None]:
        for operation in batch.kv_operations:
            self._carry_out(operation)
        for slot, token, position in zip(
            batch.slots, batch.token_ids, batch.positions, strict=True
        ):
            assert slot >= self._block_size, "the null block was written"
            self._cache[slot] = (token, position)
        rows = {row.row: row for row in batch.sampled_rows}
        results: list[SampledToken | None] = []
        for segment in batch.segments:
            context = self._context(segment.block_table, segment.context_length)
            row = rows.get(segment.first_row + segment.num_tokens - 1)
            if self._poisoned_token in context:
                results.append(NOT_FINITE)
            elif row is None:
                results.append(None)
            else:
                assert row.position == len(context)
                if row.seen is not None:
                    context = [*row.seen.before, batch.token_ids[row.row]]
                    context.append(row.seen.num_prompt_tokens)
                token = next_token(context, is_eos_banned=row.is_eos_banned)
                logprobs = None
                if row.params.num_top_logprobs is not None:
                    logprobs = TokenLogprobs(logprob=-float(len(context)))
                results.append(SampledToken(token, is_finite=True, logprobs=logprobs))
        return results

    def _carry_out(self, operation: KvOperation) -> None:
        """A vacated block holds nothing: reading it raises KeyError."""
        match operation:
            case Vacate(block=block):
                self._take(block)
            case CopyOut(block=block, host_block=host_block):
                self._host[host_block] = {
                    offset: self._cache[slot]
                    for offset, slot in enumerate(self._slots(block))
                    if slot in self._cache
                }
            case CopyIn(host_block=host_block, block=block):
                self._take(block)
                first = block * self._block_size
                self._cache |= {first + i: kv for i, kv in self._host[host_block].items()}

    def _take(self, block: int) -> None:
        for slot in self._slots(block):
            self._cache.pop(slot, None)

    def _slots(self, block: int) -> range:
        return range(block * self._block_size, (block + 1) * self._block_size)

    def _context(self, block_table: Sequence[int], length: int) -> list[int]:
        tokens: list[int] = []
        for position in range(length):
            block = block_table[position // self._block_size]
            token, stored = self._cache[block * self._block_size + position % self._block_size]
            assert stored == position, "a block holds another position's KV"
            tokens.append(token)
        return tokens
