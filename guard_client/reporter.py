"""Reports to the guard from a thread of its own, so that no training step waits for the network.

The queue is bounded: when the guard cannot be reached for long, the oldest steps are dropped, counted and
reported, because the newest say most about the run. Whatever is not dropped is sent in order, again and
again until the guard acknowledges or refuses it; it acknowledges a repeated report without folding it twice.
What to do about a verdict, an unreachable guard or one that refuses everything is decided in
`guard_client.guard`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guard_client.client import (
    Acknowledgement,
    GuardClient,
    VerdictView,
)
from guard_client.errors import (
    GuardConfigError,
    GuardUnavailableError,
    ReportRefusedError,
    UnknownRouteError,
)
from guard_client.rollouts import RolloutsSample
from guard_client.samples import CheckpointSample, StepSample
from guard_core.wire import (
    MAX_FIGURES_PER_POST,
    MAX_STEPS_PER_POST,
    CheckpointReport,
    Code,
    EndReport,
    FiguresReport,
    RolloutsReport,
)
from guard_core.wording import InvalidValueError

log = logging.getLogger(__name__)

#: Steps and checkpoints that may wait. A step is about 0.3 KiB, with further figures 2 KiB: some MiB.
QUEUE_LIMIT = 4096
#: Steps whose rollouts may wait, at most 64 KiB each. They are sent when nothing else waits, and once.
ROLLOUTS_LIMIT = 8
#: Steps whose further figures may wait. They are sent when neither reports nor rollouts wait, and once.
FIGURES_LIMIT = 1000
#: Seconds after which an idle reporter asks for the verdict: a fire found between two steps is known at the
#: next one, however long a step takes.
POLL_SECONDS = 5.0
#: The same while evaluations are yet to be made: what they find should not wait for long.
BUSY_POLL_SECONDS = 1.0
#: So many reports of one kind refused in a row, and it is no accident of one report.
REFUSALS_IN_A_ROW = 3
#: What is for people alone, by the word for it.
ROLLOUTS, FIGURES = "rollouts", "figures"
_DRAIN_POLL_SECONDS = 0.2
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0


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


class Reporter:
    """The trainer's line to one guard.

    Args:
        client: used by one thread at a time: the caller's in `connect`, the reporter's own after `start`.
        attempt: number of this start of the trainer; None asks the guard (its newest attempt plus one).
        unreachable_seconds: how long exchanges may fail before `unreachable` says so.
        queue_limit: reports that may wait; see `QUEUE_LIMIT`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        client: GuardClient,
        *,
        attempt: int | None,
        unreachable_seconds: float,
        queue_limit: int = QUEUE_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempt = attempt
        self.delivery = Delivery()
        self._client = client
        self._limit = unreachable_seconds
        self._queue_limit = queue_limit
        self._clock = clock
        self._lock = threading.Condition()
        # Guarded by the lock:
        self._queue: deque[StepSample | CheckpointSample] = deque()
        self._rollouts: deque[RolloutsSample] = deque(maxlen=ROLLOUTS_LIMIT)
        self._figures: deque[StepSample] = deque(maxlen=FIGURES_LIMIT)
        self._unknown: set[str] = set()  # what this guard's release does not show
        self._lost: set[str] = set()  # of what it has been said that some is not shown
        self._on_their_way = 0  # checkpoints that are queued or in flight
        self._dropped_checkpoints = 0
        self._verdict: VerdictView | None = None
        self._stop_verdict: VerdictView | None = None
        self._last_failure: str | None = None
        self._unreachable: str | None = None
        self._refusing: dict[str, str] = {}  # by kind, what says that the guard refuses it
        self._refusals: dict[str, int] = {}  # in a row, by kind
        self._last_refusal: dict[str, tuple[str, str]] = {}  # by kind: who, why
        self._accepted: set[str] = set()  # the kinds of which the guard has taken at least one
        self._undelivered: str | None = None
        self._deadline: float | None = None  # set by `close`
        self._last: tuple[int | None, int | None] | None = None  # set by `drain`, until it was told
        # The reporter's own:
        self._in_flight: deque[StepSample | CheckpointSample] = deque()
        self._failing_since: float | None = None
        self._thread: threading.Thread | None = None

    # -- the training loop's side: nothing here waits for the network, but `connect` and `close` ----------

    def connect(self, patience: float) -> None:
        """Ask for the verdict before training begins, trying for at most `patience` seconds.

        Afterwards `stop_verdict` holds a stop of an earlier attempt, and `attempt` is known if the guard
        responded.

        Raises:
            GuardConfigError: the guard does not accept the token.
        """
        give_up = self._clock() + patience
        delay = _FIRST_RETRY_SECONDS
        while True:
            try:
                self._succeeded(self._ask())
                return
            except GuardUnavailableError as error:
                if error.unauthorised:
                    raise GuardConfigError(str(error)) from error
                self._failed(error)
                if self._clock() + delay > give_up:
                    return
            time.sleep(delay)
            delay = min(2 * delay, _LAST_RETRY_SECONDS)

    def refuse(self, kind: str, step: object, why: str) -> None:
        """Count a report that is too wrong to be sent as one that was refused."""
        self._refused(kind, step, "the client", why)

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread = threading.Thread(target=self._run, name="rlguard-reporter", daemon=True)
        self._thread.start()

    def submit(self, sample: StepSample | CheckpointSample) -> None:
        """Queue a report. A full queue drops its oldest."""
        with self._lock:
            if len(self._queue) >= self._queue_limit:
                dropped_checkpoint = isinstance(self._queue.popleft(), CheckpointSample)
                self._on_their_way -= dropped_checkpoint
                self._dropped_checkpoints += dropped_checkpoint
                self.delivery.dropped += 1
                first_or_rare = self.delivery.dropped & (self.delivery.dropped - 1) == 0
                if first_or_rare:
                    log.warning("the queue to the guard is full: %d reports dropped", self.delivery.dropped)
            self._queue.append(sample)
            if isinstance(sample, StepSample) and sample.figures and FIGURES not in self._unknown:
                self._figures.append(sample)
            self._on_their_way += isinstance(sample, CheckpointSample)
            self._lock.notify()

    def submit_rollouts(self, sample: RolloutsSample) -> None:
        """Queue rollouts, apart from the reports. Of too many the oldest are dropped: nothing needs them."""
        with self._lock:
            if ROLLOUTS not in self._unknown:
                self._rollouts.append(sample)
                self._lock.notify()

    @property
    def verdict(self) -> VerdictView | None:
        """The newest verdict, or None before the first response."""
        with self._lock:
            return self._verdict

    @property
    def stop_verdict(self) -> VerdictView | None:
        """The first verdict that says training must stop; latched here too."""
        with self._lock:
            return self._stop_verdict

    @property
    def last_failure(self) -> str | None:
        """What went wrong in the newest exchange, or None if it went well."""
        with self._lock:
            return self._last_failure

    @property
    def unreachable(self) -> str | None:
        """What says that exchanges have failed for `unreachable_seconds`; None again after a success."""
        with self._lock:
            return self._unreachable

    @property
    def refusing(self) -> str | None:
        """What says that the guard refuses one report after the other; None again after it took one.

        One kind is enough: three refusals in a row, or, at the end, every report of that kind. What it takes
        of another kind says nothing about this one.
        """
        with self._lock:
            return next(iter(self._refusing.values()), None)

    @property
    def undelivered(self) -> str | None:
        """After `close`: what says that checkpoints never reached the guard, so that nobody judges them."""
        with self._lock:
            return self._undelivered

    @property
    def verdict_and_unsent(self) -> tuple[VerdictView | None, int]:
        """The newest verdict, and the checkpoints that are on their way to the guard, as of one moment."""
        with self._lock:
            return self._verdict, self._on_their_way

    @property
    def lag(self) -> int:
        """How many checkpoints are yet to be scored: those on their way to the guard, and its own count."""
        with self._lock:
            return self._lag()

    def _lag(self) -> int:
        return self._on_their_way + (self._verdict.waiting if self._verdict is not None else 0)

    def drain(self, seconds: float, step: int | None, began: int | None) -> None:
        """Wait until the guard has evaluated every checkpoint, says stop, or `seconds` are over.

        It is told first that training made its last `step`, having begun after `began`: it may want another
        look at the last checkpoint then.
        """
        end = self._clock() + seconds
        told = False
        with self._lock:
            self._last = step, began
            self._lock.notify()
        while self._clock() < end and self.stop_verdict is None and self.unreachable is None:
            with self._lock:
                sent = not (self._queue or self._in_flight or self._last)
                waiting = self._lag()
            if sent and not waiting:
                return
            if sent and not told:
                log.info("training has ended; %d checkpoints are yet to be evaluated", waiting)
                told = True
            time.sleep(_DRAIN_POLL_SECONDS)
        if self.stop_verdict is None:
            log.warning("checkpoints were left without an evaluation after %g s", seconds)

    def close(self, flush_seconds: float) -> Delivery:
        """Send what is queued for at most `flush_seconds`, end the thread, and say what became of it all."""
        with self._lock:
            self._deadline = self._clock() + flush_seconds
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(flush_seconds + 1.0)
        else:
            self._client.close()
        with self._lock:
            self.delivery.undelivered = len(self._queue) + len(self._in_flight)
            for kind in self._refusals.keys() - self._accepted:
                by, why = self._last_refusal[kind]
                self._refusing.setdefault(
                    kind, f"{by} refused every {kind} of this run, the last with: {why}"
                )
            lost = self._dropped_checkpoints + self._on_their_way
            if lost:
                self._undelivered = f"{lost} checkpoints never reached the guard: nobody judges them"
        return self.delivery

    def say_the_end(self, step: int | None, began: int | None, *, finished: bool) -> None:
        """After `close`: tell the guard that training made its last `step`, having begun after `began`, and
        whether it finished by itself. One try: nothing waits.
        """
        if self.attempt is None:
            return
        try:
            self._client.post_end(self._end(step, began, finished=finished))
        except (GuardUnavailableError, ReportRefusedError) as error:
            log.info("the guard was not told that training is over: %s", error)
        finally:
            self._client.close()

    def _end(self, step: int | None, began: int | None, *, finished: bool) -> EndReport:
        gone = self.delivery.gone
        return EndReport(attempt=self._known_attempt, step=step, began=began, finished=finished, gone=gone)

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
                    if error.status is not None:
                        self._look_for_a_stop()
                    if not self._pause(delay):
                        break
                    delay = min(2 * delay, _LAST_RETRY_SECONDS)
        except Exception as error:  # a dead thread would leave the run unguarded without a word
            log.exception("the reporter to the guard failed")
            with self._lock:
                self._unreachable = f"the reporter to the guard failed: {error!r}"
        finally:
            self._client.close()

    def _look_for_a_stop(self) -> None:
        """A guard that cannot keep a report, as its disk is full or broken, still knows of a fire."""
        try:
            verdict = self._client.verdict()
        except GuardUnavailableError:
            return
        with self._lock:
            self._note_stop(verdict)

    def _note_stop(self, verdict: VerdictView) -> None:
        """Keep the first verdict that says stop; under the lock."""
        if verdict.stop and self._stop_verdict is None:
            self._stop_verdict = verdict

    def _wait_for_work(self) -> bool:
        """Wait for a report or the next poll; False when everything is sent and the reporter is closing."""
        with self._lock:
            if not (self._work() or self._deadline is not None):
                busy = self._verdict is not None and (self._verdict.waiting > 0 or self._verdict.next_pass)
                self._lock.wait(min(POLL_SECONDS, BUSY_POLL_SECONDS) if busy else POLL_SECONDS)
            if self._deadline is None:
                return True
            return self._work() and self._clock() < self._deadline

    def _work(self) -> bool:
        return bool(self._in_flight or self._queue or self._rollouts or self._figures or self._last)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False when the time for the last tries is over."""
        with self._lock:
            end = self._clock() + seconds
            while (rest := end - self._clock()) > 0.0:
                if self._deadline is not None and self._deadline <= end:
                    return False
                self._lock.wait(rest)
            return True

    def _exchange(self) -> None:
        """Send what waits, or ask for the verdict if nothing does."""
        if self.attempt is None:
            self._succeeded(self._ask())
        if not self._in_flight:
            self._load()
        if not self._in_flight and self._rollouts:
            self._send_rollouts()
        elif not self._in_flight and self._figures:
            self._send_figures()
        elif not self._in_flight and self._last:
            self._send_the_last_step(*self._last)
        elif not self._in_flight:
            self._succeeded(self._ask())
        elif isinstance(self._in_flight[0], CheckpointSample):
            self._send_one()
        else:
            self._send_steps()

    def _send_the_last_step(self, step: int | None, began: int | None) -> None:
        """Not that training has finished: it has not yet, while it waits for the guard."""
        try:
            self._succeeded(self._client.post_end(self._end(step, began, finished=False)).verdict)
        except (UnknownRouteError, ReportRefusedError) as error:
            log.info("the guard was not told that this was the last step: %s", error)
        with self._lock:
            self._last = None

    def _ask(self) -> VerdictView:
        verdict = self._client.verdict()
        if self.attempt is None:
            if verdict.code == Code.STORE_UNAVAILABLE:
                # Which attempts came before is not known, and a number used twice would mix two starts.
                raise GuardUnavailableError(f"the guard has not read its store yet: {verdict.reason}")
            self.attempt = 0 if verdict.attempt is None else verdict.attempt + 1
        return verdict

    def _load(self) -> None:
        """Take the reports of one request from the queue: a run of steps, or one checkpoint."""
        with self._lock:
            while self._queue and len(self._in_flight) < MAX_STEPS_PER_POST:
                if isinstance(self._queue[0], CheckpointSample) and self._in_flight:
                    break
                self._in_flight.append(self._queue.popleft())
                if isinstance(self._in_flight[0], CheckpointSample):
                    break

    def _send_steps(self) -> None:
        """Send the steps in flight together, and one by one if the guard refuses the list."""
        try:
            self._post_steps(list(self._in_flight))
        except (ReportRefusedError, InvalidValueError):
            while self._in_flight:
                self._send_one()
        self._in_flight.clear()

    def _send_one(self) -> None:
        sample = self._in_flight[0]
        try:
            if isinstance(sample, CheckpointSample) and not os.path.isdir(sample.path):
                self._gone(sample)
            elif isinstance(sample, CheckpointSample):
                report = CheckpointReport(
                    attempt=self._known_attempt, step=sample.step, path=sample.path, sampling=sample.sampling
                )
                self._succeeded(self._client.post_checkpoint(report).verdict)
                self.delivery.checkpoints += 1
                self._taken("checkpoint")
            else:
                self._post_steps([sample])
        except (ReportRefusedError, InvalidValueError) as refusal:
            kind = "checkpoint" if isinstance(sample, CheckpointSample) else "step"
            by = "the guard" if isinstance(refusal, ReportRefusedError) else "the client"
            self._refused(kind, sample.step, by, str(refusal))
        with self._lock:
            self._on_their_way -= isinstance(self._in_flight.popleft(), CheckpointSample)

    def _post_steps(self, samples: Sequence[StepSample | CheckpointSample]) -> None:
        attempt = self._known_attempt
        reports = [sample.report(attempt) for sample in samples if isinstance(sample, StepSample)]
        response = self._client.post_steps(reports)
        self.delivery.steps += response.accepted
        self.delivery.duplicates += response.duplicates
        self._succeeded(response.verdict)
        self._taken("step")

    def _send_rollouts(self) -> None:
        """Send those of one step, once."""
        with self._lock:
            sample = self._rollouts.popleft()
        self._show(
            ROLLOUTS,
            sample.step,
            lambda: self._client.post_rollouts(
                RolloutsReport(attempt=self._known_attempt, step=sample.step, rollouts=sample.rollouts)
            ),
        )

    def _send_figures(self) -> None:
        """Send further figures of the steps that wait, once."""
        with self._lock:
            count = min(len(self._figures), MAX_FIGURES_PER_POST)
            samples = [self._figures.popleft() for _ in range(count)]
        self._show(
            FIGURES,
            samples[0].step,
            lambda: self._client.post_figures(
                [
                    FiguresReport(attempt=self._known_attempt, step=s.step, figures={**s.figures})
                    for s in samples
                ]
            ),
        )

    def _show(self, what: str, step: int, send: Callable[[], Acknowledgement]) -> None:
        """Send what is for people alone. What comes of it changes nothing else."""
        try:
            self._succeeded(send().verdict)
        except UnknownRouteError:
            with self._lock:
                self._unknown.add(what)
                (self._rollouts if what == ROLLOUTS else self._figures).clear()
            log.info("this guard's release does not show %s: none are sent", what)
        except (GuardUnavailableError, ReportRefusedError, InvalidValueError) as error:
            if what not in self._lost:
                self._lost.add(what)
                log.info("%s of step %d are not shown: %s", what, step, error)

    def _taken(self, kind: str) -> None:
        with self._lock:
            self._accepted.add(kind)
            self._refusals.pop(kind, None)
            self._refusing.pop(kind, None)

    def _gone(self, checkpoint: CheckpointSample) -> None:
        """Rotated away while the guard was: it could only refuse it, and is told their number at the end."""
        self.delivery.gone += 1
        if self.delivery.gone == 1:
            log.warning(
                "%s was deleted before it could be sent: nobody scores it, so this run does not pass. The "
                "number of such checkpoints is logged at the end; a higher save_total_limit spares them",
                checkpoint.path,
            )

    def _refused(self, kind: str, step: object, by: str, why: str) -> None:
        with self._lock:
            self.delivery.refused += 1
            row = self._refusals[kind] = self._refusals.get(kind, 0) + 1
            self._last_refusal[kind] = by, why
            if row >= REFUSALS_IN_A_ROW:
                self._refusing[kind] = f"{by} refuses every {kind}, {row} in a row: {why}"
        if row & (row - 1) == 0:  # the first at once, then ever more rarely
            log.warning("%s refuses the %s of step %s (%d in a row): %s", by, kind, step, row, why)

    @property
    def _known_attempt(self) -> int:
        assert self.attempt is not None  # `_exchange` asks first
        return self.attempt

    def _succeeded(self, verdict: VerdictView) -> None:
        if self._failing_since is not None:
            log.info("the guard responds again after %.1f s", self._clock() - self._failing_since)
            self._failing_since = None
        if verdict.failed > (0 if self._verdict is None else self._verdict.failed):
            said = verdict.failure_words
            log.warning("the guard could not score a checkpoint (%d so far): %s", verdict.failed, said)
        with self._lock:
            self._verdict = verdict
            self._last_failure = self._unreachable = None
            self._note_stop(verdict)

    def _failed(self, error: GuardUnavailableError) -> None:
        now = self._clock()
        with self._lock:
            self._last_failure = str(error)
        if self._failing_since is None:
            self._failing_since = now
            log.warning("no response from the guard, trying again: %s", error)
        elif now - self._failing_since >= self._limit:
            with self._lock:
                if self._unreachable is None:
                    log.error("no response from the guard for %.0f s: %s", now - self._failing_since, error)
                self._unreachable = (
                    f"no response from the guard for {now - self._failing_since:.0f} s: {error}"
                )
