"""What is followed: the log and the checkpoints of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlguard.follow.preexisting import PreexistingFiles


@dataclass(frozen=True, slots=True)
class FollowConfig:
    """What is followed.

    Fields:
        metrics: a file or folder, which need not exist yet.
        checkpoints: the folder in which the trainer saves; None follows no checkpoints.
        format: from `--format`.
        overrides: canonical name to column, from `--map`.
        run_config: the run's own configuration, which the trainer may write later; None looks beside the log.
        layout: the framework by whose layout checkpoints are complete; None: that of `format`, or any.
        before: what lay there before the run began; None reads all of it.
    """

    metrics: Path
    checkpoints: Path | None = None
    format: str = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)
    run_config: Path | None = None
    before: PreexistingFiles | None = None
    layout: str | None = None
