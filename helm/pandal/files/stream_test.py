"""What `helm test` does: one streamed request, to its last event and its usage.

Of the environment: URL of the gateway, MODEL, and API_KEY; without a key only whether the gateway
is ready is asked.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Iterator

TIMEOUT_S = 120


def ask_ready() -> None:
    with urllib.request.urlopen(os.environ["URL"] + "/ready", timeout=TIMEOUT_S) as answer:
        sys.stdout.write(f"ready: {answer.status}\n")


def events() -> Iterator[bytes]:
    body = {
        "model": os.environ["MODEL"],
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {
        "Authorization": "Bearer " + os.environ["API_KEY"],
        "Content-Type": "application/json",
    }
    url = os.environ["URL"] + "/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield line[len(b"data: ") :].strip()


def main() -> int:
    if not os.environ.get("API_KEY"):
        ask_ready()
        return 0
    *chunks, last = events()
    usages = [usage for chunk in chunks if (usage := json.loads(chunk).get("usage"))]
    if last != b"[DONE]" or not usages or usages[-1]["completion_tokens"] < 1:
        sys.stderr.write(f"the stream ended with {last!r} after {len(chunks)} events\n")
        return 1
    sys.stdout.write(f"{len(chunks)} events, usage {json.dumps(usages[-1])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
