"""``GET contracts.load.LOAD_PATH``: how busy this replica is."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.load import ReplicaLoad
from contracts.replica_api import Phase
from replica.api.context import context_of


async def load(request: Request) -> Response:
    context = context_of(request)
    engine = context.engine
    stats = engine.stats
    num_blocks = stats.num_usable_blocks
    report = ReplicaLoad(
        model=engine.names.model,
        is_ready=engine.is_ready and not context.cordon.is_drawn,
        is_draining=engine.state.phase is Phase.DRAINING or context.cordon.is_drawn,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        queued_prompt_tokens=stats.queued_prompt_tokens,
        expected_output_tokens=stats.expected_output_tokens,
        kv_cache_usage=stats.num_used_blocks / num_blocks if num_blocks else 0.0,
        num_kv_blocks=0 if engine.ready is None else engine.ready.num_blocks - 1,
        block_size=0 if engine.ready is None else engine.ready.block_size,
        prefill_tokens_per_s=stats.prefill_tokens_per_s,
        decode_tokens_per_s=stats.decode_tokens_per_s,
    )
    return Response(msgspec.json.encode(report), media_type="application/json")
