"""The log: nobody waits for its reader, no line is torn, none is lost in silence."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from contracts.logs import JsonFormatter
from gateway.line_writer import LineWriter
from tests.gateway.http_client import get
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.upstream_server import Upstream
from tests.support.file_limit import file_limit
from tests.support.waiting import PATIENCE_S, eventually

NUM_THREADS = 4
NUM_LINES = 1_000


class SlowReader:
    """A small pipe that nobody reads until somebody does."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, 4096)
        self._bytes = b""
        self._thread = threading.Thread(target=self._read)

    def fill(self) -> None:
        """With empty lines, to the last byte."""
        flags = os.O_WRONLY | os.O_NONBLOCK  # of a description of our own: other writers block
        filling = os.open(f"/proc/self/fd/{self.write_end}", flags)
        with contextlib.suppress(BlockingIOError):
            while os.write(filling, b"\n"):
                pass
        os.close(filling)

    def read_to(self, message: str, field: str) -> str:
        """That field of the line with that message; no further."""
        while True:
            self._bytes += os.read(self._read_end, 1)
            if self._bytes.endswith(b"\n"):
                line = json.loads(self._bytes.splitlines()[-1])
                if line["message"] == message:
                    return str(line[field])

    def begin(self) -> None:
        self._thread.start()

    def lines(self) -> list[dict[str, Any]]:
        """All of them, once the last writer is gone."""
        os.close(self.write_end)
        self._thread.join()
        return [json.loads(line) for line in self._bytes.splitlines() if line]

    def _read(self) -> None:
        while part := os.read(self._read_end, 1_000):
            self._bytes += part
        os.close(self._read_end)


def test_nobody_waits_for_a_reader_and_what_is_dropped_is_told() -> None:
    reader = SlowReader()
    writer = LineWriter(reader.write_end, max_pending_bytes=100_000)
    writer.setFormatter(JsonFormatter("test"))
    logger = logging.Logger("test")  # noqa: LOG001  # of this test's own
    logger.addHandler(writer)

    def write_lines() -> None:
        for number in range(NUM_LINES):
            logger.info("formatted here", extra={"num_events": number})
            writer.write(b'{"message":"formatted elsewhere"}\n')

    threads = [threading.Thread(target=write_lines) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.begin()
    writer.close()
    lines = reader.lines()
    notices = [line for line in lines if line["message"] == "log lines dropped"]
    num_dropped = sum(notice["num_events"] for notice in notices)
    assert num_dropped > 0
    assert len(lines) - len(notices) + num_dropped == 2 * NUM_THREADS * NUM_LINES


def test_a_record_that_cannot_be_formatted_harms_nobody() -> None:
    reader = SlowReader()
    reader.begin()
    writer = LineWriter(reader.write_end)
    writer.setFormatter(JsonFormatter("test"))
    logger = logging.Logger("test")  # noqa: LOG001  # of this test's own
    logger.addHandler(writer)
    logger.error("%d", "not a number")
    logger.error("the next one")
    writer.close()
    messages = [line["message"] for line in reader.lines()]
    assert messages == ["log record cannot be formatted", "the next one"]


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "among workers"])
def test_a_line_that_a_full_disk_has_torn_takes_no_other_with_it(
    tmp_path: Path, is_shared: bool
) -> None:
    """Nor one of another worker."""
    log, lock = tmp_path / "log", tmp_path / "lock" if is_shared else None
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    writers = [LineWriter(descriptor, shared_lock=lock) for _ in range(1 + is_shared)]
    for writer in writers:
        writer.setFormatter(JsonFormatter("test"))
    writers[0].write(b'{"message":"whole"}\n')
    eventually(lambda: log.read_bytes().endswith(b"\n"), "a line")
    with file_limit(log.stat().st_size + 10):
        writers[0].write(b'{"message":"torn"}\n')
        eventually(lambda: writers[0].num_dropped == 1, "a line to be given up")
    writers[-1].write(b'{"message":"the next"}\n')
    for writer in reversed(writers):
        writer.close()
    os.close(descriptor)
    lines = log.read_bytes().splitlines()
    assert lines[:3] == [b'{"message":"whole"}', b'{"message"', b'{"message":"the next"}']


@pytest.mark.parametrize("ending", ["", "raise RuntimeError", "raise SystemExit(3)"])
def test_the_last_line_is_written_however_the_process_ends(ending: str) -> None:
    program = f"""
import logging
from contracts.logs import configure_logging
from gateway.line_writer import LineWriter
configure_logging("test", "info", LineWriter(2))
logging.info("last words")
{ending}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert b"last words" in ended.stderr


async def test_a_gateway_serves_on_while_nobody_reads_its_log(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream
) -> None:
    """Also where the event loop itself logs: here that a replica has gone away."""
    gateway = Gateway(
        tmp_path,
        quota_url=valkey.url,
        policy_file=policies.path,
        upstreams={"replica-0": upstream},
    )
    reader = SlowReader()
    gateway.spawn(reader.write_end)
    try:
        port = int(await asyncio.to_thread(reader.read_to, "listening", "port"))
        reader.fill()
        upstream.is_ready = False
        async with asyncio.timeout(PATIENCE_S):
            reasons: list[str] = []
            while reasons != ["no replica is ready"]:
                reasons = (await get(port, "/ready")).document["reasons"]
    finally:
        reader.begin()
        code = await asyncio.to_thread(gateway.stop)
    messages = [line["message"] for line in reader.lines()]
    assert code == 0
    assert "replica not ready" in messages
    assert messages[-1] == "stopped"
