"""The picture of a calibration: what a fall costs in delay, and how that changes with the number of items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guard_cli.calibrate.propose import MOST_SIMULATED, Costs, Sizes
from guard_cli.colours import GAP, HELDOUT, IN_LOOP, KL, MUTED
from guard_cli.errors import CliError
from guard_core.policy import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (GAP, KL, HELDOUT)  # by the size of the fall
ITEM_COUNTS = tuple(2**k for k in range(6, MOST_SIMULATED.bit_length()))
DETECTORS = (("calibrated", HELDOUT), ("heldout_guard", IN_LOOP))


def save_costs(path: Path, policy: Policy, found: Costs, sizes: Sizes, needed: Sequence[int | None]) -> None:
    """Draw the calibration and write it to `path`; its suffix says the format.

    Raises:
        CliError: matplotlib is missing, or the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise CliError("--plot needs matplotlib: pip install 'rlguard[cli]'.") from None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _draw_costs(left, policy, found)
    _draw_items(right, found, sizes, needed)
    calibrated = policy.calibrated
    figure.suptitle(
        f"{found.items} items, at most {calibrated.alpha:g} false stops in {calibrated.horizon} evaluations",
        fontsize=11,
    )
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise CliError(f"--plot {path}: cannot be written: {error.strerror}.") from None
    finally:
        plt.close(figure)


def _draw_costs(axis: Axes, policy: Policy, found: Costs) -> None:
    horizon = policy.calibrated.horizon
    for offset, (name, colour) in zip((-0.19, 0.19), DETECTORS, strict=True):
        delays = getattr(found, name)
        heights = [min(delay.median, horizon) for delay in delays]
        places = [i + offset for i in range(len(found.drops))]
        bars = axis.bar(places, heights, width=0.36, color=colour, label=name)
        for bar, delay in zip(bars, delays, strict=True):
            if math.isinf(delay.median):
                bar.set(alpha=0.3, hatch="//")
            text = f"{delay.median:.0f}" if math.isfinite(delay.median) else f"{100 * delay.seen:.0f} % seen"
            axis.annotate(text, (bar.get_x() + 0.18, bar.get_height()), ha="center", va="bottom", fontsize=8)
    for i, least in enumerate(found.least):
        label = "least possible (mean)" if i == 0 else ""
        axis.hlines(min(least, horizon), i - 0.4, i + 0.4, color="black", linestyle="--", label=label)
    axis.set_xticks(range(len(found.drops)), [f"{100 * drop:g} points" for drop in found.drops])
    axis.set_ylabel("median delay (evaluations)")
    axis.set_ylim(0, horizon * 1.12)
    axis.set_title("delay after a sudden fall", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def _draw_items(axis: Axes, found: Costs, sizes: Sizes, needed: Sequence[int | None]) -> None:
    """What `Sizes` says for each number of items; what is not seen in time stands in a row above."""
    missed = sizes.in_time * 1.4
    for index, (drop, colour) in enumerate(zip(found.drops, COLOURS, strict=False)):
        delays = [sizes.median(items, drop) for items in ITEM_COUNTS]
        label = f"{100 * drop:g} points"
        if (items := needed[index]) is not None:
            label += f": take {items}"
            axis.axvline(items, color=colour, linestyle="--", linewidth=0.9)
        seen = [delay if delay <= sizes.in_time else math.nan for delay in delays]
        axis.plot(ITEM_COUNTS, seen, color=colour, marker=".", label=label)
        late = [count for count, delay in zip(ITEM_COUNTS, delays, strict=True) if delay > sizes.in_time]
        axis.scatter(late, [missed * 1.15**index] * len(late), color=colour, marker="x", s=18)
    axis.axhline(sizes.in_time, color=MUTED, linestyle=":", label=f"in time ({sizes.in_time} evaluations)")
    axis.axvline(found.items, color="black", linewidth=0.8, label=f"{found.items} items")
    axis.set_xscale("log", base=2)
    axis.set_xticks(ITEM_COUNTS, [str(count) for count in ITEM_COUNTS])
    axis.set_yscale("log")
    axis.set_ylim(0.9, missed * 2)
    axis.set_xlabel("held-out items (x: not seen in time)")
    axis.set_title("calibrated detector, by the number of such items", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower left")
    axis.grid(alpha=0.25)
