"""What a replay prints: a table for people, JSON for programs. No judgement here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlguard.cli.replay.headline import headline
from rlguard.cli.replay.outcomes import DetectorOutcome
from rlguard.cli.replay.run import Run
from rlguard.cli.replay.symptoms import column_for
from rlguard.core.symptoms import TITLES, Examined
from rlguard.core.wording import count

STYLES = {"fired": "bold red", "warning": "yellow", "unknown": "cyan", "healthy": "green"}


def one(outcome: DetectorOutcome) -> dict[str, Any]:
    """The object of `--detector NAME --json`."""
    return {
        "fired": outcome.fired,
        "step": outcome.step,
        "rule": outcome.rule,
        "level": outcome.level.value,
        "reason": outcome.reason,
    }


def full(run: Run, outcomes: Sequence[DetectorOutcome], examined: Examined) -> dict[str, Any]:
    """The object of `--json`: what the first detector said, then all of them, and the symptoms."""
    return {
        "headline": headline(run, outcomes[0]),
        **one(outcomes[0]),
        "source": run.source,
        "format": run.format,
        "framework": run.columns.framework,
        "columns": dict(run.columns.source),
        "steps": len(run.step),
        "attempts": run.attempts,
        "evaluations": len(run.evaluations),
        "items": len(run.evaluations[0].items) if run.evaluations and run.has_items else None,
        "baseline_passes": len(run.baseline),
        "notes": list(run.notes),
        "detectors": [_outcome(outcome) for outcome in outcomes],
        "symptoms": [
            {
                "name": symptom.name,
                "message": symptom.sentence,
                "first_step": symptom.first_step,
                "last_step": symptom.last_step,
                "numbers": dict(symptom.numbers),
            }
            for symptom in examined.symptoms
        ],
        "symptoms_not_looked_for": [
            {"name": unseen.name, "why": unseen.why, "needs": column_for(unseen)}
            for unseen in examined.unseen
        ],
    }


def _outcome(outcome: DetectorOutcome) -> dict[str, Any]:
    return {
        "detector": outcome.detector,
        **one(outcome),
        "attempt": outcome.attempt,
        "cannot_judge": list(outcome.inert),
        "advice": [
            {
                "code": said.condition.code.value,
                "message": said.condition.message,
                "attempt": said.attempt,
                "step": said.step,
                "at_end": said.at_end,
            }
            for said in outcome.advice
        ],
    }


def show(
    console: Console,
    run: Run,
    outcomes: Sequence[DetectorOutcome],
    examined: Examined,
    plot: Path | None = None,
) -> None:
    """Print the answer, the picture's path, a small table, then advice, symptoms and notes."""
    answer = headline(run, outcomes[0])
    console.print(escape(answer), style="bold", soft_wrap=True)
    if plot is not None:
        console.print(escape(str(plot)), soft_wrap=True)
    console.print(_table(run, outcomes))
    console.print(escape(f"{_about(run)}{_mapping(run)}"), style="dim", soft_wrap=True)
    for said in dict.fromkeys(said for outcome in outcomes for said in outcome.advice):
        when = f"from step {said.step:,}" + ("" if said.at_end else ", no longer at the end")
        console.print(f"Advice {when}: {escape(said.condition.message)}", soft_wrap=True)
    _show_symptoms(console, examined)
    for sentence in dict.fromkeys([*(s for outcome in outcomes for s in outcome.inert), *run.notes]):
        if sentence not in answer:
            console.print(f"Note: {escape(sentence)}", soft_wrap=True)


def _show_symptoms(console: Console, examined: Examined) -> None:
    for symptom in examined.symptoms:
        console.print(f"Advice, {TITLES[symptom.name]}: {escape(symptom.sentence)}", soft_wrap=True)


def _table(run: Run, outcomes: Sequence[DetectorOutcome]) -> Table:
    table = Table(pad_edge=False, box=None)
    for name in ("detector", "says", "step", "rule"):
        table.add_column(name, no_wrap=True, justify="right" if name == "step" else "left")
    for place, outcome in enumerate(outcomes):
        step = "-" if outcome.step is None else f"{outcome.step:,}"
        if run.attempts > 1 and outcome.attempt is not None:
            step += f" (attempt {outcome.attempt})"
        table.add_row(outcome.detector, _says(outcome, counts=place == 0), step, outcome.rule or "-")
    return table


def _says(outcome: DetectorOutcome, *, counts: bool) -> str:
    """The level; `counts`: of what stops a run. The others are the guard's parts, each alone: they advise."""
    style, level = STYLES[outcome.level.value], outcome.level.value
    return f"[{style}]{level}[/]" if counts or not outcome.fired else "[yellow]would advise to stop[/]"


def _about(run: Run) -> str:
    evaluations = count(len(run.evaluations), "held-out evaluation")
    if run.has_items and run.evaluations:
        evaluations += f" of {count(len(run.evaluations[0].items), 'item')}"
    passes = f", {count(len(run.baseline), 'baseline pass', 'baseline passes')}" if run.baseline else ""
    attempts = f" in {run.attempts} attempts" if run.attempts > 1 else ""
    steps = count(len(run.step), "step")
    return f"{run.source} ({run.format}, {run.columns.framework}): {steps}{attempts}, {evaluations}{passes}"


def _mapping(run: Run) -> str:
    renamed = [f"{ours} = {theirs}" for ours, theirs in run.columns.source.items() if ours != theirs]
    return "; read as " + ", ".join(renamed) if renamed else ""
