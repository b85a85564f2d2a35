"""A prompt as admission sees it: how large it is, and what it is written in."""

import msgspec


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
