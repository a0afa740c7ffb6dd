"""What a replay prints: a table for people, JSON for programs. No judgement here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from guard_cli.replay.outcomes import DetectorOutcome
from guard_cli.replay.run import Run
from guard_cli.replay.symptoms import column_for
from guard_core.codes import Level
from guard_core.symptoms import TITLES, Examined, Unseen

STYLES = {"fired": "bold red", "warning": "yellow", "unknown": "cyan", "healthy": "green"}


def one(outcome: DetectorOutcome) -> dict[str, Any]:
    """The object of `--detector NAME --json`."""
    return {
        "fired": outcome.fired,
        "step": outcome.step,
        "rule": outcome.rule,
        "level": outcome.level.value,
    }


def full(
    run: Run, named: Sequence[tuple[str, Sequence[DetectorOutcome]]], examined: Examined
) -> dict[str, Any]:
    """The object of `--json`.

    Args:
        run: the replayed run.
        named: for each policy its name and what each detector said; the first is the policy as it is.
        examined: the symptoms, which no detector knows of.
    """
    return {
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
        "policies": [
            {"policy": name, "detectors": [_outcome(outcome) for outcome in outcomes]}
            for name, outcomes in named
        ],
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
        "reason": outcome.reason,
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
    named: Sequence[tuple[str, Sequence[DetectorOutcome]]],
    examined: Examined,
) -> None:
    """Print the run, what each detector said, advice, symptoms, what could not be judged, and the notes."""
    console.print(escape(_headline(run)))
    console.print(escape(_mapping(run)), style="dim")
    console.print(_table(run, named[0][1]) if len(named) == 1 else _side_by_side(named))
    for number, (name, _) in enumerate(named[1:], start=1):
        console.print(f"({number}) {escape(name)}", soft_wrap=True)
    advice = dict.fromkeys(said for _, outcomes in named for o in outcomes for said in o.advice)
    for said in advice:
        when = f"from step {said.step:,}" + ("" if said.at_end else ", no longer at the end")
        console.print(
            f"Advice {when} ({said.condition.code}): {escape(said.condition.message)}", soft_wrap=True
        )
    _show_symptoms(console, examined)
    inert = dict.fromkeys(sentence for _, outcomes in named for o in outcomes for sentence in o.inert)
    if inert:
        console.print("Not judged:", style="bold")
        for sentence in inert:
            console.print(f"  {escape(sentence)}", soft_wrap=True)
    for note in run.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)


def _show_symptoms(console: Console, examined: Examined) -> None:
    """A line for each, and one for all that could not be looked for."""
    looked_for = len(TITLES) - len(examined.unseen)
    found = f": none of {looked_for} looked for" if looked_for and not examined.symptoms else ""
    console.print(f"Symptoms (advice; nothing is stopped for them){found}", style="bold")
    for symptom in examined.symptoms:
        console.print(f"  {TITLES[symptom.name]}: {escape(symptom.sentence)}", soft_wrap=True)
    if examined.unseen:
        each = "; ".join(_unseen(one) for one in examined.unseen)
        console.print(f"  Not looked for: {escape(each)}", soft_wrap=True)


def _unseen(one: Unseen) -> str:
    column = column_for(one)
    return f"{TITLES[one.name]} ({one.why}{f'; it takes {column}' if column else ''})"


def _table(run: Run, outcomes: Sequence[DetectorOutcome]) -> Table:
    table = Table(pad_edge=False)
    table.add_column("detector", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("why")
    for outcome in outcomes:
        step = "-" if outcome.step is None else f"{outcome.step:,}"
        if run.attempts > 1 and outcome.attempt is not None:
            step += f" (attempt {outcome.attempt})"
        table.add_row(outcome.detector, _level(outcome), step, outcome.rule or "-", _why(outcome))
    return table


def _why(outcome: DetectorOutcome) -> str:
    """The reason; where it is that something cannot be judged, that stands once under the table."""
    if outcome.level is Level.UNKNOWN and outcome.inert:
        return "not judged, see below"
    return escape(outcome.reason)


def _side_by_side(named: Sequence[tuple[str, Sequence[DetectorOutcome]]]) -> Table:
    """Detectors down, policies across."""
    table = Table(pad_edge=False)
    table.add_column("detector", no_wrap=True)
    for number in range(len(named)):
        table.add_column(f"({number})" if number else "as it is")
    for row in zip(*(outcomes for _, outcomes in named), strict=True):
        table.add_row(row[0].detector, *(_verdict(outcome) for outcome in row))
    return table


def _verdict(outcome: DetectorOutcome) -> str:
    if outcome.step is None:
        return _level(outcome)
    return f"{_level(outcome)} at {outcome.step:,}\n{outcome.rule}"


def _level(outcome: DetectorOutcome) -> str:
    return f"[{STYLES[outcome.level.value]}]{outcome.level.value}[/]"


def _headline(run: Run) -> str:
    evaluations = f"{_count(len(run.evaluations), 'held-out evaluation')}"
    if run.has_items:
        evaluations += f" of {_count(len(run.evaluations[0].items), 'item')}" if run.evaluations else ""
    passes = f", {_count(len(run.baseline), 'baseline pass', 'baseline passes')}" if run.baseline else ""
    attempts = f" in {run.attempts} attempts" if run.attempts > 1 else ""
    steps = _count(len(run.step), "step")
    return f"{run.source} ({run.format}, {run.columns.framework}): {steps}{attempts}, {evaluations}{passes}"


def _count(number: int, one_thing: str, many: str | None = None) -> str:
    return f"{number:,} {one_thing if number == 1 else many or one_thing + 's'}"


def _mapping(run: Run) -> str:
    return "read as " + ", ".join(f"{ours} = {theirs}" for ours, theirs in run.columns.source.items())
