"""The report as one HTML page with the plot inside, and the plot as SVG. No per-item outcome is in it."""

from __future__ import annotations

import html
import io
import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from guard_core.wire import DetectorReading, Verdict

IN_LOOP, HELDOUT, KL, LIMIT = "#b3530a", "#1d5fc4", "#0b7268", "#c3262e"
SMOOTHED_OVER = 8  # steps
MARKERS_UP_TO = 200  # evaluations; more than that and the markers hide the line
LAST_EVALUATIONS = 200

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#15191f;background:#f4f6f8;margin:0}
main{max-width:960px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.4rem;line-height:1.3} h2{font-size:1rem;margin:28px 0 8px}
.card{background:#fff;border:1px solid #d8dee6;border-radius:10px;padding:14px 18px;overflow-x:auto}
.outcome{border-left:6px solid #52606f} .fired{border-color:#c3262e} .stopped{border-color:#8f5a00}
.finished{border-color:#17703a} svg{max-width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid #e9edf1;vertical-align:top}
code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.9em;overflow-wrap:anywhere}
.muted{color:#586271;font-size:.875rem}
"""


def draw(history: Sequence[Mapping[str, Any]], verdict: Verdict | None) -> str:
    """The run as SVG: in-loop reward against held-out score above, KL to the reference below.

    Args:
        history: lines of history.jsonl; the newest attempt is drawn.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    attempt = max((line["attempt"] for line in history), default=0)
    lines = [line for line in history if line["attempt"] == attempt and line["step"] > 0]
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlguard", "font.family": "sans-serif"}):
        figure, (top, bottom) = plt.subplots(
            2, 1, sharex=True, figsize=(9, 5.6), height_ratios=[3, 1.2], layout="constrained"
        )
        _draw_scores(top, lines)
        _draw_kl(bottom, lines, verdict)
        if verdict is not None and verdict.latch_step is not None and verdict.latch_attempt == attempt:
            label = ("fire" if verdict.fire else "stop") + f" at step {verdict.latch_step}"
            top.axvline(verdict.latch_step, color=LIMIT, linewidth=1.5, label=label)
            bottom.axvline(verdict.latch_step, color=LIMIT, linewidth=1.5)
        top.legend(frameon=False, loc="best")
        bottom.set_xlabel("optimizer step")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_scores(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    rewards = [(line["step"], line["reward"]) for line in lines if line["reward"] is not None]
    scores = [(line["step"], line["heldout"]) for line in lines if "heldout" in line]
    axes.plot(*_columns(rewards), color=IN_LOOP, linewidth=0.8, alpha=0.4)
    label = f"in-loop reward (mean of {SMOOTHED_OVER} steps)"
    axes.plot(*_columns(_trailing_mean(rewards)), color=IN_LOOP, linewidth=2, label=label)
    marker = "o" if len(scores) <= MARKERS_UP_TO else ""
    axes.plot(*_columns(scores), color=HELDOUT, linewidth=2, marker=marker, ms=3, label="held-out score")
    axes.set_ylabel("score")
    axes.grid(alpha=0.25)


def _draw_kl(axes: Any, lines: Sequence[Mapping[str, Any]], verdict: Verdict | None) -> None:
    kls = [
        (line["step"], line["kl"])
        for line in lines
        if line["kl"] is not None and line["kl_kind"] == "ref_token_mean"
    ]
    axes.plot(*_columns(kls), color=KL, linewidth=1)
    if not kls:
        axes.text(0.5, 0.5, "no KL to the reference was reported", transform=axes.transAxes, ha="center")
    elif verdict is not None and verdict.kl_hard_stop is not None:
        top = max(kl for _, kl in kls)
        if verdict.kl_hard_stop <= 2 * top:  # a threshold far above would flatten the curve
            axes.axhline(verdict.kl_hard_stop, color=LIMIT, linestyle="--", linewidth=1)
    axes.set_ylabel("KL, nats/token")
    axes.grid(alpha=0.25)


def _trailing_mean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each value as the mean of itself and up to `SMOOTHED_OVER - 1` before it."""
    recent: deque[float] = deque(maxlen=SMOOTHED_OVER)
    smoothed = []
    for x, y in points:
        recent.append(y)
        smoothed.append((x, fmean(recent)))
    return smoothed


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def page(
    facts: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    verdict: Verdict | None,
    picture: str,
    best: Path | None,
) -> str:
    """The whole report, self-contained.

    Args:
        facts: content of run.json.
        picture: from `draw`.
        best: directory of the last good checkpoint, if one was kept.
    """
    kind = {0: "finished", 3: "fired"}.get(facts["exit_code"], "stopped")
    sections = [
        f'<h1>RLGuard report</h1><div class="card outcome {kind}"><strong>{_text(facts["outcome"])}</strong>'
        f'<div class="muted">exit code {facts["exit_code"]}</div></div>',
        f'<h2>Reward and held-out score</h2><div class="card">{picture}</div>',
        "<h2>Run</h2>" + _table(_run_rows(facts, verdict, best)),
    ]
    if verdict is not None and verdict.conditions:
        rows = [
            (c.level.value, f"<code>{c.code.value}</code> {_text(c.message)}") for c in verdict.conditions
        ]
        sections.append("<h2>What held at the end</h2>" + _table(rows))
    if verdict is not None and verdict.detectors:
        sections.append("<h2>Calibrated detectors</h2>" + _table(map(_reading, verdict.detectors)))
    sections.append("<h2>Evaluations</h2>" + _evaluations(history))
    body = "".join(sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>RLGuard report</title>'
        f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def _run_rows(
    facts: Mapping[str, Any], verdict: Verdict | None, best: Path | None
) -> Iterable[tuple[str, str]]:
    yield "Trainer", f"<code>{_text(shlex.join(facts['trainer']))}</code>"
    ended = "ended by itself" if facts["trainer_ended_itself"] else "was stopped"
    yield "Its end", f"{ended}, exit code {facts['trainer_code']}"
    started = datetime.fromtimestamp(facts["started"], UTC)
    yield "Time", f"{started:%Y-%m-%d %H:%M:%S} UTC, {facts['seconds']:.0f} s"
    if verdict is None:
        yield "Verdict", "none was given"
        return
    yield "Verdict", f"{verdict.level.value} (<code>{verdict.code.value}</code>): {_text(verdict.reason)}"
    yield "Seen", f"{verdict.steps} steps, {verdict.rounds} evaluation rounds"
    if verdict.proxy_real_gap is not None:
        yield "Hacking Gap", f"{verdict.proxy_real_gap:+.4f}"
    if verdict.best_evaluation is not None:
        kept = f", kept in <code>{_text(best.name)}/</code>" if best is not None else ""
        score = verdict.best_evaluation
        yield "Last good checkpoint", f"step {score.step}, held-out {score.score:.3f}{kept}"


def _reading(reading: DetectorReading) -> tuple[str, str]:
    """What one detector said last, with its statistic against its threshold."""
    against = ""
    if reading.statistic is not None and reading.threshold is not None:
        against = f" ({reading.statistic:.2f} of {reading.threshold:.2f} nats)"
    return reading.name, f"{reading.level.value}: {_text(reading.message)}{against}"


def _evaluations(history: Sequence[Mapping[str, Any]]) -> str:
    evaluated = [line for line in history if "heldout" in line]
    if not evaluated:
        return '<div class="card">No checkpoint was evaluated.</div>'
    head = "<tr><th>Attempt</th><th>Step</th><th>Held-out score</th><th>Reward of that step</th></tr>"
    rows = "".join(
        f"<tr><td>{line['attempt']}</td><td>{line['step']}</td><td>{line['heldout']:.4f}</td>"
        f"<td>{'not reported' if line['reward'] is None else format(line['reward'], '.4f')}</td></tr>"
        for line in evaluated[-LAST_EVALUATIONS:]
    )
    left_out = len(evaluated) - LAST_EVALUATIONS
    more = f'<p class="muted">{left_out} earlier ones are in history.jsonl.</p>' if left_out > 0 else ""
    return f'<div class="card"><table>{head}{rows}</table>{more}</div>'


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Rows of a plain name and a value that is HTML already."""
    body = "".join(f"<tr><th>{_text(name)}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<div class="card"><table>{body}</table></div>'


def _text(value: object) -> str:
    return html.escape(str(value))
