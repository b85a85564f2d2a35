"""Log lines: JSON, declared fields only."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.logs import JsonFormatter

FILLS_THE_DISK = """
import logging, resource, signal
from contracts.logs import configure_logging

configure_logging("test", "info")
logging.raiseExceptions = False
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logging.info("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
logging.info("torn")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
logging.info("after")
"""


def render(**extra: object) -> dict[str, object]:
    record = logging.makeLogRecord({"msg": "routed", "levelno": 20, "levelname": "INFO", **extra})
    line: dict[str, object] = json.loads(JsonFormatter("gateway").format(record))
    return line


def test_a_line_is_json_with_its_fields() -> None:
    line = render(tenant_id="acme", status=200)
    assert line["message"] == "routed"
    assert line["service"] == "gateway"
    assert line["tenant_id"] == "acme"
    assert line["status"] == 200


def test_an_undeclared_field_is_not_printed() -> None:
    assert "prompt" not in render(prompt="hello")


def test_a_traceback_stays_on_the_line() -> None:
    try:
        1 / 0  # noqa: B018 - raises on purpose
    except ZeroDivisionError:
        line = render(exc_info=sys.exc_info())
    assert "ZeroDivisionError" in str(line["traceback"])


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["as usual", "in an image"])
def test_a_full_disk_tears_no_line_for_good(tmp_path: Path, unbuffered: str) -> None:
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", FILLS_THE_DISK],
            stderr=log,
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    told = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert told == ["before", "torn", "after"]


LOGS_TWICE = """
import gc, logging
from contracts.logs import configure_logging
for name in ("first", "second"):
    configure_logging("s", "info")
    gc.collect()
    logging.getLogger("l").info(name)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["as usual", "in an image"])
def test_who_sets_up_its_log_anew_goes_on_with_it(unbuffered: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS_TWICE],
        capture_output=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    told = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert told == ["first", "second"]
