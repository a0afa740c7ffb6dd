"""One guarded run on this machine: guard and trainer as processes, watched until both have ended."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlguard.cli.errors import CliError
from rlguard.cli.guard_settings import is_set, make_settings
from rlguard.cli.links import dashboard_link, token_file
from rlguard.cli.run.folder import write_report
from rlguard.cli.run.guard import GuardProcess
from rlguard.cli.run.outcome import Ending, judge_ending, refusal_in
from rlguard.cli.run.plan import TRAINER_OUTPUT, Finished, Plan
from rlguard.cli.run.processes import TrainerProcess
from rlguard.cli.run.progress import Progress, open_progress
from rlguard.cli.starting import start_hint
from rlguard.core.wire import Verdict
from rlguard.follow.errors import InputError

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings
    from rlguard.cli.run.following import Following

WATCH_SECONDS = 0.2
#: Bytes at the end of a trainer's output in which its reason to refuse a start is looked for.
OUTPUT_END = 65_536
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Settings that a supervised guard gets from here.
OWN_SETTINGS = (
    "host",
    "port",
    "listen_fd",
    "state_dir",
    "ingest_token_file",
    "read_token_file",
    "allow_unauthenticated_loopback",
    "keep_best_checkpoint",
)


def run_guarded(plan: Plan) -> Finished:
    """Run the trainer under a guard, then write the report folder.

    Raises:
        CliError: nothing was started, or the guard did not start.
    """
    if not plan.command:
        raise CliError("no trainer: give its command after `--`, such as `-- python train.py`")
    if shutil.which(plan.command[0]) is None:
        raise CliError(f"cannot start the trainer: there is no program {plan.command[0]!r}")
    settings = prepare(plan)
    started = time.time()
    with Signals() as signals:
        try:
            ending = _supervise(plan, settings, signals)
        except InputError:
            if signals.first is None:
                raise
            raise CliError("interrupted before the trainer was started", 128 + signals.first) from None
        finished = Finished(judge_ending(ending), ending, started, time.time())
        write_report(plan, settings, finished)
    return finished


def prepare(plan: Plan) -> GuardSettings:
    """Make the report folder with the guard's state in it, and the guard's settings.

    Raises:
        CliError: the folder is in use, or a setting is wrong.
    """
    for name in OWN_SETTINGS:
        if name in plan.config:
            raise CliError(f"--config: `{name}` is chosen by `rlguard run` itself: remove it")
    state = plan.out.absolute() / "guard"
    own = {"host": "127.0.0.1", "port": 0, "state_dir": state, "keep_best_checkpoint": True}
    if plan.options.get("run_name") is None and not is_set("run_name", plan.config):
        own["run_name"] = plan.out.absolute().name
    open_start = {"allow_unauthenticated_loopback": True}
    make_settings(plan.config, {**plan.options, **own, **open_start})  # before anything is written
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        if any(plan.out.iterdir()):
            raise CliError(f"--out {plan.out} is not empty: one run, one folder; name another")
        state.mkdir(mode=0o700)
        tokens = {f"{role}_token_file": token_file(state / f"{role}.token") for role in ("ingest", "read")}
    except OSError as error:
        raise CliError(f"--out {plan.out} cannot be used: {error.strerror or error}") from None
    return make_settings(plan.config, {**plan.options, **own, **tokens})


class Signals:
    """Notes the signals that ask this program to end; the watching loop acts on them."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.first = number if self.first is None else self.first
        self.count += 1

    @property
    def came(self) -> bool:
        """Whether there was one: stop the trainer."""
        return self.first is not None

    @property
    def again(self) -> bool:
        """Whether there was a second one: do not wait any longer."""
        return self.count > 1


def _supervise(plan: Plan, settings: GuardSettings, signals: Signals) -> Ending:
    with open_progress(plan.out, plan.show_trainer) as progress:
        progress.note("starting the guard")
        guard = GuardProcess(
            settings, plan.out / "guard.log", ready_seconds=plan.ready, cancelled=lambda: signals.came
        )
        try:
            progress.note(f"{settings.name}: dashboard {dashboard_link(guard.url, settings.tokens().read)}")
            following = _start_following(plan, settings, guard, progress)
            trainer = _start_trainer(plan, settings, guard)
            try:
                if plan.resume_from is not None and (words := where_it_starts(plan)):
                    progress.note(words)
                progress.note(
                    f"trainer started (process {trainer.pid}); its output: {plan.out / 'trainer.log'}"
                )
                return _Watch(plan, guard, trainer, progress, signals, following).run()
            except BaseException:  # of this program: the trainer is as healthy as it was
                trainer.stop(signal.SIGTERM, plan.grace, hurry=lambda: signals.again)
                raise
        finally:
            guard.stop()


def _start_following(
    plan: Plan, settings: GuardSettings, guard: GuardProcess, progress: Progress
) -> Following | None:
    if plan.follow is None:
        return None
    from rlguard.cli.run.following import Following
    from rlguard.follow.preexisting import scan
    from rlguard.follow.sources import framework_of

    checkpoints = settings.checkpoint_root
    printed = plan.follow.metrics == TRAINER_OUTPUT
    metrics = plan.out / "trainer.log" if printed else plan.follow.metrics
    before = scan(metrics, checkpoints, framework_of(plan.follow.format))
    what = replace(plan.follow, metrics=metrics, checkpoints=checkpoints, before=before)
    return Following(what, guard.url, str(settings.tokens().ingest), progress.note)


