"""What lay there before the run began: it is of another run, and is not reported.

It is looked at once, before the trainer starts. Who must know it again after a restart keeps it: a log to
which the run has written since cannot be told from an old one later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from guard_follow.beneath import named_below
from guard_follow.events import EVENTS, LOGS, written
from guard_follow.layouts import CompleteCheckpoint, find_checkpoints, layouts_of
from guard_follow.settings import configurations
from guard_follow.states import history_of, rows_of, states
from guard_follow.tail import Mark, mark_of

#: So much is read of all states together, in bytes and rows: a trainer waits for it, and a state that an
#: earlier user of the folder has left can take forty times its size in memory.
MOST_BYTES = 32 << 20
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Before:
    """Files by their path, as text.

    Fields:
        files: event files, states and configurations, with the time of their writing, ns.
        logs: how far files of lines went.
        checkpoints: complete ones, by the folder of the model, with the time of their writing, ns.
        histories: of the logs in the newest states, how many rows each has, by its digest. A trainer that
            goes on from one of these checkpoints has its rows in each of its own.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[str, Mark] = field(default_factory=dict)
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    histories: Mapping[str, int] = field(default_factory=dict)

    def has(self, file: Path) -> bool:
        """Whether this file was there, and has not been written since."""
        return self.files.get(str(file)) == written(file)

    def to_json(self) -> str:
        """As text, exact."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild from `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none.
        """
        kept = json.loads(text)
        logs = {path: Mark(size, last) for path, (size, last) in kept["logs"].items()}
        return cls(dict(kept["files"]), logs, dict(kept["checkpoints"]), dict(kept["histories"]))


def what_lies(metrics: Path | None, checkpoints: Path | None, framework: str | None) -> Before:
    """What is there now.

    Args:
        metrics: a file or a folder, which need not exist; None is standard input.
        checkpoints: the folder in which the trainer saves; None without one.
        framework: by whose layout a checkpoint is complete; None: by any.
    """
    files: list[Path] = []
    logs: dict[str, Mark] = {}
    histories: dict[str, int] = {}
    if metrics is not None:
        saved = states(metrics)
        files = [*named_below(metrics, EVENTS), *saved, *configurations(metrics)]
        histories = _histories(saved)
        marks = {log: mark_of(log) for log in (metrics, *(metrics / name for name in LOGS))}
        logs = {str(log): mark for log, mark in marks.items() if mark is not None}
    found = () if checkpoints is None else find_checkpoints(checkpoints, layouts_of(framework))
    complete = {str(c.path): c.written for c in found if isinstance(c, CompleteCheckpoint)}
    return Before({str(file): written(file) for file in files}, logs, complete, histories)


def _histories(saved: Sequence[Path]) -> dict[str, int]:
    """See `Before.histories`; a state that is more than is left to be read is passed over."""
    found: dict[str, int] = {}
    bytes_left, rows_left = MOST_BYTES, MOST_ROWS
    for state in sorted(saved, key=written, reverse=True):
        size = _size(state)
        if size > bytes_left:
            continue
        bytes_left -= size
        rows = rows_of(state, size) or []
        if 0 < len(rows) <= rows_left:
            rows_left -= len(rows)
            found[history_of(rows)] = len(rows)
    return found


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0  # it is gone
