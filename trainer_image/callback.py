"""`GuardCallback`: reports a training run to its guard and stops it when the guard says so.

    trainer.add_callback(GuardCallback.from_env(trainer))

Works with any Hugging Face `Trainer` that has a reward. With a TRL trainer every step is reported, however
long `logging_steps` is, and nothing of the user's own logging changes: the values are read from the lists
that TRL keeps and would log later. With a trainer that has no such lists, the values are those it logs. What
the guard will learn from a trainer is logged when training begins.

It does not judge the run; the guard does. It does not protect against a trainer that reports falsehoods.
"""

# ruff: noqa: ARG002 (the signature of an event is the Trainer's, whatever the event needs of it)

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlguard.client.errors import GuardConfigError
from rlguard.client.guard import LAG_POLL_SECONDS, Guard
from rlguard.client.log import WarnOnce, log
from rlguard.client.rollouts import Candidate
from rlguard.client.samples import StepSample
from rlguard.client.settings import Options
from rlguard.client.stopping import Stop
from rlguard.client.waiting import lag_that_rotation_leaves
from rlguard.core.preflight import REFUSED, CheckLevel, CheckRow, as_text
from rlguard.core.run_checks import STEPS, reason_to_refuse
from rlguard.core.wire import Sampling
from trainer_image import ranks
from trainer_image.config import CallbackSettings
from trainer_image.experiment import News, are_ours, log_figures, verdict_figures
from trainer_image.figures import UNKNOWN, StepReader, figures_of, newest_rollouts, sampling_of
from trainer_image.preflight import (
    Outset,
    can_save_start,
    kept_for_their_turn,
    steps_per_save,
    trainer_rows,
)

#: Where the starting policy is saved for a guard whose detector compares with it, under `output_dir`. With an
#: underscore, because the Trainer pushes everything in `output_dir` to a hub but `_*` and `checkpoint-*`.
START_DIRECTORY = "_rlguard-start"


