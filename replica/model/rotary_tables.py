"""Angles of rotary position embedding, for the compiled step."""

import numpy as np
import numpy.typing as npt

from replica.model.config import LlamaConfig

Table = npt.NDArray[np.float32]


def rotary_tables(config: LlamaConfig) -> tuple[Table, Table]:
    """cos and sin, each [max_positions, head_dim / 2].

    Frequencies and angles are rounded to float32 where the original implementation rounds them:
    at far positions the rounding is most of the value that models were trained with.
    """
    exponents = np.arange(0, config.head_dim, 2).astype(np.float32) / np.float32(config.head_dim)
    powers = np.power(config.rope_theta, exponents.astype(np.float64)).astype(np.float32)
    scaling = config.rope_scaling
    frequencies = np.float32(1.0) / powers if scaling is None else scaling.frequencies(powers)
    angles = np.arange(config.max_positions).astype(np.float32)[:, None] * frequencies[None, :]
    exact = angles.astype(np.float64)
    factor = np.float32(1.0 if scaling is None else scaling.attention_factor)
    return np.cos(exact).astype(np.float32) * factor, np.sin(exact).astype(np.float32) * factor
