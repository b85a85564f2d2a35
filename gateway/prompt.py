"""A prompt as admission sees it: how large it is, and what it is written in."""

import msgspec


class Prompt(msgspec.Struct, frozen=True):
    """What an estimate looks at, kept for what is learned from it later."""

    size: int  # in bytes; in tokens where the prompt is given as such
    mix: (
        int | None
    )  # see ``admission.prompt_mix``; None: given as tokens, there is nothing to learn
