"""Reads a log and a folder of checkpoints, and reports what is new in them to a guard. One round at a time.

It is the trainer's reporter without the trainer: nobody waits for it, so it sends in line, again and again,
until the guard has it on disk, and reads on only then. It keeps no position of its own: at its start it asks
the guard for its history, reads the log from the beginning, and reports what the guard does not have.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rlguard.client.client import GuardClient, VerdictView
from rlguard.client.errors import GuardUnavailableError, ReportRefusedError
from rlguard.client.waiting import reason_to_wait
from rlguard.core.terminal import plain
from rlguard.core.wire import MAX_STEPS_PER_POST, CheckpointReport, StepReport
from rlguard.core.wording import format_errors
from rlguard.follow.attempts import Attempts
from rlguard.follow.checkpoints import CompleteCheckpoint, find_checkpoints, layouts_of
from rlguard.follow.config import FollowConfig
from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import BY_KEY
from rlguard.follow.guard_history import KnownHistory
from rlguard.follow.preexisting import PreexistingFiles
from rlguard.follow.run_config import settings_finder
from rlguard.follow.sources import LogSource, framework_of
from rlguard.follow.steps import StepGatherer

#: A step is reported when the next one begins; after this long without one it is taken for whole. Writers of
#: event files flush every two minutes.
SETTLE_SECONDS = 150.0
_FIRST_RETRY_SECONDS = 0.2
_LAST_RETRY_SECONDS = 5.0
_RECORDS_AT_ONCE = 20_000
#: Checkpoints that may be unscored before a trainer that reports for itself would wait, by default.
_MAX_LAG = 1
#: After so long without a record, or a checkpoint that can be scored, the user is told where it was looked.
PATIENCE_SECONDS = 600.0

T = TypeVar("T")


class Follower:
    """Follows one run.

    Args:
        config: what is followed.
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
        config: FollowConfig,
        client: GuardClient,
        history: KnownHistory,
        say: Callable[[str], None],
        stopping: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._client, self._say, self._clock = config, client, say, clock
        self._stopping = stopping or threading.Event()
        self._told: set[str] = set()
        before = config.before or PreexistingFiles()
        self._framework = framework_of(config.format)
        self._source = LogSource(config.metrics, config.format, config.before, first=not history.steps)
        settings = settings_finder(config.run_config, config.metrics, before.has, self._once)
        self._attempts = Attempts(history.steps, history.attempt)
        self._steps = StepGatherer(self._attempts, config.overrides, self._framework, settings, self._tell)
        self._layouts = layouts_of(config.layout or self._framework)
        self._evaluated = set(history.checkpoints)
        self._seen = {Path(os.path.abspath(path)): written for path, written in before.checkpoints.items()}
        self._held: dict[tuple[Path, int], float] = {}
        self._bad = 0
        self._begun = self._last_record = clock()
        self._records = 0
        self.accepted = 0
        self.announced = 0
        self.verdict: VerdictView | None = None

    @property
    def bad(self) -> int:
        """Lines, records and values that could not be read, and were left out."""
        return self._source.bad + self._steps.counts.wrong

    @property
    def trouble(self) -> str:
        """Why no step is reported although there should have been one by now; "" where nothing is wrong."""
        return self._steps.trouble or ("" if self._records or not self._is_late else self._no_log())

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
        if (reason := reason_to_wait(self.verdict, 0, _MAX_LAG)) is not None:
            self._once(f"a followed trainer cannot be held: it trains on without {reason}", "not held")
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

    # -- steps -------------------------------------------------------------------------------------------

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
                        self._once(f"the guard refuses step {report.step}: {refusal}", "refused")

    def _post(self, reports: Sequence[StepReport]) -> None:
        response = self._ask(lambda: self._client.post_steps(reports))
        if response is not None:
            self.accepted += response.accepted
            self.verdict = response.verdict

    # -- checkpoints -------------------------------------------------------------------------------------

    def _report_checkpoints(self, now: float) -> None:
        """Announce each complete checkpoint once; `now` is infinite when nothing comes any more."""
        for path, step, written in self._complete(now if now == math.inf else None):
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

    def _complete(self, now: float | None) -> Iterator[tuple[Path, int, int]]:
        """Path, step and time of writing of each complete checkpoint; says why others are of no use."""
        root = self._config.checkpoints
        for found in find_checkpoints(root, self._layouts, now) if root is not None else ():
            if isinstance(found, CompleteCheckpoint):
                yield Path(os.path.abspath(found.path)), found.step, found.written
            else:
                self._once(f"{found.path} {found.why}", "unfit")

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
            self._once(f"checkpoint {step} was refused: {why}", f"checkpoint {step}")
            return
        if response is not None:
            self.announced += 1
            self.verdict = response.verdict

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
                self._once(f"no response from the guard, trying again: {error}", "unavailable")
            if self._stopping.wait(delay):
                return None
            delay = min(2 * delay, _LAST_RETRY_SECONDS)

    # -- what the user is told ---------------------------------------------------------------------------

    def _tell(self, sentence: str) -> None:
        self._say(plain(sentence, 2_000))

    def _once(self, sentence: str, about: str = "") -> None:
        """Tell a sentence unless one `about` the same was told."""
        if (about or sentence) not in self._told:
            self._told.add(about or sentence)
            self._tell(sentence)

    def _complain(self) -> None:
        counts = self._steps.counts
        if self._source.bad > self._bad:
            self._tell(f"{self._source.bad} lines or records could not be read, and were left out")
        self._bad = self._source.bad
        if self._source.note:
            self._once(self._source.note)
        if trouble := self._steps.trouble:
            self._once(f"no step can be read yet: {trouble}", "trouble")
        if counts.not_finite:
            self._once("a step has no finite reward: nothing is judged by it")
        if counts.wrong:
            self._once("a step or a value is no number that can be reported, and was left out")
        if self._is_late and not self._records:
            self._once(self._no_log(), "no log")
        if self._is_late and self._config.checkpoints is not None and not (self._seen or self._held):
            self._once(self._no_checkpoint(self._config.checkpoints), "no checkpoint")

    @property
    def _is_late(self) -> bool:
        """Whether something should have come by now."""
        return self._clock() - self._begun >= PATIENCE_SECONDS

    def _no_log(self) -> str:
        reads = BY_KEY[self._framework].reads if self._framework else ""
        return (
            f"after {PATIENCE_SECONDS / 60:.0f} minutes there is no record in "
            f"{_shown(self._config.metrics)}: is it where the trainer writes, and does it write "
            f"{reads or 'metrics'}?"
        )

    def _no_checkpoint(self, root: Path) -> str:
        looked = ", ".join(f"`{layout.place}`" for layout in self._layouts)
        advice = self._layouts[0].advice if len(self._layouts) == 1 else ""
        return (
            f"after {PATIENCE_SECONDS / 60:.0f} minutes no checkpoint that can be scored is in "
            f"{_shown(root)}: is it where the trainer saves? "
            f"Looked for {looked or 'nothing, as no layout is known of this framework'}"
            + (f"; for weights that can be scored {advice}" if advice else "")
        )


def _shown(path: Path) -> str:
    if path.is_symlink():
        return f"{path} (a symbolic link, which is not followed everywhere: name what it leads to)"
    return f"{path}{'' if path.exists() else ' (not there)'}"
