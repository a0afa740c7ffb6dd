"""What one guarded run is to do, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlguard.cli.run.outcome import Ending, RunOutcome
from rlguard.follow.config import FollowConfig

#: As `--follow` names the trainer's output.
TRAINER_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `run_guarded` is to do.

    Fields:
        command: the trainer, program and arguments.
        out: report folder; must not exist, or be empty.
        config, options: guard settings, the latter win (see `guard_settings`).
        grace: seconds between SIGTERM and SIGKILL.
        drain: seconds that the guard may take for the last checkpoints after the trainer has ended.
        ready: seconds that the guard may take to start.
        show_trainer: print the trainer's output, which goes to trainer.log in any case.
        follow: read steps and checkpoints from what the trainer writes, or from its output (TRAINER_OUTPUT).
        max_lag: checkpoints that may be unscored while the trainer goes on, or `off`; None: as it is set up.
        resume_from: checkpoint of another run from which the trainer is told to start.
        arguments: of `rlguard`, by which the run was started; none of a run that another program started.
    """

    command: Sequence[str]
    out: Path
    options: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    grace: float = 10.0
    drain: float = 600.0
    ready: float = 180.0
    show_trainer: bool = True
    follow: FollowConfig | None = None
    max_lag: str | None = None
    resume_from: Path | None = None
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended."""

    outcome: RunOutcome
    ending: Ending
    started: float
    ended: float
