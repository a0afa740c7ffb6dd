"""`GuardCallback`: reports a training run to its guard and stops it when the guard says so.

    trainer.add_callback(GuardCallback.from_env())

Works with any Hugging Face `Trainer` that has a reward. With a TRL trainer every step is reported, however
long `logging_steps` is, and nothing of the user's own logging changes: the values are read from the lists
that TRL keeps and would log later. With a trainer that has no such lists, the values are those it logs. What
the guard will learn from a trainer is said in the log when training begins.

It does not judge the run; the guard does. It does not protect against a trainer that reports falsehoods.
"""

# ruff: noqa: ARG002 (the signature of an event is the Trainer's, whatever the event needs of it)

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from guard_client.errors import GuardConfigError
from guard_client.guard import LAG_POLL_SECONDS, Guard
from guard_client.rollouts import Candidate
from guard_client.samples import StepSample, sample_of
from guard_client.settings import ClientSettings, refuse_other, switch
from guard_client.stopping import Stop
from guard_core.preflight import CheckLevel, as_text
from guard_core.wire import Sampling
from trainer_image import ranks
from trainer_image.experiment import Experiment, News, are_ours
from trainer_image.figures import UNKNOWN, figures_of, limit_unwatched, sampling_of, what_is_learnt
from trainer_image.metrics import StepMetrics, with_figures
from trainer_image.outlook import (
    capped_lag,
    kept_for_their_turn,
    rotation_ahead,
    save_sooner,
    steps_per_save,
)
from trainer_image.preflight import Outset, trainer_rows
from trainer_image.rollouts import newest_rollouts
from trainer_image.unscorable import adapter_unscorable, outside_root, unscorable

log = logging.getLogger(__name__)

#: Where the starting policy is saved for a guard whose detector compares with it, under `output_dir`. With an
#: underscore, because the Trainer pushes everything in `output_dir` to a hub but `_*` and `checkpoint-*`.
START_DIRECTORY = "_rlguard-start"