def _start_trainer(plan: Plan, settings: GuardSettings, guard: GuardProcess) -> TrainerProcess:
    # The held-out split stays out of the trainer's environment, as all settings of the guard.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RLGUARD_GUARD_")}
    given = {
        "RLGUARD_URL": guard.url,
        "RLGUARD_TOKEN": str(settings.tokens().ingest),
    }
    if plan.max_lag is not None:
        given["RLGUARD_MAX_LAG"] = plan.max_lag
    if plan.resume_from is not None:
        run = re.sub(r"[^A-Za-z0-9._-]+", "-", plan.out.absolute().name).strip(".-") or "run"
        given |= {"RLGUARD_RESUME_FROM": str(plan.resume_from), "RLGUARD_RUN": run}
    try:
        return TrainerProcess(plan.command, inherited | given, plan.out / "trainer.log")
    except OSError as error:
        raise CliError(f"cannot start the trainer {plan.command[0]!r}: {error.strerror}") from None


def where_it_starts(plan: Plan) -> str:
    """What a framework that is followed needs to start from `plan.resume_from`; "" if its command has it."""
    path = str(plan.resume_from)
    if plan.follow is None or any(path in word for word in plan.command):
        return ""
    how = start_hint(plan.follow.format, shlex.quote(path), "NEW_FOLDER")
    return f"the trainer's command does not name {path}: {how}" if how else ""


class _Watch:
    """Watches one trainer and its guard to the end."""

    def __init__(
        self,
        plan: Plan,
        guard: GuardProcess,
        trainer: TrainerProcess,
        progress: Progress,
        signals: Signals,
        following: Following | None = None,
    ) -> None:
        self._plan, self._guard, self._trainer, self._following = plan, guard, trainer, following
        self._progress, self._signals = progress, signals
        self._verdict: Verdict | None = None
        self._responded = False  # whether the guard did when it was asked last
        self._lost = ""

    def run(self) -> Ending:
        """Until the trainer has ended and the guard has scored what it can."""
        while self._look() and self._trainer.poll() is None:
            time.sleep(WATCH_SECONDS)
        code = self._trainer.poll()
        leftovers = self._end_trainer()
        if self._following is not None:
            self._following.finish()
        if code is not None and not self._must_stop:
            self._drain()
        else:
            self._ask_once_more()
        ended_code = self._trainer.poll()
        self._progress.update(self._verdict)
        return Ending(
            verdict=self._verdict,
            trainer_code=code if code is not None else (ended_code or 0),
            trainer_ended_itself=code is not None,
            interrupted_by=self._signals.first,
            guard_lost=self._lost,
            responded=self._responded,
            leftovers=tuple(leftovers),
            refusal=self._refusal() if code else "",
            restarts=self._guard.restarts,
        )

    def _refusal(self) -> str:
        """Why the trainer refused to start, if it did; one that has made a step has started."""
        if self._verdict is not None and self._verdict.step is not None:
            return ""
        try:
            with (self._plan.out / "trainer.log").open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - OUTPUT_END))
                return refusal_in(log.read().decode("utf-8", "replace"))
        except OSError:
            return ""

    def _ask_once_more(self) -> None:
        """How far the trainer came before it was stopped."""
        with suppress(CliError):
            self._verdict = self._guard.verdict() or self._verdict

    @property
    def _must_stop(self) -> bool:
        told = self._verdict is not None and self._verdict.stop
        return told or self._signals.came or bool(self._lost)

    def _look(self) -> bool:
        """Ask the guard; whether the run may go on."""
        try:
            verdict = self._guard.verdict()
            # The guard's processes are told apart by their session, which is another one after a restart.
            self._trainer.leave_alone(self._guard.session)
        except CliError as error:
            self._lose(str(error))
            return False
        if self._following is not None and self._following.lost and not self._lost:
            self._lose(self._following.lost)
        self._responded = verdict is not None
        self._verdict = verdict or self._verdict
        self._progress.update(self._verdict)
        return not self._must_stop

    def _lose(self, lost: str) -> None:
        self._lost = lost
        self._progress.note(lost)

    def _end_trainer(self) -> list[int]:
        """Stop what is left of the trainer, also if it ended by itself: nothing may train on unguarded."""
        if self._trainer.poll() is None:
            self._progress.note(f"stopping the trainer ({self._why_stop()})")
        number = self._signals.first or signal.SIGTERM
        return self._trainer.stop(number, self._plan.grace, hurry=lambda: self._signals.again)

    def _why_stop(self) -> str:
        if self._verdict is not None and self._verdict.stop:
            return self._verdict.code.value
        return self._lost or f"signal {self._signals.first}"

    def _drain(self) -> None:
        """Let the guard make the evaluations that wait, a wanted pass too, for a bounded time."""
        end = time.monotonic() + self._plan.drain
        told = False
        while self._look() and self._waiting != 0 and time.monotonic() < end:
            if self._waiting and not told:
                self._progress.note(f"the trainer has ended; {self._waiting} evaluations are yet to be made")
                told = True
            time.sleep(WATCH_SECONDS)

    @property
    def _waiting(self) -> int | None:
        """Evaluations that are yet to be made, or None if the guard did not say when it was asked last."""
        return self._verdict.waiting if self._responded and self._verdict is not None else None
