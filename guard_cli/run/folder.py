"""The report folder of a run: report.html, plot.svg, verdict.json, run.json, history.jsonl, policy.yaml
and the best checkpoint. A part that cannot be written is named; the others are written all the same.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guard_cli.errors import CliError
from guard_cli.output import say
from guard_cli.starting import settings_to_start
from guard_cli.summary import COUNTS, read_verdict
from guard_core.wire import Verdict

if TYPE_CHECKING:
    from guard_cli.run.plan import Finished, Plan
    from guard_service.settings import GuardSettings

BEST = "best_checkpoint"
DRAWN_STEPS = 2000  # as the dashboard asks for


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
    _try("report.html", lambda: _write(out / "report.html", render(out, picture=out / "plot.svg")))


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
        "guard_lost": None if ending.guard_lost is None else ending.guard_lost.reason,
        "guard_restarts": ending.restarts,
        "checkpoints": None if verdict is None else {name: getattr(verdict, name) for name in COUNTS},
        "checkpoints_not_evaluated": None if verdict is None else verdict.announced - verdict.evaluated,
        "steps_after_last_judged_checkpoint": None if verdict is None else verdict.steps_since_evaluation,
        "started": finished.started,
        "seconds": finished.ended - finished.started,
    }


def find_report(path: Path) -> Path | None:
    """The report folder that this is, or that lies in it; None if there is none."""
    return next((place for place in (path, path / "report") if (place / "run.json").is_file()), None)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a file.

    Raises:
        CliError: it cannot be read.
    """
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CliError(f"{path} cannot be read: {error}", 1) from None


def last_verdict(folder: Path) -> Verdict | None:
    """The last verdict of a run that has ended; None if there was none."""
    file = folder / "verdict.json"
    return read_verdict(read_json(file)) if file.is_file() else None


def read_history(path: Path) -> list[dict[str, Any]]:
    """The lines of a history.jsonl, without further passes over a checkpoint: one line for each step."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [row for line in lines if "pass_index" not in (row := json.loads(line))]


def render(folder: Path, picture: Path | None = None) -> str:
    """The page of a run that has ended, made again of its folder; `picture`: where the plot is written, too.

    Raises:
        CliError: a part of the folder cannot be read.
    """
    from guard_cli.report.plot import draw
    from guard_cli.run.report import page
    from guard_core.guard_log import symptoms_of_history
    from guard_core.rollouts import side_by_side
    from guard_service.errors import GuardError
    from guard_service.store import FIGURES, ROLLOUTS, stored_policy, thinned_history

    state_dir, facts, verdict = folder / "guard", read_json(folder / "run.json"), last_verdict(folder)
    lines = read_history(folder / "history.jsonl")
    plot = draw(lines, verdict)
    if picture is not None:
        _write(picture, plot)
    try:
        history, policy = thinned_history(state_dir, DRAWN_STEPS), stored_policy(state_dir)
        figures, rollouts = FIGURES.read(state_dir), ROLLOUTS.read(state_dir)
    except GuardError as error:
        raise CliError(str(error), 1) from None
    moments = () if verdict is None else side_by_side(rollouts, verdict)
    kept = BEST if (folder / BEST).exists() else ""
    return page(
        facts, history, verdict, policy, plot, kept, moments, figures, symptoms_of_history(lines, figures)
    )


def how_to_go_on(folder: Path) -> str:
    """The command that starts a new run from the checkpoint that was kept; "" without one."""
    best = folder / BEST
    if not best.is_dir() or not (folder / "run.json").is_file():
        return ""
    facts = read_json(folder / "run.json")
    arguments, trainer = list(facts.get("command") or []), list(facts.get("trainer") or [])
    there = [] if facts.get("folder") in (None, os.getcwd()) else ["cd", facts["folder"], "&&"]
    new = ["--resume-from", str(best.absolute())]
    if arguments:
        options = _without(arguments[1 : len(arguments) - len(trainer)], ("--out", "--resume-from"))
        new += ["--out", _next_name(folder), *options, *trainer]
    words = [*there, "rlguard", "run", *new]
    command = " ".join(word if word == "&&" else shlex.quote(word) for word in words)
    return command if arguments else f"{command} …"


def how_it_starts(folder: Path) -> str:
    """What a trainer that is followed needs to start there, in one clause; "" of any other."""
    path = shlex.quote(str((folder / BEST).absolute()))
    return settings_to_start(str(read_json(folder / "run.json").get("format", "")), path, "NEW_FOLDER")


def _without(options: list[str], names: tuple[str, ...]) -> list[str]:
    """The options but those with these names, each of which has a value."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in names:
            next(words, None)
        elif not word.startswith(tuple(f"{name}=" for name in names)):
            kept.append(word)
    return kept


def _next_name(folder: Path) -> str:
    """A folder beside this one that is not there yet."""
    folder = folder.absolute()
    number = 2
    while (new := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return str(new)


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
