"""What the user sees while a run goes on: a live line on a terminal, plain lines elsewhere. It only shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import IO, TYPE_CHECKING, cast

from rlguard.cli.output import StandardStream
from rlguard.core.codes import Level
from rlguard.core.detectors.questions import points
from rlguard.core.wire import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Most characters of the line at the bottom of a terminal.
WIDTH = 90
STYLES = {Level.HEALTHY: "green", Level.UNKNOWN: "cyan", Level.WARNING: "yellow", Level.FIRED: "bold red"}


@contextmanager
def open_progress(out: Path, show_trainer: bool) -> Iterator[Progress]:
    """The display that suits this terminal; the trainer's output is read from `out/trainer.log`."""
    note = partial(_note_lost, out / "guard.log")
    shown = StandardStream(sys.stdout, partial(note, "standard output"))
    said = StandardStream(sys.stderr, partial(note, "standard error"))
    progress = Progress(shown, said, out / "trainer.log" if show_trainer else None)
    if not (said.isatty() and shown.isatty()):
        yield progress
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=cast("IO[str]", said)), refresh_per_second=4) as live:
        progress.live = live
        yield progress


def _note_lost(log: Path, stream: str, why: str) -> None:
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"rlguard run: {stream} takes no more ({why}); the run goes on without it\n")


class Progress:
    """Shows notes and verdicts, and passes on the trainer's new output whenever it is called.

    On a terminal the verdict is a line at the bottom, above which all else scrolls; elsewhere it is printed
    where something was evaluated or the level changed.
    """

    def __init__(self, shown: StandardStream, said: StandardStream, trainer_log: Path | None) -> None:
        self._shown, self._said, self._log = shown, said, trainer_log
        self._offset = 0
        self._told: tuple[object, ...] | None = None
        self._pace = BaselinePace()
        self.live: Live | None = None

    def note(self, text: str) -> None:
        """Say something once."""
        self._pass_on()
        if self.live is not None:
            self.live.console.print(f"rlguard: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            self._said.write(f"rlguard: {text}\n")

    def update(self, verdict: Verdict | None) -> None:
        """Show where the run is; a bar shows how far the baseline is."""
        self._pass_on()
        if verdict is None:
            return
        if self.live is not None:
            self.live.update(
                _display(verdict, shorten(describe(verdict, self._pace), WIDTH, placeholder=" …"))
            )
            return
        now = (verdict.level, verdict.code, verdict.last_evaluation, verdict.baseline_passes)
        if now != self._told:
            self._told = now
            self._said.write(f"rlguard: {describe(verdict, self._pace)}\n")

    def _pass_on(self) -> None:
        """Show what the trainer has written since the last time."""
        try:
            if self._log is None:
                return
            with self._log.open("rb") as log:
                log.seek(self._offset)
                added = log.read()
        except OSError:
            return
        self._offset += len(added)
        text = added.decode("utf-8", errors="replace")
        if text and self.live is not None:
            self.live.console.out(text.rstrip("\n").replace("\r", "\n"), highlight=False)
        elif text:
            self._shown.write(text)


def _display(verdict: Verdict, line: str) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    text = Text(f"rlguard: {line}", style=STYLES[verdict.level])
    if not gathers_baseline(verdict):
        return text
    return Group(text, ProgressBar(verdict.baseline_planned, verdict.baseline_passes, width=40))


class BaselinePace:
    """How long the rest of the baseline takes, from the passes that were seen to end.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def seconds_left(self, made: int, planned: int) -> float | None:
        """Seconds until all planned passes are made; None before the second one was seen."""
        now = self._clock()
        if self._first is None and made > 0:
            self._first = made, now
        if self._first is None or made <= self._first[0]:
            return None
        passes, since = self._first
        return (now - since) / (made - passes) * (planned - made)


def gathers_baseline(verdict: Verdict) -> bool:
    """Whether the starting policy is being scored."""
    return verdict.next_pass == "baseline"


def describe(verdict: Verdict, pace: BaselinePace) -> str:
    """One line: step, scores and level, with a reason where there is one."""
    if gathers_baseline(verdict):
        made, planned = verdict.baseline_passes, verdict.baseline_planned
        left = pace.seconds_left(made, planned)
        rest = "" if left is None else f", about {_duration(left)} left"
        return f"baseline: {made} of {planned} passes{rest}"
    parts = [] if verdict.step is None else [f"step {verdict.step}"]
    if verdict.last_evaluation is not None:
        parts.append(
            f"held-out {points(verdict.last_evaluation.score)} at step {verdict.last_evaluation.step}"
        )
    if verdict.in_loop_ema is not None:
        parts.append(f"reward {verdict.in_loop_ema:.3f}")
    if verdict.waiting:
        parts.append(f"{verdict.waiting} to score")
    healthy = verdict.level is Level.HEALTHY
    parts.append(verdict.level.value if healthy else f"{verdict.level.value}: {verdict.reason}")
    return " | ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
