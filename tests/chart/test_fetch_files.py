"""The init container's program, over real HTTP: whole files or none, resumed where it ended."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

PROGRAM = Path(__file__).parents[2] / "helm" / "pandal" / "files" / "fetch_files.py"
CONTENT = bytes(range(256)) * 5000


class FileServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut_after: int | None = None  # bytes of the next answer
        self.begun_at: list[int] = []
        self.tokens: list[str | None] = []
        self.content = CONTENT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/m.gguf"

    def holds(self, content: bytes) -> str:
        """Its hash."""
        self.content = content
        return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.server.begun_at.append(first)
        self.server.tokens.append(self.headers.get("Authorization"))
        body = self.server.content[first:]
        cut, self.server.cut_after = self.server.cut_after, None
        self.send_response(206 if first else 200)
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])

    def log_request(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetch(folder: Path, url: str, **changes: object) -> subprocess.CompletedProcess[str]:
    entry = {
        "url": url, "path": "deep/m.gguf", "sizeBytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(), **changes,
    }  # fmt: skip
    listed = folder / "list.json"
    listed.write_text(json.dumps([entry]))
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM), str(listed), str(folder)],
        capture_output=True, text=True, env={"HUB_TOKEN": "secret"},
    )  # fmt: skip


def test_a_file_is_fetched_once_and_gone_on_with(files: FileServer, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "m.gguf"
    files.cut_after = 700_000
    cut = fetch(tmp_path, files.url)
    assert cut.returncode == 1
    assert f"{len(CONTENT)} bytes expected, got 700000" in cut.stderr
    assert not place.exists()
    assert fetch(tmp_path, files.url).returncode == 0
    assert place.read_bytes() == CONTENT
    assert fetch(tmp_path, files.url).returncode == 0
    assert files.begun_at == [0, 700_000]
    assert sorted(found.name for found in place.parent.iterdir()) == [
        ".m.gguf.source.json",
        "m.gguf",
    ]


OTHER = CONTENT[::-1]  # as long


def test_a_file_of_another_hash_is_fetched_though_it_is_as_long(
    files: FileServer, tmp_path: Path
) -> None:
    assert fetch(tmp_path, files.url).returncode == 0
    named = files.holds(OTHER)
    assert fetch(tmp_path, files.url, sha256=named).returncode == 0
    assert (tmp_path / "deep" / "m.gguf").read_bytes() == OTHER
    assert fetch(tmp_path, files.url + "?elsewhere", sha256=named).returncode == 0
    assert files.begun_at == [0, 0], "what has the hash need not come again"


def test_without_a_hash_another_url_is_another_file(files: FileServer, tmp_path: Path) -> None:
    files.cut_after = 700_000
    assert fetch(tmp_path, files.url, sha256="").returncode == 1
    files.holds(OTHER)
    for _ in range(2):
        assert fetch(tmp_path, files.url + "?v2", sha256="").returncode == 0
    assert (tmp_path / "deep" / "m.gguf").read_bytes() == OTHER
    assert files.begun_at == [0, 0], "half of another file is not gone on with"


def test_a_file_that_someone_else_put_there_is_hashed(files: FileServer, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "m.gguf").write_bytes(CONTENT)
    assert fetch(tmp_path, files.url).returncode == 0
    assert files.begun_at == []


def test_the_token_goes_where_it_is_said(files: FileServer, tmp_path: Path) -> None:
    assert fetch(tmp_path, files.url).returncode == 0
    assert fetch(tmp_path, files.url, path="b", usesHubToken=True).returncode == 0
    assert files.tokens == [None, "Bearer secret"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"sizeBytes": 10}, "10 bytes expected, got 11"), ({"sha256": "0" * 64}, "sha256")],
    ids=str,
)
def test_what_is_not_what_was_named_is_no_file(
    files: FileServer, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    refused = fetch(tmp_path, files.url, **changes)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert not list((tmp_path / "deep").iterdir())
    assert "secret" not in refused.stderr
