"""What the callback logs before the first step, as its rows."""

from __future__ import annotations

import re

import pytest

from rlguard.core.preflight import CheckLevel, CheckRow

_ROW = re.compile(rf"(\S.*?)  +({'|'.join(CheckLevel)})  +(.*)")


def table_in(caplog: pytest.LogCaptureFixture) -> dict[str, CheckRow]:
    """Its rows by their names; those that warn are warnings of their own as well, and no others are."""
    (record,) = (r for r in caplog.records if r.getMessage().startswith("before the first step:\n"))
    lines = re.sub(r"\n {9,}", " ", record.getMessage()).splitlines()[1:]
    rows = [
        CheckRow(found[1], CheckLevel(found[2]), found[3]) for found in map(_ROW.fullmatch, lines) if found
    ]
    assert len(rows) == len(lines)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    for row in rows:
        assert (f"{row.name}: {row.says}" in warnings) == (row.level == CheckLevel.WARN), row
    assert record.levelname == "INFO"
    return {row.name: row for row in rows}
