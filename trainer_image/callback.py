"""`GuardCallback`: reports a training run to its guard and stops it when the guard says so.

    trainer.add_callback(GuardCallback.from_env())

Works with any Hugging Face `Trainer` that has a reward. With a TRL trainer every step is reported, however
long `logging_steps` is, and nothing of the user's own logging changes: the values are read from the lists
that TRL keeps and would log later. With a trainer that has no such lists, the values are those it logs.

It does not judge the run; the guard does. It does not protect against a trainer that reports falsehoods.
"""

# ruff: noqa: ARG002 (the signature of an event is the Trainer's, whatever the event needs of it)

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from guard_core import CollapseStopError, TripwireStatus
from trainer_image import ranks
from trainer_image.checkpoints import let_the_guard_read
from trainer_image.client import GuardClient, VerdictView
from trainer_image.errors import GuardConfigError, GuardLostError, GuardStopError
from trainer_image.metrics import StepMetrics, StepSample, kl_kind_of, sample_of
from trainer_image.reporter import CheckpointSample, Reporter

log = logging.getLogger(__name__)

#: Seconds that the end of training may wait for the last reports.
FLUSH_SECONDS = 10.0
#: Where the starting policy is saved for a guard whose detector compares with it, under `output_dir`.
START_DIRECTORY = "rlguard-start"
#: With `on_unreachable="continue"` training begins after this many seconds without a guard.
CONTINUE_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Halt:
    """Why training stops: the guard fired (`status`), no guard answers (`lost`), or its policy says stop."""

    reason: str
    status: TripwireStatus | None = None
    lost: bool = False

    def error(self) -> RuntimeError:
        """The exception of a strict stop."""
        if self.status is not None:
            return CollapseStopError(self.status)
        return GuardLostError(self.reason) if self.lost else GuardStopError(self.reason)


