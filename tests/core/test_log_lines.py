"""JSON log lines: whatever is logged, every line is one object with the same four fields."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any

import pytest

from rlguard.core.log_lines import JsonFormatter


def line_of(message: str, *args: object, **extra: object) -> dict[str, Any]:
    """What a line holds. It is formatted and not logged: pytest-xdist cannot carry half a surrogate pair."""
    record = logging.LogRecord("rlguard.test", logging.WARNING, __file__, 1, message, args, None)
    vars(record).update(extra)
    line = JsonFormatter().format(record)
    assert line.isascii() and "\n" not in line
    found: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    line = line_of("step %d", 7)
    assert (line["level"], line["logger"], line["message"]) == ("warning", "rlguard.test", "step 7")
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert set(line) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize(
    "hostile", ["two\nlines", 'a "quote"\\', "\x00\x1b[31m", "}{", chr(0xD800), "é" * 10_000]
)
def test_no_text_breaks_a_line(hostile: str) -> None:
    line = line_of("%s", hostile, checkpoint=hostile)
    assert line["message"] == line["checkpoint"] == hostile


def test_extra_fields_are_kept_and_hide_nothing() -> None:
    line = line_of("m", score=float("nan"), path=object, parts={1: (True, None)}, level="x", time=0)
    assert (line["score"], line["parts"]) == ("nan", {"1": [True, None]})
    assert line["level"] == "warning" and line["time"] != 0 and isinstance(line["path"], str)


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        line = line_of("failed", exc_info=(type(error), error, error.__traceback__))
    assert line["message"] == "failed" and "ValueError: wrong" in line["exception"]
