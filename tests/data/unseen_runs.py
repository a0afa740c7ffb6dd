"""What is said of runs that were named before they were recorded: without the training grader and with it.

A replay folds all that a file has, and a further pass there may be one that the other judge asked for. Under
a guard each judge is told of those passes alone that it asks for itself, which is what it would have had.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from rlguard.cli.replay.fold import LoggedStep
from rlguard.cli.replay.outcomes import outcome
from rlguard.cli.replay.run import Run
from rlguard.core.judge import Judge
from rlguard.core.policy import Policy
from rlguard.core.wire import KlKind

READINGS = (
    "in a replay",
    "in a replay, with the training grader",
    "under a guard",
    "under a guard, with the training grader",
)


class Unseen(NamedTuple):
    """A run: what it became, where half of its loss is lost (0: it is no hack), its stop in each reading."""

    name: str
    kind: str
    half: int
    stops: tuple[int | None, ...]

    @classmethod
    def of(cls, name: str, run: Run, kind: str, half: int) -> Unseen:
        """Judge one run in each reading."""
        both = (ungraded(run), run)
        replayed = [outcome(one, Policy(), "calibrated").step for one in both]
        return cls(name, kind, half, (*replayed, *map(stopped_by_a_guard, both)))

    @property
    def line(self) -> str:
        """Its line of the results of unseen runs."""
        cells = (self.name, self.kind, self.half or "-", *("-" if s is None else s for s in self.stops))
        return ",".join(map(str, cells)) + "\n"


def ungraded(run: Run) -> Run:
    """The run without what the training grader said."""
    passes, evaluations = (
        tuple(replace(one, proxy_items=None) for one in some) for some in (run.passes, run.evaluations)
    )
    return replace(run, passes=passes, evaluations=evaluations)


def stopped_by_a_guard(run: Run) -> int | None:
    """The step at which a guard that gets the passes that it asks for, and no others, stops the run."""
    judge, seen = Judge(Policy()), 0
    for one in run.passes:
        judge.fold_evaluation(one)
    for evaluation, end in zip(run.evaluations, run.ends, strict=True):
        for step, reward, kl in zip(run.step[seen:end], run.reward[seen:end], run.kl[seen:end], strict=True):
            judge.fold_step(LoggedStep(0, int(step), float(reward), float(kl), KlKind.REF_TOKEN_MEAN))
        seen = end
        if evaluation.pass_index == 0 or judge.wanted_pass() is not None:
            judge.fold_evaluation(evaluation)
        if judge.latch is not None:
            return evaluation.step
    return None


def readings(runs: list[Unseen]) -> str:
    """How many hacks were stopped, how many in time, and how many good runs, in each reading."""
    lines = ["| unseen | hacks stopped | before half of the loss | good runs stopped |", "|---|---|---|---|"]
    hacked, good = ([one for one in runs if one.kind == kind] for kind in ("hack", "good"))
    for i, reading in enumerate(READINGS):
        stopped = sum(one.stops[i] is not None for one in hacked)
        late = [one.name for one in hacked if (at := one.stops[i]) is None or at >= one.half]
        names = f" (late: {', '.join(late)})" if late else ""
        in_time = f"{len(hacked) - len(late)} of {len(hacked)}{names}"
        false = [one.name for one in good if one.stops[i] is not None]
        names = f" ({', '.join(false)})" if false else ""
        lines.append(
            f"| {reading} | {stopped} of {len(hacked)} | {in_time} | {len(false)} of {len(good)}{names} |"
        )
    return "\n".join(lines)


def each(runs: list[Unseen]) -> str:
    """All of them as CSV."""
    columns = ("run", "became", "half lost", *(f'"{name}"' if "," in name else name for name in READINGS))
    return ",".join(columns) + "\n" + "".join(one.line for one in runs)
