"""The report: the dashboard, frozen into one file, with a proof of its first sentence. Pure.

No outcome of a held-out item is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guard_service.dashboard.page import Banner, frozen_page, text
from rlguard.cli.summary import summary
from rlguard.core.codes import Code
from rlguard.core.detectors.questions import points
from rlguard.core.ending import steps_after
from rlguard.core.policy import Policy
from rlguard.core.symptoms import TITLES, Examined
from rlguard.core.wire import FiguresReport, MomentRollouts, Verdict


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What is known of a run that was judged.

    Fields:
        history: as `GET /v1/history?max_points=` has it; `of_rounds` is true in it where its steps are
            evaluation rounds, `averaged` false where its evaluations have no averages, and `cut_off` true
            where not all evaluation rounds are in it, perhaps not the run's first.
        policy: that of the run; None where it is not known.
        picture: from `plot.draw`, for readers that run no script.
        rollouts: as `GET /v1/rollouts` has them.
        figures: as `GET /v1/figures` has them.
        symptoms: what is seen in its single steps; None where these are not kept.
    """

    verdict: Verdict
    history: Mapping[str, Any]
    policy: Policy | None
    picture: str
    rollouts: Sequence[MomentRollouts] = ()
    figures: Sequence[FiguresReport] = ()
    symptoms: Examined | None = None


def report_page(banner: Banner, rows: Iterable[tuple[str, str]], content: ReportContent) -> str:
    """The whole report, self-contained.

    Args:
        banner: what has become of the run.
        rows: of the card about the run: a name, and a value that is HTML already.
        content: everything else.
    """
    data = {
        "verdict": content.verdict.model_dump(mode="json"),
        "history": content.history,
        "policy": {} if content.policy is None else content.policy.model_dump(mode="json"),
        "rollouts": [one.model_dump(mode="json") for one in content.rollouts],
        "figures": [one.model_dump(mode="json") for one in content.figures],
    }
    proof = _card("What the sentence above rests on", _proof(content))
    advice = "" if content.symptoms is None else _card("Symptoms", _symptoms(content.symptoms))
    return frozen_page(
        banner, data, proof, f"{advice}{about(rows)}<noscript>{drawing(content.picture)}</noscript>"
    )


