"""How many prompt tokens a provider can have made of what it was sent: of text, no more than bytes.

Every tokenizer in use gives a byte of text one token at most.  Of an image, a sound, a file that is
only named, or what a member makes a provider look up, a few bytes may become a great many tokens:
there the provider alone can know.
"""

from typing import Final, Literal

import msgspec

from contracts.errors import UNDECODABLE

_OWN_TOKENS: Final = 1_024  # a provider's own words, such as those that tell a model of its tools


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "refusal", "tool_use", "tool_result"] = "text"
    text: str | None = None
    refusal: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")
    tool_use_id: str | None = None
    content: str | None = None
    cache_control: msgspec.Raw = msgspec.Raw(b"")


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: msgspec.Raw = msgspec.Raw(b"")  # what an answer quoted, in its text
    audio: None = None  # one with an id is an answer that was heard
    function_call: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: msgspec.Raw = msgspec.Raw(b"")
    tool_call_id: str | None = None


class _Tool(msgspec.Struct):
    type: Literal["function", "custom"] = "function"


_OTHERS: Final = (  # noqa: SIM905 - members that are text, or say how to answer: a page of them
    "best_of chat_template_kwargs echo frequency_penalty function_call functions guided_choice "
    "guided_grammar guided_json guided_regex ignore_eos include_reasoning length_penalty "
    "logit_bias logprobs max_completion_tokens max_tokens metadata min_p min_tokens modalities "
    "model n parallel_tool_calls prediction presence_penalty prompt prompt_cache_key "
    "prompt_cache_retention reasoning_effort repetition_penalty response_format safety_identifier "
    "seed service_tier skip_special_tokens stop stop_sequences stop_token_ids store stream "
    "stream_options suffix system temperature tool_choice top_k top_logprobs top_p user verbosity"
).split()
_Text = msgspec.defstruct(
    "_Text",
    [
        ("messages", list[_Message], []),
        ("tools", list[_Tool] | None, None),
        *((name, msgspec.Raw, msgspec.Raw(b"")) for name in _OTHERS),
    ],
    forbid_unknown_fields=True,
)
_decoder = msgspec.json.Decoder(_Text)


def most_prompt_tokens(sent: bytes) -> int | None:
    """None: not all of it is known to be text."""
    try:
        _decoder.decode(sent)
    except UNDECODABLE:
        return None
    return len(sent) + _OWN_TOKENS
