"""A past run as the guard would have seen it: steps, held-out evaluations, baseline passes. Pure.

What the guard would have refused (a step without reward, NaN, a negative KL, a step that contradicts an
earlier one) is left out here too, and each time a note says how much and where the first one was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, nan
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rlguard.cli.errors import CliError
from rlguard.cli.logs.table import Table
from rlguard.cli.replay.rows import RowReader, RunRow
from rlguard.client.samples import StepSample
from rlguard.core.rounds import TRAINER_LIMIT, Evaluation
from rlguard.core.wire import KlKind, Sampling
from rlguard.follow.attempts import VALUES, Attempts
from rlguard.follow.columns import Columns, resolve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
KINDS = tuple(KlKind)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One past run; equal to itself only.

    Arrays have shape (steps,): `attempt`, `step`, `reward` (finite), `kl` (nats/token; NaN where unknown),
    `kl_kind` (index into `KINDS`). `entropy`, `reward_std` and `figures` (by column; NaN where unknown) are
    judged by no rule. Steps and `evaluations` are in the order in which a guard folded them, where the log is
    a guard's; else by attempt and step, and by pass where a checkpoint was evaluated again. `ends`: how many
    steps come before each evaluation. `passes`: of the starting policy, where the log has them apart.
    `has_items`: whether evaluations carry per-item outcomes or only their mean. `means_of`: of how many items
    each mean is, which then stands for the outcome of each. `samples`: how many are behind each outcome, and
    `trainer`: how the trainer samples; None where the log does not say it.
    """

    source: str
    format: str
    names: tuple[str, ...]
    columns: Columns
    attempt: Ints
    step: Ints
    reward: Floats
    kl: Floats
    kl_kind: npt.NDArray[np.uint8]
    entropy: Floats
    reward_std: Floats
    figures: Mapping[str, Floats]
    evaluations: tuple[Evaluation, ...]
    ends: tuple[int, ...]
    passes: tuple[Evaluation, ...]
    has_items: bool
    means_of: int | None
    samples: int | None
    trainer: Sampling | None
    notes: tuple[str, ...]

    @property
    def attempts(self) -> int:
        """How many starts of the trainer reported a step."""
        return len(np.unique(self.attempt))

    @property
    def baseline(self) -> tuple[tuple[float, ...], ...]:
        """The items of `passes`."""
        return tuple(one.items for one in self.passes)

    def armed_kl(self) -> Bools:
        """Where there is a token-mean KL to the reference."""
        arms: Bools = ~np.isnan(self.kl) & (self.kl_kind == KINDS.index(KlKind.REF_TOKEN_MEAN))
        return arms


def load_run(
    table: Table,
    source: str,
    overrides: Mapping[str, str],
    settings: Mapping[str, str] | None = None,
    means_of: int | None = None,
) -> Run:
    """Make a run of a table.

    Args:
        table: the log.
        source: its name, for messages.
        overrides: canonical name to column, from `--map`.
        settings: of the run's own configuration; see `columns.resolve`.
        means_of: how many items each held-out mean is of, where the log has only means.

    Raises:
        CliError: columns are missing or ambiguous, or a value cannot be right.
    """
    if not table.rows:
        raise CliError(f"{source}: there is not a single row in it.")
    columns = resolve(table.names, overrides, settings=settings)
    rows, about_values = RowReader(table, source, columns).read()
    notes = [*columns.notes, *filter(None, [table.note]), *about_values]
    baseline = _baseline(rows)
    later = [row for row in rows if row.evaluation and row.whole.get("pass_index") and row not in baseline]
    usable = [
        row for row in rows if "step" in row.whole and not row.whole.get("pass_index") and row not in baseline
    ]
    merged = _merge(usable, notes, named="attempt" in columns.source)
    has_items = any(one.evaluation for one in merged)
    means_of = None if has_items else means_of
    scored = [
        *_scored(merged, means_of),
        *(_Scored(one.evaluation, one.whole.get("heldout_event")) for one in later if one.evaluation),
    ]
    steps = [one for one in merged if "reward" in one.values]
    if lost := sum(not (one.values.keys() & {"reward", "heldout"} or one.evaluation) for one in merged):
        notes.append(f"{lost} of {len(merged)} steps have no reward: a guard would not get them.")
    steps, scored, ends = _in_order(steps, scored)
    kinds = [KINDS.index(one.kind) for one in steps]
    return Run(
        source=source,
        format=table.format,
        names=table.names,
        columns=columns,
        attempt=np.array([one.attempt for one in steps], dtype=np.int64),
        step=np.array([one.whole["step"] for one in steps], dtype=np.int64),
        **{name: np.array([one.values.get(name, nan) for one in steps]) for name in VALUES},
        kl_kind=np.array(kinds, dtype=np.uint8),
        figures={
            column: np.array([one.figures.get(column, nan) for one in steps])
            for column in (*columns.figures.values(), *columns.components)
        },
        evaluations=tuple(one.evaluation for one in scored),
        ends=tuple(ends),
        passes=_passes(baseline, rows),
        has_items=has_items or means_of is not None,
        means_of=means_of,
        samples=_samples(rows),
        trainer=_trainer(rows),
        notes=tuple(notes),
    )


