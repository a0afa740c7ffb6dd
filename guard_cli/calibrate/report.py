"""What a calibration prints, and the policy.yaml that it writes."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from guard_cli.calibrate.good_runs import FromRuns
from guard_cli.calibrate.propose import DROPS, IN_TIME, MOST_ITEMS, Costs, Delay
from guard_core.policy import DetectorName, Policy

RULE_KEYS = {
    "heldout_decline": "rise_eps",
    "hacking_gap": "max_proxy_real_gap",
    "kl_hard_stop": "kl.hard_stop",
}


def show_costs(
    console: Console, policy: Policy, found: Costs, needed: list[int | None], score: float
) -> None:
    """Print the table of delays, and for each fall that is not seen in time what it would take.

    A fall by more than `score`, the baseline's, cannot happen, and has no delay.
    """
    if found.drops:
        _show_delays(console, policy, found)
    if impossible := [f"{100 * drop:g}" for drop in DROPS if drop not in found.drops]:
        console.print(
            f"A score of {score:.3g} cannot fall by {' or '.join(impossible)} points. A run from there is "
            "judged by a rise of its reward, and once it stands on a level that it has risen to.",
            soft_wrap=True,
        )
    for drop, delay, items in zip(found.drops, found.calibrated, needed, strict=True):
        if items is not None:
            horizon, accepted = policy.calibrated.horizon, policy.calibrated.max_decline
            console.print(_advice(found.items, drop, delay, items, horizon, accepted), soft_wrap=True)


def _show_delays(console: Console, policy: Policy, found: Costs) -> None:
    horizon, alpha = policy.calibrated.horizon, policy.calibrated.alpha
    console.print(
        f"Median delay, in evaluations, after a sudden fall of the held-out score, with at most {alpha:.3g} "
        f"false stops in {horizon} evaluations each:",
        soft_wrap=True,
    )
    table = Table(pad_edge=False)
    table.add_column("detector", no_wrap=True)
    for drop in found.drops:
        table.add_column(f"{100 * drop:g} points", justify="right")
    table.add_row("calibrated", *map(_cell, found.calibrated))
    table.add_row("heldout_guard", *map(_cell, found.heldout_guard))
    table.add_row("least possible (mean)", *(f"{least:.0f}" for least in found.least), style="dim")
    console.print(table)


def _cell(delay: Delay) -> str:
    if math.isfinite(delay.median):
        return f"{delay.median:.0f}"
    return f"not seen ({100 * delay.seen:.0f} % are)"


def _advice(items: int, drop: float, delay: Delay, needed: int, horizon: int, accepted: float) -> str:
    if drop <= accepted:
        return f"A fall of {100 * drop:.0f} points is accepted: calibrated.max_decline is {accepted:g}."
    in_time = f"{IN_TIME * horizon:.0f} evaluations"
    seen = (
        "you will not see" if math.isinf(delay.median) else f"it takes {delay.median:.0f} evaluations to see"
    )
    late = f"With {items} items {seen} {100 * drop:g} points in time ({in_time})"
    if needed > MOST_ITEMS:
        return f"{late}, and no practical number of such items would do."
    return f"{late}: take {needed}, or more samples of each."


def show_runs(console: Console, found: FromRuns, rate: float, detector: DetectorName) -> None:
    """Print what the good runs reached, and what their number supports."""
    rules = ", ".join(f"{RULE_KEYS[rule]} ({rule})" for rule in found.rules)
    console.print(f"From {found.runs} good runs: {rules}.", soft_wrap=True)
    console.print(
        f"{found.runs} runs support this: a new run of the same kind is stopped with probability at most "
        f"{found.supported:.2g}." + _too_few(found, rate),
        soft_wrap=True,
    )
    advised = [RULE_KEYS[rule] for rule in found.rules if RULE_KEYS[rule] != "kl.hard_stop"]
    if detector == "calibrated" and advised:
        console.print(
            f"Under detector: calibrated HeldOutGuard only advises, so {' and '.join(advised)} stop nothing, "
            "and the calibrated detector stops at its own rate. --detector both lets them stop, too.",
            soft_wrap=True,
        )
    for name, kl in found.largest_kl.items():
        console.print(f"  {escape(name)}: largest KL EMA {kl:.3g} nats/token", style="dim", soft_wrap=True)
    if not found.largest_kl:
        console.print("No run has a KL to the reference: kl.hard_stop is left out, and the KL stops nothing.")
    for reason in found.skipped:
        console.print(f"Note: skipped {escape(reason)}", soft_wrap=True)


def _too_few(found: FromRuns, rate: float) -> str:
    if found.supported <= rate:
        return ""
    return f" For the wanted {rate:g} it would take {found.needed} runs; the thresholds are the largest seen."


def show_kl(console: Console) -> None:
    """Say that a KL stop cannot be had from outcomes."""
    console.print(
        "kl.hard_stop is left out, so the KL stops nothing: outcomes say nothing about the KL, and no value "
        "carries over from model to model (good runs reach 0.003 nats/token on one and 0.07 on another). For "
        "a limit give good runs of this model with --from-runs.",
        soft_wrap=True,
    )


def policy_yaml(policy: Policy, source: str, found: FromRuns | None) -> str:
    """A policy.yaml with what was chosen, and a comment where each value comes from."""
    guard, calibrated = policy.heldout_guard, policy.calibrated
    kl = (
        "# of the good runs"
        if found and found.kl_hard_stop is not None
        else "# not calibrated: stops nothing"
    )
    lines = [
        f"# Made by `rlguard calibrate` from {source}.",
        f"# Wanted: at most {calibrated.alpha:g} false stops in {calibrated.horizon} evaluations.",
        f"detector: {policy.detector}",
        "calibrated:",
        f"  alpha: {calibrated.alpha:g}",
        f"  horizon: {calibrated.horizon}",
        f"  baseline_passes: {calibrated.baseline_passes}",
        f"  samples: {calibrated.samples}",
        f"heldout_guard:{'  # advice only, under this detector' if policy.detector == 'calibrated' else ''}",
        f"  ema_alpha: {guard.ema_alpha:g}",
        f"  min_steps: {guard.min_steps}",
        f"  decline_patience: {guard.decline_patience}",
        f"  rise_eps: {guard.rise_eps!r}",
        f"  max_proxy_real_gap: {guard.max_proxy_real_gap!r}",
        "kl:",
        f"  hard_stop: {'null' if policy.kl.hard_stop is None else repr(policy.kl.hard_stop)}  {kl}",
    ]
    return "\n".join(lines) + "\n"


def as_json(policy: Policy, found: Costs | None, needed: list[int | None], runs: FromRuns | None) -> Any:
    """Everything that is printed, for programs; a delay that is not seen is null."""
    return {
        "policy": policy.model_dump(mode="json", include={"detector", "kl", "calibrated", "heldout_guard"}),
        "items": found.items if found else None,
        "delays": None
        if found is None
        else [
            {
                "drop": drop,
                "calibrated": _number(a.median),
                "calibrated_seen": a.seen,
                "heldout_guard": _number(b.median),
                "heldout_guard_seen": b.seen,
                "least": least,
                "items_needed": items,
            }
            for drop, a, b, least, items in zip(
                found.drops, found.calibrated, found.heldout_guard, found.least, needed, strict=True
            )
        ],
        "from_runs": None
        if runs is None
        else {
            "runs": runs.runs,
            "rules": list(runs.rules),
            "supported": runs.supported,
            "needed": runs.needed,
            "largest_kl": runs.largest_kl,
            "skipped": list(runs.skipped),
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
