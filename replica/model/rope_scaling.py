"""How rotary frequencies change where a model was trained on, from shorter contexts to longer ones.

Every operation rounds to float32 in transformers' order, so that the frequencies are its own.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Frequencies = npt.NDArray[np.float32]  # [head_dim / 2], radians a position


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions ``factor`` times as close.  Chen et al. 2023, "Position Interpolation"."""

    factor: float

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        return frequencies / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Linear for wavelengths the first training saw too little of, nothing for those it saw often.

    Source: Llama 3.1's reference implementation, ``apply_scaling``.
    """

    factor: float
    low_freq_factor: float  # turns in the first training's context: fewer are scaled whole
    high_freq_factor: float  # more are left; between the two the change is gradual
    original_max_positions: int  # tokens, of the first training's context

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        one, factor = np.float32(1), np.float32(self.factor)
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


RopeScaling = LinearScaling | Llama3Scaling
