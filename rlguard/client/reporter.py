"""Reports to the guard from a thread of its own, so that no training step waits for the network.

There is one bounded queue. When the guard cannot be reached for long, the oldest reports are dropped, counted
and logged, because the newest say most about the run. Whatever is not dropped is sent in order, again and
again until the guard acknowledges or refuses it; it acknowledges a repeated report without folding it twice.
What to do about a verdict or a lost guard is decided in `rlguard.client.guard`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rlguard.client.client import GuardClient, VerdictView
from rlguard.client.errors import GuardConfigError, GuardUnavailableError, ReportRefusedError
from rlguard.client.log import log
from rlguard.core.codes import Code
from rlguard.core.wire import MAX_STEPS_PER_POST, CheckpointReport, EndReport, PostedStep
from rlguard.core.wording import count

#: Reports that may wait. A step is about 0.3 KiB, with further figures 2 KiB: some MiB.
QUEUE_LIMIT = 4096
#: Characters of the steps in one request, at most, but for a single one; a guard takes a MiB.
POST_CHARACTERS = 250_000
#: Seconds after which an idle reporter asks for the verdict: a fire found between two steps is known at the
#: next one, however long a step takes.
POLL_SECONDS = 5.0
#: The same while evaluations are yet to be made: what they find should not wait for long.
BUSY_POLL_SECONDS = 1.0
#: So many reports of one kind refused in a row, and it is no accident of one report.
REFUSALS_IN_A_ROW = 3
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0

#: What is queued; the reporter puts the number of the attempt in.
TrainerReport = PostedStep | CheckpointReport | EndReport


@dataclass
class Delivery:
    """What became of the reports, for the log at the end."""

    steps: int = 0
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
        lost = {
            "refused": self.refused,
            "deleted before they were sent": self.gone,
            "dropped from a full queue": self.dropped,
            "not delivered": self.undelivered,
        }
        sent = f"{count(self.steps, 'step')} and {count(self.checkpoints, 'checkpoint')} acknowledged"
        return ", ".join([sent, *(f"{number} {why}" for why, number in lost.items() if number)])


@dataclass(frozen=True, slots=True)
class LineState:
    """What is known of the guard at one moment.

    Fields:
        verdict: the newest; None before the first response.
        stop: the first verdict that says training must stop.
        queued: reports that the guard has not acknowledged.
        unsent: checkpoints among them.
        failure: what went wrong in the newest exchange; None if it went well.
        lost: why nobody judges the run; None: it is judged.
    """

    verdict: VerdictView | None = None
    stop: VerdictView | None = None
    queued: int = 0
    unsent: int = 0
    failure: GuardUnavailableError | None = None
    lost: str | None = None

    @property
    def unscored(self) -> int:
        """Checkpoints that are yet to be scored."""
        return self.unsent + (0 if self.verdict is None else self.verdict.waiting)

    @property
    def is_stopped(self) -> bool:
        """Whether the guard says stop, or is lost."""
        return self.stop is not None or self.lost is not None

    def is_sent(self) -> bool:
        """Whether the guard has acknowledged or refused everything."""
        return self.queued == 0

    def is_over(self) -> bool:
        """Whether every checkpoint is scored, or none will be."""
        return (self.is_sent() and self.unscored == 0) or self.is_stopped


@dataclass
class _Refusals:
    """Reports of one kind that were refused: how many in a row, the last why; and whether any was taken."""

    row: int = 0
    by: str = ""
    why: str = ""
    taken: bool = False


class Reporter:
    """The trainer's line to one guard.

    Args:
        client: used by the reporter's own thread alone.
        unreachable_seconds: how long exchanges may fail before the guard counts as lost.
        queue_limit: reports that may wait; see `QUEUE_LIMIT`.
    """

    def __init__(
        self,
        client: GuardClient,
        *,
        unreachable_seconds: float,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        #: Number of this start of the trainer: the guard's newest attempt plus one, once it has responded.
        self.attempt: int | None = None
        self.delivery = Delivery()
        self._client = client
        self._limit = unreachable_seconds
        self._queue_limit = queue_limit
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._queue: deque[TrainerReport] = deque()
        self._sending = 0  # reports at the front that are under way
        self._verdict: VerdictView | None = None
        self._stop: VerdictView | None = None
        self._failure: GuardUnavailableError | None = None
        self._failing_since: float | None = None
        self._unreachable: str | None = None
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

        def denied(state: LineState) -> bool:
            return state.failure is not None and state.failure.unauthorised

        self._thread.start()
        self.wait(lambda state: bool(state.verdict or state.lost or denied(state)), patience)
        if denied(state := self.state):
            self.close(0.0)
            raise GuardConfigError(str(state.failure))

    def submit(self, report: TrainerReport) -> None:
        """Queue a report. A full queue drops its oldest that is not under way."""
        with self._changed:
            if len(self._queue) - self._sending >= self._queue_limit:
                self._dropped_checkpoints += isinstance(self._queue[self._sending], CheckpointReport)
                del self._queue[self._sending]
                self.delivery.dropped += 1
                if _is_power_of_two(self.delivery.dropped):  # ever more rarely
                    log.warning("the queue to the guard is full: %d reports dropped", self.delivery.dropped)
            self._queue.append(report)
            self._changed.notify_all()

    def refuse(self, kind: str, step: object, why: str, by: str = "the client") -> None:
        """Count a report that was refused, or is too wrong to be sent."""
        with self._changed:
            self.delivery.refused += 1
            refusals = self._refusals[kind]
            refusals.row, refusals.by, refusals.why = refusals.row + 1, by, why
            row = refusals.row
        if _is_power_of_two(row):  # the first at once, then ever more rarely
            log.warning("%s refuses the %s of step %s (%d in a row): %s", by, kind, step, row, why)

    @property
    def state(self) -> LineState:
        """What is known of the guard now."""
        with self._changed:
            unsent = sum(isinstance(one, CheckpointReport) for one in self._queue)
            lost = self._why_lost(unsent)
            return LineState(self._verdict, self._stop, len(self._queue), unsent, self._failure, lost)

    def wait(self, over: Callable[[LineState], bool], seconds: float) -> bool:
        """Wait until `over` holds or nothing changes any more, for at most `seconds`; False if it did not."""
        with self._changed:
            return self._changed.wait_for(lambda: over(self.state) or not self._thread.is_alive(), seconds)

    def close(self, seconds: float) -> Delivery:
        """Send what is queued for at most `seconds`, end the thread, and say what became of it all."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._changed.notify_all()
        self._thread.join(seconds + 1.0)
        with self._changed:
            self.delivery.undelivered = len(self._queue)
        return self.delivery

    def _why_lost(self, unsent: int) -> str | None:
        if self._unreachable is not None:
            return self._unreachable
        ended = self._deadline is not None
        if not ended and self._thread.ident is not None and not self._thread.is_alive():
            return "reports are sent by the process that opened the guard: make one where the loop runs"
        for kind, seen in self._refusals.items():
            if seen.row >= REFUSALS_IN_A_ROW:
                return f"{seen.by} refuses every {kind}, {seen.row} in a row: {seen.why}"
            if ended and seen.row and not seen.taken:
                return f"{seen.by} refused every {kind} of this run, the last with: {seen.why}"
        missing = self._dropped_checkpoints + unsent
        return (
            f"{missing} checkpoints never reached the guard: nobody judges them"
            if ended and missing
            else None
        )

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry = 0.0  # seconds until the next try; 0: the last one went well
        try:
            while self._pause(retry):
                try:
                    self._exchange()
                    retry = 0.0
                except GuardUnavailableError as error:
                    self._failed(error)
                    retry = min(2 * retry or _FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        except Exception as error:  # a dead thread would leave the run unguarded without a word
            log.exception("the reporter to the guard failed")
            with self._changed:
                self._unreachable = f"the reporter to the guard failed: {error!r}"
        finally:
            self._client.close()
            with self._changed:
                self._changed.notify_all()

    def _pause(self, retry: float) -> bool:
        """Wait for the next try, or for a report or the next poll; False when the reporter is to end."""
        with self._changed:
            verdict, end = self._verdict, time.monotonic() + retry
            if retry:
                if self._changed.wait_for(
                    lambda: self._deadline is not None and self._deadline <= end, retry
                ):
                    return False
            elif verdict is not None and not self._queue and self._deadline is None:
                busy = verdict.waiting > 0 or verdict.next_pass is not None
                self._changed.wait(min(POLL_SECONDS, BUSY_POLL_SECONDS) if busy else POLL_SECONDS)
            return self._deadline is None or (bool(self._queue) and time.monotonic() < self._deadline)

    def _exchange(self) -> None:
        """Send what waits, or ask for the verdict if nothing does."""
        batch = [] if self.attempt is None else self._next_batch()
        if batch:
            self._send(batch)
            return
        verdict = self._client.verdict()
        if self.attempt is None:
            if verdict.code == Code.STORE_UNAVAILABLE:
                # Which attempts came before is not known, and a number used twice would mix two starts.
                raise GuardUnavailableError(f"the guard has not read its store yet: {verdict.reason}")
            self.attempt = 0 if verdict.attempt is None else verdict.attempt + 1
        self._succeeded(verdict)

    def _next_batch(self) -> list[TrainerReport]:
        """The reports of one request, at the front of the queue: steps, or one of the others."""
        with self._changed:
            batch: list[TrainerReport] = []
            room = POST_CHARACTERS
            for report in islice(self._queue, MAX_STEPS_PER_POST):
                alone = not isinstance(report, PostedStep)
                room -= 0 if alone else len(report.model_dump_json(exclude_defaults=True))
                if batch and (alone or room < 0):
                    break
                batch.append(report)
                if alone:
                    break
            self._sending = len(batch)
            return batch

    def _send(self, batch: Sequence[TrainerReport]) -> None:
        """Send reports, one by one if the guard refuses them together."""
        try:
            self._post(batch)
        except ReportRefusedError as refusal:
            if len(batch) > 1:
                for one in batch:
                    self._send([one])
                return
            if isinstance(batch[0], EndReport):
                log.info("the guard was not told that training is over: %s", refusal)
            else:
                kind = "step" if isinstance(batch[0], PostedStep) else "checkpoint"
                self.refuse(kind, batch[0].step, str(refusal), "the guard")
        with self._changed:
            for _ in batch:
                self._queue.popleft()
            self._sending -= len(batch)
            self._changed.notify_all()

    def _post(self, batch: Sequence[TrainerReport]) -> None:
        stamp = {"attempt": self.attempt}
        match batch[0]:
            case PostedStep():
                steps = [one.model_copy(update=stamp) for one in batch if isinstance(one, PostedStep)]
                response = self._client.post_steps(steps)
                self.delivery.steps += response.accepted
                self._succeeded(response.verdict, "step")
            case CheckpointReport() as report:
                if not os.path.isdir(report.path):  # rotated away: the guard could only refuse it
                    self._note_gone(report.path)
                    return
                response = self._client.post_checkpoint(report.model_copy(update=stamp))
                self._succeeded(response.verdict, "checkpoint")
                self.delivery.checkpoints += 1
            case EndReport() as end:
                end = end.model_copy(update=stamp | {"gone": self.delivery.gone})
                self._succeeded(self._client.post_end(end).verdict)

    def _note_gone(self, path: str) -> None:
        self.delivery.gone += 1
        if self.delivery.gone == 1:
            log.warning(
                "%s was deleted before it could be sent: nobody scores it, so this run does not pass. The "
                "number of such checkpoints is logged at the end; a higher save_total_limit spares them",
                path,
            )

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
            self._failure = error
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


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0
