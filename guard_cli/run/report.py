"""The report of a run on this machine: what it adds to the page that reports share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guard_cli.report.page import ReportContent, about, drawing, report_page, verdict_rows
from guard_cli.run.outcome import WITH_A_WARNING
from guard_core.codes import Level
from guard_core.policy import Policy
from guard_core.symptoms import Examined
from guard_core.wire import FiguresReport, MomentRollouts, Verdict
from guard_service.dashboard.page import Banner, frozen_page, text


def page(
    facts: Mapping[str, Any],
    history: Mapping[str, Any],
    verdict: Verdict | None,
    policy: Policy | None,
    picture: str,
    best: Path | None,
    rollouts: Sequence[MomentRollouts] = (),
    figures: Sequence[FiguresReport] = (),
    symptoms: Examined | None = None,
) -> str:
    """The whole report, self-contained.

    Args:
        facts: content of run.json.
        best: directory of the last good checkpoint, if one was kept.
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
    code = facts["exit_code"]
    state, word = _STATES.get(code, (Level.UNKNOWN, "stopped"))
    if headline == WITH_A_WARNING:
        state, word = Level.WARNING, "warning"
    latched = verdict is not None and verdict.latch_step is not None
    since = f"step {verdict.latch_step} of attempt {verdict.latch_attempt}, " if verdict and latched else ""
    ended = datetime.fromtimestamp(facts["started"] + facts["seconds"], UTC)
    return Banner(
        name=facts["name"],
        when=f"report · ended {ended:%Y-%m-%d %H:%M} UTC",
        state=state,
        word=word,
        headline=headline[:1].upper() + headline[1:],
        reason="".join(map(_sentence, more)),
        since=f"{since}exit code {code}".capitalize(),
    )


#: By exit code: the colour, and the word above the headline.
_STATES = {
    0: (Level.HEALTHY, "finished"),
    3: (Level.FIRED, "fired"),
    4: (Level.WARNING, "halted"),
    5: (Level.UNKNOWN, "not judged"),
}


def _run_rows(
    facts: Mapping[str, Any], verdict: Verdict | None, best: Path | None
) -> Iterable[tuple[str, str]]:
    yield "Trainer", f"<code>{text(shlex.join(facts['trainer']))}</code>"
    ended = "ended by itself" if facts["trainer_ended_itself"] else "was stopped"
    yield "Its end", f"{ended}, exit code {facts['trainer_code']}"
    started = datetime.fromtimestamp(facts["started"], UTC)
    yield "Time", f"{started:%Y-%m-%d %H:%M:%S} UTC, {facts['seconds']:.0f} s"
    if verdict is None:
        yield "Verdict", "none was given"
        return
    kept = f", kept in <code>{text(best.name)}/</code>" if best is not None else ""
    yield from verdict_rows(verdict, kept)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
