"""Reports to the guard from a thread of its own, so that no training step waits for the network.

There is one bounded queue. When the guard cannot be reached for long, the oldest reports are dropped, counted
and logged, because the newest say most about the run. Whatever is not dropped is sent in order, again and
again until the guard acknowledges or refuses it; it acknowledges a repeated report without folding it twice.
What to do about a verdict or a lost guard is decided in `guard_client.guard`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from guard_client.client import GuardClient, VerdictView
from guard_client.errors import GuardConfigError, GuardUnavailableError, ReportRefusedError
from guard_client.log import log
from guard_client.samples import CheckpointSample, EndSample, StepSample
from guard_core.codes import Code
from guard_core.wire import MAX_STEPS_PER_POST, CheckpointReport, EndReport, PostedStep
from guard_core.wording import format_errors

#: Reports that may wait. A step is about 0.3 KiB, with further figures 2 KiB: some MiB.
QUEUE_LIMIT = 4096
#: Characters of the steps in one request, at most, but for a single one; a guard takes a MiB.
POST_CHARACTERS = 400_000
#: Seconds after which an idle reporter asks for the verdict: a fire found between two steps is known at the
#: next one, however long a step takes.
POLL_SECONDS = 5.0
#: The same while evaluations are yet to be made: what they find should not wait for long.
BUSY_POLL_SECONDS = 1.0
#: So many reports of one kind refused in a row, and it is no accident of one report.
REFUSALS_IN_A_ROW = 3
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0

Sample = StepSample | CheckpointSample | EndSample


@dataclass
class Delivery:
    """What became of the reports, for the log at the end."""

    steps: int = 0
    duplicates: int = 0
    checkpoints: int = 0
    refused: int = 0
    gone: int = 0  # checkpoints that were deleted, as by save_total_limit, before they could be sent
    dropped: int = 0
    undelivered: int = 0

    @property
    def complete(self) -> bool:
        """Whether the guard has acknowledged everything."""
        return self.refused == self.gone == self.dropped == self.undelivered == 0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps and {self.checkpoints} checkpoints acknowledged ({self.duplicates} already "
            f"known), {self.refused} refused, {self.gone} deleted before they were sent, "
            f"{self.dropped} dropped from a full queue, {self.undelivered} not delivered"
        )


@dataclass(frozen=True, slots=True)
class LineState:
    """What is known of the guard at one moment.

    Fields:
        verdict: the newest; None before the first response.
        stop: the first verdict that says training must stop.
        unsent: checkpoints that are on their way to the guard.
        failure: what went wrong in the newest exchange; None if it went well.
        lost: why nobody judges the run; None: it is judged.
    """

    verdict: VerdictView | None = None
    stop: VerdictView | None = None
    unsent: int = 0
    failure: str | None = None
    lost: str | None = None

    @property
    def unscored(self) -> int:
        """Checkpoints that are yet to be scored."""
        return self.unsent + (0 if self.verdict is None else self.verdict.waiting)


@dataclass
class _Refusals:
    """Reports of one kind that were refused: how many in a row, by whom, why; and whether any was taken."""

    row: int = 0
    by: str = ""
    why: str = ""
    taken: bool = False

    def lost(self, kind: str, *, ended: bool) -> str | None:
        """Why it is as if there were no guard: three in a row, or, at the end, every report of the kind."""
        if self.row >= REFUSALS_IN_A_ROW:
            return f"{self.by} refuses every {kind}, {self.row} in a row: {self.why}"
        if ended and self.row and not self.taken:
            return f"{self.by} refused every {kind} of this run, the last with: {self.why}"
        return None


class Reporter:
    """The trainer's line to one guard.

    Args:
        client: used by the reporter's own thread alone.
        attempt: number of this start of the trainer; None asks the guard (its newest attempt plus one).
        unreachable_seconds: how long exchanges may fail before the guard counts as lost.
        queue_limit: reports that may wait; see `QUEUE_LIMIT`.
    """

    def __init__(
        self,
        client: GuardClient,
        *,
        attempt: int | None,
        unreachable_seconds: float,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        self.attempt = attempt
        self.delivery = Delivery()
        self._client = client
        self._limit = unreachable_seconds
        self._queue_limit = queue_limit
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._queue: deque[Sample] = deque()
        self._in_flight: deque[Sample] = deque()  # changed by the thread alone
        self._verdict: VerdictView | None = None
        self._stop: VerdictView | None = None
        self._failure: str | None = None
        self._unauthorised = False
        self._unreachable: str | None = None
        self._failing_since: float | None = None
        self._refusals = {"step": _Refusals(), "checkpoint": _Refusals()}
        self._dropped_checkpoints = 0
        self._deadline: float | None = None  # set by `close`
        self._thread = threading.Thread(target=self._run, name="rlguard-reporter", daemon=True)

    # -- the training loop's side --------------------------------------------------------------------------

    def connect(self, patience: float) -> None:
        """Start to deliver, and wait for the first response, for at most `patience` seconds.

        Raises:
            GuardConfigError: the guard does not accept the token.
        """
        self._thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._verdict is not None or self._unauthorised or self._unreachable, patience
            )
            refused = self._failure if self._unauthorised else None
        if refused is not None:
            self.close(0.0)
            raise GuardConfigError(refused)

    def submit(self, sample: Sample) -> None:
        """Queue a report. A full queue drops its oldest."""
        with self._changed:
            if len(self._queue) >= self._queue_limit:
                self._dropped_checkpoints += isinstance(self._queue.popleft(), CheckpointSample)
                self.delivery.dropped += 1
                if self.delivery.dropped & (self.delivery.dropped - 1) == 0:  # ever more rarely
                    log.warning("the queue to the guard is full: %d reports dropped", self.delivery.dropped)
            self._queue.append(sample)
            self._changed.notify_all()

    def refuse(self, kind: str, step: object, why: str, by: str = "the client") -> None:
        """Count a report that was refused, or is too wrong to be sent."""
        with self._changed:
            self.delivery.refused += 1
            refusals = self._refusals[kind]
            refusals.row, refusals.by, refusals.why = refusals.row + 1, by, why
            row = refusals.row
        if row & (row - 1) == 0:  # the first at once, then ever more rarely
            log.warning("%s refuses the %s of step %s (%d in a row): %s", by, kind, step, row, why)

    @property
    def state(self) -> LineState:
        """What is known of the guard now."""
        with self._changed:
            return LineState(self._verdict, self._stop, self._unsent(), self._failure, self._lost())

    def flush(self, seconds: float) -> bool:
        """Wait until everything has been sent, for at most `seconds`; False if it was not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._work() or not self._thread.is_alive(), seconds)

    def drain(self, seconds: float) -> None:
        """Wait until the guard has scored every checkpoint, says stop or is lost, or `seconds` are over."""

        def over() -> bool:
            waiting = 0 if self._verdict is None else self._verdict.waiting
            scored = not (self._work() or waiting)
            return scored or self._stop is not None or self._lost() is not None

        with self._changed:
            if not self._changed.wait_for(over, seconds):
                log.warning("checkpoints were left without an evaluation after %g s", seconds)

    def close(self, seconds: float) -> Delivery:
        """Send what is queued for at most `seconds`, end the thread, and say what became of it all."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._changed.notify_all()
        self._thread.join(seconds + 1.0)
        with self._changed:
            self.delivery.undelivered = len(self._queue) + len(self._in_flight)
        return self.delivery

    # -- under the condition -------------------------------------------------------------------------------

    def _work(self) -> bool:
        return bool(self._in_flight or self._queue)

    def _unsent(self) -> int:
        return sum(isinstance(one, CheckpointSample) for one in (*self._in_flight, *self._queue))

    def _lost(self) -> str | None:
        ended = self._deadline is not None
        missing = self._dropped_checkpoints + self._unsent() if ended else 0
        found = (
            self._unreachable,
            *(refusals.lost(kind, ended=ended) for kind, refusals in self._refusals.items()),
            f"{missing} checkpoints never reached the guard: nobody judges them" if missing else None,
        )
        return next((why for why in found if why is not None), None)

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        delay = _FIRST_RETRY_SECONDS
        try:
            while self._wait_for_work():
                try:
                    self._exchange()
                    delay = _FIRST_RETRY_SECONDS
                except GuardUnavailableError as error:
                    self._failed(error)
                    if not self._pause(delay):
                        break
                    delay = min(2 * delay, _LAST_RETRY_SECONDS)
        except Exception as error:  # a dead thread would leave the run unguarded without a word
            log.exception("the reporter to the guard failed")
            with self._changed:
                self._unreachable = f"the reporter to the guard failed: {error!r}"
        finally:
            self._client.close()
            with self._changed:
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """Wait for a report or the next poll; False when everything is sent and the reporter is closing."""
        with self._changed:
            verdict = self._verdict
            if verdict is not None and not self._work() and self._deadline is None:
                busy = verdict.waiting > 0 or verdict.next_pass is not None
                self._changed.wait(min(POLL_SECONDS, BUSY_POLL_SECONDS) if busy else POLL_SECONDS)
            if self._deadline is None:
                return True
            return self._work() and time.monotonic() < self._deadline

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False when the time for the last tries is over."""
        with self._changed:
            end = time.monotonic() + seconds
            while (rest := end - time.monotonic()) > 0.0:
                if self._deadline is not None and self._deadline <= end:
                    return False
                self._changed.wait(rest)
            return True

    def _exchange(self) -> None:
        """Send what waits, or ask for the verdict if nothing does."""
        if self.attempt is None:
            self._ask()
        self._load()
        if not self._in_flight:
            self._ask()
        elif isinstance(self._in_flight[0], StepSample):
            self._send_steps()
        else:
            self._send_one()

    def _ask(self) -> None:
        verdict = self._client.verdict()
        if self.attempt is None:
            if verdict.code == Code.STORE_UNAVAILABLE:
                # Which attempts came before is not known, and a number used twice would mix two starts.
                raise GuardUnavailableError(f"the guard has not read its store yet: {verdict.reason}")
            self.attempt = 0 if verdict.attempt is None else verdict.attempt + 1
        self._succeeded(verdict)

    def _load(self) -> None:
        """Take the reports of one request from the queue: a run of steps, or one of the others."""
        with self._changed:
            if self._in_flight or not self._queue:
                return
            room = POST_CHARACTERS
            while self._queue and len(self._in_flight) < MAX_STEPS_PER_POST:
                room -= _characters(self._queue[0])
                alone = not isinstance(self._queue[0], StepSample)
                if self._in_flight and (alone or room < 0):
                    return
                self._in_flight.append(self._queue.popleft())
                if alone:
                    return

    def _send_steps(self) -> None:
        """Send the steps in flight together, and one by one if the guard refuses the list."""
        steps = [sample for sample in self._in_flight if isinstance(sample, StepSample)]
        try:
            self._post_steps([sample.report(self._known_attempt) for sample in steps])
        except (ReportRefusedError, ValidationError):
            while self._in_flight:
                self._send_one()
        else:
            self._sent(len(steps))

    def _send_one(self) -> None:
        sample, attempt = self._in_flight[0], self._known_attempt
        try:
            match sample:
                case StepSample():
                    self._post_steps([sample.report(attempt)])
                case CheckpointSample():
                    self._post_checkpoint(sample, attempt)
                case EndSample(step, began, finished):
                    gone = self.delivery.gone
                    end = EndReport(attempt=attempt, step=step, began=began, finished=finished, gone=gone)
                    self._succeeded(self._client.post_end(end).verdict)
        except (ReportRefusedError, ValidationError) as refusal:
            why = format_errors(refusal) if isinstance(refusal, ValidationError) else str(refusal)
            if isinstance(sample, EndSample):
                log.info("the guard was not told that training is over: %s", why)
            else:
                kind = "step" if isinstance(sample, StepSample) else "checkpoint"
                by = "the guard" if isinstance(refusal, ReportRefusedError) else "the client"
                self.refuse(kind, sample.step, why, by)
        self._sent(1)

    def _post_steps(self, reports: Sequence[PostedStep]) -> None:
        response = self._client.post_steps(reports)
        self.delivery.steps += response.accepted
        self.delivery.duplicates += response.duplicates
        self._succeeded(response.verdict, "step")

    def _post_checkpoint(self, sample: CheckpointSample, attempt: int) -> None:
        if not os.path.isdir(sample.path):  # rotated away: the guard could only refuse it
            self.delivery.gone += 1
            if self.delivery.gone == 1:
                log.warning(
                    "%s was deleted before it could be sent: nobody scores it, so this run does not pass. "
                    "The number of such checkpoints is logged at the end; a higher save_total_limit spares "
                    "them",
                    sample.path,
                )
            return
        report = CheckpointReport(
            attempt=attempt,
            step=sample.step,
            path=sample.path,
            sampling=sample.sampling,
            waits=sample.waits,
        )
        self._succeeded(self._client.post_checkpoint(report).verdict, "checkpoint")
        self.delivery.checkpoints += 1

    def _sent(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._in_flight.popleft()
            self._changed.notify_all()

    @property
    def _known_attempt(self) -> int:
        assert self.attempt is not None  # `_exchange` asks first
        return self.attempt

    def _succeeded(self, verdict: VerdictView, taken: str | None = None) -> None:
        """Note a response; `taken`: the kind of report that it acknowledges."""
        if self._failing_since is not None:
            log.info("the guard responds again after %.1f s", time.monotonic() - self._failing_since)
        if verdict.failed > (0 if self._verdict is None else self._verdict.failed):
            why = verdict.failure_words
            log.warning("the guard could not score a checkpoint (%d so far): %s", verdict.failed, why)
        with self._changed:
            if taken is not None:
                self._refusals[taken] = _Refusals(taken=True)
            self._verdict = verdict
            self._failing_since = self._failure = self._unreachable = None
            self._stop = self._stop or (verdict if verdict.stop else None)
            self._changed.notify_all()

    def _failed(self, error: GuardUnavailableError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.warning("no response from the guard, trying again: %s", error)
        failing = now - self._failing_since
        stop = self._stop_after(error)
        with self._changed:
            self._failure, self._unauthorised = str(error), error.unauthorised
            if failing >= self._limit:
                sentence = f"no response from the guard for {failing:.0f} s: {error}"
                if self._unreachable is None:
                    log.error("%s", sentence)
                self._unreachable = sentence
            self._stop = self._stop or stop
            self._changed.notify_all()

    def _stop_after(self, error: GuardUnavailableError) -> VerdictView | None:
        """Ask a guard that cannot keep a report, as its disk is full: it still knows of a fire."""
        if error.status is None or error.unauthorised:
            return None
        try:
            verdict = self._client.verdict()
        except GuardUnavailableError:
            return None
        return verdict if verdict.stop else None


def _characters(sample: Sample) -> int:
    """About the length of a step in a request."""
    if not isinstance(sample, StepSample):
        return 0
    texts = sum(len(one.prompt) + len(one.completion) for one in sample.rollouts)
    return 200 + 12 * texts + sum(30 + 12 * len(name) for name in sample.figures)
