"""What fits, what does not, and what is said then."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.engine.free_memory import free_memory_bytes
from replica.engine.memory_plan import plan_memory
from replica.engine.messages import KvCacheDtype, Preemption
from replica.errors import ModelUnsupported
from replica.model.config import LlamaConfig
from replica.settings import Settings
from tests.replica.replica_process import ReplicaProcess

MODEL = LlamaConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=4096,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
)
CONFIG = Settings(
    kv_cache_bytes=1 << 40, block_size=16, max_num_seqs=4, max_num_batched_tokens=64
).engine_config()
WEIGHTS_BYTES = 1 << 20
KV_BYTES_PER_TOKEN = 2 * 4 * 2 * 16 * 4  # keys and values, layers, heads, dimensions, float32


def plan(available_bytes: int, **changes: object):
    config = msgspec.structs.replace(CONFIG, **changes)
    return plan_memory(config, MODEL, weights_bytes=WEIGHTS_BYTES, available_bytes=available_bytes)


def test_plenty_of_memory_gives_the_whole_context_and_cache() -> None:
    block_bytes = KV_BYTES_PER_TOKEN * 16
    result = plan(1 << 40, kv_cache_bytes=1000 * block_bytes)
    assert (result.max_model_len, result.num_blocks) == (4096, 1000)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_head"),
    [(KvCacheDtype.FLOAT32, 64), (KvCacheDtype.BFLOAT16, 32), (KvCacheDtype.INT8, 20)],
    ids=str,
)
def test_smaller_keys_and_values_make_more_blocks(dtype: KvCacheDtype, bytes_per_head: int) -> None:
    block_bytes = 2 * 4 * 2 * bytes_per_head * 16
    result = plan(1 << 40, kv_cache_bytes=1000 * block_bytes, kv_cache_dtype=dtype)
    assert result.num_blocks == 1000


def test_context_shrinks_to_the_cache_unless_it_was_asked_for() -> None:
    block_bytes = KV_BYTES_PER_TOKEN * 16
    assert plan(1 << 40, kv_cache_bytes=11 * block_bytes).max_model_len == 160
    with pytest.raises(ModelUnsupported, match="max_model_len=160 would fit"):
        plan(1 << 40, kv_cache_bytes=11 * block_bytes, max_model_len=161)


def test_room_for_swapping_is_set_aside_when_it_is_wanted() -> None:
    block_bytes = KV_BYTES_PER_TOKEN * 16
    plain = plan(8 << 20, max_model_len=64)
    swapping = plan(
        8 << 20, max_model_len=64, preemption=Preemption.SWAP, swap_bytes=3 * block_bytes + 1
    )
    assert (plain.num_host_blocks, swapping.num_host_blocks) == (0, 3)
    assert swapping.num_blocks in (plain.num_blocks - 4, plain.num_blocks - 3)


def test_room_for_swapping_that_holds_no_block_is_refused() -> None:
    block_bytes = KV_BYTES_PER_TOKEN * 16
    with pytest.raises(ModelUnsupported, match=f"hold no block: one takes {block_bytes} bytes"):
        plan(1 << 40, preemption=Preemption.SWAP, swap_bytes=block_bytes - 1)
    assert plan(1 << 40, preemption=Preemption.SWAP, swap_bytes=block_bytes).num_host_blocks == 1
    assert plan(1 << 40, swap_bytes=0).num_host_blocks == 0


def test_context_shrinks_to_the_memory_unless_it_was_asked_for() -> None:
    shrunk = plan(3 << 20).max_model_len
    assert 16 <= shrunk < 4096
    with pytest.raises(ModelUnsupported, match=f"max_model_len={shrunk} would fit"):
        plan(3 << 20, max_model_len=4096)


@given(st.integers(0, 8 << 20), st.integers(2, 4096))
def test_what_would_fit_does_and_one_block_more_does_not(available: int, wanted: int) -> None:
    try:
        result = plan(available, max_model_len=wanted)
    except ModelUnsupported as exc:
        advised = re.search(r"max_model_len=(\d+) would fit", exc.message)
    else:
        assert result.max_model_len == wanted
        assert (result.num_blocks - 1) * 16 >= wanted
        return
    if advised is None:
        with pytest.raises(ModelUnsupported):
            plan(available, max_model_len=2)
        return
    assert plan(available, max_model_len=int(advised[1])).max_model_len == int(advised[1])
    with pytest.raises(ModelUnsupported):
        plan(available, max_model_len=int(advised[1]) + 1)


def test_no_memory_at_all_is_said_with_numbers() -> None:
    with pytest.raises(ModelUnsupported, match=r"1 MiB for weights.* 1 MiB are there; no context"):
        plan(1 << 20)


def test_the_engine_says_what_would_fit_and_ends(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"memory_bytes": 600 << 20, "max_model_len": 8192}
    settings |= {"kv_cache_bytes": 1 << 30, "cpu_backend": "torch"}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        assert replica.process.wait() == 1
        (last,) = replica.log.splitlines()[-1:]
    assert re.search(r"514 MiB for weights.*600 MiB are there; max_model_len=\d+ would fit", last)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_free_memory_is_the_least_of_machine_and_groups(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4000 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": "3000000\n",
        "sys/fs/cgroup/a/memory.current": "2000000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500000\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1\n",
    }
    root = machine(tmp_path, files)
    assert free_memory_bytes(root) == 1_500_000
    (root / "sys/fs/cgroup/a/memory.max").write_text("max\n")
    assert free_memory_bytes(root) == 4000 << 10


def test_a_container_sees_its_limit_at_the_root(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable: 4000 kB\n",
        "sys/fs/cgroup/memory.max": "1000\n",
        "sys/fs/cgroup/memory.current": "1200\n",
    }
    assert free_memory_bytes(machine(tmp_path, files)) == 0


def test_free_memory_of_this_machine_is_known() -> None:
    assert 0 < free_memory_bytes() < 1 << 62