class GuardCallback(TrainerCallback):
    """Reports every step and checkpoint to a guard; stops all ranks in the same step on its verdict.

    Every rank of a run must have the callback; only rank 0 talks to the guard.

    Args:
        url: base URL of the guard; None only on ranks other than 0.
        token: the guard's ingest token.
        attempt: number of this start of the trainer; None asks the guard.
        strict: on a stop raise `CollapseStopError` (a fire), `GuardLostError` (no guard answers) or
            `GuardStopError` (a policy); otherwise end training softly, so that `train()` returns.
        on_unreachable: `stop` or `continue` when no guard answers for `unreachable_seconds`.
        unreachable_seconds: see there.
        drain_seconds: how long the end of training may wait until the guard has evaluated every checkpoint.
            For a guard that ends with the trainer, as in a pod; more than the limit of a collective would
            fail the other ranks, which wait too.

    Raises:
        GuardConfigError: an argument is wrong.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        *,
        attempt: int | None = None,
        strict: bool = True,
        on_unreachable: Literal["stop", "continue"] = "stop",
        unreachable_seconds: float = 300.0,
        drain_seconds: float = 0.0,
    ) -> None:
        if url is not None:
            GuardClient(url)  # a wrong URL is an error here, not at the first step
        if on_unreachable not in ("stop", "continue"):
            raise GuardConfigError(f"on_unreachable must be 'stop' or 'continue', got {on_unreachable!r}")
        if not (math.isfinite(unreachable_seconds) and unreachable_seconds > 0):
            raise GuardConfigError(f"unreachable_seconds must be > 0 seconds, got {unreachable_seconds!r}")
        if not (math.isfinite(drain_seconds) and drain_seconds >= 0):
            raise GuardConfigError(f"drain_seconds must be >= 0 seconds, got {drain_seconds!r}")
        if attempt is not None and attempt < 0:
            raise GuardConfigError(f"attempt must be >= 0, got {attempt!r}")
        self._url = url
        self._token = token
        self._attempt = attempt
        self._strict = strict
        self._on_unreachable = on_unreachable
        self._unreachable_seconds = unreachable_seconds
        self._drain_seconds = drain_seconds
        self._reporter: Reporter | None = None
        self._trainer: Any = None
        self._metrics = StepMetrics()
        self._last_step: int | None = None
        #: Why this run was stopped, or None; on every rank.
        self.halt: Halt | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The callback as the environment of a guarded run describes it.

        `RLGUARD_URL` (needed on rank 0), `RLGUARD_TOKEN`, `RLGUARD_ATTEMPT`, `RLGUARD_STRICT` (1 or 0),
        `RLGUARD_ON_UNREACHABLE` (stop or continue), `RLGUARD_UNREACHABLE_SECONDS`, `RLGUARD_DRAIN_SECONDS`.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong.
        """
        url = environ.get("RLGUARD_URL") or None
        if url is None and environ.get("RANK", "0") == "0":
            raise GuardConfigError(
                "RLGUARD_URL is not set: set it to the guard's address, such as http://127.0.0.1:8470, and "
                "RLGUARD_TOKEN to its ingest token, or start the trainer with `rlguard run`"
            )
        on_unreachable = environ.get("RLGUARD_ON_UNREACHABLE", "stop")
        if on_unreachable not in ("stop", "continue"):
            raise GuardConfigError(f"RLGUARD_ON_UNREACHABLE must be stop or continue, got {on_unreachable!r}")
        strict = environ.get("RLGUARD_STRICT", "1")
        if strict not in ("0", "1"):
            raise GuardConfigError(f"RLGUARD_STRICT must be 1 or 0, got {strict!r}")
        attempt = environ.get("RLGUARD_ATTEMPT") or None
        if attempt is not None and not (attempt.isascii() and attempt.isdigit()):
            raise GuardConfigError(f"RLGUARD_ATTEMPT must be a whole number >= 0, got {attempt!r}")
        limit = _seconds(environ, "RLGUARD_UNREACHABLE_SECONDS", "300")
        if limit <= 0:
            raise GuardConfigError(f"RLGUARD_UNREACHABLE_SECONDS must be > 0 seconds, got {limit!r}")
        return cls(
            url,
            environ.get("RLGUARD_TOKEN") or None,
            attempt=None if attempt is None else int(attempt),
            strict=strict == "1",
            on_unreachable="stop" if on_unreachable == "stop" else "continue",
            unreachable_seconds=limit,
            drain_seconds=_seconds(environ, "RLGUARD_DRAIN_SECONDS", "0"),
        )

    # -- events --------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Connect, and stop before the first step if the guard has already fired."""
        self._trainer = _calling_trainer(self, state)
        self._metrics = StepMetrics()
        self._last_step = None
        self.halt = None
        found = self._connect() if state.is_world_process_zero else None
        self._stop_if(ranks.agree(found, args.device), control)
        if self.halt is not None:
            self._take_no_step()
            return control
        if self._reporter is not None:
            self._reporter.start()
        self._save_the_start(args, state)
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Queue the step's report, and let all ranks act on the newest verdict together."""
        self._gather()
        sample = self._metrics.take(state.global_step, kl_kind_of(args))
        if sample is not None:
            self._report(sample)
        if self.halt is None:
            self._stop_if(ranks.agree(self._opinion(), args.device), control)
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read TRL's lists before `log()` clears them; without lists, report what is logged."""
        self._gather()
        if logs is not None and "reward" in logs and "reward" not in self._trainer_lists():
            sample = sample_of(state.global_step, logs, kl_kind_of(args))
            if sample is not None:
                self._report(sample)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the checkpoint once every rank has written its part of it."""
        ranks.barrier()
        if self._reporter is None or self.halt is not None:
            return
        path = os.path.abspath(f"{args.output_dir}/checkpoint-{state.global_step}")
        if os.path.isdir(path):
            let_the_guard_read(Path(path))
            self._reporter.submit(CheckpointSample(state.global_step, path))
        else:
            log.warning("step %d saved no checkpoint at %s: nothing to score", state.global_step, path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Deliver the last reports, say what became of them, and act on what the guard answered."""
        self._restore_trainer()
        if self._reporter is not None and self.halt is None and self._drain_seconds > 0.0:
            self._reporter.drain(self._drain_seconds)
        self._close()
        if self.halt is None:
            self._stop_if(ranks.agree(self._opinion(), args.device), control)
        self._reporter = None
        return control

    # -- reporting -----------------------------------------------------------------------------------------

    def _connect(self) -> Halt | None:
        if self._url is None:
            raise GuardConfigError("GuardCallback on rank 0 needs the guard's URL: set RLGUARD_URL")
        self._reporter = Reporter(
            GuardClient(self._url, self._token),
            attempt=self._attempt,
            unreachable_seconds=self._unreachable_seconds,
        )
        patience = self._unreachable_seconds
        if self._on_unreachable == "continue":
            patience = min(patience, CONTINUE_PATIENCE_SECONDS)
        self._reporter.connect(patience)
        if self._reporter.verdict is None and self._on_unreachable == "stop":
            return Halt(f"no guard answers at {self._url}: {self._reporter.last_failure}", lost=True)
        return self._opinion()

    def _save_the_start(self, args: TrainingArguments, state: TrainerState) -> None:
        """Save and report the starting policy, if the guard's detector needs it as its baseline.

        The name is not that of a checkpoint of the Trainer: it is neither rotated away nor resumed from.
        """
        verdict = self._reporter.verdict if self._reporter is not None else None
        wanted = verdict is not None and verdict.wants_the_start and state.global_step == 0
        if ranks.agree(wanted or None, args.device) is None:
            return
        if self._trainer is None:
            log.warning("the starting policy cannot be saved: the first checkpoint will be the baseline")
            return
        path = os.path.abspath(os.path.join(args.output_dir, START_DIRECTORY))
        self._trainer.save_model(path)
        ranks.barrier()
        if self._reporter is not None:
            let_the_guard_read(Path(path))
            self._reporter.submit(CheckpointSample(0, path))

    def _trainer_lists(self) -> Mapping[str, Any]:
        metrics = getattr(self._trainer, "_metrics", None)
        lists = metrics.get("train") if isinstance(metrics, Mapping) else None
        return lists if isinstance(lists, Mapping) else {}

    def _gather(self) -> None:
        if self._reporter is not None:
            self._metrics.gather(self._trainer_lists())

    def _report(self, sample: StepSample) -> None:
        """Queue it once a step: the guard would refuse a second report of the same step."""
        if self._reporter is not None and self.halt is None and sample.step != self._last_step:
            self._last_step = sample.step
            self._reporter.submit(sample)

    def _close(self) -> None:
        if self._reporter is not None:
            delivery = self._reporter.close(FLUSH_SECONDS)
            log.log(
                logging.INFO if delivery.complete else logging.WARNING, "reports to the guard: %s", delivery
            )

    # -- stopping ------------------------------------------------------------------------------------------

    def _opinion(self) -> Halt | None:
        """This rank's opinion; only rank 0 has one."""
        if self._reporter is None:
            return None
        verdict = self._reporter.halt
        if verdict is not None:
            return Halt(f"{verdict.code}: {verdict.reason}", _status_of(verdict) if verdict.fire else None)
        if self._on_unreachable == "stop" and self._reporter.unreachable is not None:
            return Halt(self._reporter.unreachable, lost=True)
        return None

    def _stop_if(self, halt: Halt | None, control: TrainerControl) -> None:
        if halt is None:
            return
        self.halt = halt
        control.should_training_stop = True
        log.error("the guard stops training: %s", halt.reason)
        if self._strict:
            self._restore_trainer()
            self._close()
            raise halt.error()

    def _take_no_step(self) -> None:
        """Let the training loop that is about to begin find no batch.

        It looks at `should_training_stop` only after a step, so a soft stop before the first step must keep
        that step from its data; `on_train_end` undoes this.
        """
        if self._trainer is not None:
            self._trainer.get_batch_samples = lambda *_args, **_kwargs: ([], None)

    def _restore_trainer(self) -> None:
        if self._trainer is not None:
            vars(self._trainer).pop("get_batch_samples", None)
            self._trainer = None


