"""One calibration from its wish to its result: reads, proposes, prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape

from guard_cli.calibrate import report
from guard_cli.calibrate.good_runs import FromRuns, learn, read_runs
from guard_cli.calibrate.inputs import Given, read_baseline
from guard_cli.calibrate.propose import Costs, Sizes, costs, items_needed, propose_guard
from guard_cli.calibrate.simulate import World
from guard_core.policy import CalibratedPolicy, DetectorName, HeldOutGuardPolicy, KlPolicy, Policy

#: HeldOutGuard's averaging where no baseline says which is quickest: see docs/calibrate.md.
WITHOUT_BASELINE = HeldOutGuardPolicy(ema_alpha=0.7, decline_patience=3, min_steps=5)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; see the options of `rlguard calibrate`."""

    baseline: Path | None
    from_runs: Path | None
    rate: float
    horizon: int
    detector: DetectorName
    samples: int
    reward_noise: float | None
    seed: int

    @property
    def guard_rate(self) -> float:
        """False stops that HeldOutGuard may have: under `both` half of them."""
        return self.rate / 2 if self.detector == "both" else self.rate


def run_calibration(wish: Wish, console: Console, plot: Path | None) -> tuple[dict[str, Any], str]:
    """Calibrate, print, and give back the result as JSON and the policy as YAML.

    Raises:
        CliError: an input cannot be used.
    """
    given = read_baseline(wish.baseline, wish.samples) if wish.baseline is not None else None
    world = World.of(given.baseline, _noise(wish, given), wish.seed) if given is not None else None
    guard = WITHOUT_BASELINE
    if given is not None and world is not None:
        console.print(_headline(wish, given, world), soft_wrap=True)
        guard = propose_guard(world, wish.guard_rate, wish.horizon)
    learnt = _learn(wish, guard, looser=world is not None)
    passes = len(given.baseline.passes) if given is not None else CalibratedPolicy().baseline_passes
    policy = Policy(
        detector=wish.detector,
        kl=KlPolicy(hard_stop=learnt.kl_hard_stop if learnt is not None else None),
        heldout_guard=learnt.policy if learnt is not None else guard,
        calibrated=CalibratedPolicy(
            alpha=wish.rate,
            horizon=wish.horizon,
            samples=wish.samples,
            baseline_passes=passes,
            seed=wish.seed,
        ),
    )
    found: Costs | None = None
    needed: list[int | None] = []
    if given is not None and world is not None:
        found = costs(world, given.baseline, policy, wish.rate)
        sizes = Sizes(world, given.baseline, policy, found)
        needed = [items_needed(world, sizes, found, policy, i) for i in range(len(found.drops))]
        report.show_costs(console, policy, found, needed, world.strata.score)
        if plot is not None:
            from guard_cli.calibrate.plot import save_costs

            save_costs(plot, policy, found, sizes, needed)
    if learnt is not None:
        report.show_runs(console, learnt, wish.guard_rate, wish.detector)
    else:
        report.show_kl(console)
    text = report.policy_yaml(policy, _source(wish), learnt)
    Policy.model_validate(yaml.safe_load(text))
    return report.as_json(policy, found, needed, learnt), text


def _noise(wish: Wish, given: Given | None) -> float | None:
    if wish.reward_noise is not None or given is None:
        return wish.reward_noise
    return given.reward_noise


def _learn(wish: Wish, guard: HeldOutGuardPolicy, looser: bool) -> FromRuns | None:
    """Thresholds from the good runs; never tighter than what noise alone needs, where a baseline says it."""
    if wish.from_runs is None:
        return None
    runs, skipped = read_runs(wish.from_runs)
    found = learn(runs, guard, wish.guard_rate, skipped)
    if not looser:
        return found
    floor = {
        name: max(getattr(found.policy, name), getattr(guard, name))
        for name in ("rise_eps", "max_proxy_real_gap")
    }
    return replace(found, policy=found.policy.model_copy(update=floor))


def _headline(wish: Wish, given: Given, world: World) -> str:
    passes = len(given.baseline.passes)
    what = "pass" if passes == 1 else "passes"
    text = (
        f"{escape(str(wish.baseline))}: {passes} {what} of {world.items} items, score "
        f"{world.strata.score:.3f}; the reward of a round has a standard error of {world.reward_noise:.3f}."
    )
    if given.baseline.precision == given.baseline.samples and passes > 1:
        text += " The passes are all the same (greedy decoding?): they count as one."
    elif given.baseline.precision < 16:
        text += f" {passes} of the recommended 16 passes: the calibrated detector will be slower for it."
    return text


def _source(wish: Wish) -> str:
    return " and ".join(str(path) for path in (wish.baseline, wish.from_runs) if path is not None)
