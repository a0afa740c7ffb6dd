"""Tables and plots of docs/detection.md; its prose is in page.md beside this file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from detection.cells import DETECTORS, NEVER
from detection.composite import CURVES, Curve
from detection.truth import ALPHA, EVALUATIONS, Scenario, limit
from detection.verdicts import BASELINES as VERDICT_BASELINES
from detection.verdicts import CASES, Case, Found

from guard_core.detectors import PARTS

Times = dict[str, np.ndarray]

#: A fire of ours is counted at the checkpoint that alarmed: a second evaluation of it confirms it.
CONFIRMATION = dict.fromkeys(("calibrated", *PARTS), 1)

AIM = {"fast": 1.3, "guaranteed": 3.0}

#: Null runs that rise in CLIMB evaluations and stay there, by the points that they rise.
RISEN = {"risen by 3": 0.03, "risen by 10": 0.10}


@dataclass
class CellResult:
    """Fire times of one cell; runs of one baseline are consecutive."""

    n: int
    mixed: bool
    means: np.ndarray
    baselines: int
    passes: int = 16
    false_stops: dict[str, Times] = field(default_factory=dict)
    at_defaults: dict[str, dict[str, float]] = field(default_factory=dict)
    delays: dict[Scenario, Times] = field(default_factory=dict)

    bounds: dict[Scenario, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the tables name it."""
        return f"{self.n} {'mixed' if self.mixed else 'homogeneous'}"

    def rate(self, kind: str, detector: str) -> float:
        """Share of runs stopped."""
        return float(np.mean(self.false_stops[kind][detector] < NEVER))

    def interval(self, detector: str) -> tuple[float, float]:
        """95 % interval of the null false-stop rate.

        Runs that share a baseline are one cluster, and baselines are in the order of their strata: neighbours
        are alike, so their differences hold the error (successive differences).
        """
        clusters = (self.false_stops["null"][detector] < NEVER).reshape(self.baselines, -1).mean(axis=1)
        between = float(np.sum(np.diff(clusters) ** 2)) / (2 * (len(clusters) - 1))
        error = max(math.sqrt(between / len(clusters)), 1e-9)
        return max(0.0, clusters.mean() - 1.96 * error), clusters.mean() + 1.96 * error

    def delay(self, scenario: Scenario, detector: str) -> Delay:
        """Of one drop."""
        return delay_of(self.delays[scenario][detector], scenario, detector, self.means)