def _seconds(environ: Mapping[str, str], name: str, default: str) -> float:
    """A finite number of seconds >= 0 from the environment."""
    text = environ.get(name, default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise GuardConfigError(f"{name} must be a number of seconds, got {text!r}")
    return seconds


def _status_of(verdict: VerdictView) -> TripwireStatus:
    """The verdict as the status that `CollapseStopError` carries; numbers that are missing are NaN, not 0."""

    def known(value: float | None) -> float:
        return math.nan if value is None else value

    return TripwireStatus(
        fire=True,
        reason=verdict.reason,
        step=next(step for step in (verdict.latch_step, verdict.step, -1) if step is not None),
        proxy_real_gap=known(verdict.proxy_real_gap),
        in_loop_ema=known(verdict.in_loop_ema),
        heldout_ema=known(verdict.heldout_ema),
        kl_ema=verdict.kl_ema,
    )


def _calling_trainer(callback: TrainerCallback, state: TrainerState) -> Any:
    """The trainer whose event this is, or None.

    Events do not say which trainer they come from, and `add_callback` does not tell the callback, so the
    trainer is found once, among the callers of `on_train_begin`. Without it, logged values are reported.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if getattr(caller, "state", None) is state and callback in getattr(handler, "callbacks", ()):
            return caller
        frame = frame.f_back
    return None
