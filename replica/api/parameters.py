"""Sampling parameters from a body: defaults, ranges, and the proof that the request can finish."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from contracts.replica_api import MAX_TIME_FIELD, RESUME_TOKENS_FIELD
from replica.api.schemas import GenerationBody
from replica.engine.detokenizer import Detokenizer
from replica.engine.messages import MAX_TOP_LOGPROBS, SamplingParams
from replica.errors import ContextLengthExceeded, InvalidRequest
from replica.model.tokenizer import Tokenizer

_MAX_STOPS: Final = 16  # OpenAI allows 4
_MAX_STOP_CHARS: Final = 1_000
_MAX_TEMPERATURE: Final = 2.0
_MAX_CACHE_SALT_CHARS: Final = 512
_MAX_TIME_S: Final = 86_400.0
_MAX_PRIORITY: Final = 1_000
_MAX_BIASES: Final = 1_024
_MAX_BIAS: Final = 100.0
_MAX_PENALTY: Final = 2.0  # OpenAI's
_REPETITION_RANGE: Final = (0.01, 100.0)  # vLLM takes any above 0: logits would overflow
_TOKEN_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEED_RANGE: Final = range(-(1 << 63), 1 << 63)


def completion_budget(
    num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, param: str
) -> int:
    """How many tokens may be generated.  None: as many as fit.

    Raises InvalidRequest for what could never finish: the engine waits for nobody it cannot serve.
    """
    if num_prompt_tokens < 1:
        raise InvalidRequest("the prompt is empty", param=param)
    check_prompt_fits(num_prompt_tokens, max_model_len, param)
    room = max_model_len - num_prompt_tokens
    if max_tokens is None:
        return room
    if max_tokens > room:
        raise ContextLengthExceeded(
            f"{num_prompt_tokens} prompt tokens and {max_tokens} completion tokens exceed the "
            f"context of {max_model_len}",
            param="max_tokens",
        )
    return max_tokens


def check_prompt_fits(min_prompt_tokens: int, max_model_len: int, param: str) -> None:
    """Raises ContextLengthExceeded.  ``min_prompt_tokens``: as far as it has been counted."""
    if min_prompt_tokens >= max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has at least {min_prompt_tokens} tokens, the context holds "
            f"{max_model_len} and at least 1 must be left for the completion",
            param=param,
        )


def sampling_params(
    body: GenerationBody,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    random_seed: int,
    num_top_logprobs: int | None,
) -> SamplingParams:
    """Raises InvalidRequest."""
    min_tokens = _int_in(body.min_tokens, "min_tokens", default=0, low=0, high=max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_float_in(body.temperature, "temperature", 1.0, 0.0, _MAX_TEMPERATURE),
        top_p=_float_in(body.top_p, "top_p", 1.0, 0.0, 1.0),
        top_k=_top_k(body.top_k),
        min_p=_float_in(body.min_p, "min_p", 0.0, 0.0, 1.0),
        seed=_seed(body.seed, random_seed),
        stop=_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=min_tokens,
        num_top_logprobs=num_top_logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}, tokenizer.vocab_size),
        presence_penalty=_penalty(body.presence_penalty, "presence_penalty"),
        frequency_penalty=_penalty(body.frequency_penalty, "frequency_penalty"),
        repetition_penalty=_float_in(
            body.repetition_penalty, "repetition_penalty", 1.0, *_REPETITION_RANGE
        ),
    )


def num_choices(body: GenerationBody, max_choices: int) -> int:
    """Raises InvalidRequest."""
    num = _int_in(body.n, "n", default=1, low=1, high=max_choices)
    if num > 1 and body.resume_tokens:
        raise InvalidRequest("resume_tokens continues one choice, not n", param="n")
    return num


def top_logprobs(value: int | None, param: str) -> int:
    """Raises InvalidRequest."""
    return _int_in(value, param, default=0, low=0, high=MAX_TOP_LOGPROBS)


def requested_tokens(value: int | None, param: str) -> int | None:
    """Raises InvalidRequest unless it is at least 1."""
    if value is not None and value < 1:
        raise InvalidRequest(f"{param} must be at least 1, got {value}", param=param)
    return value


def priority(body: GenerationBody) -> int:
    """Raises InvalidRequest."""
    limit = _MAX_PRIORITY
    return _int_in(body.priority, "priority", default=0, low=-limit, high=limit)


def max_time_s(body: GenerationBody) -> float | None:
    """Raises InvalidRequest."""
    value = body.max_time_s
    if value is not None and not 0.0 < value <= _MAX_TIME_S:
        raise InvalidRequest(
            f"max_time_s must be above 0 and at most {_MAX_TIME_S}, got {value}",
            param=MAX_TIME_FIELD,
        )
    return value


def resume_tokens(
    body: GenerationBody, params: SamplingParams, tokenizer: Tokenizer
) -> Sequence[int]:
    """Raises InvalidRequest unless the completion they begin could go on."""
    tokens = body.resume_tokens or ()
    if len(tokens) >= params.max_tokens:
        raise InvalidRequest(
            f"resume_tokens has {len(tokens)} tokens of a completion of {params.max_tokens}",
            param=RESUME_TOKENS_FIELD,
        )
    is_at_eos = not params.ignore_eos and not set(tokenizer.eos_token_ids).isdisjoint(tokens)
    text = Detokenizer(tokenizer.token_bytes, params.stop)
    if is_at_eos or text.resume(tokens, params.min_tokens):
        raise InvalidRequest("resume_tokens has ended already", param=RESUME_TOKENS_FIELD)
    return tokens


def check_token_ids(token_ids: Sequence[int], tokenizer: Tokenizer, param: str) -> None:
    """Raises InvalidRequest."""
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest(
                f"{param}[{index}] must be a token id from 0 to {tokenizer.vocab_size - 1}",
                param=param,
            )


def cache_salt(body: GenerationBody) -> str:
    salt = "" if body.cache_salt is None else body.cache_salt
    if len(salt) > _MAX_CACHE_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt is longer than {_MAX_CACHE_SALT_CHARS} characters", param="cache_salt"
        )
    return salt


def _float_in(value: float | None, param: str, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"{param} must be between {low} and {high}, got {value}", param=param)
    return float(value)


def _penalty(value: float | None, param: str) -> float:
    return _float_in(value, param, 0.0, -_MAX_PENALTY, _MAX_PENALTY)


def _int_in(value: int | None, param: str, *, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(f"{param} must be between {low} and {high}, got {value}", param=param)
    return value


def _top_k(value: int | None) -> int:
    """vLLM reads both 0 and -1 as "all"."""
    if value is None or value in (0, -1):
        return 0
    return _int_in(value, "top_k", default=0, low=1, high=1 << 31)


def _seed(value: int | None, random_seed: int) -> int:
    if value is None:
        return random_seed
    if value not in _SEED_RANGE:
        raise InvalidRequest("seed must fit 64 bits", param="seed")
    return value


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > _MAX_BIASES:
        raise InvalidRequest(f"logit_bias has more than {_MAX_BIASES} tokens", param="logit_bias")
    for name in biases:
        if not _TOKEN_ID.fullmatch(name) or int(name) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias: expected token ids from 0 to {vocab_size - 1}, got {name[:20]!r}",
                param="logit_bias",
            )
    return {
        int(name): _float_in(bias, "logit_bias", 0.0, -_MAX_BIAS, _MAX_BIAS)
        for name, bias in biases.items()
    }


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if len(stops) > _MAX_STOPS:
        raise InvalidRequest(f"stop has more than {_MAX_STOPS} strings", param="stop")
    if any(not 1 <= len(stop) <= _MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(
            f"each stop string must have 1 to {_MAX_STOP_CHARS} characters", param="stop"
        )
    return stops
