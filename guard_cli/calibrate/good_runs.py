"""Thresholds from past runs that are known to be good: what those runs reached, and what that can support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from guard_cli.calibrate import guards
from guard_cli.calibrate.guards import Series
from guard_cli.calibrate.propose import round_up
from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_cli.logs.table import Floats
from guard_cli.replay.fold import rounds
from guard_cli.replay.run import Run, load_run
from guard_core.heldout_guard import KL_FLOOR
from guard_core.policy import HeldOutGuardPolicy, KlPolicy
from guard_follow.errors import InputError

RULES = ("heldout_decline", "hacking_gap", "kl_hard_stop")
THRESHOLDS = {"heldout_decline": "rise_eps", "hacking_gap": "max_proxy_real_gap"}


@dataclass(frozen=True, slots=True)
class FromRuns:
    """Thresholds that the good runs would not have exceeded.

    `kl_hard_stop`: nats/token, None if some run has no KL; `rules`: what could be learnt of; `supported`:
    upper bound, over these rules, of the probability that a new run of the same kind is stopped; `needed`:
    runs that the wanted rate takes.
    """

    policy: HeldOutGuardPolicy
    kl_hard_stop: float | None
    rules: tuple[str, ...]
    runs: int
    supported: float
    needed: int
    largest_kl: dict[str, float]
    skipped: tuple[str, ...]


def read_runs(folder: Path) -> tuple[list[tuple[str, Run]], tuple[str, ...]]:
    """Every run in a folder: its files and subfolders that `rlguard replay` reads, and what was skipped.

    Raises:
        CliError: the folder does not exist or holds no run.
    """
    if not folder.is_dir():
        raise CliError(f"--from-runs {folder}: there is no such folder.")
    runs, skipped = [], []
    for path in sorted(folder.iterdir()):
        try:
            runs.append((path.name, load_run(read_log(path), str(path), {})))
        except InputError as error:
            skipped.append(str(error))
    if not runs:
        why = f" {skipped[0]}" if skipped else ""
        raise CliError(f"--from-runs {folder}: no run in it can be read.{why}")
    return runs, tuple(skipped)


def learn(
    runs: Sequence[tuple[str, Run]], base: HeldOutGuardPolicy, rate: float, skipped: tuple[str, ...] = ()
) -> FromRuns:
    """Thresholds for `base`'s averaging, patience and warm-up from runs known to be good.

    Raises:
        CliError: no run has what a rule needs.
    """
    values: dict[str, list[float]] = {rule: [] for rule in RULES}
    largest_kl = {}
    for name, run in runs:
        eps, gap = _held_out_statistics(run, base)
        kl = _largest_kl(run)
        for rule, value in zip(RULES, (eps, gap, kl), strict=True):
            if value is not None:
                values[rule].append(value)
        if kl is not None:
            largest_kl[name] = kl
    known = tuple(rule for rule in RULES if len(values[rule]) == len(runs))
    if not known:
        raise CliError(
            "--from-runs: no rule can be learnt: every run needs a held-out series of at least "
            f"{base.min_steps} evaluations, or a KL to the reference (see `rlguard replay RUN`)."
        )
    statistics = np.array([values[rule] for rule in known]).T
    limits, supported = guards.order_statistics(statistics, rate)
    found = {rule: round_up(limit) for rule, limit in zip(known, limits.tolist(), strict=True)}
    kl_limit = found.pop("kl_hard_stop", None)
    return FromRuns(
        policy=base.model_copy(update={THRESHOLDS[rule]: limit for rule, limit in found.items()}),
        kl_hard_stop=None if kl_limit is None else max(kl_limit, KL_FLOOR),
        rules=known,
        runs=len(runs),
        supported=supported,
        needed=guards.runs_needed(rate, len(known)),
        largest_kl=largest_kl,
        skipped=skipped,
    )


def _held_out_statistics(run: Run, base: HeldOutGuardPolicy) -> tuple[float | None, float | None]:
    """(smallest quiet rise_eps, largest gap), or Nones if the held-out rules never judged this run."""
    pairs = [(r.in_loop, r.evaluation.score) for r in rounds(run) if r.in_loop is not None]
    if len(pairs) < max(2, base.min_steps):
        return None, None
    series: Floats = np.array(pairs)
    folded = Series.of(series[:, :1], series[:, 1:], base.ema_alpha)
    eps = guards.quiet_eps(folded, base.decline_patience, base.min_steps, always_rising=False)
    return float(eps[0]), float(guards.largest_gap(folded, base.min_steps)[0])


def _largest_kl(run: Run) -> float | None:
    """Largest rise of the KL EMA at any step, nats/token; None without a KL to the reference."""
    monitor, seen = KlPolicy(min_steps=0).build(), [0.0]
    armed = run.armed_kl()
    for step, kl in zip(run.step[armed].tolist(), run.kl[armed].tolist(), strict=True):
        monitor.update(step, kl)
        seen += [] if monitor.rise is None else [monitor.rise]
    return max(seen) if max(seen) > 0 else None
