"""A prompt as admission sees it: how large it is, and what it is written in; and as routing does:
what it begins with."""

from collections.abc import Sequence
from typing import Final

import msgspec

SCOPE_BYTES: Final = 33  # that a key of ``Affinity`` begins with: the tenant's secret, and its kind


class Prompt(msgspec.Struct, frozen=True):
    """What an estimate looks at, kept for what is learned from it later."""

    size: int  # in bytes; in tokens where the prompt is given as such
    mix: (
        int | None
    )  # see ``admission.prompt_mix``; None: given as tokens, there is nothing to learn


class TemplateForm(msgspec.Struct, frozen=True):
    """Which of a template's own words stand around a prompt, whatever its length."""

    operation: str  # only chats have a template; to completions an engine may add a token
    has_system: bool  # else the template may put in one of its own
    has_tools: bool


class CountedPrompt(msgspec.Struct, frozen=True):
    """What the tokenizer made of a prompt's parts, without what the chat template adds."""

    num_tokens: int
    num_parts: int
    form: TemplateForm


class Affinity(msgspec.Struct, frozen=True):
    """Which requests should meet the same prefix cache.  Both begin with the tenant's secret."""

    key: bytes  # what many may share: leading blocks, or the client's own choice
    conversation: bytes  # what tells one conversation from others of that key
    is_clients: bool = False  # the client has chosen it


class PromptText(msgspec.Struct, frozen=True):
    """See ``routing.text_chain``."""

    chain: Sequence[int]
    num_bytes: int
