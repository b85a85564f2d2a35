"""How one row's token is to be drawn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """All that decides a token besides its logits: there is no generator, and no state."""

    uniform: float  # in [0, 1): the only randomness
    temperature: float = 1.0  # above 0
    top_p: float = 1.0  # above 0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
