"""An OpenAI-compatible server that answers as it is told, and tells what it was asked.

``scripted_upstream.py TTFT_S GAP_S NUM_SLOTS`` prints its port.  One word of a prompt is one
token; an answer has ``max_tokens`` of them, a chunk each.  NUM_SLOTS are answered at a time, the
others wait.  ``GET /seen`` lists what came, without the texts.

The API key says how a tenant fares: "honest" is refused once, for a second, and let in after it;
"liar" is told the same and refused again; "silent" is refused without a time; "broken" gets half an
answer; "uncounted" gets no usage.  Messages that were seen before count as cached, from the first.
"""

import asyncio
import hashlib
import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 1


@dataclass
class Upstream:
    ttft_s: float
    gap_s: float
    slots: asyncio.Semaphore  # answers at a time; the others wait
    seen: list[dict[str, Any]] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    refused_at_s: dict[str, float] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"GET /seen"):
                    self.whole(writer, 200, self.seen)
                elif head.startswith(b"GET "):  # /health and /v1/models, for other generators
                    self.whole(writer, 200, {"object": "list", "data": [{"id": "default"}]})
                else:
                    await self.answer(writer, head, json.loads(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter, head: bytes, body: dict[str, Any]) -> None:
        found = re.search(rb"(?i)authorization: Bearer (\S+)", head)
        key = found[1].decode() if found else ""
        text = json.dumps(body["messages"])
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.seen.append({"at_s": time.monotonic(), "key": key, "prompt": digest})
        refusal = self.refusal(key, digest)
        if refusal is not None:
            self.whole(writer, 429, {"error": {"message": text}}, refusal)
            return
        await self.stream(writer, body, key)

    def refusal(self, key: str, digest: str) -> str | None:
        """The extra header of a refusal."""
        if key == "silent":
            return ""
        told = f"retry-after: {WAIT_S}\r\n"
        if key == "liar":
            return told
        now_s = time.monotonic()
        if key == "honest" and now_s < self.refused_at_s.setdefault(digest, now_s) + WAIT_S:
            return told
        return None

    async def stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], key: str) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        num_tokens = int(body.get("max_completion_tokens", body.get("max_tokens", 1)))
        chunk = event({"choices": [{"index": 0, "delta": {"content": "word "}}]})
        writer.write(event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}))
        async with self.slots:
            await asyncio.sleep(self.ttft_s)
            for index in range(num_tokens):
                if index > 0:
                    await asyncio.sleep(self.gap_s)
                if key == "broken" and index == num_tokens // 2:
                    writer.close()
                    raise ConnectionError
                writer.write(chunk)
        if key != "uncounted":
            writer.write(event({"choices": [], "usage": self.usage(body["messages"], num_tokens)}))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def usage(self, messages: list[dict[str, Any]], num_tokens: int) -> dict[str, Any]:
        num_prompt = num_cached = 0
        so_far = hashlib.sha256()
        is_cached = True
        for message in messages:
            content = message["content"]
            text = content if isinstance(content, str) else " ".join(p["text"] for p in content)
            num_words = len(text.split())
            so_far.update(text.encode())
            is_cached = is_cached and so_far.hexdigest() in self.prefixes
            self.prefixes.add(so_far.hexdigest())
            num_prompt += num_words
            num_cached += num_words if is_cached else 0
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt + num_tokens,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }

    def whole(
        self, writer: asyncio.StreamWriter, status: int, body: object, extra: str = ""
    ) -> None:
        payload = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\n{extra}content-length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)


def event(body: object) -> bytes:
    payload = f"data: {json.dumps(body)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


async def main(ttft_s: float, gap_s: float, num_slots: int) -> None:
    upstream = Upstream(ttft_s, gap_s, asyncio.Semaphore(num_slots))
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, backlog=2_000)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