class _Scored(NamedTuple):
    """An evaluation, and the number that the guard gave it; None where the log has none."""

    evaluation: Evaluation
    event: int | None

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in a log that numbers nothing."""
        return self.evaluation.attempt, self.evaluation.step, self.evaluation.pass_index


def _baseline(rows: Sequence[RunRow]) -> list[RunRow]:
    """Rows with step 0 and items and nothing else, before any other: passes of the starting policy."""
    scored = [row for row in rows if row.evaluation]
    first = min((row.attempt for row in scored), default=0)  # a restarted trainer does not start over
    found = [
        row
        for row in scored
        if row.whole.get("step") == 0 and row.attempt == first and not row.values.keys() & {*VALUES}
    ]
    others = (
        row.whole["heldout_event"] for row in scored if row not in found and "heldout_event" in row.whole
    )
    earliest = min(others, default=inf)
    found = [row for row in found if row.whole.get("heldout_event", -1) <= earliest]
    return sorted(found, key=lambda row: row.whole.get("pass_index", 0))


def _passes(baseline: Sequence[RunRow], rows: Sequence[RunRow]) -> tuple[Evaluation, ...]:
    """Those of the starting policy, as a guard makes them one after the other.

    They are of the attempt that they name; of the first one where they name none.
    """
    named = [[row.whole["attempt"] for row in some if "attempt" in row.whole] for some in (baseline, rows)]
    attempt = min(named[0] or named[1], default=0)
    evaluations = [row.evaluation for row in baseline if row.evaluation]
    return tuple(
        replace(one, attempt=attempt, step=0, pass_index=index) for index, one in enumerate(evaluations)
    )


def _samples(rows: Sequence[RunRow]) -> int | None:
    """How many each outcome is the mean of, as the first evaluation says; a guard leaves 1 unsaid."""
    said = (row.whole.get("samples_per_item", 0) for row in rows if row.evaluation)
    return next((samples for samples in said if samples >= 1), None)


def _trainer(rows: Sequence[RunRow]) -> Sampling | None:
    """How the trainer samples, as far as a guard's history says it: its longest completion."""
    for row in rows:
        if row.evaluation and (longest := row.whole.get(TRAINER_LIMIT, 0)) >= 1:
            used = row.evaluation.sampling
            return None if used is None else Sampling(temperature=used.temperature, max_new_tokens=longest)
    return None


def _merge(rows: Sequence[RunRow], notes: list[str], *, named: bool) -> list[RunRow]:
    """One row for each attempt and step, in order: trackers log one step in several rows.

    Of two rows that contradict each other the first counts, as the guard refuses the second (409).
    """
    attempts = [row.attempt for row in rows] if named else list(_attempts(rows))
    if not named and (several := len({*attempts})) > 1:
        notes.append(f"the steps go back {several - 1} times: read as {several} attempts of the trainer.")
    places: dict[tuple[int, int], list[RunRow]] = {}
    for attempt, row in zip(attempts, rows, strict=True):
        places.setdefault((attempt, row.whole["step"]), []).append(row)
    clashing = [of_step for of_step in places.values() if len(of_step) > 1 and _contradict(of_step)]
    if clashing:
        first, second = clashing[0][:2]
        notes.append(
            f"{len(clashing)} steps are there several times with different values; the first counts, as in "
            f"the guard (e.g. step {first.whole['step']}: lines {first.line} and {second.line})."
        )
    elif len(rows) > len(places):
        notes.append(f"{len(rows) - len(places)} rows repeat a step and were merged with it.")
    return [_one(places[place], attempt=place[0]) for place in sorted(places)]


