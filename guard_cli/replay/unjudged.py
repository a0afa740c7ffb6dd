"""What of a past run nobody judged: the rule of `guard_core.ending`, for what the log and its report show.

A log has steps and evaluations. Which checkpoints were refused, skipped or failed stands only in the report
of `rlguard run`; without one only the steps after the last evaluation tell of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from guard_cli.errors import CliError, ExitCode, Result
from guard_cli.replay.fold import fold_run
from guard_cli.replay.run import Run
from guard_cli.saved_run import find_report, read_run_file
from guard_cli.summary import COUNTS
from guard_core.ending import left_out
from guard_core.policy import Policy
from guard_core.terminal import plain
from guard_core.wire import Verdict


@dataclass(frozen=True, slots=True)
class Ended:
    """How the run itself ended, where that was no pass.

    `note`: in a sentence, or "". `counts`: of its checkpoints. `unjudged`: the sentence again where
    there are none, and it is all that says what nobody judged.
    """

    note: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    unjudged: str = ""


NOTHING_TOLD = Ended()


def report_of(path: Path) -> Path | None:
    """The report of `rlguard run` that `path` is or lies in; None if it is no report."""
    return find_report(path) or find_report(path.parent)


def how_it_ended(path: Path) -> Ended:
    """What the report says of the end of the run that is replayed; nothing if there is no report."""
    folder = report_of(path)
    if folder is None:
        return NOTHING_TOLD
    try:
        facts = read_run_file(folder / "run.json")
    except CliError as error:
        return Ended(f"how the run itself ended is not known: {error}")
    code, sentence = facts.get("exit_code"), plain(str(facts.get("outcome")), 2_000)
    if code == ExitCode.FINISHED:
        return NOTHING_TOLD
    counts = facts.get("checkpoints") or {}
    known = isinstance(counts, dict) and all(isinstance(counts.get(name), int) for name in COUNTS)
    note = (
        f"the run itself ended with exit code {code}: {sentence}. A replay judges the steps and "
        "evaluations that there are, and not what was refused, failed or never reported"
    )
    unjudged = facts.get("result") in (Result.NOT_JUDGED, Result.GUARD_LOST) and not known
    return Ended(note, counts if known else {}, sentence if unjudged else "")


def unjudged(run: Run, ended: Ended) -> str:
    """What nobody judged of a run that was evaluated, in one clause; "" where all of it was.

    What lacks because there is no evaluation at all is said by each detector.
    """
    if not run.evaluations:
        return ""
    return left_out(_last(run).model_copy(update=dict(ended.counts))) or ended.unjudged


@lru_cache(maxsize=1)  # each detector asks of the same run
def _last(run: Run) -> Verdict:
    """The last verdict, of which only the counts are read: they are the same under every policy."""
    return fold_run(run, Policy(detector="heldout_guard")).verdict()
