"""What routers and the autoscaler read from replicas: golden bytes."""

import msgspec
import pytest

from contracts.blocks import (
    BlockChanges,
    BlockRemoved,
    BlocksCleared,
    BlockSnapshot,
    BlockStored,
    PromptStored,
)
from contracts.load import ReplicaLoad
from contracts.tokenizer import TokenizerFile

LOAD = ReplicaLoad(
    model="m",
    is_ready=True,
    is_draining=False,
    num_running=2,
    num_waiting=1,
    queued_prompt_tokens=100,
    expected_output_tokens=50,
    kv_cache_usage=0.25,
    num_kv_blocks=64,
    block_size=16,
    prefill_tokens_per_s=1000.5,
    decode_tokens_per_s=0.0,
)
STORED = BlockStored(hash="ab", parent_hash="cd", num_tokens=16)


def test_golden_load() -> None:
    assert msgspec.json.encode(LOAD) == (
        b'{"type":"replica.load.v1","model":"m","is_ready":true,"is_draining":false,'
        b'"num_running":2,"num_waiting":1,"queued_prompt_tokens":100,'
        b'"expected_output_tokens":50,"kv_cache_usage":0.25,"num_kv_blocks":64,"block_size":16,'
        b'"prefill_tokens_per_s":1000.5,"decode_tokens_per_s":0.0}'
    )


def test_golden_blocks() -> None:
    snapshot = BlockSnapshot(seq=4, blocks=(STORED,))
    assert msgspec.json.encode(snapshot) == (
        b'{"type":"blocks.snapshot.v1","seq":4,"blocks":[{"type":"block.stored.v1","hash":"ab",'
        b'"parent_hash":"cd","num_tokens":16}]}'
    )
    changes = BlockChanges(seq=5, changes=(BlockRemoved(hash="ab"), BlocksCleared()))
    assert msgspec.json.encode(changes) == (
        b'{"type":"blocks.changes.v1","seq":5,"changes":[{"type":"block.removed.v1","hash":"ab"},'
        b'{"type":"blocks.cleared.v1"}]}'
    )


def test_golden_prompt() -> None:
    prompt = PromptStored(request_id="r-0", hash="ab", num_tokens=40, block_size=16)
    assert msgspec.json.encode(BlockChanges(seq=6, changes=(prompt,))) == (
        b'{"type":"blocks.changes.v1","seq":6,"changes":[{"type":"prompt.stored.v1",'
        b'"request_id":"r-0","hash":"ab","num_tokens":40,"block_size":16}]}'
    )


@pytest.mark.parametrize("message", [LOAD, BlockSnapshot(seq=0, blocks=(STORED,))], ids=str)
def test_messages_come_back_equal(message: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


def test_tokenizer_file_golden_bytes() -> None:
    golden = b'{"type":"replica.tokenizer.v1","model":"m","tokenizer_json":"{}"}'
    assert msgspec.json.encode(TokenizerFile(model="m", tokenizer_json="{}")) == golden
