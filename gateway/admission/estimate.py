"""How many tokens a prompt has, before anybody has tokenised it.

Tokenising takes from 95 to 456 microseconds a kilobyte (tiktoken, Hugging Face tokenizers), and on
the event loop everybody would wait for it.  So tokens are bytes times a ratio, which is learned for
each model, mix of scripts (``prompt_mix``) and size from what settled requests had in truth.  It is
a high quantile, not the mean: as many prompts as that says are no larger than their estimate.  The
difference comes back at settlement.  Forecasts take the mean.

Nothing is kept over a restart: a new process begins at ratios that are safe for any byte-level
tokenizer we met, and has learned the traffic's own after some dozens of requests of a kind.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.admission.prompt_mix import NUM_MIXES, mix_of, safe_ratio
from gateway.admission.ratios import Ratios
from gateway.prompt import Prompt

_TEMPLATE_TOKENS: Final = 32  # a chat template's own, with a system message that nobody sent
_NUM_SIZES: Final = 7  # up to 63 bytes, 127, ... 2047, and all above
_ANY_SIZE: Final = 7
_KINDS_PER_MIX: Final = _NUM_SIZES + 1
_SMALLEST_BITS: Final = 6
_SIZE_CLASSES: Final = tuple(  # by the number of bits of a size in bytes
    min(_NUM_SIZES - 1, max(0, num_bits - _SMALLEST_BITS)) for num_bits in range(65)
)
_LARGE_BYTES: Final = 512  # in which a template hardly counts
_MAX_RATIO: Final = 8.0  # tokens a byte: a template around a prompt of few bytes
_MIN_RATIO: Final = 1 / 256
_MAX_MODELS: Final = 256
_LOOK_AHEAD: Final = 32  # bytes in which a list's first item begins
_BEGIN_TOKENS: Final = 1  # that a model may put in front of given ones

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def text_prompt(text: bytes | memoryview, num_more_bytes: int = 0) -> Prompt:
    """``text``: the JSON that holds the prompt; ``num_more_bytes``: of tools, which join it."""
    return Prompt(len(text) + num_more_bytes, mix_of(text))


def completion_prompt(text: bytes) -> Prompt:
    """As ``text_prompt``, where token ids may stand in place of text."""
    if text[:1] == b"[" and text[1:_LOOK_AHEAD].lstrip()[:1] not in (b'"', b"]"):
        return Prompt(text.count(b",") + 1 + _BEGIN_TOKENS, None)
    return text_prompt(text)


def num_prompts(prompt: bytes) -> int:
    """Prompts in a completion request: JSON text, token ids, or a list of either."""
    if not prompt.startswith(b"["):
        return 1
    items = _list_decoder.decode(prompt)
    if not items or bytes(items[0])[:1] not in (b'"', b"["):
        return 1  # one prompt, given as token ids
    return len(items)


class TokenEstimator:
    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._models: dict[str, Ratios] = {}

    def estimate(self, model: str, prompt: Prompt) -> int:
        if prompt.mix is None:
            return prompt.size
        mix, size, ratios = prompt.mix, prompt.size, self._models.get(model)
        if ratios is None:
            return math.ceil(_safe_ratio(mix, size) * size)
        ratio = ratios.high(mix * _KINDS_PER_MIX + _SIZE_CLASSES[size.bit_length()])
        if ratio is None:
            ratio = _of_others(ratios.high, mix, size)
        return math.ceil(ratio * size)

    def likely(self, model: str, prompt: Prompt) -> float:
        """As likely too many as too few."""
        ratios = self._models.get(model)
        if prompt.mix is None or ratios is None:
            return self.estimate(model, prompt)
        return _ratio(ratios.typical, prompt.mix, prompt.size) * prompt.size

    def learn(self, model: str, prompt: Prompt, num_tokens: int) -> None:
        """``num_tokens``: what the engine counted."""
        mix, num_bytes = prompt.mix, prompt.size
        if mix is None or num_tokens <= 0:
            return
        ratios = self._models.get(model)
        if ratios is None:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            ratios = self._models[model] = Ratios(NUM_MIXES * _KINDS_PER_MIX, self._quantile)
        estimated = _ratio(ratios.high, mix, num_bytes)
        ratio = min(_MAX_RATIO, max(_MIN_RATIO, num_tokens / num_bytes))
        kind = mix * _KINDS_PER_MIX + _SIZE_CLASSES[num_bytes.bit_length()]
        ratios.learn(kind, ratio, estimated)
        if num_bytes >= _LARGE_BYTES:
            ratios.learn(mix * _KINDS_PER_MIX + _ANY_SIZE, ratio, estimated)


def _ratio(learned: Callable[[int], float | None], mix: int, num_bytes: int) -> float:
    """Of its own size; if that was hardly seen, of others."""
    ratio = learned(mix * _KINDS_PER_MIX + _SIZE_CLASSES[num_bytes.bit_length()])
    return _of_others(learned, mix, num_bytes) if ratio is None else ratio


def _of_others(learned: Callable[[int], float | None], mix: int, num_bytes: int) -> float:
    """Of larger ones and a template; or a safe one."""
    safe = _safe_ratio(mix, num_bytes)
    of_mix = learned(mix * _KINDS_PER_MIX + _ANY_SIZE)
    return safe if of_mix is None else min(safe, of_mix + _TEMPLATE_TOKENS / num_bytes)


def _safe_ratio(mix: int, num_bytes: int) -> float:
    return safe_ratio(mix) + _TEMPLATE_TOKENS / num_bytes
