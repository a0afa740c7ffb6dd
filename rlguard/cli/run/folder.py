"""The report folder of a run: report.html, plot.svg, verdict.json, run.json, history.jsonl, policy.yaml
and the best checkpoint. A part that cannot be written is named; the others are written all the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlguard.cli.output import say
from rlguard.cli.report.local import picture, render
from rlguard.cli.saved_run import BEST
from rlguard.cli.summary import COUNTS

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings
    from rlguard.cli.run.plan import Finished, Plan


def write_report(plan: Plan, settings: GuardSettings, finished: Finished) -> None:
    """Write the folder. The guard must have ended: its store is read."""
    state_dir, out = settings.state_dir, plan.out
    facts = run_facts(plan, settings.name, finished)
    verdict = finished.ending.verdict
    _try("run.json", lambda: _write_json(out / "run.json", facts))
    if verdict is not None:
        _try("verdict.json", lambda: _write(out / "verdict.json", verdict.model_dump_json(indent=2)))
    _try("history.jsonl", lambda: _write_history(state_dir, out / "history.jsonl"))
    _try("policy.yaml", lambda: _write_policy(state_dir, out / "policy.yaml"))
    _try(BEST, lambda: _take_best(state_dir / "best", out / BEST))
    _try("plot.svg", lambda: _write(out / "plot.svg", picture(out)))
    _try("report.html", lambda: _write(out / "report.html", render(out)))


def run_facts(plan: Plan, name: str, finished: Finished) -> dict[str, Any]:
    """What `run.json` holds: who ended the run, and how."""
    ending, verdict = finished.ending, finished.ending.verdict
    return {
        "name": name,
        "result": finished.outcome.result,
        "exit_code": finished.outcome.code,
        "outcome": finished.outcome.sentence,
        "command": list(plan.arguments),
        "folder": os.getcwd(),
        "format": "" if plan.follow is None else plan.follow.format,
        "trainer": list(plan.command),
        "trainer_code": ending.trainer_code,
        "trainer_ended_itself": ending.trainer_ended_itself,
        "interrupted_by": ending.interrupted_by,
        "guard_lost": ending.guard_lost or None,
        "guard_restarts": ending.restarts,
        "checkpoints": None if verdict is None else {name: getattr(verdict, name) for name in COUNTS},
        "checkpoints_not_evaluated": None if verdict is None else verdict.announced - verdict.evaluated,
        "steps_after_last_judged_checkpoint": None if verdict is None else verdict.steps_since_evaluation,
        "started": finished.started,
        "seconds": finished.ended - finished.started,
    }


def _write_history(state_dir: Path, path: Path) -> None:
    from guard_service.history import export_history

    # Per-item outcomes are in it: for this user only.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        for line in export_history(state_dir):
            out.write(json.dumps(line) + "\n")


def _write_policy(state_dir: Path, path: Path) -> None:
    import yaml

    from guard_service.event_log import stored_policy

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
