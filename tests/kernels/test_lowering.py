"""The instructions that levels this machine may lack become, read from LLVM's assembly.

Nothing is run: this shows that a level's code compiles for such a CPU, uses its vectors, and calls
no software replacement for an instruction.
"""

from functools import partial

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from kernels.linear import tiles as linear_tiles
from kernels.linear.formats import (
    INTEGER_FORMATS,
    ActivationFormat,
    LinearSpecialization,
    WeightFormat,
)
from kernels.paged_attention import tiles as attention_tiles
from kernels.paged_attention.formats import AttentionSpecialization, KvFormat
from kernels.vector_ir.function import Emit, define_in
from kernels.vector_ir.levels import FeatureLevel
from kernels.vector_ir.specialization import Specialization

X86 = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"
CPUS = {
    "avx512-vnni": (FeatureLevel.AVX512_VNNI, X86, "sapphirerapids", "zmm"),
    "avx512": (FeatureLevel.AVX512, X86, "skylake-avx512", "zmm"),
    "avx2": (FeatureLevel.AVX2, X86, "haswell", "ymm"),
    "oldest-x86": (FeatureLevel.PORTABLE, X86, "x86-64", "xmm"),
    "arm": (FeatureLevel.PORTABLE, ARM, "generic", ".4s"),
}
FORMATS = [WeightFormat.Q4_1, WeightFormat.Q4_0, WeightFormat.Q8_0, WeightFormat.BFLOAT16]


def assembly(
    emit: Emit, num_arguments: int, specialization: Specialization, triple: str, cpu: str
) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("kernels")
    module.triple = triple
    define_in(module, "kernel", emit, specialization, num_arguments)
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(parsed, builder)
    return str(machine.emit_assembly(parsed))


def assert_plain(text: str, vector_register: str) -> None:
    assert vector_register in text
    for replacement in ("fmaf", "__extendhfsf2", "rintf", "expf"):
        assert replacement not in text, replacement


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
@pytest.mark.parametrize("cpu", CPUS)
def test_linear_tiles_need_no_library(cpu: str, weight_format: WeightFormat) -> None:
    level, triple, name, register = CPUS[cpu]
    spec = LinearSpecialization(level, weight_format)
    emit = partial(linear_tiles.emit_rows, is_unpacked=False)
    text = assembly(emit, 8, spec, triple, name)
    assert_plain(text, register)
    if level.lanes == 16 and weight_format in (WeightFormat.Q4_0, WeightFormat.Q4_1):
        assert "vpermps" in text  # codes become floats by one lookup
    if level is not FeatureLevel.PORTABLE:
        assert "vfmadd231ps" in text


DOT_PRODUCTS = {"avx512-vnni": "vpdpbusd", "avx512": "vpmaddubsw", "avx2": "vpmaddubsw"}


@pytest.mark.parametrize("weight_format", INTEGER_FORMATS, ids=str)
@pytest.mark.parametrize("cpu", CPUS)
def test_integer_tiles_use_the_dot_products_there_are(
    cpu: str, weight_format: WeightFormat
) -> None:
    level, triple, name, register = CPUS[cpu]
    spec = LinearSpecialization(level, weight_format, ActivationFormat.INT8)
    text = assembly(linear_tiles.emit_direct_rows, 8, spec, triple, name)
    assert_plain(text, register)
    if cpu in DOT_PRODUCTS:
        dots = [line for line in text.splitlines() if DOT_PRODUCTS[cpu] in line]
        assert dots
        assert all(register in line for line in dots)


@pytest.mark.parametrize("kv_format", list(KvFormat), ids=str)
@pytest.mark.parametrize("cpu", CPUS)
def test_attention_tiles_need_no_library(cpu: str, kv_format: KvFormat) -> None:
    level, triple, name, register = CPUS[cpu]
    spec = AttentionSpecialization(level, kv_format, 64, 3, 16)
    emit = partial(attention_tiles.emit_chunk, is_decode=True)
    text = assembly(emit, 7, spec, triple, name)
    assert_plain(text, register)