@dataclass
class CompositeResult:
    """Of the calibrated detector as a whole."""

    n: int
    means: np.ndarray
    false_stops: dict[str, Times] = field(default_factory=dict)
    delays: dict[Scenario, Times] = field(default_factory=dict)
    curves: dict[Curve, dict[str, tuple[float, float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Delay:
    """Mean delay in checkpoints, its ratio to the limit, shares that never fired and that fired too early."""

    mean: float
    ratio: float
    missed: float
    early: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "stopped before"
        mark = "≥ " if self.missed > 0.05 else ""
        early = f" ({self.early:.0%} before)" if self.early > 0.2 else ""
        return f"{mark}{self.ratio:.2f}{early}"


def delay_of(times: np.ndarray, scenario: Scenario, detector: str, means: np.ndarray) -> Delay:
    """From the onset; runs that fired before it are left out, runs that never fired count to the end."""
    shown = times - CONFIRMATION.get(detector, 0) * (times < NEVER)
    after = shown[shown >= scenario.onset]
    if len(after) == 0:
        return Delay(math.nan, math.nan, 0.0, 1.0)
    mean = float(np.mean(after - scenario.onset + 1))
    missed = float(np.mean(after >= NEVER))
    return Delay(mean, mean / limit(scenario, means), missed, 1 - len(after) / len(shown))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def points(scenario: Scenario) -> str:
    """The size of a drop as text."""
    return f"{100 * scenario.drop:.0f} points"


def false_stop_table(cells: list[CellResult]) -> str:
    """Null runs: ours, the rivals with thresholds from the truth, the old rules at their defaults."""
    header = [
        "items",
        "guaranteed",
        "fast",
        "fast, 95 % interval",
        "fast, risen by 3",
        "fast, risen by 10",
        *DETECTORS[2:],
        "HeldOutGuard, defaults",
        "PageHinkley",
    ]
    rows = []
    for c in cells:
        low, high = c.interval("fast")
        rates = [f"{c.rate('null', d):.1%}" for d in DETECTORS]
        old = [f"{c.at_defaults['null'][d]:.0%}" for d in ("HeldOutGuard", "PageHinkley")]
        risen = [f"{c.rate(kind, 'fast'):.1%}" for kind in RISEN]
        rows.append([c.name, rates[1], rates[0], f"{low:.1%} to {high:.1%}", *risen, *rates[2:], *old])
    return table(header, rows)


def improving_table(cells: list[CellResult]) -> str:
    """Benign runs that gain 15 points, their proxy on twice the scale."""
    rows = []
    for c in cells:
        rates = [f"{c.rate('improving', d):.1%}" for d in ("guaranteed", "fast", *DETECTORS[2:])]
        rows.append([c.name, *rates, f"{c.at_defaults['improving']['HeldOutGuard']:.0%}"])
    return table(["items", "guaranteed", "fast", *DETECTORS[2:], "HeldOutGuard, defaults"], rows)


def delay_table(cells: list[CellResult], start: str, shape: str, detectors: Sequence[str]) -> str:
    """Ratios to the limit, one row a cell and drop."""
    rows = []
    for c in cells:
        for s in c.delays:
            if (s.start, s.shape) == (start, shape):
                least = limit(s, c.means)
                bound = f"{c.bounds[s] / least:.2f}" if s in c.bounds else "-"
                ratios = (c.delay(s, d) for d in detectors)
                rows.append([c.name, points(s), f"{least:.1f}", bound, *ratios])
    return table(["items", "drop", "limit, evaluations", "informed rule", *detectors], rows)


def aims_table(cells: list[CellResult]) -> str:
    """What was aimed at and what was reached."""
    rows = []
    worst = max(c.rate("null", "guaranteed") for c in cells)
    rows.append(
        ["guaranteed: false stops ≤ 5 % in every null cell", f"worst {worst:.1%}", yes(worst <= ALPHA)]
    )
    hits = [low <= ALPHA <= high for low, high in (c.interval("fast") for c in cells)]
    below = [c.interval("fast")[1] < ALPHA for c in cells]
    rows.append(
        [
            "fast: 5 % inside the 95 % interval of its null false stops",
            f"{sum(hits)} of {len(hits)} cells inside, {sum(below)} below 5 %, "
            f"{len(hits) - sum(hits) - sum(below)} above",
            yes(all(hits)),
        ]
    )
    for detector, drops in (("fast", (0.05, 0.1)), ("guaranteed", (0.1,))):
        for start in ("start", "flat", "plateau"):
            for shape in ("sudden", "ramp"):
                rows.append(aim_row(cells, detector, drops, start, shape))
    return table(["aim", "reached", ""], rows)


def aim_row(
    cells: list[CellResult], detector: str, drops: Sequence[float], start: str, shape: str
) -> list[str]:
    """One detector and kind of drop: in how many cells the ratio is within the aim."""
    asked = [
        (c, s) for c in cells for s in c.delays if (s.start, s.shape) == (start, shape) and s.drop in drops
    ]
    found = [(c.delay(s, detector).ratio, c.name, points(s)) for c, s in asked]
    good = [f for f in found if f[0] <= AIM[detector] + 0.005]
    ratio, name, drop = max(found)
    failed = [f"{f[1]}, {f[2]}: {f[0]:.2f}" for f in found if f not in good]
    which_failed = "; ".join(failed) if 0 < len(failed) <= 4 else f"worst {ratio:.2f} ({name}, {drop})"
    which = " and ".join(f"{100 * d:.0f}" for d in drops)
    aim = f"{detector} ≤ {AIM[detector]} times the limit: {which} points, {shape}, from {start}"
    return [
        aim,
        f"{len(good)} of {len(found)} cells; {which_failed}",
        yes(len(good) == len(found)),
    ]


def yes(reached: bool) -> str:
    """A word for the last column."""
    return "reached" if reached else "not reached"


def passes_table(passes: list[CellResult]) -> str:
    """What R costs."""
    scenarios = list(passes[0].delays)
    header = ["passes R", "items", "false stops of fast"]
    header += [f"{d}, {points(s)} from {s.start}" for s in scenarios for d in ("fast", "guaranteed")]
    rows = [
        [
            c.passes,
            c.name,
            f"{c.rate('null', 'fast'):.1%}",
            *(c.delay(s, d) for s in scenarios for d in ("fast", "guaranteed")),
        ]
        for c in passes
    ]
    return table(header, rows)


def composite_tables(result: CompositeResult) -> str:
    """The calibrated detector as it ships."""
    names = ("calibrated", *PARTS, "HeldOutGuard")
    rows = []
    for kind, times in result.false_stops.items():
        runs = len(times["calibrated"])
        rows.append([f"{kind}, {runs} runs: stopped", *(f"{np.mean(times[d] < NEVER):.1%}" for d in names)])
    for s, times in result.delays.items():
        cells = [str(delay_of(times[d], s, d, result.means)) for d in names]
        rows.append(
            [
                f"{points(s)}, {s.shape}, from {s.start}: delay / limit of ({limit(s, result.means):.1f})",
                *cells,
            ]
        )
    return table(["", *names], rows)


def verdict_table(stopped: dict[Case, Found]) -> str:
    """False stops of the whole default verdict."""
    rows = []
    for kind, cases in CASES.items():
        for case in (c for c in cases if c in stopped):
            found = stopped[case]
            rate = f"{found.stopped:.1%} ± {found.error:.1%}"
            rows.append([kind, case.name, str(found.runs), rate, f"{found.fresh:.1f}"])
    return table(["what runs do", "", "runs", "stopped", "fresh evaluations per 100"], rows)


def curve_table(result: CompositeResult) -> str:
    """Gold lost against the best stop in hindsight."""
    names = ("calibrated", *PARTS, "HeldOutGuard", "no guard")
    rows = []
    for curve, found in result.curves.items():
        gold = curve.gold()
        cells = [f"{found[d][0]:.1f} ({found[d][1]:.0%} stopped)" for d in names]
        rows.append([f"{curve.name}: best {100 * gold.max():+.1f}, end {100 * gold[-1]:+.1f}", *cells])
    return table(["curve (points of held-out)", *names], rows)


def plot_delays(cells: list[CellResult], path: Path) -> None:
    """Ratio to the limit against n, one panel a start and drop."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex=True)
    for row, drop in zip(axes, (0.05, 0.1), strict=True):
        for axis, start in zip(row, ("start", "flat", "plateau"), strict=True):
            scenario = Scenario(start, "sudden", drop)
            for detector, colour in zip(
                ("fast", "guaranteed", "paired window", "mean CUSUM"), ("C0", "C3", "C7", "C8"), strict=True
            ):
                for mixed, style in ((True, "-"), (False, ":")):
                    some = [c for c in cells if c.mixed is mixed]
                    ratios = [c.delay(scenario, detector).ratio for c in some]
                    label = f"{detector}{'' if mixed else ', homogeneous'}"
                    axis.plot([c.n for c in some], ratios, style, color=colour, marker="o", ms=3, label=label)
            axis.axhline(1, color="k", lw=0.8)
            axis.set(title=f"{100 * drop:.0f} points from {start}", xscale="log", yscale="log")
            axis.set_xticks([c.n for c in cells if c.mixed], [str(c.n) for c in cells if c.mixed])
            axis.minorticks_off()
            axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes[0, 0].set_ylabel("mean delay / limit")
    axes[1, 0].set_ylabel("mean delay / limit")
    axes[1, 1].set_xlabel("held-out items")
    axes[0, 1].legend(fontsize=6, ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def plot_false_stops(cells: list[CellResult], path: Path) -> None:
    """Null false stops by cell."""
    figure, axis = plt.subplots(figsize=(9, 3.4))
    names = ("guaranteed", "fast", "HeldOutGuard, defaults")
    for k, name in enumerate(names):
        rates = [c.at_defaults["null"]["HeldOutGuard"] if k == 2 else c.rate("null", name) for c in cells]
        axis.bar(
            np.arange(len(cells)) + 0.27 * (k - 1),
            np.array(rates) * 100,
            0.27,
            label=name,
            color=f"C{(3, 0, 7)[k]}",
        )
    axis.axhline(100 * ALPHA, color="k", lw=0.8)
    axis.set_xticks(range(len(cells)), [c.name.replace(" ", "\n") for c in cells])
    axis.set(ylabel="% of null runs stopped", title="Runs in which nothing changes, 100 evaluations")
    axis.set_ylim(0, 95)
    axis.legend(ncols=3, loc="upper center")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def plot_curves(result: CompositeResult, path: Path) -> None:
    """The over-optimisation curves and the median stops."""
    figure, axes = plt.subplots(1, len(CURVES), figsize=(11, 3.2))
    for axis, (curve, found) in zip(axes, result.curves.items(), strict=True):
        axis.plot(100 * curve.gold(), color="k")
        for name, colour in (("calibrated", "C0"), ("HeldOutGuard", "C7")):
            stop = found[name][2]
            if stop < NEVER:
                axis.axvline(stop, color=colour, label=f"{name}: median stop")
        axis.set(title=curve.name, xlabel="evaluation", ylabel="held-out gain, points")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def write(
    docs: Path,
    cells: list[CellResult],
    passes: list[CellResult],
    composite: CompositeResult,
    baseline_passes: int,
    real_runs: str,
    stopped: dict[Case, Found],
) -> None:
    """docs/detection.md from the template beside this file, and its pictures."""
    images = docs / "img"
    images.mkdir(parents=True, exist_ok=True)
    plot_false_stops(cells, images / "detection-false-stops.png")
    plot_delays(cells, images / "detection-delay.png")
    plot_curves(composite, images / "detection-curves.png")
    ours = ("fast", "guaranteed")
    runs = len(cells[0].false_stops["null"]["fast"])
    text = (Path(__file__).parent / "page.md").read_text("utf-8")
    filled = {
        "RUNS": f"{runs:,}",
        "EVALUATIONS": str(EVALUATIONS),
        "PASSES": str(baseline_passes),
        "BASELINES": str(cells[0].baselines),
        "ALPHA": f"{ALPHA:.0%}",
        "AIMS": aims_table(cells),
        "FALSE_STOPS": false_stop_table(cells),
        "IMPROVING": improving_table(cells),
        "START": delay_table(cells, "start", "sudden", ("fast", "guaranteed", *DETECTORS[2:])),
        "FLAT": delay_table(cells, "flat", "sudden", ("fast", "guaranteed", *DETECTORS[2:])),
        "PLATEAU": delay_table(cells, "plateau", "sudden", ours),
        "RAMP_START": delay_table(cells, "start", "ramp", ours),
        "RAMP_FLAT": delay_table(cells, "flat", "ramp", ours),
        "RAMP_PLATEAU": delay_table(cells, "plateau", "ramp", ours),
        "COST_OF_PASSES": passes_table(passes),
        "COMPOSITE": composite_tables(composite),
        "CURVES": curve_table(composite),
        "REAL_RUNS": real_runs,
        "VERDICTS": verdict_table(stopped),
        "VERDICT_BASELINES": str(VERDICT_BASELINES),
        "PASSES_RUNS": str(len(passes[0].false_stops["null"]["fast"])),
    }
    for key, value in filled.items():
        text = text.replace("{{" + key + "}}", value)
    (docs / "detection.md").write_text(text, "utf-8")
