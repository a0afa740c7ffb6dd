"""The report folder of a run: report.html, plot.svg, verdict.json, run.json, history.jsonl, policy.yaml
and the best checkpoint. A part that cannot be written is named; the others are written all the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guard_cli.output import say

if TYPE_CHECKING:
    from guard_cli.run.plan import Finished, Plan
    from guard_service.settings import GuardSettings

BEST = "best_checkpoint"
DRAWN_STEPS = 2000  # as the dashboard asks for
#: What became of the checkpoints, and the evaluations that were left waiting, as the last verdict says.
CHECKPOINTS = ("announced", "evaluated", "failed", "skipped", "refused", "waiting")


def write_report(plan: Plan, settings: GuardSettings, finished: Finished) -> None:
    """Write the folder. The guard must have ended: its store is read."""
    state_dir = settings.state_dir
    facts = run_facts(plan, settings.name, finished)
    verdict = finished.ending.verdict
    _try("run.json", lambda: _write_json(plan.out / "run.json", facts))
    if verdict is not None:
        _try("verdict.json", lambda: _write(plan.out / "verdict.json", verdict.model_dump_json(indent=2)))
    _try("history.jsonl", lambda: _write_history(state_dir, plan.out / "history.jsonl"))
    _try("policy.yaml", lambda: _write_policy(state_dir, plan.out / "policy.yaml"))
    _try(BEST, lambda: _take_best(state_dir / "best", plan.out / BEST))
    _try("report.html", lambda: _write_html(plan, facts, finished))


def run_facts(plan: Plan, name: str, finished: Finished) -> dict[str, Any]:
    """What `run.json` holds: who ended the run, and how."""
    ending, verdict = finished.ending, finished.ending.verdict
    return {
        "name": name,
        "exit_code": finished.outcome.code,
        "outcome": finished.outcome.sentence,
        "trainer": list(plan.command),
        "trainer_code": ending.trainer_code,
        "trainer_ended_itself": ending.trainer_ended_itself,
        "interrupted_by": ending.interrupted_by,
        "guard_lost": None if ending.guard_lost is None else ending.guard_lost.reason,
        "checkpoints": None if verdict is None else {name: getattr(verdict, name) for name in CHECKPOINTS},
        "checkpoints_not_evaluated": None if verdict is None else verdict.announced - verdict.evaluated,
        "steps_after_last_judged_checkpoint": None if verdict is None else verdict.steps_since_evaluation,
        "started": finished.started,
        "seconds": finished.ended - finished.started,
    }


def read_history(path: Path) -> list[dict[str, Any]]:
    """The lines of a history.jsonl, without further passes over a checkpoint: one line for each step."""
    with path.open(encoding="utf-8") as lines:
        return [row for line in lines if "pass_index" not in (row := json.loads(line))]


def _write_html(plan: Plan, facts: dict[str, Any], finished: Finished) -> None:
    from guard_cli.report.plot import draw
    from guard_cli.run.report import page
    from guard_core.guard_log import symptoms_of_history
    from guard_core.rollouts import side_by_side
    from guard_service.store import FIGURES, ROLLOUTS, stored_policy, thinned_history

    state_dir, best = plan.out / "guard", plan.out / BEST
    verdict = finished.ending.verdict
    lines = read_history(plan.out / "history.jsonl")
    picture = draw(lines, verdict)
    _write(plan.out / "plot.svg", picture)
    history, policy = thinned_history(state_dir, DRAWN_STEPS), stored_policy(state_dir)
    kept = best if best.exists() else None
    rollouts = () if verdict is None else side_by_side(ROLLOUTS.read(state_dir), verdict)
    figures = FIGURES.read(state_dir)
    seen = symptoms_of_history(lines, figures)
    html = page(facts, history, verdict, policy, picture, kept, rollouts, figures, seen)
    _write(plan.out / "report.html", html)


def _write_history(state_dir: Path, path: Path) -> None:
    from guard_service.store import export_history

    # Per-item outcomes are in it: for this user only.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        for line in export_history(state_dir):
            out.write(json.dumps(line) + "\n")


def _write_policy(state_dir: Path, path: Path) -> None:
    import yaml

    from guard_service.store import stored_policy

    _write(path, yaml.safe_dump(stored_policy(state_dir).model_dump(mode="json"), sort_keys=False))


def _take_best(kept: Path, best: Path) -> None:
    if kept.exists():
        kept.rename(best)


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=2))


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def _try(what: str, write: Callable[[], None]) -> None:
    """The exit code of the run must not depend on its report."""
    try:
        write()
    except Exception as error:
        say(f"rlguard: {what} could not be written: {type(error).__name__}: {error}")
