"""What a replica keeps in memory once its cache of keys and values has been filled.

    python -m benchmarks.memory [--model SmolLM2-135M-Instruct] [--kv-cache-bytes 67108864] \
        [--ours exact/float32 fast/bfloat16]

Resident now and at its peak, of the HTTP process and of the engine's; pages they share count in
both.  Kernels should be compiled before: compiling takes memory of its own.
"""

import argparse
from pathlib import Path
from typing import Final

from benchmarks.replica_process import family, replica
from benchmarks.startup import asked

WORDS_PER_PROMPT: Final = 200
NUM_REQUESTS: Final = 16
MIB: Final = 1 << 20


def fill(port: int) -> None:
    """Prompts that have no beginning in common."""
    for number in range(NUM_REQUESTS):
        prompt = f"{number} " + "word " * WORDS_PER_PROMPT
        answer = asked(port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8})
        if answer is None or answer[0] != 200:
            raise RuntimeError(f"expected a completion, got {answer}")


def resident_bytes(pid: int, field: str) -> int:
    """field: VmRSS now, VmHWM at its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) << 10


def measure(model: str, pair: str, kv_cache_bytes: int) -> None:
    precision, kv_dtype = pair.split("/")
    with replica(
        model=model, precision=precision, kv_cache_dtype=kv_dtype, kv_cache_bytes=kv_cache_bytes
    ) as server:
        fill(server.port)
        for pid in family(server.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
            now, peak = (resident_bytes(pid, field) // MIB for field in ("VmRSS", "VmHWM"))
            print(f"| {pair} | {' '.join(command.split()[1:3])} | {now} | {peak} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--ours", nargs="*", default=["exact/float32", "fast/bfloat16"])
    parser.add_argument("--kv-cache-bytes", type=int, default=64 * MIB)
    options = parser.parse_args()
    print("| precision/KV | process | resident MiB | peak MiB |\n|---|---|---|---|")
    for pair in options.ours:
        measure(options.model, pair, options.kv_cache_bytes)


if __name__ == "__main__":
    main()
