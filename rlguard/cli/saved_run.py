"""The folder of a run that has ended, as other commands read it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from rlguard.cli.errors import CliError
from rlguard.cli.starting import start_hint
from rlguard.cli.summary import read_verdict
from rlguard.core.wire import Verdict

BEST = "best_checkpoint"


def find_report(path: Path) -> Path | None:
    """The report folder that this is, or that lies in it; None if there is none."""
    return next((place for place in (path, path / "report") if (place / "run.json").is_file()), None)


def report_in(path: Path) -> Path:
    """The report folder that this is, or that lies in it.

    Raises:
        CliError: there is none.
    """
    if (report := find_report(path)) is None:
        raise CliError(f"{path} has no run.json: the run has not ended, or this is not its report folder")
    return report


def read_run_file(path: Path) -> dict[str, Any]:
    """An object in a file.

    Raises:
        CliError: it cannot be read.
    """
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CliError(f"{path} cannot be read: {error}") from None


def verdict_at_end(folder: Path) -> Verdict | None:
    """The last verdict of a run that has ended; None if there was none."""
    file = folder / "verdict.json"
    return read_verdict(read_run_file(file)) if file.is_file() else None


def read_history(path: Path) -> list[dict[str, Any]]:
    """The lines of a history.jsonl, without further passes over a checkpoint: one line for each step."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [row for line in lines if "pass_index" not in (row := json.loads(line))]


def how_to_go_on(folder: Path) -> str:
    """The command that starts a new run from the checkpoint that was kept; "" without one, or of a demo."""
    best = folder / BEST
    if not best.is_dir() or not (folder / "run.json").is_file():
        return ""
    facts = read_run_file(folder / "run.json")
    arguments, trainer = list(facts.get("command") or []), list(facts.get("trainer") or [])
    if not arguments:
        return ""
    there = [] if facts.get("folder") in (None, os.getcwd()) else ["cd", facts["folder"], "&&"]
    options = _without(arguments[1 : len(arguments) - len(trainer)], ("--out", "--resume-from"))
    new = ["--resume-from", str(best.absolute()), "--out", _next_name(folder), *options, *trainer]
    words = [*there, "rlguard", "run", *new]
    return " ".join(word if word == "&&" else shlex.quote(word) for word in words)


def how_it_starts(folder: Path) -> str:
    """What a trainer that is followed needs to start there, in one clause; "" of any other."""
    path = shlex.quote(str((folder / BEST).absolute()))
    return start_hint(str(read_run_file(folder / "run.json").get("format", "")), path, "NEW_FOLDER")


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
