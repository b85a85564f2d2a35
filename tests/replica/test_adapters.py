"""Rows of several adapters and of none in one batch: the tokens of models they are merged into."""

import copy
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from replica.engine.backend import choose_backend
from replica.engine.kv_blocks import KvOptions
from replica.engine.messages import CpuBackend, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.errors import ModelError, ModelInvalid, ModelNotFound, ModelUnsupported
from replica.model.adapter_file import read_adapter
from replica.model.loader import OpenedModel, open_adapted, open_model
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness
from tests.replica.test_families import greedy
from tests.replica.tiny_adapter import ALL, merge, save_adapter
from tests.replica.tiny_hf import VOCAB_SIZE, save_tiny_model

BLOCK_SIZE = 4
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = [[5, 6, 7], list(range(40, 61)), [9]]


@dataclass(frozen=True)
class Checkpoints:
    base: LlamaForCausalLM
    merged: list[LlamaForCausalLM]
    opened: OpenedModel
    folders: list[Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """One adapter of all matrices, one of few with strengths of their own."""
    folder = tmp_path_factory.mktemp("adapted")
    save_tiny_model(folder / "base", context_length=128)
    base = LlamaForCausalLM.from_pretrained(folder / "base").eval()
    whole = save_adapter(folder / "whole", base, seed=1)
    part = save_adapter(
        folder / "part", base, seed=2, modules=["k_proj", "up_proj", "down_proj"], rank=2,
        use_rslora=True, alpha_pattern={"mlp.up_proj": 1.0},
    )  # fmt: skip
    scales = [dict.fromkeys(ALL, 2.0), dict.fromkeys(ALL, 4 / 2**0.5) | {"up_proj": 1 / 2**0.5}]
    merged = []
    for adapter, of_modules in zip((whole, part), scales, strict=True):
        merged.append(copy.deepcopy(base))
        merge(merged[-1], adapter, of_modules)
    opened = open_adapted(folder / "base", {"whole": whole, "part": part})
    return Checkpoints(base, merged, opened, [whole, part])


def engine(opened: OpenedModel, max_num_batched_tokens: int = 64) -> EngineHarness:
    settings = Settings(cpu_backend=CpuBackend.TORCH, num_threads=1, block_size=BLOCK_SIZE)
    backend = choose_backend(settings.engine_config(), opened, [])
    runner = backend.load(128, lambda ratio, detail: None, KvOptions(is_poisoned=True))
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(BLOCK_SIZE, 9, max_num_batched_tokens)
    digests = [adapter.digest for adapter in opened.adapters]
    return EngineHarness(runner, names, [], limits, 128, adapter_digests=digests)


def tokens(engine: EngineHarness, sequence_id: int) -> list[int]:
    return [int(token) for token in engine.outcomes[sequence_id].text.split()]


@pytest.mark.parametrize("max_num_batched_tokens", [9, 256], ids=["small chunks", "large chunks"])
def test_greedy_tokens_equal_those_of_merged_models(
    checkpoints: Checkpoints, max_num_batched_tokens: int
) -> None:
    """All prompts under each adapter and under none, at once."""
    harness = engine(checkpoints.opened, max_num_batched_tokens)
    cases = [(prompt, adapter) for prompt in PROMPTS for adapter in (None, 0, 1)]
    ids = [harness.enqueue(prompt, GREEDY, adapter=adapter) for prompt, adapter in cases]
    harness.run()
    models = {None: checkpoints.base} | dict(enumerate(checkpoints.merged))
    expected = [greedy(models[adapter], prompt) for prompt, adapter in cases]
    assert [tokens(harness, i)[: len(e)] for i, e in zip(ids, expected, strict=True)] == expected
    for first in range(0, len(cases), 3):
        assert len({tuple(e) for e in expected[first : first + 3]}) == 3, (
            "adapters change too little"
        )


def test_rows_without_one_keep_every_bit(checkpoints: Checkpoints) -> None:
    """Of logprobs, too, whoever stands beside them."""
    params = SamplingParams(max_tokens=4, temperature=0.0, num_top_logprobs=5)
    told = []
    for adapters in ([None, None], [None, 0]):
        harness = engine(checkpoints.opened)
        first, _ = (harness.enqueue([3, 4, 5], params, str(a), adapter=a) for a in adapters)
        harness.run()
        told.append(harness.outcomes[first].logprobs)
    assert told[0] == told[1]


def test_prefixes_are_shared_under_one_adapter_only(checkpoints: Checkpoints) -> None:
    harness = engine(checkpoints.opened)
    prompt = list(range(17))
    cached = []
    for adapter in (None, 0, 1, 0, None):
        sequence_id = harness.submit(prompt, GREEDY, adapter=adapter)
        harness.run()
        usage = harness.outcomes[sequence_id].usage
        assert usage is not None
        cached.append(usage.cached_prompt_tokens)
    assert cached == [0, 0, 0, 16, 16]


def test_content_and_strength_are_its_identity(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A copy is the same one wherever it lies; another strength of the same weights is not."""
    config = checkpoints.opened.config
    same, stronger, other = (tmp_path / name for name in ("same", "stronger", "other"))
    save_adapter(same, checkpoints.base, seed=1)
    save_adapter(stronger, checkpoints.base, seed=1, lora_alpha=9)
    save_adapter(other, checkpoints.base, seed=3)
    digests = [read_adapter(folder, config).digest for folder in (same, stronger, other)]
    assert digests[0] == checkpoints.opened.adapters[0].digest
    assert len(set(digests)) == 3


def test_their_memory_is_counted(checkpoints: Checkpoints) -> None:
    """A matrix of several parts has zeros between them."""
    config = Settings(cpu_backend=CpuBackend.TORCH).engine_config()
    plain = open_model(checkpoints.opened.path)
    with_and_without = [
        choose_backend(config, opened, []).weights_bytes for opened in (checkpoints.opened, plain)
    ]
    changes = [
        change for adapter in checkpoints.opened.adapters for change in adapter.changes.values()
    ]
    least = 4 * sum(change.shrink.size + change.expand.size for change in changes)
    assert least <= with_and_without[0] - with_and_without[1] < 3 * least


def test_the_compiled_step_is_not_chosen(checkpoints: Checkpoints) -> None:
    named = {"adapters": {"a": str(checkpoints.folders[0])}}
    backend = choose_backend(Settings(**named).engine_config(), checkpoints.opened, [])
    assert "adapters are not compiled" in backend.description
    config = Settings(**named, cpu_backend=CpuBackend.COMPILED).engine_config()
    with pytest.raises(ModelUnsupported, match="adapters are not compiled"):
        choose_backend(config, checkpoints.opened, [])


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"use_dora": True}, ModelUnsupported, "use_dora=True"),
        ({"bias": "all"}, ModelUnsupported, "bias='all'"),
        ({"peft_type": "IA3"}, ModelUnsupported, "peft_type='IA3'"),
        ({"init_lora_weights": "pissa"}, ModelUnsupported, "pissa"),
        ({"modules_to_save": ["lm_head"]}, ModelUnsupported, "modules_to_save"),
        ({"r": 5}, ModelInvalid, "^adapter law: .*rank is 4, adapter_config.json says 5"),
        ({"lora_alpha": "much"}, ModelInvalid, "lora_alpha"),
        ({"alpha_pattern": {"(": 1.0}}, ModelUnsupported, r"pattern '\(' is not a module's name"),
        ({"rank_pattern": {"((a|[a-z_.0-9])+)+!": 4}}, ModelUnsupported, "is not a module's name"),
        ({"fan_in_fan_out": True}, ModelUnsupported, "adapter_config.json: fan_in_fan_out=True"),
        ({"arrow_config": {"top_k": 3}}, ModelUnsupported, "arrow_config="),
        ({"use_tomorrow": True}, ModelUnsupported, "use_tomorrow=True"),
        ({"lora_alpha": 1e308}, ModelInvalid, r"^adapter law: .*strength of 2.5e\+307"),
        ({"lora_alpha": float("nan")}, ModelInvalid, "adapter_config.json: JSON"),
        ({"lora_alpha": float("inf")}, ModelInvalid, "adapter_config.json: JSON"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_computed_here_is_refused_by_name(
    checkpoints: Checkpoints,
    tmp_path: Path,
    changes: dict[str, object],
    error: type[ModelError],
    match: str,
) -> None:
    folder = save_adapter(tmp_path / "odd", checkpoints.base, seed=1, **changes)
    with pytest.raises(error, match=match):
        open_adapted(checkpoints.opened.path, {"law": folder})


def test_what_leaves_the_numbers_as_they_are_is_taken(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """A configuration as PEFT writes it, whatever it says of how the adapter came about."""
    stated: dict[str, object] = {
        "auto_mapping": None, "base_model_name_or_path": "org/model", "bias": "none",
        "layers_to_transform": [0, 1], "layers_pattern": "layers", "lora_dropout": 0.05,
        "megatron_core": "megatron.core", "modules_to_save": None, "qalora_group_size": 16,
        "peft_version": "0.18.0", "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
        "tomorrows_switch": False, "tomorrows_config": None, "tomorrows_pattern": {},
    }  # fmt: skip
    folder = save_adapter(tmp_path / "whole", checkpoints.base, seed=1, **stated)
    opened = open_adapted(checkpoints.opened.path, {"law": folder})
    assert opened.adapters[0].changes.keys() == checkpoints.opened.adapters[0].changes.keys()


def test_a_refusal_names_the_adapter_and_what_its_folder_lacks(checkpoints: Checkpoints) -> None:
    with pytest.raises(ModelNotFound, match=r"^adapter law: /nope has no adapter_config\.json$"):
        open_adapted(checkpoints.opened.path, {"law": Path("/nope")})


def test_damaged_adapters_are_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "odd", checkpoints.base, seed=1)
    weights = folder / "adapter_model.safetensors"
    whole = load_file(weights)
    first = next(iter(whole))

    def refusal(tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, weights)
        with pytest.raises(ModelError) as refused:
            open_adapted(checkpoints.opened.path, {"law": folder})
        return str(refused.value)

    assert "lacks a side" in refusal({k: v for k, v in whole.items() if k != first})
    assert "the model's matrix" in refusal(whole | {first: whole[first][:, :-1].contiguous()})
    beyond = first.replace("layers.0", "layers.7").replace("layers.1", "layers.7")
    assert "in a layer 7" in refusal({beyond: whole[first]})
    embedded = "base_model.model.model.embed_tokens.lora_embedding_A"
    assert "is not of what is adapted" in refusal(whole | {embedded: torch.zeros(1)})
    assert "there is no tensor in it" in refusal({})
    for number in (torch.nan, torch.inf):
        odd = whole[first].clone()
        odd[0, -1] = number
        refused = refusal(whole | {first: odd})
        assert refused.startswith("adapter law: adapter_model.safetensors: ")
        assert "numbers that are not finite" in refused
    weights.unlink()
    with pytest.raises(ModelNotFound, match=r"adapter_model\.safetensors"):
        open_adapted(checkpoints.opened.path, {"law": folder})


def test_names_as_peft_writes_them_are_patterns(checkpoints: Checkpoints, tmp_path: Path) -> None:
    names = {"^model.layers.0.mlp.up_proj": 2.0, r"model\.layers\.1\.mlp\.up_proj": 2.0}
    folders = [
        save_adapter(tmp_path / name, checkpoints.base, seed=1, modules=["up_proj"], **stated)
        for name, stated in {"each": {"alpha_pattern": names}, "all": {"lora_alpha": 2.0}}.items()
    ]
    each, every = (read_adapter(folder, checkpoints.opened.config) for folder in folders)
    for place, change in every.changes.items():
        assert (each.changes[place].expand == change.expand).all()


def test_json_that_is_too_deep_is_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    deep = b'{"a":' + b"[" * 100_000
    config = checkpoints.opened.config
    read: list[tuple[str, Path, Callable[[Path], object]]] = [
        (
            "adapter_config.json",
            checkpoints.folders[0],
            lambda folder: read_adapter(folder, config),
        ),
        ("config.json", checkpoints.opened.path, open_model),
        ("model.safetensors", checkpoints.opened.path, open_model),
    ]
    for name, folder, opens in read:
        damaged = Path(shutil.copytree(folder, tmp_path / name))
        head = b"" if name.endswith(".json") else struct.pack("<Q", len(deep))
        (damaged / name).write_bytes(head + deep)
        with pytest.raises(ModelInvalid, match=rf"(^|: ){name}: (?!RecursionError)"):
            opens(damaged)


def test_names_that_mean_two_things_are_refused() -> None:
    with pytest.raises(ValueError, match="the model's own name"):
        Settings(model="tiny", adapters={"tiny": "somewhere"})
    with pytest.raises(ValueError, match="adapters"):
        Settings(adapters={"a:b": "somewhere"})


def test_a_name_that_stands_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_ADAPTERS", '{"law": "one", "poetry": "two"}')
    assert Settings().adapters == {"law": "one", "poetry": "two"}
    monkeypatch.setenv("REPLICA_ADAPTERS", '{"law": "one", "law": "two"}')
    with pytest.raises(ValueError, match="the name 'law' stands twice"):
        Settings()
    for value in ("law=one", '{"law": ' + "[" * 100_000):
        monkeypatch.setenv("REPLICA_ADAPTERS", value)
        with pytest.raises(ValueError, match="expected JSON, such as"):
            Settings()