def _attempts(rows: Sequence[RunRow]) -> Iterator[int]:
    """The attempt of each row, by the rule of a follower.

    Rows of one step that stand together are one step, with the first value of each quantity.
    """
    starts = Attempts({})
    for step, together in groupby(rows, key=lambda row: row.whole["step"]):
        of_step = list(together)
        if any(row.begins for row in of_step):
            starts.another_file()
        values = _first(row.values for row in of_step)
        if "reward" in values:
            kl, entropy, spread = (values.get(name) for name in VALUES[1:])
            starts.place(StepSample(step, values["reward"], kl, entropy=entropy, reward_std=spread))
        yield from [starts.current or 0] * len(of_step)


def _first(several: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """Of each name the first value that is there."""
    found: dict[str, V] = {}
    for one in several:
        found = {**one, **found}
    return found


def _contradict(rows: Sequence[RunRow]) -> bool:
    """Whether rows of one step have two values for one quantity."""
    return any(
        len({row.values[name] for row in rows if name in row.values}) > 1 for name in (*VALUES, "heldout")
    )


def _one(rows: Sequence[RunRow], attempt: int) -> RunRow:
    """The rows of one step as one: the first of everything; a KL is of the kind that its own row says."""
    of_kl = next((row for row in rows if "kl" in row.values), rows[0])
    return RunRow(
        rows[0].line,
        rows[0].begins,
        _first(row.values for row in rows),
        {**_first(row.whole for row in rows), "attempt": attempt},
        of_kl.kind,
        _first(row.figures for row in rows),
        next((row.evaluation for row in rows if row.evaluation), None),
    )


def _scored(merged: Sequence[RunRow], means_of: int | None) -> Iterator[_Scored]:
    """The held-out evaluations; a mean of so many items is the outcome of each (see `rlguard.core.means`).

    Once there are items, a mean without them cannot be compared with the others.

    Raises:
        CliError: a mean of outcomes is not in [0, 1].
    """
    has_items = any(one.evaluation for one in merged)
    for one in merged:
        attempt, step, event = one.attempt, one.whole["step"], one.whole.get("heldout_event")
        if one.evaluation:
            yield _Scored(replace(one.evaluation, attempt=attempt, step=step), event)
        elif not has_items and (mean := one.values.get("heldout")) is not None:
            if means_of is not None and not 0 <= mean <= 1:
                raise CliError(
                    f"--heldout-items {means_of}: the held-out score of step {step} is {mean:g}, "
                    "and a mean of outcomes lies between 0 and 1. Leave the option out."
                )
            items = (mean,) * (means_of or 1)
            yield _Scored(Evaluation(attempt, step, "", items, mean_only=means_of is None), event)


def _in_order(steps: list[RunRow], scored: list[_Scored]) -> tuple[list[RunRow], list[_Scored], list[int]]:
    """Steps (by attempt and step) and evaluations as `Run` has them, and how many steps are before each.

    What a round is depends on what had been reported when a checkpoint was scored, which a guard's own
    history says by the numbers of its events.
    """
    numbered = [one.whole.get("step_event") for one in steps]
    events = [event for event in numbered if event is not None]
    told = [one.event for one in scored if one.event is not None]
    if len(events) < len(steps) or len(told) < len(scored):
        places = [(one.attempt, one.whole["step"]) for one in steps]
        scored = sorted(scored, key=lambda one: one.place)
        return steps, scored, [bisect_right(places, one.place[:2]) for one in scored]
    steps = sorted(steps, key=lambda one: one.whole["step_event"])
    scored = sorted(scored, key=lambda one: one.event or 0)
    return steps, scored, [bisect_left(sorted(events), event) for event in sorted(told)]
