"""Bodies of the OpenAI API, as received.

Fields nobody knows are ignored, as every OpenAI-compatible server does.  Fields that would change
the answer and that this engine does not implement are declared, so that they can be refused.
"""

import re
from typing import Final, TypeVar

import msgspec

from contracts.replica_api import (
    CACHE_SALT_FIELD,
    MAX_TIME_FIELD,
    PRIORITY_FIELD,
    RESUME_TOKENS_FIELD,
)
from replica.errors import InvalidRequest, NotSupported


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and plain completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # this and the five below: as vLLM spells them
    min_p: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None  # by token id
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None  # as vLLM spells it
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None  # this and the two below: see contracts.replica_api
    max_time_s: float | None = None
    resume_tokens: list[int] | None = None

    # Refused unless neutral: see NEUTRAL_VALUES.
    allowed_token_ids: object = None
    bad_words: object = None
    best_of: object = None
    chat_template: object = None
    continue_final_message: object = None
    echo: object = None
    function_call: object = None
    functions: object = None
    guided_choice: object = None
    guided_grammar: object = None
    guided_json: object = None
    guided_regex: object = None
    include_stop_str_in_output: object = None
    modalities: object = None
    prompt_logprobs: object = None
    response_format: object = None
    skip_special_tokens: object = None
    stop_token_ids: object = None
    structured_outputs: object = None
    suffix: object = None
    tool_choice: object = None
    tools: object = None
    truncate_prompt_tokens: object = None
    use_beam_search: object = None


NEUTRAL_VALUES: Final[dict[str, tuple[object, ...]]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "modalities": (None, ["text"]),
    "prompt_logprobs": (None,),
    "response_format": (None, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "stop_token_ids": (None, []),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: object = None
    function_call: object = None


class ChatCompletionBody(GenerationBody, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None


# JSON cannot tell a list of token ids from a list of prompts but by its items.
Prompt = str | list[int | str | list[int]]


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: Prompt
    logprobs: int | bool | None = None  # how many; false: none
    top_logprobs: int | None = None  # the chat's word, and neutral here


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


_Body = TypeVar("_Body", bound=msgspec.Struct)
_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]+)`")


def decode_body(payload: bytes, body_type: type[_Body]) -> _Body:
    """Raises InvalidRequest, naming the field."""
    try:
        return msgspec.json.decode(payload, type=body_type)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(str(exc), param=_field(str(exc))) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"the body is not JSON: {exc}") from exc


def refuse_unsupported(body: GenerationBody) -> None:
    """Raises NotSupported: an ignored parameter would be a wrong answer."""
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(body, name)
        # True == 1, but n=true is as wrong as n=2.
        if not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral):
            raise NotSupported(f"{name} is not supported", param=name)


def _field(message: str) -> str | None:
    path = _PATH.search(message)
    missing = _MISSING.search(message)
    parts = [path["path"]] if path is not None and path["path"] else []
    parts += [missing["name"]] if missing is not None else []
    return ".".join(parts) or None


assert {CACHE_SALT_FIELD, PRIORITY_FIELD, MAX_TIME_FIELD, RESUME_TOKENS_FIELD} <= set(
    GenerationBody.__struct_fields__
)
