"""What the network must carry when prefill and decode run on different GPUs."""

from pandal.planner.figure import Figure, Unit


def transfer_bytes(prompt_tokens: float, kv_bytes_per_token: float) -> Figure:
    return Figure(
        "kv_transfer_bytes",
        prompt_tokens * kv_bytes_per_token,
        Unit.BYTES,
        "prompt tokens x KV bytes per token",
        f"{prompt_tokens:g} * {kv_bytes_per_token:g}",
    )


def transfer_bytes_per_s(transfer_bytes: float, requests_per_s: float) -> Figure:
    return Figure(
        "kv_transfer_bytes_per_s",
        transfer_bytes * requests_per_s,
        Unit.BYTES_PER_S,
        "KV bytes of a prompt x requests per second",
        f"{transfer_bytes:.0f} * {requests_per_s:g}",
    )
