"""A minimal OpenAI streaming client for benchmarks: timestamps at the socket, nothing else."""

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Timed:
    """One streamed completion.  Times count from the moment it was sent."""

    ttft_s: float
    total_s: float
    completion_tokens: int

    @property
    def decode_tokens_per_s(self) -> float:
        return (self.completion_tokens - 1) / (self.total_s - self.ttft_s)


async def stream_completion(
    url: str, api_key: str, model: str, prompt: str | list[int], max_tokens: int
) -> Timed:
    """Raises RuntimeError for anything but a whole stream with its usage."""
    parts = urlsplit(url)
    body = json.dumps({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        f"authorization: Bearer {api_key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    started_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(head + body)
        return await _read(reader, started_s)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, started_s: float) -> Timed:
    first_s: float | None = None
    completion_tokens = 0
    async for line in reader:
        if not line.startswith(b"data: {"):
            if line.startswith(b"data: [DONE]") and first_s is not None:
                total_s = time.perf_counter() - started_s
                return Timed(first_s - started_s, total_s, completion_tokens)
            continue
        if first_s is None:
            first_s = time.perf_counter()
        if b'"completion_tokens"' in line:
            completion_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
    raise RuntimeError("the stream ended before its end")
