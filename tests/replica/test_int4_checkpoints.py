"""AWQ's and GPTQ's 4-bit checkpoints: the tokens of the numbers that their codes mean."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from replica.engine.backend import choose_backend
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher
from replica.engine.messages import CpuBackend, Precision, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.errors import ModelError, ModelInvalid, ModelUnsupported
from replica.model.int4_tensors import Int4Method, Int4Tensors, int4_method
from replica.model.loader import open_model
from tests.kernels.triton_runs import numbers, poisoned_memory
from tests.replica.engine_harness import EngineHarness
from tests.replica.gpu_runs import BLOCK_SIZE, HERE, NUM_BLOCKS, backend, device, settings
from tests.replica.test_families import greedy

formats = pytest.importorskip("kernels.gemm_w4a16.formats")
linear = pytest.importorskip("replica.gpu.linear")
reference = pytest.importorskip("kernels.gemm_w4a16.reference")

NUM_TOKENS = 6
VOCAB_SIZE = 64
GROUP = 32
PROMPTS = [[5], [1, 2, 3], list(range(1, 19))]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
STATED: dict[str, dict[str, object]] = {"awq": AWQ, "gptq": GPTQ}
AWQ_ORDER, IN_ORDER = (0, 2, 4, 6, 1, 3, 5, 7), tuple(range(8))
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def packed(codes: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """[rows, columns] of 0 to 15 -> [rows, columns / 8] int32; nibble i is column order[i]."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for nibble, column in enumerate(order):
        words |= codes[:, column::8].long() << (4 * nibble)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@torch.no_grad()
