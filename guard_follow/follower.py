"""Reads a log and a folder of checkpoints, and reports what is new in them to a guard. One round at a time.

It is the trainer's reporter without the trainer: nobody waits for it, so it sends in line, again and again,
until the guard has it on disk, and reads on only then. Where it stands is not kept anywhere: at its start it
asks the guard for its history, reads the log from the beginning, and reports what the guard does not have.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from guard_client.client import GuardClient, VerdictView
from guard_client.errors import GuardUnavailableError, ReportRefusedError
from guard_client.waiting import reason_to_wait
from guard_core.terminal import plain
from guard_core.wire import MAX_STEPS_PER_POST, CheckpointReport, StepReport
from guard_core.wording import format_errors
from guard_follow.before import Before
from guard_follow.errors import InputError
from guard_follow.frameworks import BY_KEY
from guard_follow.history import KnownHistory
from guard_follow.layouts import CompleteCheckpoint, find_checkpoints, layouts_of
from guard_follow.settings import settings_of
from guard_follow.source import Source, framework_of, open_source
from guard_follow.starts import Starts
from guard_follow.steps import StepGatherer
from guard_follow.what import What

#: A step is reported when the next one begins; after this long without one it is taken for whole. Writers of
#: event files flush every two minutes.
SETTLE_SECONDS = 150.0
_FIRST_RETRY_SECONDS = 0.2
_LAST_RETRY_SECONDS = 5.0
_RECORDS_AT_ONCE = 20_000
#: Checkpoints that may be unscored before a trainer that reports for itself would wait, by default.
_MAX_LAG = 1
#: After so long without a record, or a checkpoint that can be scored, it is told where it was looked.
PATIENCE_SECONDS = 600.0
_AFTER_PATIENCE = f"after {PATIENCE_SECONDS / 60:.0f} minutes"

T = TypeVar("T")


class Follower:
    """Follows one run.

    Args:
        what: is followed.
        client: the guard.
        history: what that guard has.
        say: gets sentences for the user.
        stopping: set from another thread when nothing more is to be waited for.
        clock: seconds, monotonic.

    Raises:
        InputError: it cannot be followed.
    """

    def __init__(
        self,
        what: What,
        client: GuardClient,
        history: KnownHistory,
        say: Callable[[str], None],
        stopping: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        framework = framework_of(what.format)
        self._wanted_log = BY_KEY[framework].reads if framework and BY_KEY[framework].reads else "metrics"
        self._what, self._client, self._clock = what, client, clock
        self._say: Callable[[str], None] = lambda sentence: say(plain(sentence, 2_000))
        self._stopping = stopping or threading.Event()
        self._source: Source = open_source(what.metrics, what.format, what.before, first=not history.steps)
        self._layouts = layouts_of(what.layout or framework)
        self._attempts = Starts(history.steps, history.attempt)
        self._told: set[str] = set()
        settings = settings_of(
            what.run_config,
            what.written_config,
            what.metrics,
            (what.before or Before()).has,
            lambda why: self._once(why, why),
        )
        self._steps = StepGatherer(self._attempts, what.overrides, framework, settings, self._say)
        self._evaluated = set(history.checkpoints)
        old = {} if what.before is None else what.before.checkpoints
        self._seen = {Path(os.path.abspath(path)): written for path, written in old.items()}
        self._held: dict[tuple[Path, int], float] = {}
        self._bad = 0
        self._begun = self._last_record = clock()
        self._records = 0
        self.accepted = 0
        self.announced = 0
        self.verdict: VerdictView | None = None

    @property
    def ended(self) -> bool:
        """Whether the log has come to its end, as standard input does."""
        return self._source.ended

    @property
    def bad(self) -> int:
        """Lines, records and values that could not be read, and were left out."""
        return self._source.bad + self._steps.counts.wrong

    @property
    def trouble(self) -> str:
        """Why no step is reported although there should have been one by now; "" where nothing is wrong."""
        return self._steps.trouble or ("" if self._records or not self._waited else self._no_log())

    def poll(self) -> None:
        """Report what is new.

        Raises:
            InputError: the log cannot be read on, or the guard refuses the token.
        """
        self._report_steps()
        if self._steps.gathers and self._clock() - self._last_record >= SETTLE_SECONDS:
            self._send(self._steps.rest())
        self._report_checkpoints(self._clock())
        self.verdict = self._ask(self._client.verdict) or self.verdict
        self._say_what_is_not_held()
        self._complain()

    def finish(self, *, trainer_ended: bool) -> None:
        """Report the rest of the log, at the end.

        Args:
            trainer_ended: nothing is added any more, so the last line needs no end, and a checkpoint that is
                whole is complete. Else that line is left to a follower that starts again.
        """
        self._report_steps()
        rest = self._source.rest() if trainer_ended else ()
        last = [report for record in rest for report in self._steps.take(record)]
        self._send([*last, *self._steps.rest()])
        self._report_checkpoints(math.inf if trainer_ended else self._clock())
        self._complain()

    def _report_steps(self) -> None:
        """Read and report to the end of what is there."""
        records = self._source.poll()
        while chunk := list(islice(records, _RECORDS_AT_ONCE)):
            self._last_record = self._clock()
            self._records += len(chunk)
            self._send([report for record in chunk for report in self._steps.take(record)])

    def _send(self, reports: Sequence[StepReport]) -> None:
        for start in range(0, len(reports), MAX_STEPS_PER_POST):
            part = reports[start : start + MAX_STEPS_PER_POST]
            try:
                self._post(part)
            except ReportRefusedError:
                for report in part:
                    try:
                        self._post([report])
                    except ReportRefusedError as refusal:
                        self._once("refused", f"the guard refuses step {report.step}: {refusal}")

    def _post(self, reports: Sequence[StepReport]) -> None:
        response = self._ask(lambda: self._client.post_steps(reports))
        if response is not None:
            self.accepted += response.accepted
            self.verdict = response.verdict

    def _report_checkpoints(self, now: float) -> None:
        """Announce each complete checkpoint once; `now` is infinite when nothing comes any more."""
        for path, written in self._complete(now if now == math.inf else None):
            step = self._step_of[path]
            if self._seen.get(path) == written or not self._is_placed(path, written, step, now):
                continue
            attempt = self._attempts.attempt_of_checkpoint(step)
            key = (attempt, step, str(path))
            if key in self._evaluated and path in self._seen:
                continue  # written again by a start of which the log has nothing yet
            self._seen[path] = written
            if key not in self._evaluated:
                self._evaluated.add(key)
                self._announce(attempt, step, str(path))

    def _is_placed(self, path: Path, written: int, step: int, now: float) -> bool:
        """Whether its attempt is known, as the log has come to its step; or the log is not expected to."""
        if self._attempts.has_come_to(step):
            return True
        if path not in self._seen and any(key[1:] == (step, str(path)) for key in self._evaluated):
            return False  # scored before this follower began, and not yet reached again
        return now - self._held.setdefault((path, written), self._clock()) >= SETTLE_SECONDS

    def _announce(self, attempt: int, step: int, path: str) -> None:
        try:
            report = CheckpointReport(attempt=attempt, step=step, path=path)
            response = self._ask(lambda: self._client.post_checkpoint(report))
        except (ReportRefusedError, ValidationError) as refusal:
            why = format_errors(refusal) if isinstance(refusal, ValidationError) else str(refusal)
            self._once(f"checkpoint {step}", f"checkpoint {step} was refused: {why}")
            return
        if response is not None:
            self.announced += 1
            self.verdict = response.verdict

    def _complete(self, now: float | None = None) -> Iterable[tuple[Path, int]]:
        """The complete checkpoints with the time of their writing; says why others are of no use."""
        self._step_of: dict[Path, int] = {}
        root = self._what.checkpoints
        for checkpoint in find_checkpoints(root, self._layouts, now) if root is not None else ():
            if isinstance(checkpoint, CompleteCheckpoint):
                path = Path(os.path.abspath(checkpoint.path))
                self._step_of[path] = checkpoint.step
                yield path, checkpoint.written
            else:
                self._once("unfit", f"{checkpoint.path} {checkpoint.why}")

    def _ask(self, exchange: Callable[[], T]) -> T | None:
        """Try until the guard responds; None if there is no more waiting.

        Raises:
            InputError: the guard refuses the token.
            ReportRefusedError: it refuses the report.
        """
        delay = _FIRST_RETRY_SECONDS
        while True:
            try:
                return exchange()
            except GuardUnavailableError as error:
                if error.unauthorised:
                    raise InputError(str(error), 1) from None
                self._once("unavailable", f"no response from the guard, trying again: {error}")
            if self._stopping.wait(delay):
                return None
            delay = min(2 * delay, _LAST_RETRY_SECONDS)

    def _complain(self) -> None:
        if self._source.bad > self._bad:
            self._say(f"{self._source.bad} lines or records could not be read, and were left out")
        self._bad = self._source.bad
        if self._source.note:
            self._once(self._source.note, self._source.note)
        if "trouble" not in self._told and (trouble := self._steps.trouble):
            self._once("trouble", f"no step can be read yet: {trouble}")
        if self._steps.counts.not_finite:
            self._once("not finite", "a step has no finite reward: nothing is judged by it")
        if self._steps.counts.wrong:
            self._once("wrong", "a step or a value is no number that can be reported, and was left out")

        if self._waited:
            self._complain_of_nothing()

    def _say_what_is_not_held(self) -> None:
        """A trainer that reports for itself would wait now; nobody can make one wait that is followed."""
        if (reason := reason_to_wait(self.verdict, 0, _MAX_LAG)) is not None:
            self._once("not held", f"a followed trainer cannot be held: it trains on without {reason}")

    @property
    def _waited(self) -> bool:
        """Whether something should have come by now."""
        return self._clock() - self._begun >= PATIENCE_SECONDS

    def _no_log(self) -> str:
        where = "standard input" if self._what.metrics is None else _told(self._what.metrics)
        return (
            f"{_AFTER_PATIENCE} there is no record in {where}: is it where the trainer writes, "
            f"and does it write {self._wanted_log}?"
        )

    def _complain_of_nothing(self) -> None:
        """Say what has not come, and what could be wrong."""
        root = self._what.checkpoints
        if not self._records:
            self._once("no log", self._no_log())
        if root is not None and not (self._seen or self._held):
            looked = ", ".join(f"`{layout.place}`" for layout in self._layouts)
            advice = self._layouts[0].advice if len(self._layouts) == 1 else ""
            self._once(
                "no checkpoint",
                f"{_AFTER_PATIENCE} no checkpoint that can be scored is in {_told(root)}: is it where the "
                f"trainer saves? Looked for {looked or 'nothing, as no layout is known of this framework'}"
                + (f"; for weights that can be scored {advice}" if advice else ""),
            )

    def _once(self, what: str, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(sentence)


def _told(path: Path) -> str:
    if path.is_symlink():
        return f"{path} (a symbolic link, which is not followed everywhere: name what it leads to)"
    return f"{path}{'' if path.exists() else ' (not there)'}"
