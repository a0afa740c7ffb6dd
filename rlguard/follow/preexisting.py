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

from rlguard.follow.checkpoints import CompleteCheckpoint, find_checkpoints, layouts_of
from rlguard.follow.event_files import EVENTS, LOGS, written
from rlguard.follow.run_config import configurations
from rlguard.follow.safe_open import named_below
from rlguard.follow.tail import Mark, mark_of
from rlguard.follow.trainer_state import digest_of, rows_of, states

#: So much is read of all states together: a trainer waits for it, and it takes forty times that in memory.
MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class PreexistingFiles:
    """Files by their path, as text.

    Fields:
        files: event files, states and configurations, with the time of their writing, ns.
        logs: how far files of lines went.
        checkpoints: complete ones, by the folder of the model, with the time of their writing, ns.
        rows: digests of the rows in the newest states. A trainer that goes on from one of these checkpoints
            has its rows in each of its own.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[str, Mark] = field(default_factory=dict)
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    rows: Sequence[str] = ()

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
        return cls(dict(kept["files"]), logs, dict(kept["checkpoints"]), kept["rows"])


def scan(metrics: Path, checkpoints: Path | None, framework: str | None) -> PreexistingFiles:
    """Look at what is there now.

    Args:
        metrics: a file or a folder, which need not exist.
        checkpoints: the folder in which the trainer saves; None without one.
        framework: by whose layout a checkpoint is complete; None: by any.
    """
    saved = states(metrics)
    files = [*named_below(metrics, EVENTS), *saved, *configurations(metrics)]
    marks = {str(log): mark_of(log) for log in (metrics, *(metrics / name for name in LOGS))}
    found = () if checkpoints is None else find_checkpoints(checkpoints, layouts_of(framework))
    return PreexistingFiles(
        {str(file): written(file) for file in files},
        {log: mark for log, mark in marks.items() if mark is not None},
        {str(c.path): c.written for c in found if isinstance(c, CompleteCheckpoint)},
        _rows(saved),
    )


def _rows(saved: Sequence[Path]) -> list[str]:
    """See `PreexistingFiles.rows`; of the newest states, as much as a trainer can wait for."""
    found: dict[str, None] = {}
    left = MOST_BYTES
    for state in sorted(saved, key=written, reverse=True):
        left -= state.lstat().st_size if state.exists() else 0
        if left < 0:
            break
        found |= dict.fromkeys(map(digest_of, rows_of(state) or ()))
    return list(found)
