"""Checkpoints of 4-bit matrices, as AutoAWQ and AutoGPTQ write them, and what they mean.

Plain numpy.  Layers' matrices come as codes, zeros and scales; everything else as it always does.
Source: Lin et al. 2023, "AWQ", ``awq/modules/linear/gemm.py``; Frantar et al. 2023, "GPTQ",
``auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py``.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.config import Metadata
from replica.model.safetensors_loader import SafetensorsDirectory
from replica.model.tensor_source import Floats

Integers = npt.NDArray[np.int32]

_CODES_PER_WORD: Final = 8
_IN_ORDER: Final = tuple(range(_CODES_PER_WORD))
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds this one of 8 columns
_WEIGHT: Final = ".weight"


class Int4Method(enum.StrEnum):
    AWQ = "awq"
    GPTQ = "gptq"


# What else their settings can say and what of it leaves the numbers as they are.
_NEUTRAL: Final[Mapping[Int4Method, Mapping[str, tuple[object, ...]]]] = {
    Int4Method.AWQ: {
        "bits": (4,),
        "version": (None, "gemm"),
        "zero_point": (None, True),
        "modules_to_not_convert": (None, [], ["lm_head"]),
    },
    Int4Method.GPTQ: {
        "bits": (4,),
        "checkpoint_format": (None, "gptq"),  # another keeps zeros as they are, not less one
        "desc_act": (None, False),
        "dynamic": (None, {}),
        "lm_head": (None, False),
        "pack_dtype": (None, "int32"),
    },
}


@dataclass(frozen=True, slots=True)
class Int4Parts:
    """Of one matrix, as the file packs them."""

    codes: Integers  # AWQ: [in, out / 8]; GPTQ: [in / 8, out]
    zeros: Integers  # [num_groups, out / 8]; GPTQ: less one
    scales: Floats  # [num_groups, out]


def int4_method(config: Metadata) -> Int4Method | None:
    """Of a Hugging Face ``config.json``; None: matrices are numbers.  Raises ModelUnsupported."""
    stated = config.get("quantization_config")
    if stated is None:
        return None
    if not isinstance(stated, Mapping):
        raise ModelInvalid(f"quantization_config: expected an object, got {stated!r}")
    name = stated.get("quant_method")
    if not isinstance(name, str) or name not in set(Int4Method):
        raise ModelUnsupported(f"quantization_config: {name!r} is not supported")
    method = Int4Method(name)
    for key, accepted in _NEUTRAL[method].items():
        value = stated.get(key)
        if not any(value == a and type(value) is type(a) for a in accepted):
            raise ModelUnsupported(f"quantization_config: {key}={value!r} is not supported")
    return method


class Int4Tensors:
    """A TensorSource: whoever knows no codes finds the numbers that they mean."""

    def __init__(self, directory: SafetensorsDirectory, method: Int4Method) -> None:
        self.method = method
        self._directory = directory
        packed = {n.removesuffix(".qweight") for n in directory.names() if n.endswith(".qweight")}
        self._packed = frozenset(packed)

    def names(self) -> Collection[str]:
        parts = (".qweight", ".qzeros", ".scales", ".g_idx")
        own = {f"{module}{part}" for module in self._packed for part in parts}
        plain = [n for n in self._directory.names() if n not in own and not self._is_empty(n)]
        return [*plain, *(module + _WEIGHT for module in self._packed)]

    def _is_empty(self, name: str) -> bool:
        """A bias of zeros, which AutoGPTQ gives also to matrices that have none."""
        is_bias = name.removesuffix(".bias") in self._packed
        return is_bias and not self._directory.load(name).any()

    def load(self, name: str) -> Floats:
        if not self.is_packed(name):
            return self._directory.load(name)
        return dequantized(self.parts(name), self.method)

    def stored_format(self, name: str) -> str:
        return self.method if self.is_packed(name) else self._directory.stored_format(name)

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        """Raises ModelUnsupported for packed matrices: see ``parts``."""
        if self.is_packed(name):
            raise ModelUnsupported(f"tensor {name}: {self.method} has several parts")
        return self._directory.load_stored(name)

    @property
    def num_packed_weights(self) -> int:
        """Numbers in all packed matrices."""
        codes = (self._directory.load_stored(f"{module}.qweight") for module in self._packed)
        return _CODES_PER_WORD * sum(words.size for words in codes)

    def packed_bytes(self, itemsize: int) -> int:
        """Of codes, zeros of a byte, and scales of ``itemsize``."""
        scales = (self._directory.load_stored(f"{module}.scales") for module in self._packed)
        return self.num_packed_weights // 2 + (1 + itemsize) * sum(s.size for s in scales)

    def is_packed(self, name: str) -> bool:
        return name.removesuffix(_WEIGHT) in self._packed

    def parts(self, name: str) -> Int4Parts:
        """Raises ModelError for what does not fit together, and for inputs out of order."""
        module = name.removesuffix(_WEIGHT)
        directory = self._directory
        codes, zeros = (directory.load_stored(f"{module}.{part}") for part in ("qweight", "qzeros"))
        parts = Int4Parts(codes, zeros, directory.load(f"{module}.scales"))
        _check(module, parts, self.method)
        order = f"{module}.g_idx"
        if self.method is Int4Method.GPTQ and order in directory.names():
            _check_order(order, directory.load_stored(order), len(parts.scales))
        return parts


def dequantized(parts: Int4Parts, method: Int4Method) -> Floats:
    """[out, in]: scale * (code - zero)."""
    if method is Int4Method.AWQ:
        codes = _unpacked(parts.codes, _AWQ_ORDER)
        zeros = _unpacked(parts.zeros, _AWQ_ORDER)
    else:
        codes = _unpacked(np.ascontiguousarray(parts.codes.T), _IN_ORDER).T
        zeros = _unpacked(parts.zeros, _IN_ORDER) + 1
    group_size = len(codes) // len(zeros)
    offsets = codes.astype(np.float32) - zeros.astype(np.float32).repeat(group_size, 0)
    return np.ascontiguousarray((offsets * parts.scales.repeat(group_size, 0)).T)


def _unpacked(words: Integers, order: Sequence[int]) -> Integers:
    """[rows, columns / 8] -> [rows, columns]; nibble i is column order[i] of its 8."""
    shifts = 4 * np.arange(_CODES_PER_WORD, dtype=np.int32)
    nibbles = (words[:, :, None] >> shifts) & 15
    columns = np.empty_like(nibbles)
    columns[:, :, list(order)] = nibbles
    return columns.reshape(len(words), -1)


def _check(module: str, parts: Int4Parts, method: Int4Method) -> None:
    num_groups, out_features = parts.scales.shape if parts.scales.ndim == 2 else (0, 0)
    words = out_features // _CODES_PER_WORD
    num_inputs = len(parts.codes) * (1 if method is Int4Method.AWQ else _CODES_PER_WORD)
    width = words if method is Int4Method.AWQ else out_features
    is_whole = num_groups > 0 and num_inputs % num_groups == 0
    if (
        {parts.codes.dtype, parts.zeros.dtype} != {np.dtype(np.int32)}
        or not is_whole
        or parts.codes.shape[1:] != (width,)
        or parts.zeros.shape != (num_groups, words)
        or out_features % _CODES_PER_WORD
    ):
        raise ModelInvalid(
            f"{module}: codes {parts.codes.shape}, zeros {parts.zeros.shape} and scales "
            f"{parts.scales.shape} do not fit together"
        )


def _check_order(name: str, groups: Integers, num_groups: int) -> None:
    """Of each input, its group."""
    in_order = np.arange(len(groups)) // max(1, len(groups) // num_groups)
    if not np.array_equal(groups, in_order):
        raise ModelUnsupported(f"tensor {name}: inputs out of order (desc_act) are not supported")
