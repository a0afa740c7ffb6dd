"""The report of a run on this machine: what it adds to the page that reports share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guard_service.dashboard.page import Banner, frozen_page, text
from rlguard.cli.errors import CliError, Result
from rlguard.cli.report.page import ReportContent, about, drawing, report_page, verdict_rows
from rlguard.cli.saved_run import BEST, read_history, read_run_file, verdict_at_end
from rlguard.core.codes import Level
from rlguard.core.policy import Policy
from rlguard.core.symptoms import Examined
from rlguard.core.wire import FiguresReport, MomentRollouts, Verdict

DRAWN_STEPS = 2000  # as the dashboard asks for


def picture(folder: Path) -> str:
    """The plot of a run that has ended."""
    from rlguard.cli.report.plot import draw

    return draw(read_history(folder / "history.jsonl"), verdict_at_end(folder))


def render(folder: Path) -> str:
    """The page of a run that has ended, made of its folder.

    Raises:
        CliError: a part of the folder cannot be read.
    """
    from guard_service.display_data import DisplayData
    from guard_service.errors import GuardError
    from guard_service.event_log import stored_policy
    from guard_service.history import thinned_history
    from rlguard.core.display import side_by_side
    from rlguard.core.guard_log import symptoms_of_history

    state_dir, facts, verdict = folder / "guard", read_run_file(folder / "run.json"), verdict_at_end(folder)
    lines = read_history(folder / "history.jsonl")
    plot = picture(folder)
    try:
        history, policy = thinned_history(state_dir, DRAWN_STEPS), stored_policy(state_dir)
        shown = DisplayData.read(state_dir)
    except GuardError as error:
        raise CliError(str(error), 1) from None
    moments = () if verdict is None else side_by_side(shown.rollouts, verdict)
    kept = BEST if (folder / BEST).exists() else ""
    symptoms = symptoms_of_history(lines, shown.figures)
    return page(facts, history, verdict, policy, plot, kept, moments, shown.figures, symptoms)


def page(
    facts: Mapping[str, Any],
    history: Mapping[str, Any],
    verdict: Verdict | None,
    policy: Policy | None,
    picture: str,
    best: str,
    rollouts: Sequence[MomentRollouts] = (),
    figures: Sequence[FiguresReport] = (),
    symptoms: Examined | None = None,
) -> str:
    """The whole report, self-contained.

    Args:
        facts: content of run.json.
        best: directory of the last good checkpoint; "" if none was kept.
        history, verdict, policy, picture, rollouts, figures, symptoms: see `ReportContent`; without a
            verdict or a policy no guard has started.
    """
    banner, rows = _banner(facts, verdict), _run_rows(facts, verdict, best)
    if verdict is None or policy is None:
        return frozen_page(banner, {}, "", about(rows) + drawing(picture))
    content = ReportContent(verdict, history, policy, picture, rollouts, figures, symptoms)
    return report_page(banner, rows, content)


def _banner(facts: Mapping[str, Any], verdict: Verdict | None) -> Banner:
    headline, *more = re.split("[:;] ", facts["outcome"], maxsplit=1)
    result = facts["result"]
    latched = verdict is not None and verdict.latch_step is not None
    since = f"step {verdict.latch_step} of attempt {verdict.latch_attempt}, " if verdict and latched else ""
    ended = datetime.fromtimestamp(facts["started"] + facts["seconds"], UTC)
    return Banner(
        name=facts["name"],
        when=f"report · ended {ended:%Y-%m-%d %H:%M} UTC",
        state=_STATES.get(result, Level.UNKNOWN),
        word=result,
        headline=headline[:1].upper() + headline[1:],
        reason="".join(map(_sentence, more)),
        since=f"{since}exit code {facts['exit_code']}".capitalize(),
    )


#: The colour of a result; what was not judged, or not to the end, is unknown.
_STATES = {
    Result.FINISHED: Level.HEALTHY,
    Result.WARNING: Level.WARNING,
    Result.FIRED: Level.FIRED,
    Result.HALTED: Level.WARNING,
}


def _run_rows(facts: Mapping[str, Any], verdict: Verdict | None, best: str) -> Iterable[tuple[str, str]]:
    yield "Trainer", f"<code>{text(shlex.join(facts['trainer']))}</code>"
    ended = "ended by itself" if facts["trainer_ended_itself"] else "was stopped"
    yield "Its end", f"{ended}, exit code {facts['trainer_code']}"
    started = datetime.fromtimestamp(facts["started"], UTC)
    yield "Time", f"{started:%Y-%m-%d %H:%M:%S} UTC, {facts['seconds']:.0f} s"
    if verdict is None:
        yield "Verdict", "none was given"
        return
    yield from verdict_rows(verdict)
    if best:
        yield "Kept", f"the last good checkpoint, in <code>{text(best)}/</code>"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