def _symptoms(examined: Examined) -> str:
    """What the log itself shows, and what could not be looked for."""
    rows = _pairs((_capital(TITLES[one.name]), text(one.sentence)) for one in examined.symptoms)
    looked_for = len(TITLES) - len(examined.unseen)
    found = rows if examined.symptoms else f"<p>None of {looked_for} looked for.</p>" if looked_for else ""
    unseen = "; ".join(f"{TITLES[one.name]} ({one.why})" for one in examined.unseen)
    return (
        f'<p class="muted">Advice. Nothing is stopped for them, and a good run may have one.</p>{found}'
        + (f'<p class="muted">Not looked for: {text(unseen)}.</p>' if unseen else "")
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def about(rows: Iterable[tuple[str, str]]) -> str:
    """The card about the run."""
    return _card("The run", _pairs(rows))


def drawing(picture: str) -> str:
    """An SVG as a part of a page."""
    return f'<div class="drawing">{picture}</div>'


def verdict_rows(verdict: Verdict) -> Iterable[tuple[str, str]]:
    """What a verdict tells of a run, as rows."""
    for name, words in summary(verdict):
        yield name, text(words)
    yield "Seen", f"{verdict.steps} steps, {verdict.rounds} evaluation rounds"
    if after := steps_after(verdict):
        yield "Not judged", after
    newest = verdict.last_evaluation
    if newest is not None and newest.sampling is not None:
        yield "Evaluations", f"{text(newest.sampling.words)} ({text(newest.sampling.source.words)})"


#: The row of the proof by which a code fires.
_DECISIVE = {
    Code.KL_HARD_STOP: "kl_ema",
    Code.HELDOUT_DECLINE: "heldout_ema",
    Code.HACKING_GAP: "proxy_real_gap",
    Code.FELL_BELOW_START: "score",
    Code.FELL_BELOW_REACHED: "score",
}


def _proof(content: ReportContent) -> str:
    """The start, the last good checkpoint, the fire and the end side by side."""
    verdict = content.verdict
    columns = _columns(content.history["evaluations"], verdict)
    if content.history.get("cut_off"):
        columns = {"First that was kept" if name == "Start" else name: of for name, of in columns.items()}
    heads = "".join(f'<th scope="col">{name}</th>' for name in columns)
    heads = heads.replace("checkpoint", "check&shy;point")  # on a phone
    body = "".join(
        f'<tr{_mark(key, verdict)}><th scope="row">{text(name)}</th>{_cells(columns, key)}</tr>'
        for key, name in _rows(verdict)
    )
    return f'<table class="proof"><tr><td></td>{heads}</tr>{body}</table>'


def _columns(evaluations: Sequence[Mapping[str, Any]], verdict: Verdict) -> dict[str, Mapping[str, Any]]:
    """By their heads. The last one has the verdict's own figures; it is the fire's where no round followed.

    A limit of the KL is passed at a step, between two rounds; of that the end tells alone.
    """
    best = verdict.best_evaluation
    latched = (verdict.latch_attempt, verdict.latch_step)
    found = {"Start": evaluations[:1], "Last good checkpoint": [], "At the latch": []}
    for evaluation in evaluations:
        at = (evaluation["attempt"], evaluation["step"])
        if best is not None and at == (best.attempt, best.step):
            found["Last good checkpoint"] = [evaluation]
        if at == latched:
            found["At the latch"] = [evaluation]
    latch = "At the fire" if verdict.fire else "At the halt"
    columns = {name: rows[0] if rows else {} for name, rows in found.items()}
    of_latch, now = columns.pop("At the latch"), _now(evaluations, verdict)
    if not of_latch:
        return columns | {"At the end": now}
    if of_latch is evaluations[-1]:
        return columns | {latch: now}
    return columns | {latch: of_latch, "At the end": now}


def _now(evaluations: Sequence[Mapping[str, Any]], verdict: Verdict) -> dict[str, Any]:
    names = ("in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema")
    return {**(evaluations[-1] if evaluations else {}), **{name: getattr(verdict, name) for name in names}}


def _rows(verdict: Verdict) -> Iterable[tuple[str, str]]:
    """(key, name) of what is told: averages only where the verdict speaks of them."""
    yield "step", "Step of the checkpoint"
    yield "reward", "In-loop reward, mean of the round"
    yield "score", "Held-out score, first pass"
    if verdict.code in (Code.HELDOUT_DECLINE, Code.HACKING_GAP):
        yield "in_loop_ema", "In-loop reward, EMA"
        yield "heldout_ema", "Held-out score, EMA"
        yield "proxy_real_gap", f"Hacking Gap{_against(verdict.max_proxy_real_gap, 'ceiling')}"
    start = verdict.kl_start or 0.0
    stop = None if verdict.kl_hard_stop is None else verdict.kl_hard_stop + start
    yield "kl_ema", f"KL to the reference, EMA, nats/token{_against(stop, 'hard stop')}"


def _against(limit: float | None, name: str) -> str:
    return "" if limit is None else f" ({name} {limit:.4g})"


def _mark(key: str, verdict: Verdict) -> str:
    return ' class="decisive"' if verdict.fire and _DECISIVE.get(verdict.code) == key else ""


def _cells(columns: Mapping[str, Mapping[str, Any]], key: str) -> str:
    return "".join(_cell(column, key) for column in columns.values())


def _cell(column: Mapping[str, Any], key: str) -> str:
    value = column.get(key)
    if value is None:
        return "<td>—</td>"
    if key == "step":
        return f"<td>{value:,}</td>"
    return f"<td>{points(value) if key in ('score', 'heldout_ema') else f'{value:.4g}'}</td>"


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Rows of a plain name and a value that is HTML already."""
    body = "".join(f'<tr><th scope="row">{text(name)}</th><td>{value}</td></tr>' for name, value in rows)
    return f'<table class="words">{body}</table>'


def _card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{text(title)}</h2><div class="wide">{content}</div></section>'
