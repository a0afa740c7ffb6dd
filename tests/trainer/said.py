"""What the callback logs before the first step, as its rows."""

from __future__ import annotations

import re

import pytest

from rlguard.core.preflight import CheckLevel, CheckRow

_ROW = re.compile(rf"(\S.*?)  +({'|'.join(CheckLevel)})  +(.*)")


def table_in(caplog: pytest.LogCaptureFixture) -> dict[str, CheckRow]:
    """Its rows by their names; it is a warning if one of them warns."""
    (record,) = (r for r in caplog.records if r.getMessage().startswith("before the first step:\n"))
    lines = re.sub(r"\n {9,}", " ", record.getMessage()).splitlines()[1:]
    rows = [
        CheckRow(found[1], CheckLevel(found[2]), found[3]) for found in map(_ROW.fullmatch, lines) if found
    ]
    assert len(rows) == len(lines)
    assert (record.levelname == "WARNING") == any(row.level == CheckLevel.WARN for row in rows)
    return {row.name: row for row in rows}
