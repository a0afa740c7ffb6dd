"""What of a past run nobody judged, as its log and the report of `rlguard run` show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlguard.cli.errors import CliError, ExitCode, Result
from rlguard.cli.saved_run import find_report, read_run_file
from rlguard.core.terminal import plain


@dataclass(frozen=True, slots=True)
class Ended:
    """How the run itself ended, where that was no pass; "" for nothing to say.

    `unjudged`: the outcome, where it says that a part of the run was not judged.
    """

    note: str = ""
    unjudged: str = ""


NOTHING_KNOWN = Ended()


def report_of(path: Path) -> Path | None:
    """The report of `rlguard run` that `path` is or lies in; None if it is no report."""
    return find_report(path) or find_report(path.parent)


def how_it_ended(path: Path) -> Ended:
    """What the report of the run that is replayed says of its end; nothing without a report."""
    folder = report_of(path)
    if folder is None:
        return NOTHING_KNOWN
    try:
        facts = read_run_file(folder / "run.json")
        code, sentence = facts["exit_code"], plain(str(facts["outcome"]), 2_000)
    except (CliError, KeyError) as error:
        return Ended(f"how the run itself ended is not known: {error}")
    if code == ExitCode.FINISHED:
        return NOTHING_KNOWN
    unjudged = sentence if facts.get("result") in (Result.NOT_JUDGED, Result.GUARD_LOST) else ""
    why = "" if unjudged else f": {sentence}"
    note = (
        f"the run itself ended with exit code {code}{why}. A replay judges the steps and evaluations that "
        "there are, and not what was refused, failed or never reported"
    )
    return Ended(note, unjudged)
