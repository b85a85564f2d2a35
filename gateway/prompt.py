"""A prompt as admission sees it: how large it is, and what it is written in."""

import msgspec


class Prompt(msgspec.Struct, frozen=True):
    """What an estimate looks at, kept for what is learned from it later."""

    size: int  # in bytes; in tokens where the prompt is given as such
    mix: (
        int | None
    )  # see ``admission.prompt_mix``; None: given as tokens, there is nothing to learn


class CountedPrompt(msgspec.Struct, frozen=True):
    """What the tokenizer made of a prompt's parts, without what the chat template adds."""

    num_tokens: int
    num_parts: int
    has_system: bool

    @property
    def kind(self) -> tuple[int, bool]:
        """By which a template's own tokens differ."""
        return self.num_parts, self.has_system