def quantize(parameter: torch.Tensor, method: str, generator: torch.Generator) -> Tensors:
    """Random codes, which ``parameter`` becomes the meaning of."""
    out_features, in_features = parameter.shape
    num_groups = in_features // GROUP
    codes = torch.randint(0, 16, (in_features, out_features), generator=generator)
    zeros = torch.randint(1, 16, (num_groups, out_features), generator=generator)
    scales = (torch.rand(num_groups, out_features, generator=generator) * 0.08).half()
    each_zero, each_scale = (x.float().repeat_interleave(GROUP, 0) for x in (zeros, scales))
    parameter.copy_(((codes - each_zero) * each_scale).T)
    if method == "awq":
        qweight, qzeros = packed(codes, AWQ_ORDER), packed(zeros, AWQ_ORDER)
        return {"scales": scales, "qweight": qweight, "qzeros": qzeros}
    return {
        "scales": scales,
        "qweight": packed(codes.T, IN_ORDER).T.contiguous(),
        "qzeros": packed(zeros - 1, IN_ORDER),
        "g_idx": (torch.arange(in_features) // GROUP).to(torch.int32),
        "bias": torch.zeros(out_features).half(),  # which older ones have
    }


def save_quantized(folder: Path, method: str) -> LlamaForCausalLM:
    """The model of what its codes mean."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    generator, tensors = torch.Generator().manual_seed(3), {}
    for name, parameter in model.named_parameters():
        if ".layers." in name and parameter.dim() == 2:
            module = name.removesuffix(".weight")
            parts = quantize(parameter, method, generator)
            tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
        else:
            tensors[name] = parameter.detach().clone()
    model.config.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = STATED[method]
    (folder / "config.json").write_text(json.dumps(stated))
    save_file(tensors, folder / "model.safetensors")
    return model


@pytest.fixture(scope="module", params=sorted(STATED))
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LlamaForCausalLM, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return save_quantized(folder, request.param), folder


def tokens(runner: ModelRunner) -> list[list[int]]:
    def launcher(runner: ModelRunner) -> StepLauncher:
        return runner if isinstance(runner, StepLauncher) else InlineLauncher(runner)

    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(BLOCK_SIZE, 4, 12)
    engine = EngineHarness(runner, names, [], limits, NUM_BLOCKS, new_launcher=launcher)
    ids = engine.submit_together(PROMPTS, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    engine.run()
    return [[int(token) for token in engine.outcomes[i].text.split()] for i in ids]


def test_on_a_cpu_they_are_the_numbers_that_they_mean(
    checkpoint: tuple[LlamaForCausalLM, Path],
) -> None:
    model, folder = checkpoint
    config = settings(cpu_backend=CpuBackend.TORCH).engine_config()
    chosen = choose_backend(config, open_model(folder), [])
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(is_poisoned=True))
    found = tokens(runner)
    assert found == [greedy(model, prompt)[:NUM_TOKENS] for prompt in PROMPTS]
    assert len({token for row in found for token in row}) > 4, "the model says too little"
    compiled = choose_backend(settings().engine_config(), open_model(folder), [])
    assert compiled.description.endswith("weights as float32")


class PickyDevice(device.CpuDevice):
    """Finds the first way to each product faster, or the second."""

    def __init__(self, place: int) -> None:
        super().__init__(memory_bytes=1 << 30)
        self._place = place
        self._num_measured = 0

    def measure_s(self, work: Callable[[], object]) -> float:
        self._num_measured += 1
        return float((self._num_measured - 1) % 2 != self._place)


@pytest.mark.parametrize("place", [0, 1], ids=["codes", "dense for a while"])
def test_on_a_gpu_codes_stay_codes(checkpoint: tuple[LlamaForCausalLM, Path], place: int) -> None:
    """Whichever way to a product was measured faster."""
    model, folder = checkpoint
    opened, config = open_model(folder), settings().engine_config()
    chosen = backend.DeviceBackend(opened, config, [], PickyDevice(place))
    found = tokens(chosen.load(NUM_BLOCKS, lambda ratio, detail: None))
    assert found == [greedy(model, prompt)[:NUM_TOKENS] for prompt in PROMPTS]
    weights = chosen._loaded(lambda ratio, detail: None)._weights
    matrices = [
        matrix
        for layer in weights.layers
        for matrix in (layer.qkv, layer.output, layer.feed_forward.gate_up, layer.feed_forward.down)
    ]
    dense = 4 * opened.config.num_weights(is_tied=False)
    assert isinstance(opened.source, Int4Tensors)
    num_packed = opened.source.num_packed_weights
    assert chosen.weights_bytes == dense - 4 * num_packed + sum(m.size_bytes for m in matrices)


def test_biases_are_added_either_way() -> None:
    codes = torch.randint(0, 16, (64, 16), generator=torch.Generator().manual_seed(1))
    zeros, scales = numbers(2, 16).cpu().to(torch.int8), numbers(2, 16).cpu()
    weight = formats.Int4Weight(formats.pack_rows(codes), zeros, scales)
    x, bias = numbers(3, 64).cpu(), numbers(16).cpu()
    expected = x @ reference.dequantize_reference(weight).T + bias
    for way in (linear.Int4Linear(weight, bias), linear.DequantizedLinear(weight, bias)):
        torch.testing.assert_close(way(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"bits": 4}, "quantization_config: None"),
        ({"quant_method": ["awq"]}, r"quantization_config: \['awq'\]"),
        ({"quant_method": 4}, "quantization_config: 4 is not"),
        (AWQ | {"bits": 8}, "bits=8"),
        (AWQ | {"version": "gemv"}, "version='gemv'"),
        (AWQ | {"zero_point": False}, "zero_point=False"),
        (AWQ | {"modules_to_not_convert": ["mlp"]}, "modules_to_not_convert"),
        (GPTQ | {"desc_act": True}, "desc_act=True"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        (GPTQ | {"bits": 3}, "bits=3"),
    ],
    ids=lambda value: str(value)[-25:],
)
def test_what_is_not_read_is_refused_by_name(stated: object, match: str) -> None:
    with pytest.raises(ModelUnsupported, match=match):
        int4_method({"quantization_config": stated})


@pytest.mark.parametrize("stated", ["4 bits", ["awq"], True, 4])
def test_what_is_no_object_is_damage(stated: object) -> None:
    with pytest.raises(ModelInvalid, match="quantization_config: expected an object"):
        int4_method({"quantization_config": stated})


def test_plain_checkpoints_have_no_method() -> None:
    assert int4_method({}) is int4_method({"quantization_config": None}) is None
    assert int4_method({"quantization_config": GPTQ}) is Int4Method.GPTQ


def test_codes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_quantized(tmp_path, "gptq")
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    module = "model.layers.1.mlp.up_proj"

    def refusal(part: str, tensor: torch.Tensor) -> ModelError:
        save_file(whole | {f"{module}.{part}": tensor.contiguous()}, file)
        with pytest.raises(ModelError) as refused:
            open_model(tmp_path).load(lambda ratio: None)
        return refused.value

    assert isinstance(refusal("qweight", whole[f"{module}.qweight"][:-1]), ModelInvalid)
    assert isinstance(refusal("qzeros", whole[f"{module}.qzeros"][:, :-1]), ModelInvalid)
    assert isinstance(refusal("scales", whole[f"{module}.scales"][0]), ModelInvalid)
    assert "desc_act" in str(refusal("g_idx", whole[f"{module}.g_idx"].flip(0)))
    assert "up_proj.bias" in str(refusal("bias", torch.ones(96).half()))


def test_no_second_rounding(tmp_path: Path) -> None:
    save_quantized(tmp_path, "awq")
    config = settings(precision=Precision.FLOAT8).engine_config()
    with pytest.raises(ModelUnsupported, match="not rounded to float8"):
        backend.DeviceBackend(open_model(tmp_path), config, [], HERE)