class GuardCallback(TrainerCallback):
    """Reports every step and checkpoint to a guard; stops all ranks in the same step on its verdict.

    Every rank of a run must have the callback; only rank 0 talks to the guard.

    Args:
        url: base URL of the guard; None only on ranks other than 0.
        token: the guard's ingest token.
        trainer: whose callback this is. A Trainer does not tell a callback which one it is, and TRL keeps the
            figures of a step in the trainer. Without it the callback has the trainer log at every step and
            reads that; then no rollouts and no figures of the guard are shown.
        strict: on a stop raise `CollapseStopError` (a fire), `GuardHaltError` (a halt) or
            `GuardLostError` (the guard is lost); otherwise end training softly, so that `train()` returns.
        keep_best: whether `save_total_limit` spares the checkpoint with the best held-out score so far, which
            counts as one of those that are kept.
        options: see `rlguard.client.settings.ClientSettings`. `max_lag` is at most one less than
            `save_total_limit` leaves to wait, so that no checkpoint is deleted before its turn.

    Raises:
        GuardConfigError: an argument is wrong.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        *,
        trainer: Any = None,
        strict: bool = True,
        keep_best: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._settings = CallbackSettings.of(
            url=url, token=token, strict=strict, keep_best=keep_best, **options
        )
        self._trainer = trainer
        self._optional = False
        #: Why this run was stopped, or None; on every rank.
        self.stop: Stop | None = None
        self._guard: Guard | None = None
        self._begin(0)

    def _begin(self, step: int, args: Any = None, state: Any = None) -> None:
        """Forget an earlier run of the same trainer; this one begins after `step`."""
        self.stop = None
        self._reader = StepReader(figures_of(args) or UNKNOWN)
        self._figures: Mapping[str, float] = {}  # of the newest verdict
        self._sampling: Sampling | None = None  # how this trainer samples, as far as it says
        self._rollouts: list[Candidate] | None = None  # of the newest generation
        self._rollouts_sent = False
        self._warn_once = WarnOnce()
        self._last_step: int | None = None  # that was reported
        self._began = step
        self._every = steps_per_save(args, state)  # steps between two checkpoints
        self._best = ""  # the checkpoint with the best held-out score, where one has a score

    @classmethod
    def from_env(
        cls, trainer: Any = None, environ: Mapping[str, str] = os.environ, *, optional: bool = False
    ) -> Self:
        """The callback as the environment of a guarded run describes it.

        Args:
            trainer: whose callback this is; see `GuardCallback`.
            environ: `RLGUARD_` and the name of each setting, as `ClientSettings.from_env` reads them.
            optional: without `RLGUARD_URL`, train without a guard; a warning says that the run is unguarded.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong.
        """
        callback = cls(None, trainer=trainer)
        callback._settings = CallbackSettings.from_env(environ, optional=optional)
        callback._optional = optional
        return callback

    # -- events --------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Connect, and stop before the first step if the guard has already fired.

        Raises:
            GuardConfigError: no checkpoint of this run could ever be scored, its rotation could not spare the
                best one (`keep_best`), or the callback was given another trainer.
        """
        if self._settings.keep_best:
            _refuse_other_rotation(args)
        if self._trainer is not None and getattr(self._trainer, "state", state) is not state:
            raise GuardConfigError(
                "GuardCallback was given another trainer than the one that it was added to"
            )
        self._guard = self._make_guard(args) if state.is_world_process_zero else None
        self._begin(state.global_step, args, state)
        run = self._outset(args, state, kwargs)
        self._refuse_unscorable(run, args)
        if self._guard is not None:
            self._guard.open()
        self._stop_if(self._agreed(args), control)
        if self.stop is None:
            run = replace(run, verdict=None if self._guard is None else self._guard.verdict)
            self._refuse_unscorable(run, args)
            self._log_checks(run)
            self._save_start(run, args)
            self._wait_for_guard(args, control)
        if self.stop is not None:
            self._take_no_step()
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Queue the step's report, and let all ranks act on the newest verdict together."""
        if self._read_lists():
            sample = self._reader.take(state.global_step)
            self._take_rollouts()
            every = self._every
            saves = control.should_save or (every is not None and state.global_step % every == 0)
            self._report(sample, saves)
        elif self._trainer is None:
            control.should_log = True  # it is read as it is logged
        self._wait_for_guard(args, control, state.global_step)
        self._spare_best(args, state)
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
        if self._guard is None or logs is None or are_ours(logs):
            return
        if not self._read_lists() and (
            self._reader.figures.reward in logs or self._reader.figures.per_generation
        ):
            self._reader.read_log(logs)
            self._report(self._reader.take(state.global_step))
        if self._last_step is None and state.global_step > 0:
            self._warn_once(
                STEPS,
                f"no step up to {state.global_step} had a reward (`{self._reader.figures.reward}`): nothing "
                "is reported, and nothing can be judged",
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the checkpoint once every rank has written its part of it; wait for a guard that lags."""
        ranks.barrier()
        if self.stop is not None:
            return
        if self._guard is not None:
            path = f"{args.output_dir}/checkpoint-{state.global_step}"
            self._guard.checkpoint(path, step=state.global_step, sampling=self._sampling, wait=False)
        self._wait_for_guard(args, control, state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Deliver the last reports, say what became of them, and act on what the guard said."""
        self._let_steps()
        self._close_guard(state.global_step, finished=self.stop is None)
        if self.stop is None:
            self._stop_if(self._agreed(args, trains=False), control)
        self._guard = None
        return control

    # -- before the first step -----------------------------------------------------------------------------

    def _make_guard(self, args: TrainingArguments) -> Guard | None:
        """This run's guard, or None if it is optional and the environment names none."""
        if self._settings.url is None and not self._optional:
            raise GuardConfigError("GuardCallback on rank 0 needs the guard's URL: set RLGUARD_URL")
        kept = kept_for_their_turn(args, keep_best=self._settings.keep_best)
        max_lag = lag_that_rotation_leaves(self._settings.max_lag, kept)
        guard = Guard.of(self._settings.model_copy(update={"max_lag": max_lag}))
        if self._settings.url is not None:
            return guard
        guard.open().close()  # says that the run is unguarded
        return None

    def _outset(self, args: TrainingArguments, state: TrainerState, event: Mapping[str, Any]) -> Outset:
        """The run, with the model and the tokenizer that every event carries."""
        sampling: Sampling | ValueError | None
        try:
            self._sampling = sampling = sampling_of(args, event.get("model"))
        except ValueError as error:
            sampling = error
        return Outset(
            args,
            state,
            event.get("model"),
            event.get("processing_class"),
            self._trainer,
            sampling=sampling,
            max_lag=self._settings.max_lag,
            keep_best=self._settings.keep_best,
        )

    def _refuse_unscorable(self, run: Outset, args: TrainingArguments) -> None:
        """Raise `GuardConfigError` on every rank if a check says that the run must not start."""
        reason = None if self._guard is None else reason_to_refuse(_rows(run))
        reason = ranks.agree(reason, args.device)
        if reason is not None:
            if self._guard is not None:
                log.error("%s%s", REFUSED, reason)
            self._close_guard(None, finished=False)
            raise GuardConfigError(reason)

    def _log_checks(self, run: Outset) -> None:
        """The table of what was checked; a warning if a row warns, for a script that shows no INFO."""
        table = () if self._guard is None else _rows(run)
        warns = [row.name for row in table if row.level == CheckLevel.WARN]
        text = f"before the first step:\n{as_text(table)}" if table else ""
        if warns:
            self._warn_once(STEPS if STEPS in warns else "checks", text)  # of steps no second word later
        elif text:
            log.info("%s", text)

    def _save_start(self, run: Outset, args: TrainingArguments) -> None:
        """Save and report the starting policy, if the guard's detector needs it as its baseline.

        The name is not that of a checkpoint of the Trainer: it is neither rotated away nor resumed from.
        Of an adapter the Trainer saves no more than the adapter: a fresh one, on the guard's base model, is
        the start.
        """
        verdict = run.verdict
        wanted = verdict is not None and verdict.wants_the_start and run.state.global_step == 0
        wanted = wanted and can_save_start(args, run.model, run.trainer)
        if ranks.agree(wanted or None, args.device) is None:
            return
        path = os.path.abspath(os.path.join(args.output_dir, START_DIRECTORY))
        if self._trainer is not None:
            # Any other call pushes all of `output_dir` to a hub.
            self._trainer.save_model(path, _internal_call=True)
        elif self._guard is not None:
            run.model.save_pretrained(path)
            if run.processing_class is not None:
                run.processing_class.save_pretrained(path)
        ranks.barrier()
        if self._guard is not None:
            self._guard.checkpoint(path, step=0, sampling=self._sampling, wait=False)

    # -- reporting -----------------------------------------------------------------------------------------

    def _read_lists(self) -> bool:
        """Read what the trainer's lists have beyond what was read; False if it has none."""
        lists = self._reader.figures.lists_of(self._trainer)
        if lists is not None and self._guard is not None:
            self._reader.read_lists(lists)
        return lists is not None

    def _report(self, sample: StepSample | None, saves: bool = False) -> None:
        """Queue it once a step, with rollouts if it is the first or a checkpoint follows (`saves`)."""
        if self._guard is None or sample is None or self.stop is not None or sample.step == self._last_step:
            return
        self._last_step = sample.step
        rollouts: list[Candidate] = []
        if self._rollouts is not None and (saves or not self._rollouts_sent):
            rollouts, self._rollouts_sent = self._rollouts, True
        self._guard.report(sample, rollouts=rollouts)

    def _take_rollouts(self) -> None:
        """Keep what the step has generated. Whatever TRL makes of its lists, no training ends for it."""
        if self._guard is None or not self._reader.generated:
            return
        try:
            self._rollouts = newest_rollouts(self._trainer)
        except Exception:
            self._rollouts = None
        if self._rollouts is None:
            self._warn_once("rollouts", "this trainer's completions cannot be read: no rollouts are shown")

    def _spare_best(self, args: TrainingArguments, state: TrainerState) -> None:
        """Tell the Trainer's rotation, on every rank, which checkpoint it must not delete."""
        own = Path(args.output_dir) / Path(self._best).name
        if self._settings.keep_best and os.path.abspath(own) == self._best:
            state.best_model_checkpoint = str(own)

    # -- waiting and stopping ------------------------------------------------------------------------------

    def _wait_for_guard(
        self, args: TrainingArguments, control: TrainerControl, step: int | None = None
    ) -> None:
        """Wait while the guard's `must_wait` says so, then act on the verdict; all ranks wait together.

        They agree again at every look, so that no collective waits for longer than a moment.
        """
        if self.stop is not None:
            return
        while ranks.agree(self._must_wait(), args.device) is not None:
            if self._guard is not None:
                time.sleep(LAG_POLL_SECONDS)
        self._stop_if(self._agreed(args), control, step)

    def _must_wait(self) -> bool | None:
        """True on rank 0 while training must wait; None otherwise."""
        return True if self._guard is not None and self._guard.must_wait() else None

    def _agreed(self, args: TrainingArguments, *, trains: bool = True) -> Stop | None:
        """What rank 0 has heard of its guard, on every rank; new figures of it are logged.

        Not once training has ended (`trains`): the trainer's loggers have closed their runs then, and a late
        figure would open others.
        """
        news: News | None = ranks.agree(self._heard(), args.device)
        if news is None:
            return None
        if trains:
            log_figures(self._trainer, news.figures, self._warn_once)
        self._best = news.best
        return news.stop

    def _heard(self) -> News | None:
        """News of the guard on rank 0; None if nothing has changed."""
        if self._guard is None:
            return None
        stop = self._guard.halted  # before the verdict, which then is at least as new
        verdict = self._guard.verdict
        before, self._figures = self._figures, verdict_figures(stop, verdict)
        best = self._best if verdict is None else verdict.best_path
        if stop is None and (self._figures, best) == (before, self._best):
            return None
        return News(stop, self._figures if self._figures != before else {}, best)

    def _stop_if(self, stop: Stop | None, control: TrainerControl, step: int | None = None) -> None:
        if stop is None:
            return
        self.stop = stop
        control.should_training_stop = True
        if self._guard is None:
            log.error("the guard stops training: %s", stop.reason)
        if self._settings.strict:
            self._let_steps()
            self._close_guard(step, finished=False)
            raise stop.error()

    def _close_guard(self, step: int | None, *, finished: bool) -> None:
        if self._guard is not None:
            self._guard.close(finished=finished, step=step, began=self._began)

    def _take_no_step(self) -> None:
        """Let the training loop that is about to begin find no batch.

        It looks at `should_training_stop` only after a step, so a soft stop before the first step must keep
        that step from its data; `on_train_end` undoes this. Without a trainer one step is made.
        """
        if self._trainer is not None:
            self._trainer.get_batch_samples = lambda *_args, **_kwargs: ([], None)

    def _let_steps(self) -> None:
        if self._trainer is not None:
            vars(self._trainer).pop("get_batch_samples", None)


def _refuse_other_rotation(args: TrainingArguments) -> None:
    if args.metric_for_best_model is not None:
        raise GuardConfigError(
            f"keep_best needs metric_for_best_model to be unset, got {args.metric_for_best_model!r}: the "
            "Trainer spares one best checkpoint only (load_best_model_at_end sets it, too)"
        )
    if args.save_total_limit == 1:
        raise GuardConfigError(
            "keep_best needs save_total_limit to be 2 or more, got 1: the Trainer would delete the newest "
            "checkpoint at its end, before it is scored"
        )


def _rows(run: Outset) -> list[CheckRow]:
    """The checks; none of a Trainer that is not as others are, because other ranks wait for this one."""
    try:
        return trainer_rows(run)
    except Exception as error:
        log.warning("nothing was checked before the first step: %r", error)
        return []
