"""How rotary frequencies change where a model was trained on, from shorter contexts to longer ones.

Every operation rounds to float32 in transformers' order, so that the frequencies are its own.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Powers = npt.NDArray[np.float32]  # [head_dim / 2] of theta: positions a radian
Frequencies = npt.NDArray[np.float32]  # [head_dim / 2], radians a position


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions ``factor`` times as close.  Chen et al. 2023, "Position Interpolation"."""

    factor: float
    attention_factor: ClassVar[float] = 1.0  # of cosines and sines, here and below

    def frequencies(self, powers: Powers) -> Frequencies:
        return np.float32(1) / powers / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Linear for wavelengths the first training saw too little of, nothing for those it saw often.

    Source: Llama 3.1's reference implementation, ``apply_scaling``.
    """

    factor: float
    low_freq_factor: float  # turns in the first training's context: fewer are scaled whole
    high_freq_factor: float  # more are left; between the two the change is gradual
    original_max_positions: int  # tokens, of the first training's context
    attention_factor: ClassVar[float] = 1.0

    def frequencies(self, powers: Powers) -> Frequencies:
        one, factor = np.float32(1), np.float32(self.factor)
        frequencies = one / powers
        wavelengths = one / frequencies * np.float32(2 * math.pi)
        longest_kept = self.original_max_positions / self.high_freq_factor
        shortest_scaled = self.original_max_positions / self.low_freq_factor
        turns = one / wavelengths * np.float32(self.original_max_positions)
        span = np.float32(self.high_freq_factor - self.low_freq_factor)
        kept = (turns - np.float32(self.low_freq_factor)) / span
        between = (one - kept) * frequencies / factor + kept * frequencies
        is_kept = wavelengths < np.float32(longest_kept)
        is_scaled = wavelengths > np.float32(shortest_scaled)
        return np.where(is_kept, frequencies, np.where(is_scaled, frequencies / factor, between))


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Linear for dimensions that turn seldom, nothing for those that turn often; sharper attention.

    Source: Peng et al. 2023, "YaRN".
    """

    factor: float
    attention_factor: float
    theta: float
    original_max_positions: int  # tokens, of the first training's context
    beta_fast: float = 32.0  # turns in it: dimensions with more are left
    beta_slow: float = 1.0  # those with fewer are scaled whole
    is_truncated: bool = True  # between whole dimensions

    @property
    def max_positions(self) -> int:
        return int(self.factor * self.original_max_positions)

    def frequencies(self, powers: Powers) -> Frequencies:
        one, num = np.float32(1), len(powers)
        low, high = self._dimension(self.beta_fast, num), self._dimension(self.beta_slow, num)
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * num - 1)
        span = high - low if high != low else 0.001
        ramp = (np.arange(num, dtype=np.float32) - np.float32(low)) / np.float32(span)
        kept: Frequencies = one - np.clip(ramp, 0, 1)
        scaled: Frequencies = one / (np.float32(self.factor) * powers)
        frequencies: Frequencies = scaled * (one - kept) + one / powers * kept
        return frequencies

    def _dimension(self, num_turns: float, num: int) -> float:
        """Which of them turns so often."""
        positions_a_radian = self.original_max_positions / (num_turns * 2 * math.pi)
        return (2 * num * math.log(positions_a_radian)) / (2 * math.log(self.theta))


@dataclass(frozen=True, slots=True)
class GivenScaling:
    """What a GGUF says of each frequency: Llama 3.1's scaling, computed by whoever wrote it."""

    divisors: tuple[float, ...]  # [head_dim / 2]
    attention_factor: ClassVar[float] = 1.0

    def frequencies(self, powers: Powers) -> Frequencies:
        divisors: Frequencies = np.array(self.divisors, np.float32)
        return np.float32(1) / powers / divisors


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | GivenScaling
