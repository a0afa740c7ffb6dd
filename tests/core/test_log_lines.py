"""JSON log lines: whatever is logged, every line is one object with the same four fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from guard_core.log_lines import JsonFormatter


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, Any]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("test.of.json")
    logger.propagate, logger.handlers = False, [handler]
    logger.setLevel(logging.DEBUG)
    yield (
        logger,
        lambda: [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()],
    )
    logger.handlers = []


def test_a_line_has_time_level_logger_and_message(lines: Any) -> None:
    logger, read = lines
    logger.warning("step %d", 7)
    [line] = read()
    assert (line["level"], line["logger"], line["message"]) == ("warning", "test.of.json", "step 7")
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert set(line) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize(
    "hostile",
    ["two\nlines", 'a "quote"\\', "\x00\x1b[31m", "  ", "}{", "é" * 10_000],
    ids=["lines", "quote", "control", "blank", "braces", "long"],
)
def test_no_text_breaks_a_line(lines: Any, hostile: str) -> None:
    logger, read = lines
    logger.info("%s", hostile, extra={"checkpoint": hostile})
    [line] = read()
    assert line["message"] == line["checkpoint"] == hostile


def test_half_a_surrogate_pair_is_a_character() -> None:
    """Formatted here and not logged: pytest-xdist cannot carry it in what it has captured."""
    record = logging.LogRecord("test", logging.INFO, __file__, 1, chr(0xD800), (), None)
    line = JsonFormatter().format(record)
    assert line.isascii() and json.loads(line)["message"] == record.getMessage()


def test_extra_fields_are_kept_and_hide_nothing(lines: Any) -> None:
    logger, read = lines
    extra = {
        "step": 3,
        "score": float("nan"),
        "path": object,
        "parts": {1: (True, None)},
        "level": "x",
        "time": 0,
    }
    logger.info("m", extra=extra)
    [line] = read()
    assert (line["step"], line["score"], line["parts"]) == (3, "nan", {"1": [True, None]})
    assert line["level"] == "info" and line["time"] != 0 and isinstance(line["path"], str)


def test_an_exception_is_in_its_line(lines: Any) -> None:
    logger, read = lines
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("failed")
    [line] = read()
    assert line["message"] == "failed" and "ValueError: wrong" in line["exception"]