class GuardCallback(TrainerCallback):
    """Reports every step and checkpoint to a guard; stops all ranks in the same step on its verdict.

    Every rank of a run must have the callback; only rank 0 talks to the guard.

    Args:
        url: base URL of the guard; None only on ranks other than 0.
        token: the guard's ingest token.
        ca: certificates, PEM, of which one must have signed that of a guard at an https URL; None: those that
            the system trusts.
        attempt: number of this start of the trainer; None asks the guard.
        strict: on a stop raise `CollapseStopError` (a fire), `GuardHaltError` (a halt) or
            `GuardLostError` (the guard is lost); otherwise end training softly, so that `train()` returns.
        on_unreachable: `stop` or `continue` when no guard responds for `unreachable_seconds`, when it refuses
            one report after the other, or when a checkpoint has not reached it by the end of training.
        unreachable_seconds: the time of `on_unreachable`, seconds.
        drain_seconds: how long the end of training may wait until the guard has evaluated every checkpoint.
            For a guard that ends with the trainer, as in a pod; more than the limit of a collective would
            fail the other ranks, which wait too.
        max_lag: how many checkpoints may be unscored while training goes on, so that a fire comes before the
            policy is ruined; None never waits. At most one less than `save_total_limit` leaves to wait, so
            that none is deleted before its turn. Training also waits for the baseline and for a second look
            at an alarm. `guard_client.waiting` bounds all waits.
        rollouts: whether a few completions on training prompts are shown in the guard's dashboard and report:
            of the first step, and of each checkpoint.
        keep_best: whether `save_total_limit` spares the checkpoint with the best held-out score so far, which
            counts as one of those that are kept.
        save_sooner: whether a checkpoint is saved halfway between two regular ones where the guard wants the
            next one sooner. It takes up to twice as many checkpoints.

    Raises:
        GuardConfigError: an argument is wrong.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        *,
        ca: str | None = None,
        attempt: int | None = None,
        strict: bool = True,
        on_unreachable: Literal["stop", "continue"] = "stop",
        unreachable_seconds: float = 300.0,
        drain_seconds: float = 0.0,
        max_lag: int | None = 1,
        rollouts: bool = True,
        keep_best: bool = False,
        save_sooner: bool = False,
    ) -> None:
        self._settings = ClientSettings(
            url,
            token,
            ca,
            attempt=attempt,
            on_unreachable=on_unreachable,
            unreachable_seconds=unreachable_seconds,
            drain_seconds=drain_seconds,
            max_lag=max_lag,
            rollouts=rollouts,
        )
        refuse_other("strict", strict, bool, "True or False")
        refuse_other("keep_best", keep_best, bool, "True or False")
        refuse_other("save_sooner", save_sooner, bool, "True or False")
        self._strict, self._keep_best, self._save_sooner = strict, keep_best, save_sooner
        self._optional = False
        self._guard: Guard | None = None
        self._trainer: Any = None
        self._metrics = StepMetrics()
        self._sampling: Sampling | None = None  # how this trainer samples, as far as it says
        self._rollouts: list[Candidate] | None = None  # of the newest generation
        self._rollouts_step: int | None = None  # for which some were sent last
        self._last_step: int | None = None
        self._began: int | None = None  # step after which this attempt began
        self._told_no_reward = False
        self._told_no_rollouts = self._told_rotated_away = False
        self._experiment = Experiment()
        self._best = ""  # the checkpoint with the best held-out score, where one has a score
        self._saved = 0  # step of the newest checkpoint
        self._sooner = False  # whether the guard wants the next one sooner
        #: Why this run was stopped, or None; on every rank.
        self.stop: Stop | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, *, optional: bool = False) -> Self:
        """The callback as the environment of a guarded run describes it.

        Args:
            environ: `RLGUARD_URL` (needed on rank 0 unless `optional`), `RLGUARD_TOKEN`, `RLGUARD_CA`,
                `RLGUARD_ATTEMPT`, `RLGUARD_STRICT` (1 or 0), `RLGUARD_ON_UNREACHABLE` (stop or continue),
                `RLGUARD_UNREACHABLE_SECONDS`, `RLGUARD_DRAIN_SECONDS`, `RLGUARD_MAX_LAG` (a number or off),
                `RLGUARD_ROLLOUTS` (1 or 0), `RLGUARD_KEEP_BEST` (1 or 0), `RLGUARD_SAVE_SOONER` (1 or 0).
            optional: without `RLGUARD_URL`, train without a guard; a warning says that the run is unguarded.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong.
        """
        callback = cls(
            None,
            strict=switch(environ, "RLGUARD_STRICT", "1"),
            keep_best=switch(environ, "RLGUARD_KEEP_BEST", "0"),
            save_sooner=switch(environ, "RLGUARD_SAVE_SOONER", "0"),
        )
        callback._settings = ClientSettings.from_env(environ, optional=optional)
        callback._optional = optional
        return callback

    # -- events --------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Connect, and stop before the first step if the guard has already fired.

        Raises:
            GuardConfigError: no checkpoint of this run could ever be scored, or its rotation could not spare
                the best one (`keep_best`).
        """
        if self._keep_best:
            _refuse_other_rotation(args)
        self._trainer = _calling_trainer(self, state)
        self._guard = self._make_guard(args) if state.is_world_process_zero else None
        reason = None if self._guard is None else unscorable(args, state, self._trainer)
        reason = ranks.agree(reason, args.device)
        if reason is not None:
            raise GuardConfigError(reason)
        self._metrics = StepMetrics(figures_of(args) or UNKNOWN)
        self._sampling = None
        self._rollouts = self._rollouts_step = None
        self._last_step = None
        self._began = state.global_step
        self._best, self._saved, self._sooner = "", state.global_step, False
        self._told_no_reward = self._told_rotated_away = False
        self._experiment = Experiment()
        self.stop = None
        if self._guard is not None:
            self._guard.open()
        self._stop_if(self._agreed(args), control)
        if self.stop is not None:
            self._take_no_step()
            return control
        reason = ranks.agree(self._unjudgeable(args), args.device)
        if reason is not None:
            self._restore_trainer()
            if self._guard is not None:
                self._guard.close(drain=False)
            raise GuardConfigError(reason)
        if self._guard is not None:
            self._say_what_is_ahead(args, state)
        self._save_the_start(args, state)
        self._wait_for_the_guard(args, control)
        if self.stop is not None:
            self._take_no_step()
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Queue the step's report, and let all ranks act on the newest verdict together."""
        self._gather()
        sample = self._metrics.take(state.global_step)
        self._take_rollouts(state.global_step)
        if sample is not None:
            self._report(sample)
        self._wait_for_the_guard(args, control)
        self._spare_the_best(args, state)
        self._save_between(args, state, control)
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
        if logs is not None and are_ours(logs):
            return
        self._gather()
        figures = self._metrics.figures
        if logs is not None and figures.reward in logs and figures.reward not in self._trainer_lists():
            values = {name: logs.get(key) for name, key in figures.named()}
            sample = sample_of(state.global_step, values, figures.kl_kind)
            if sample is not None:
                self._report(with_figures(sample, logs))
        self._say_if_nothing_is_reported(state)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the checkpoint once every rank has written its part of it; wait for a guard that lags."""
        ranks.barrier()
        self._saved = state.global_step
        if self.stop is not None:
            return
        if self._guard is not None:
            path = f"{args.output_dir}/checkpoint-{state.global_step}"
            self._guard.checkpoint(path, step=state.global_step, sampling=self._sampling, wait=False)
            self._send_rollouts(state.global_step)
        self._wait_for_the_guard(args, control)
        self._say_if_rotated_away(args)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Deliver the last reports, say what became of them, and act on what the guard said."""
        self._restore_trainer()
        if self._guard is not None:
            self._guard.close(drain=self.stop is None, step=state.global_step, began=self._began)
        if self.stop is None:
            self._stop_if(self._agreed(args), control)
        if self._guard is not None and self.stop is None:
            self._guard.finish(state.global_step, self._began)
        self._guard = None
        return control

    def _spare_the_best(self, args: TrainingArguments, state: TrainerState) -> None:
        """Tell the Trainer's rotation, on every rank, which checkpoint it must not delete."""
        own = Path(args.output_dir) / Path(self._best).name
        if self._keep_best and os.path.abspath(own) == self._best:
            state.best_model_checkpoint = str(own)

    def _save_between(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Have every rank save a checkpoint between two regular ones, if the guard wants one sooner."""
        since, every = state.global_step - self._saved, steps_per_save(args, state)
        wanted = self._sooner and self.stop is None
        if wanted and not control.should_save and save_sooner(every, since, args):
            control.should_save = True
            if self._guard is not None:
                log.info("the guard wants a checkpoint sooner: one is saved at step %d", state.global_step)

    def _wait_for_the_guard(self, args: TrainingArguments, control: TrainerControl) -> None:
        """Wait while the guard's `must_wait` says so, then act on the verdict; all ranks wait together.

        They agree again at every look, so that no collective waits for longer than a moment.
        """
        if self.stop is not None:
            return
        while ranks.agree(self._must_wait(), args.device) is not None:
            if self._guard is not None:
                time.sleep(LAG_POLL_SECONDS)
        self._stop_if(self._agreed(args), control)

    def _must_wait(self) -> bool | None:
        """True on rank 0 while training must wait; None otherwise."""
        return True if self._guard is not None and self._guard.must_wait() else None

    # -- reporting -----------------------------------------------------------------------------------------

    def _make_guard(self, args: TrainingArguments) -> Guard | None:
        """This run's guard, or None if it is optional and the environment names none.

        Nothing may be unscored for so long that the Trainer's rotation deletes it.
        """
        if self._settings.url is None and not self._optional:
            raise GuardConfigError("GuardCallback on rank 0 needs the guard's URL: set RLGUARD_URL")
        lag, kept = self._settings.max_lag, kept_for_their_turn(args, keep_best=self._keep_best)
        guard = Guard.of(replace(self._settings, max_lag=None if lag is None else capped_lag(lag, kept)))
        if guard.guards:
            return guard
        guard.open().close()  # says that the run is unguarded
        return None

    def _unjudgeable(self, args: TrainingArguments) -> str | None:
        """Why this guard, by what it says of itself, could not judge the run."""
        verdict = self._guard.verdict if self._guard is not None else None
        if verdict is None:
            return None
        return (
            outside_root(args, verdict.checkpoint_root)
            or adapter_unscorable(self._trainer, verdict.adapters)
            or limit_unwatched(args, verdict.kl_hard_stop)
        )

    def _save_the_start(self, args: TrainingArguments, state: TrainerState) -> None:
        """Save and report the starting policy, if the guard's detector needs it as its baseline.

        The name is not that of a checkpoint of the Trainer: it is neither rotated away nor resumed from.
        Of an adapter the Trainer saves no more than the adapter: a fresh one, on the guard's base model, is
        the start.
        """
        verdict = self._guard.verdict if self._guard is not None else None
        wanted = verdict is not None and verdict.wants_the_start and state.global_step == 0
        if ranks.agree(wanted or None, args.device) is None:
            return
        if self._trainer is None:
            log.warning("the starting policy cannot be saved: the first checkpoint will be the baseline")
            return
        path = os.path.abspath(os.path.join(args.output_dir, START_DIRECTORY))
        self._trainer.save_model(
            path, _internal_call=True
        )  # any other call pushes all of `output_dir` to a hub
        ranks.barrier()
        if self._guard is not None:
            self._guard.checkpoint(path, step=0, sampling=self._sampling, wait=False)

    def _say_what_is_ahead(self, args: TrainingArguments, state: TrainerState) -> None:
        """The table of what was looked at, and its warnings once more, as such."""
        self._told_no_reward = not what_is_learnt(args, self._trainer)[0]
        sampling: Sampling | ValueError | None
        try:
            self._sampling = sampling = sampling_of(args, self._trainer)
        except ValueError as error:
            sampling = error
        verdict = self._guard.verdict if self._guard is not None else None
        lag = self._settings.max_lag
        run = Outset(args, state, self._trainer, verdict, sampling, lag, self._keep_best)
        try:
            table = trainer_rows(run)
        except Exception:  # of a Trainer that is not as others are; other ranks wait for this one
            log.debug("no table before the first step", exc_info=True)
            return
        log.info("before the first step:\n%s", as_text(table))
        for row in table:
            if row.level == CheckLevel.WARN:
                log.warning("%s: %s", row.name, row.says)

    def _say_if_rotated_away(self, args: TrainingArguments) -> None:
        """Warn once, when the Trainer's rotation comes near what the guard has not scored."""
        if self._guard is None or self._told_rotated_away:
            return
        sentence = rotation_ahead(self._guard.lag, kept_for_their_turn(args, keep_best=self._keep_best))
        if sentence is not None:
            self._told_rotated_away = True
            log.warning(sentence)

    def _say_if_nothing_is_reported(self, state: TrainerState) -> None:
        """Warn once, when the trainer logs for the first time and no step had a reward."""
        if self._guard is None or self._told_no_reward or self._last_step is not None:
            return
        if state.global_step > 0:
            self._told_no_reward = True
            log.warning(
                "no step up to %d had a finite reward (`%s`): nothing is reported, and nothing can be judged",
                state.global_step,
                self._metrics.figures.reward,
            )

    def _trainer_lists(self) -> Mapping[str, Any]:
        return self._metrics.figures.of(self._trainer)

    def _gather(self) -> None:
        if self._guard is not None:
            self._metrics.gather(self._trainer_lists())

    def _report(self, sample: StepSample) -> None:
        """Queue it once a step: the guard would refuse a second report of the same step."""
        if self._guard is not None and self.stop is None and sample.step != self._last_step:
            self._last_step = sample.step
            self._guard.report(sample)

    def _take_rollouts(self, step: int) -> None:
        """Keep what the step has generated, for the checkpoint that may follow; of the first step, send it.

        Whatever TRL makes of its lists in a later release, no training ends for it.
        """
        if self._guard is None or not self._metrics.generated:
            return
        first = self._rollouts is None
        try:
            self._rollouts = newest_rollouts(self._trainer)
        except Exception as error:
            self._rollouts = None
            log.debug("the trainer's completions cannot be read", exc_info=error)
        if first:
            self._send_rollouts(step)
        if self._rollouts is None and not self._told_no_rollouts:
            self._told_no_rollouts = True
            log.info("this trainer keeps no completions where they can be read: no rollouts are shown")

    def _send_rollouts(self, step: int) -> None:
        """Give the newest ones to the guard, once a step."""
        if self._guard is not None and self._rollouts is not None and step != self._rollouts_step:
            self._rollouts_step = step
            self._guard.rollouts(step, self._rollouts)

    # -- stopping ------------------------------------------------------------------------------------------

    def _agreed(self, args: TrainingArguments) -> Stop | None:
        """What rank 0 has heard of its guard, on every rank; new figures of it are logged.

        When training has ended there is no trainer to log with: its loggers have closed their runs, and a
        late figure would open others.
        """
        guard, heard = self._guard, None
        if guard is not None:
            stop = guard.halted  # before the verdict, which then is at least as new
            heard = self._experiment.news(stop, guard.verdict, self._saved, self._save_sooner)
        news: News | None = ranks.agree(heard, args.device)
        if news is None:
            return None
        self._experiment.log(self._trainer, news.figures)
        self._best, self._sooner = news.best, news.sooner
        return news.stop

    def _stop_if(self, stop: Stop | None, control: TrainerControl) -> None:
        if stop is None:
            return
        self.stop = stop
        control.should_training_stop = True
        if self._guard is None:
            log.error("the guard stops training: %s", stop.reason)
        else:
            self._experiment.tag(stop)
        if self._strict:
            self._restore_trainer()
            if self._guard is not None:
                self._guard.close(drain=False)
            raise stop.error()

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
