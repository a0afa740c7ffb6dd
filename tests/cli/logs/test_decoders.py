"""Records out of hostile bytes: no line is slow for its length, and no name is long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlguard.follow.consoles import ConsoleLines


@pytest.mark.parametrize("part", [b"metrics_tag: {", b"np.a(", b"\x1b[", b" step:1", b"1", b"{", b"-"])
@pytest.mark.parametrize("start", [b"", b"step:1 - a:", b"metrics_tag: {", b"\x1b["])
def test_no_line_holds_up_the_process(part: bytes, start: bytes) -> None:
    """`re` lets no other thread run meanwhile, not the one that ends the trainer."""
    began = time.thread_time()
    ConsoleLines().feed((start + part * 200_000)[:200_000] + b"\n")
    assert time.thread_time() - began < 10  # it takes 0.1; one that is quadratic takes minutes


@pytest.mark.parametrize(
    ("line", "records", "bad"),
    [
        (b"step:3 - a:np.float64(0.5) - b:np.int64(7)", [{"step": 3, "a": "0.5", "b": "7"}], 0),
        (b"step:3 - a:np.int64(1 - b:(1)", [{"step": 3, "a": "np.int64(1", "b": "(1)"}], 0),
        (b'(actor) metrics_tag: {"a": {"b": 1}} now', [{"a/b": 1}], 0),
        # The end of a name begins no line.
        (b"step:9 - training/global_step:9 - timestep:7 - timing_s/step:3",
         [{"step": 9, "training/global_step": "9", "timestep": "7", "timing_s/step": "3"}], 0),
        # A writer was ended in mid-line, and another one goes on: what ends the line is a whole record.
        (b"step:9 - a:0.5 - b:8.1step:2 - a:1 - b:2", [{"step": 2, "a": "1", "b": "2"}], 1),
        (b"step:9 - a:0.(Runner pid=7) step:2 - a:0.25", [{"step": 2, "a": "0.25"}], 1),
        (b'metrics_tag: {"st[I] metrics_tag: {"step": 2, "a": 1}', [{"step": 2, "a": 1}], 1),
        (b"step:9 - a:0.5 - bstep:2 - a:0.25 - b:0.5", [], 1),
        # A line of ROLL without an object is none of its metrics; one whose object is broken is counted.
        *((line, [], 0) for line in (b"metrics_tag: }", b"metrics_tag: none", b"{metrics_tag: a}")),
        *((line, [], 1) for line in (b"metrics_tag: {", b"} metrics_tag: {", b'metrics_tag: {"a": 1, "b')),
    ],
)  # fmt: skip
def test_a_line_of_a_console(line: bytes, records: list[dict[str, Any]], bad: int) -> None:
    lines = ConsoleLines()
    assert lines.feed(line + b"\n") == records and lines.bad == bad


LONG = "x" * 100_000
