"""Log lines: JSON, declared fields only."""

import json
import logging
import sys

from contracts.logs import JsonFormatter


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
