"""Before anything is served, every kernel has been met, and nothing was touched."""

from collections.abc import Callable, Iterator

import pytest
import torch

from replica.engine.kv_blocks import KvOptions
from replica.model.loader import OpenedModel
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.gpu_runs import (
    NUM_BLOCKS,
    backend,
    device,
    settings,
)

inputs = pytest.importorskip("replica.gpu.inputs")
triton_op = pytest.importorskip("kernels.paged_attention.triton_op")
warm_up = pytest.importorskip("replica.gpu.warm_up")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


class WarmingDevice(device.CpuDevice):
    """As if something were compiled here."""

    def warm_up(self, work: Callable[[], object]) -> None:
        work()


def test_warming_up_touches_the_null_block_only(tiny: OpenedModel) -> None:
    config = settings(max_num_seqs=1, max_num_batched_tokens=3).engine_config()
    chosen = backend.DeviceBackend(tiny, config, [], WarmingDevice(memory_bytes=1 << 30))
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(0, is_poisoned=True))
    assert (runner._cache._parts[:, 1:] == 0xFF).all()
    assert runner._cache._parts[:, 0].any()


@pytest.mark.parametrize("group", [1, 4, 8], ids=str)
def test_warming_up_meets_both_tiles_of_attention_and_every_kind_of_draw(group: int) -> None:
    tiles: set[tuple[int, bool]] = set()
    draws: set[tuple[bool, bool, bool, bool]] = set()
    for batch in warm_up.warm_up_batches(2048):
        host = inputs.host_inputs(batch)
        tables = map(torch.from_numpy, (host.query_starts, host.context_lengths, host.block_tables))
        rows = triton_op.AttentionRows(*tables, host.max_query_tokens, host.max_context)
        output = torch.empty(len(batch.token_ids), 2 * group, 64)
        plan = triton_op._plan(output, 2, rows, triton_op.PLAIN)
        tiles.add((plan.rows, plan.is_split))
        drawn = inputs.host_draws(batch, [])
        is_penalized = drawn.penalties is not None
        draws.add((drawn.are_greedy, drawn.asking.size > 0, drawn.biased.size > 0, is_penalized))
        assert not inputs.is_decode_only(batch)
    assert tiles == {(16, False), (64, False)}
    assert draws == {(True, False, False, False), (False, True, True, True)}
