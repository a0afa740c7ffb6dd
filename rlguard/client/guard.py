"""`Guard`: reports any training loop to its guard, and says when the loop must stop.

    with Guard.from_env() as guard:
        for step in range(1, steps + 1):
            ...
            guard.step(step, reward=reward, kl=kl, kl_kind="ref_token_mean")
            if step % 50 == 0:
                guard.checkpoint(save(step), step=step)
            guard.raise_if_halted()

It does not judge the run; the guard does. It does not protect against a loop that reports falsehoods.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from pydantic import ValidationError

from rlguard.client import waiting
from rlguard.client.client import GuardClient, VerdictView
from rlguard.client.errors import GuardConfigError
from rlguard.client.log import WarnOnce, log, show_by_default
from rlguard.client.reporter import Delivery, LineState, Reporter
from rlguard.client.rollouts import Candidate, selected
from rlguard.client.samples import (
    StepSample,
    fit_figures,
    let_the_guard_read,
    sample_of,
    wrong_in_checkpoint,
    wrong_in_number_of,
    wrong_in_step,
)
from rlguard.client.settings import ClientSettings, Options
from rlguard.client.stopping import Stop
from rlguard.core.wire import CheckpointReport, EndReport, KlKind, Sampling
from rlguard.core.wording import count, format_errors

#: Seconds that the end of training may wait for the last reports.
FLUSH_SECONDS = 10.0
#: Seconds between two looks at the guard while training waits for it; no collective waits for longer.
LAG_POLL_SECONDS = 0.5
#: With `on_unreachable="continue"` training begins after this many seconds without a guard.
CONTINUE_PATIENCE_SECONDS = 10.0


class Guard:
    """The guard of one training loop: takes its reports, and says whether it must stop.

    `step` and `checkpoint` return at once unless training must wait (`max_lag`); a thread delivers what they
    are given, in order, until the guard has it on disk. Every method may be called from any thread. Of a run
    with several ranks, rank 0 has the guard, and tells the others. It belongs to the process that made it: a
    process that is forked while it is open reports nothing, and if it tries to, its own `halted` says that
    the guard is lost.

    The loop must stop, and `halted` says why, when the guard fired or halted the run, or
    when nobody judges it: no guard responds for `unreachable_seconds`, or reports do not reach it. Once it
    must stop, it must stop for good.

    A wrong call never raises in the middle of training: it is a warning in the log and counts as a report
    that was refused, of which three in a row stop the run as a lost guard does. A reward that is None, NaN
    or infinite is unknown; its step is reported without one.

    Args:
        url: base URL of the guard.
        token: the guard's ingest token.
        options: see `rlguard.client.settings.ClientSettings`.

    Raises:
        GuardConfigError: an argument is wrong.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[Options]) -> None:
        if not isinstance(url, str):
            raise GuardConfigError(f"Guard needs the guard's URL, such as http://127.0.0.1:8470, got {url!r}")
        self._begin(ClientSettings.of(url=url, token=token, **options))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, *, optional: bool = False) -> Self:
        """The guard as the environment of a guarded run describes it.

        Args:
            environ: `RLGUARD_URL` (needed unless `optional`), and the other variables of
                `ClientSettings.from_env`.
            optional: without `RLGUARD_URL`, make a guard that takes every report, sends none and stops
                nothing; a warning says that the run is unguarded.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong; or this is not rank 0.
        """
        if environ.get("RANK", "0") != "0":
            raise GuardConfigError(
                f"RANK is {environ['RANK']!r}, and one process of a run has its guard, that of rank 0: make "
                "it there, and let it tell the others what `must_wait` and `halted` say"
            )
        return cls.of(ClientSettings.from_env(environ, optional=optional))

    @classmethod
    def of(cls, settings: ClientSettings) -> Self:
        """The guard of these settings; without a URL, one that guards nothing and says so when it opens."""
        guard = cls.__new__(cls)
        guard._begin(settings)
        return guard

    def _begin(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._waits = waiting.Waits(time.monotonic())
        self._warn_once = WarnOnce()
        self._pid: int | None = None  # of the process that opened it
        self._closed = False
        self._reporter: Reporter | None = None
        self._announced = False  # whether a checkpoint was reported
        self._stop_seen = False  # whether the loop knows that it must stop
        self._began: int | None = None  # step after which the loop began
        self._lock = threading.RLock()
        # Guarded by the lock:
        self._stop: Stop | None = None
        self._newest: int | None = None  # last step that the loop made

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Guard stays in its process: make one where the loop runs, with Guard.from_env()")

    # -- open and close ------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Ask the guard for its verdict and begin to deliver; `with` does this.

        Waits for a guard that does not respond, for at most `unreachable_seconds` (10 with
        `on_unreachable="continue"`). Afterwards `halted` holds a fire of an earlier attempt.

        Raises:
            GuardConfigError: the guard does not accept the token; or it was open before.
        """
        settings = self._settings
        if self._pid is not None or self._closed:
            raise GuardConfigError("a Guard is opened once: make another one for another run")
        self._pid = os.getpid()
        show_by_default()
        if settings.url is None:
            log.warning("RLGUARD_URL is not set: this run is unguarded, and nobody judges it")
            return self
        client = GuardClient(settings.url, settings.token, ca=settings.ca)
        limit, stops = settings.unreachable_seconds, settings.on_unreachable == "stop"
        self._reporter = Reporter(client, unreachable_seconds=limit)
        # What waits must not be lost with a loop that ends the process without `close`.
        atexit.register(self.close, finished=False)
        try:
            self._reporter.connect(limit if stops else min(limit, CONTINUE_PATIENCE_SECONDS))
        except GuardConfigError:
            self._end_reports()
            raise
        state = self._reporter.state
        if state.verdict is None and stops:
            why = state.failure or state.lost or "it has not answered in time"
            self._latch(Stop(f"no guard responds at {settings.url}: {why}", lost=True))
        if self._look() is not None:
            self._end_reports()
        return self

    def close(self, *, finished: bool = True, step: int | None = None, began: int | None = None) -> None:
        """Deliver what waits, for at most ten seconds, and end; a second call does nothing.

        Afterwards `halted` knows what the last responses said. The last line of the log says which step
        training had reached, and how many checkpoints were unscored.

        Args:
            finished: whether the loop came to its end by itself. Then the last evaluations are waited for,
                for at most `drain_seconds`; and unless they stop the run the guard is told, so that a run
                whose workload is gone before the operator looks is known to have succeeded.
            step: the last step that the loop made, if that is later than what it reported.
            began: the step after which the loop began, if that is earlier than its first `step`.
        """
        if self._pid not in (None, os.getpid()):
            return  # the connection and the thread are those of the process that opened it
        if step is not None:
            self._note_step(step)
        with self._lock:
            reporter = None if self._closed else self._reporter
            self._closed = True
        if reporter is None:
            return
        end = EndReport(attempt=0, step=self._newest, began=self._began if began is None else began)
        if reporter.wait(LineState.is_sent, FLUSH_SECONDS) and finished and self._look() is None:
            if (seconds := self._settings.drain_seconds) > 0.0:
                # The guard may want another look once it knows the last step.
                reporter.submit(end.model_copy(update={"finished": False}))
                if unscored := reporter.state.unscored:
                    log.info("training has ended; %d checkpoints are yet to be evaluated", unscored)
                if not reporter.wait(LineState.is_over, seconds):
                    log.warning("checkpoints were left without an evaluation after %g s", seconds)
            if self._look() is None:
                reporter.submit(end)
                reporter.wait(LineState.is_sent, FLUSH_SECONDS)
        unscored = reporter.state.unscored
        self._log_end(self._end_reports(), unscored)

    def _end_reports(self) -> Delivery:
        assert self._reporter is not None
        self._closed = True
        atexit.unregister(self.close)
        return self._reporter.close(0.0)

    def _log_end(self, delivery: Delivery, unscored: int) -> None:
        log.log(logging.INFO if delivery.complete else logging.WARNING, "reports to the guard: %s", delivery)
        stop, waited = self._look(), self._waits.total(time.monotonic())
        reached = "before its first step" if self._newest is None else f"at step {self._newest}"
        left = count(unscored, "unscored checkpoint")
        line = f"{reached}, with {left}; it waited {waited:.0f} s for the guard"
        if stop is None:
            log.info("training ended %s", line)
        else:
            log.error("training stopped %s: %s", line, stop.reason)

    def __enter__(self) -> Self:
        """Open it.

        Raises:
            GuardConfigError: see `open`.
            CollapseStopError, GuardHaltError, GuardLostError: the run must stop before its first step.
        """
        self.open()
        self.raise_if_halted()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it. `sys.exit(0)` is an end like any other.

        Raises:
            CollapseStopError, GuardHaltError, GuardLostError: the run must stop, and the loop does not know
                it yet; so a fire of the last checkpoint does not pass unnoticed.
        """
        finished = kind is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close(finished=finished)
        if finished and not self._stop_seen:
            self.raise_if_halted()

    # -- what the loop reports -----------------------------------------------------------------------------

    def step(
        self,
        step: int,
        *,
        reward: float | None,
        kl: float | None = None,
        kl_kind: Literal["ref_token_mean", "ref_seq_sum", "behaviour"] | KlKind | None = None,
        entropy: float | None = None,
        reward_std: float | None = None,
        figures: Mapping[str, float | None] | None = None,
        rollouts: Iterable[tuple[Any, Any, Any]] = (),
        wait: bool = True,
    ) -> None:
        """Report an optimizer step, once; then wait while `must_wait` says so.

        Args:
            step: number of the step, >= 0.
            reward: mean in-loop reward of the step, reward units; None, NaN or infinite: it had none.
            kl: KL of the step, nats.
            kl_kind: which KL it is; only `ref_token_mean`, the KL to the reference in nats/token, is held
                against a limit.
            entropy: mean policy entropy, nats/token.
            reward_std: standard deviation of the reward, reward units.
            figures: up to 16 more by name, such as `rewards/format/mean` or `completions/mean_length`; the
                dashboard and the report plot them. Nothing is judged by them, and what cannot be sent of
                them is dropped.
            rollouts: (prompt, completion, reward) on training prompts, never on held-out ones, for people to
                read: best with the first step and those of checkpoints. Give all of the step, for the
                best-rewarded are chosen here. A prompt or completion is a text or the messages of a
                conversation. What cannot be sent of them is dropped.
            wait: as of `checkpoint`.

        Raises:
            GuardConfigError: the guard is not open yet.
        """
        if not self._takes("step"):
            return
        self._note_step(step)
        values = {"reward": reward, "kl": kl, "entropy": entropy, "reward_std": reward_std}
        wrong = wrong_in_step(step, values, kl_kind)
        if wrong is not None:
            self._refuse("step", step, wrong)
        else:
            self.report(sample_of(int(step), values, KlKind(kl_kind or KlKind.ABSENT)), figures, rollouts)
        if wait:
            self._wait()

    def report(
        self,
        sample: StepSample,
        figures: Mapping[str, float | None] | None = None,
        rollouts: Iterable[tuple[Any, Any, Any]] = (),
    ) -> None:
        """Report a step whose values have been read already; as `step`, without waiting."""
        if not self._takes("step"):
            return
        self._note_step(sample.step)
        if self._began is None:
            self._began = max(0, sample.step - 1)
        verdict = self.verdict
        if not self._announced and verdict is not None and verdict.wants_the_start:
            self._warn_once(
                "no start",
                "the guard has no checkpoint to compare with and judges no held-out score: announce the "
                "starting policy before the first step, with guard.checkpoint(path, step=0)",
            )
        if sample.reward is None:
            self._warn_once("no reward", f"step {sample.step} has no finite reward, and is reported so")
        if self._reporter is None:
            return
        try:
            report = replace(sample, **self._display_data(sample, figures, rollouts)).report(0)
        except ValidationError as error:
            self._refuse("step", sample.step, format_errors(error))
        else:
            self._reporter.submit(report)

    def _display_data(
        self, sample: StepSample, figures: Any, rollouts: Iterable[tuple[Any, Any, Any]]
    ) -> dict[str, Any]:
        """The figures and rollouts that can be shown. They are for people: no step is refused for them."""
        found: dict[str, Any] = {}
        try:
            found["figures"] = fit_figures(figures or {}) or sample.figures
            if self._settings.rollouts and rollouts:
                found["rollouts"] = selected([Candidate(*one) for one in rollouts], sample.step)
        except Exception as error:
            self._warn_once(
                "shown",
                "some figures or rollouts cannot be shown: figures are numbers by names, rollouts are "
                f"(prompt, completion, reward): {error!r}",
            )
        return found

    def checkpoint(
        self, path: str | os.PathLike[str], *, step: int, sampling: Sampling | None = None, wait: bool = True
    ) -> None:
        """Report a checkpoint that is complete on disk, so that the guard scores it.

        Then wait while `must_wait` says so. The checkpoint of step 0, the starting policy, is the baseline.

        Args:
            path: its directory, under the guard's checkpoint root.
            step: the step that it was saved at.
            sampling: how the trainer samples, so that the guard evaluates alike; the first one counts for the
                run. None: not said, and evaluations are greedy unless the guard's settings say otherwise.
            wait: False leaves the waiting to the caller, who asks `must_wait`; for ranks that wait together.

        Raises:
            GuardConfigError: the guard is not open yet.
        """
        if not self._takes("checkpoint"):
            return
        self._announced = True
        self._note_step(step)
        wrong = wrong_in_checkpoint(path, step)
        if wrong is not None:
            self._refuse("checkpoint", step, wrong)
        elif self._reporter is not None:
            let_the_guard_read(Path(path))
            waits = self._settings.max_lag is not None and not (self._waits.off or self._waits.used_up)
            try:
                report = CheckpointReport(
                    attempt=0, step=int(step), path=os.path.abspath(path), sampling=sampling, waits=waits
                )
            except ValidationError as error:
                self._refuse("checkpoint", step, format_errors(error))
            else:
                self._reporter.submit(report)
        if wait:
            self._wait()

    # -- waiting -------------------------------------------------------------------------------------------

    def must_wait(self) -> bool:
        """Whether training must wait now: for the baseline, for unscored checkpoints, or for a second look.

        A loop with several ranks asks on rank 0, tells the others, and asks again a moment later, so that no
        collective waits for long. False once the run must stop, or the guard is lost.
        """
        state = self._state()
        if state is None or self._closed:
            return False
        max_lag = None if state.is_stopped else self._settings.max_lag
        reason = waiting.reason_to_wait(state.verdict, state.unsent, max_lag)
        before = self._waits.reason
        self._waits = waiting.look(self._waits, reason, waiting.progress_of(state.verdict), time.monotonic())
        if self._waits.warning:
            log.warning("%s", self._waits.warning)
        if self._waits.reason is not None and self._waits.reason != before:
            log.info("training waits for %s", self._waits.reason)
        return self._waits.reason is not None

    def _wait(self) -> None:
        """Not beside other ranks: they would stand in a collective, which ends after ten minutes."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            self._warn_once(
                "ranks", "training has several ranks and waits only if all of them ask `must_wait`"
            )
            return
        while self.must_wait():
            time.sleep(LAG_POLL_SECONDS)

    # -- what the guard says -------------------------------------------------------------------------------

    @property
    def halted(self) -> Stop | None:
        """Why training must stop now, or None; once it says so, it says so for good.

        A stop is a fire, a halt by the guard's policy, or a guard that is lost. Its `reason` is a sentence.

        Raises:
            GuardConfigError: the guard is not open yet.
        """
        self._require_open("halted")
        stop = self._look()
        self._stop_seen = self._stop_seen or stop is not None
        return stop

    def raise_if_halted(self) -> None:
        """Return if training may go on.

        Raises:
            CollapseStopError: the guard fired.
            GuardLostError: no guard responds, or reports do not reach it: nobody judges the run.
            GuardHaltError: the guard halted the run: the action of a condition is `stop`.
            GuardConfigError: the guard is not open yet.
        """
        stop = self.halted
        if stop is not None:
            raise stop.error()

    @property
    def verdict(self) -> VerdictView | None:
        """The guard's newest verdict, or None before its first response."""
        state = self._state()
        return None if state is None else state.verdict

    # -- inside --------------------------------------------------------------------------------------------

    def _state(self) -> LineState | None:
        return None if self._reporter is None else self._reporter.state

    def _require_open(self, name: str) -> None:
        if self._pid is None and not self._closed:
            raise GuardConfigError(
                f"the guard is not open yet, so {name} says nothing: use `with Guard(...) as guard:`, "
                "or guard.open()"
            )

    def _takes(self, kind: str) -> bool:
        """Whether a report is taken now."""
        self._require_open(f"{kind}()")
        if self._closed:
            if self._stop is None:
                self._warn_once("closed", f"a {kind} was reported after the guard was closed: it is not sent")
            return False
        return True

    def _note_step(self, step: object) -> None:
        """Note a step of the loop, whatever else of its report is wrong."""
        if wrong_in_number_of(step) is None:
            with self._lock:
                self._newest = max(self._newest or 0, operator.index(step))  # type: ignore[arg-type]

    def _refuse(self, kind: str, step: object, wrong: str) -> None:
        if self._reporter is None:
            self._warn_once(kind, f"{kind} {step}: {wrong}")
        else:
            self._reporter.refuse(kind, step, wrong)

    def _look(self) -> Stop | None:
        """The stop that is latched, or that the newest responses ask for."""
        state = self._state()
        if self._stop is None and state is not None:
            if state.stop is not None:
                self._latch(Stop.of(state.stop))
            elif state.lost is not None and self._settings.on_unreachable == "stop":
                self._latch(Stop(state.lost, lost=True))
        return self._stop

    def _latch(self, stop: Stop) -> None:
        with self._lock:
            if self._stop is None:
                self._stop = stop
                log.error("the guard stops training: %s", stop.reason)
