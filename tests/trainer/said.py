"""What the callback logs before the first step, as its rows."""

from __future__ import annotations

import re

import pytest

from guard_core.preflight import CheckLevel, Row

_ROW = re.compile(rf"(\S.*?)  +({'|'.join(CheckLevel)})  +(.*)")


def table_in(caplog: pytest.LogCaptureFixture) -> tuple[str, dict[str, Row]]:
    """The level of the record that has it, and its rows by their names."""
    (record,) = (r for r in caplog.records if r.getMessage().startswith("before the first step:\n"))
    lines = re.sub(r"\n {9,}", " ", record.getMessage()).splitlines()[1:]
    rows = [Row(found[1], CheckLevel(found[2]), found[3]) for found in map(_ROW.fullmatch, lines) if found]
    assert len(rows) == len(lines)
    return record.levelname, {row.name: row for row in rows}
