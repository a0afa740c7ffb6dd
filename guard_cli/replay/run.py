"""A past run as the guard would have seen it: steps, held-out evaluations, baseline passes. Pure.

What the guard would have refused (a step without reward, NaN, a negative KL, a step that contradicts an
earlier one) is left out here too, and each time a note says how much and where the first one was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from guard_cli.errors import CliError
from guard_cli.logs.table import OUTCOMES, Floats, Ints, Table
from guard_client.samples import StepSample
from guard_core.judge import TOLD, TRAINER_LIMIT, Evaluation
from guard_core.wire import EvaluationSampling, KlKind, Sampling, SamplingSource
from guard_follow.names import Columns, resolve
from guard_follow.starts import VALUES, Starts

Bools = npt.NDArray[np.bool_]
KINDS = tuple(KlKind)

MAX_STEP = 2**53
MAX_ATTEMPT = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One past run; equal to itself only.

    Arrays have shape (steps,): `attempt`, `step`, `reward` (finite), `kl` (nats/token; NaN where unknown),
    `kl_kind` (index into `KINDS`). `entropy`, `reward_std` and `figures` (by column; NaN where unknown) are
    judged by no rule. Steps and `evaluations`
    are in the order in which a guard folded them, where the log is a guard's; else by attempt and step, and
    by pass where a checkpoint was evaluated again. `ends`: how many steps come before each evaluation.
    `passes`: of the starting policy, where the log has them apart. `has_items`: whether evaluations carry
    per-item outcomes or only their mean. `means_of`: of how many items each mean is, which then stands for
    the outcome of each. `samples`: how many are behind each outcome, and `trainer`: how the trainer samples;
    None where the log does not say it.
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
        settings: of the run's own configuration; see `names.resolve`.
        means_of: how many items each held-out mean is of, where the log has only means.

    Raises:
        CliError: columns are missing or ambiguous, or a value cannot be right.
    """
    if len(table) == 0:
        raise CliError(f"{source}: there is not a single row in it.")
    columns = resolve(table.names, overrides, settings=settings)
    rows = _Rows(table, source, columns)
    notes = [*columns.notes, *([table.note] if table.note else [])]
    baseline_rows = rows.baseline()
    usable = rows.usable(baseline_rows, notes)
    merged = _merge(rows, usable, notes)
    if merged.scored:
        means_of = None
    scored = [*merged.evaluations(means_of), *rows.further_passes(baseline_rows)]
    return Run(
        source=source,
        format=table.format,
        names=table.names,
        columns=columns,
        **_in_order(merged.steps(notes), scored),
        passes=rows.passes(baseline_rows),
        has_items=bool(merged.scored) or means_of is not None,
        means_of=means_of,
        samples=rows.samples(),
        trainer=rows.trainer(),
        notes=tuple(notes),
    )


class _Scored(NamedTuple):
    """An evaluation, and the number that the guard gave it; NaN where the log has none."""

    evaluation: Evaluation
    event: float

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in a log that numbers nothing."""
        return self.evaluation.attempt, self.evaluation.step, self.evaluation.pass_index


def _in_order(steps: dict[str, Any], scored: list[_Scored]) -> dict[str, Any]:
    """Steps (by attempt and step) and evaluations as `Run` has them.

    What a round is depends on what had been reported when a checkpoint was scored, which a guard's own
    history says by the numbers of its events.
    """
    events, figures = steps.pop("step_event"), steps.pop("figures")
    if np.isnan(events).any() or any(np.isnan(one.event) for one in scored):
        scored = sorted(scored, key=lambda one: one.place)
        ends = [_steps_up_to(steps, one.evaluation) for one in scored]
    else:
        order = np.argsort(events, kind="stable")
        steps = {name: column[order] for name, column in steps.items()}
        figures = {name: column[order] for name, column in figures.items()}
        scored = sorted(scored, key=lambda one: one.event)
        ends = np.searchsorted(events[order], [one.event for one in scored]).tolist()
    return {
        **steps,
        "figures": figures,
        "evaluations": tuple(one.evaluation for one in scored),
        "ends": tuple(ends),
    }


def _steps_up_to(steps: Mapping[str, Ints], evaluation: Evaluation) -> int:
    """How many steps are of its attempt and up to its own, or of an earlier attempt."""
    first = int(np.searchsorted(steps["attempt"], evaluation.attempt, side="left"))
    last = int(np.searchsorted(steps["attempt"], evaluation.attempt, side="right"))
    return first + int(np.searchsorted(steps["step"][first:last], evaluation.step, side="right"))


class _Rows:
    """The columns of a table under their canonical names, still one row a line."""

    def __init__(self, table: Table, source: str, columns: Columns) -> None:
        self.table, self.source, self.columns = table, source, columns
        self.values: dict[str, Floats] = {name: self._number(name) for name in (*VALUES, "heldout")}
        self.step = self._integer("step", MAX_STEP)
        self.attempt = self._integer("attempt", MAX_ATTEMPT) if "attempt" in columns.source else None
        self.pass_index = np.nan_to_num(self._integer("pass_index", MAX_ATTEMPT))
        #: They decide nothing, not even which row of a step counts or where an attempt begins.
        self.figures = {
            column: table.numbers.get(column, np.full(len(table), np.nan))
            for column in (*columns.figures.values(), *columns.components)
        }
        for name in ("step_event", "heldout_event"):
            self.values[name] = self._integer(name, MAX_STEP)
        self.kl_kind = self._kl_kind()
        self.scored = self._scored()

    def at(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.source}: line {self.table.line[row]}"

    def baseline(self) -> list[int]:
        """Rows with step 0 and items and nothing else, before any other: passes of the starting policy."""
        bare = np.all([np.isnan(self.values[name]) for name in VALUES], axis=0)
        rows = [row for row in self.scored if self.step[row] == 0 and bare[row]]
        first = min(map(self._attempt_of, self.scored), default=0)  # a restarted trainer does not start over
        rows = [row for row in rows if self._attempt_of(row) == first]
        event = self.values["heldout_event"]
        others = event[list(self.scored.keys() - {*rows})]
        earliest = np.min(others, initial=np.inf, where=~np.isnan(others))
        rows = [row for row in rows if not event[row] > earliest]  # NaN: not known
        return sorted(rows, key=lambda row: (self.pass_index[row], row))

    def samples(self) -> int | None:
        """How many each outcome is the mean of, as the first evaluation says; a guard leaves 1 unsaid."""
        said = self._integer("samples_per_item", MAX_STEP)
        first = next((said[row] for row in sorted(self.scored) if said[row] >= 1), None)
        return None if first is None else int(first)

    def trainer(self) -> Sampling | None:
        """How the trainer samples, as far as a guard's history says it: its longest completion."""
        limit = self._integer(TRAINER_LIMIT, MAX_STEP)
        known = ((limit[row], self.scored[row].sampling) for row in sorted(self.scored) if limit[row] >= 1)
        longest, used = next(known, (0.0, None))
        return None if used is None else Sampling(temperature=used.temperature, max_new_tokens=int(longest))

    def further_passes(self, baseline: list[int]) -> list[_Scored]:
        """Later evaluations of a checkpoint: rows with `pass_index` > 0 that are no baseline."""
        return [
            _Scored(one, float(self.values["heldout_event"][row]))
            for row, one in self.scored.items()
            if one.pass_index > 0 and row not in baseline
        ]

    def passes(self, baseline: list[int]) -> tuple[Evaluation, ...]:
        """Those of the starting policy, as a guard makes them one after the other."""
        attempt = self._attempt_of_baseline(baseline)
        return tuple(
            replace(self.scored[row], attempt=attempt, step=0, pass_index=i) for i, row in enumerate(baseline)
        )

    def _attempt_of_baseline(self, baseline: list[int]) -> int:
        """The attempt that these passes say they are of; the first one where they say nothing."""
        if self.attempt is None:
            return 0
        own = self.attempt[baseline]
        said = own if not np.isnan(own).all() else self.attempt
        return 0 if np.isnan(said).all() else int(np.nanmin(said))

    def _attempt_of(self, row: int) -> int:
        return 0 if self.attempt is None or np.isnan(self.attempt[row]) else int(self.attempt[row])

    def usable(self, baseline: list[int], notes: list[str]) -> Ints:
        """Rows that have a step, and are no baseline and no further pass."""
        usable = ~np.isnan(self.step)
        if lost := int(np.sum(~usable)):
            notes.append(f"{lost} rows without a step were left out (the first: {self._first(~usable)}).")
        usable &= self.pass_index == 0
        usable[baseline] = False
        for name in (*VALUES, "heldout"):
            odd = np.isinf(self.values[name])
            if odd.any():
                notes.append(f"{int(odd.sum())} values of {name} are infinite: unknown ({self._first(odd)}).")
                self.values[name][odd] = np.nan
        negative = self.values["kl"] < 0
        if negative.any():
            notes.append(
                f"{int(negative.sum())} values of kl are below 0 and count as unknown, as in the guard (the "
                f"first: {self._first(negative)}): an estimator of the KL that can be negative (k1)?"
            )
            self.values["kl"][negative] = np.nan
        return np.flatnonzero(usable)

    def attempts(self, usable: Ints) -> Ints:
        """The attempt of each of these rows: as the log names it, else by the rule of a follower.

        Rows of one step that stand together are one step, with the first value of each quantity.
        """
        if self.attempt is not None:
            return np.nan_to_num(self.attempt[usable]).astype(np.int64)
        starts, found = Starts[StepSample]({}), []
        for step, together in groupby(usable.tolist(), key=lambda row: self.step[row]):
            rows = list(together)
            if not self.table.begins.isdisjoint(rows):
                starts.another_file()
            reward, kl, entropy, spread = (self._first_value(name, rows) for name in VALUES)
            if reward is not None:
                starts.place(StepSample(int(step), reward, kl, entropy=entropy, reward_std=spread))
            found += [starts.current or 0] * len(rows)
        return np.array(found, dtype=np.int64)

    def _first_value(self, name: str, rows: Sequence[int]) -> float | None:
        values = (float(self.values[name][row]) for row in rows)
        return next((value for value in values if not isnan(value)), None)

    def _first(self, where: Bools) -> str:
        return f"line {self.table.line[int(np.argmax(where))]}"

    def _number(self, name: str) -> Floats:
        column = self.columns.source.get(name)
        found = self.table.numbers.get(column) if column else None
        return np.full(len(self.table), np.nan) if found is None else found.copy()

    def _integer(self, name: str, limit: int) -> Floats:
        """A whole number >= 0 in each row; NaN where there is none."""
        values = self._number(name)
        bad = ~np.isnan(values) & ~((values >= 0) & (values < limit) & (values == np.floor(values)))
        if bad.any():
            row = int(np.argmax(bad))
            raise CliError(f"{self.at(row)}: {name} is {values[row]:g}, not a whole number from 0 on.")
        return values

    def _kl_kind(self) -> npt.NDArray[np.uint8]:
        """The kind the log states; a column that `names` took for the KL is a token mean."""
        given = self.table.objects.get(self.columns.source.get("kl_kind", ""), {})
        kinds = np.full(len(self.table), KINDS.index(KlKind.REF_TOKEN_MEAN), dtype=np.uint8)
        known = {kind.value: i for i, kind in enumerate(KINDS)}
        for row, word in given.items():
            if word not in known:
                raise CliError(f"{self.at(row)}: kl_kind is {word!r}; known: {', '.join(known)}.")
            kinds[row] = known[word]
        return kinds

    def _scored(self) -> dict[int, Evaluation]:
        """The evaluations with per-item outcomes, by row."""
        outcomes = {name: self._outcomes_by_row(name) for name in OUTCOMES}
        self._check_lengths([pair for found in outcomes.values() for pair in found.items()])
        told = {name: self._number(column) for name, column in TOLD.items()}
        samples = self._integer("samples_per_item", MAX_STEP)
        scored = {}
        for row, items in outcomes["items"].items():
            known = {name: _known(column[row]) for name, column in told.items()}
            scored[row] = Evaluation(
                attempt=self._attempt_of(row),
                step=int(np.nan_to_num(self.step[row])),
                path="",
                items=items,
                pass_index=int(self.pass_index[row]),
                truncated=known["truncated"],
                proxy_items=outcomes["proxy_items"].get(row),
                sampling=self._sampling(row, known["temperature"], known["max_new_tokens"], samples[row]),
                unanswered=known["unanswered"],
                unscored=known["unscored"],
                timed_out=known["timed_out"],
                fooled_items=outcomes["fooled_items"].get(row),
            )
        return scored

    def _sampling(
        self, row: int, temperature: float | None, longest: float | None, samples: float
    ) -> EvaluationSampling | None:
        if temperature is None or longest is None:
            return None
        try:
            return EvaluationSampling(
                temperature=temperature,
                max_new_tokens=int(longest),
                samples=int(samples) if samples >= 1 else 1,
                source=SamplingSource.SETTINGS,
            )
        except (ValueError, OverflowError):
            raise CliError(
                f"{self.at(row)}: {TOLD['temperature']} {temperature:g} and {TOLD['max_new_tokens']} "
                f"{longest:g} are no sampling of an evaluation."
            ) from None

    def _outcomes_by_row(self, name: str) -> dict[int, tuple[float, ...]]:
        """Per-item outcomes by row."""
        found = self.table.objects.get(self.columns.source.get(name, ""), {})
        return {row: self._outcomes(row, name, value) for row, value in found.items()}

    def _check_lengths(self, every: Sequence[tuple[int, tuple[float, ...]]]) -> None:
        """Outcomes have one order and one number everywhere."""
        lengths = {len(outcomes): row for row, outcomes in reversed(every) if outcomes}
        if len(lengths) > 1:
            (a, row_a), (b, row_b) = list(lengths.items())[:2]
            raise CliError(
                f"{self.at(row_a)} has {a} items and {self.at(row_b)} has {b}: every evaluation and baseline "
                "pass must score the same items in the same order."
            )

    def _outcomes(self, row: int, name: str, value: Any) -> tuple[float, ...]:
        failed = name == "proxy_items" and value == []  # the training grader did
        good = isinstance(value, list) and (value or failed) and all(_is_outcome(x) for x in value)
        if not good:
            raise CliError(f"{self.at(row)}: {name} must be a list of outcomes from 0 to 1: {value!r:.60}.")
        return tuple(float(x) for x in value)


def _known(cell: float) -> float | None:
    return None if np.isnan(cell) else float(cell)


def _is_outcome(x: Any) -> bool:
    return isinstance(x, int | float) and 0.0 <= x <= 1.0


@dataclass(frozen=True, slots=True)
class _Merged:
    """One row for each (attempt, step), in order."""

    attempt: Ints
    step: Ints
    values: Mapping[str, Floats]
    kl_kind: npt.NDArray[np.uint8]
    scored: Mapping[int, Evaluation]
    figures: Mapping[str, Floats]

    def evaluations(self, means_of: int | None) -> list[_Scored]:
        """The held-out evaluations; a mean of so many items is the outcome of each (see `guard_core.means`).

        Raises:
            CliError: it is not in [0, 1].
        """
        heldout = self.values["heldout"]
        # Once there are items, a mean without them cannot be compared with the others.
        rows = sorted(self.scored) or np.flatnonzero(~np.isnan(heldout)).tolist()
        return [
            _Scored(
                replace(self._evaluation(r, means_of), attempt=int(self.attempt[r]), step=int(self.step[r])),
                float(self.values["heldout_event"][r]),
            )
            for r in rows
        ]

    def _evaluation(self, row: int, means_of: int | None) -> Evaluation:
        mean = float(self.values["heldout"][row])
        if row in self.scored:
            return self.scored[row]
        if means_of is None:
            return Evaluation(0, 0, "", (mean,), mean_only=True)
        if not 0 <= mean <= 1:
            raise CliError(
                f"--heldout-items {means_of}: the held-out score of step {self.step[row]} is {mean:g}, and "
                "a mean of outcomes lies between 0 and 1. Leave the option out."
            )
        return Evaluation(0, 0, "", (mean,) * means_of)

    def steps(self, notes: list[str]) -> dict[str, Any]:
        """The arrays of `Run` and `step_event`: only rows with a reward are steps, as for the guard."""
        is_step = ~np.isnan(self.values["reward"])
        evaluated = ~np.isnan(self.values["heldout"])
        evaluated[list(self.scored)] = True
        lost = int(np.sum(~is_step & ~evaluated))
        if lost:
            notes.append(f"{lost} of {len(self.step)} steps have no reward: a guard would not get them.")
        return {
            "attempt": self.attempt[is_step],
            "step": self.step[is_step],
            "kl_kind": self.kl_kind[is_step],
            **{name: self.values[name][is_step] for name in (*VALUES, "step_event")},
            "figures": {name: values[is_step] for name, values in self.figures.items()},
        }


def _merge(rows: _Rows, usable: Ints, notes: list[str]) -> _Merged:
    """Order rows by attempt and step and merge those of one step: trackers log one step in several rows.

    Of two rows that contradict each other the first counts, as the guard refuses the second (409).
    """
    attempts = rows.attempts(usable)
    several = len(np.unique(attempts))
    if rows.attempt is None and several > 1:
        notes.append(f"the steps go back {several - 1} times: read as {several} attempts of the trainer.")
    members: dict[tuple[int, int], list[int]] = {}
    for attempt, row in zip(attempts.tolist(), usable.tolist(), strict=True):
        members.setdefault((attempt, int(rows.step[row])), []).append(row)
    places = sorted(members)
    repeated = {i: members[place] for i, place in enumerate(places) if len(members[place]) > 1}
    notes += _about_repeats(rows, repeated.values())
    first = np.array([members[place][0] for place in places], dtype=np.int64)

    def merged(column: Floats) -> Floats:
        """The first value of each step that is there."""
        values = column[first]
        for i, several in repeated.items():
            values[i] = column[_first_with(column, several)]
        return values

    kl_from = first.copy()
    for i, together in repeated.items():
        kl_from[i] = _first_with(rows.values["kl"], together)
    scored = {
        i: rows.scored[row]
        for i, place in enumerate(places)
        for row in reversed(members[place])
        if row in rows.scored
    }
    return _Merged(
        np.array([attempt for attempt, _ in places], dtype=np.int64),
        np.array([step for _, step in places], dtype=np.int64),
        {name: merged(column) for name, column in rows.values.items()},
        rows.kl_kind[kl_from],
        scored,
        {name: merged(column) for name, column in rows.figures.items()},
    )


def _first_with(column: Floats, rows: Sequence[int]) -> int:
    """The first of these rows that has a value, or just the first."""
    return next((row for row in rows if not isnan(column[row])), rows[0])


def _about_repeats(rows: _Rows, repeated: Collection[Sequence[int]]) -> Iterator[str]:
    """What is said of steps with several rows."""
    clashing = [several for several in repeated if _contradict(rows, several)]
    if clashing:
        first, second = clashing[0][:2]
        yield (
            f"{len(clashing)} steps are there several times with different values; the first counts, as in "
            f"the guard (e.g. step {int(rows.step[first])}: lines {rows.table.line[first]} and "
            f"{rows.table.line[second]})."
        )
    elif repeated:
        yield f"{sum(map(len, repeated)) - len(repeated)} rows repeat a step and were merged with it."


def _contradict(rows: _Rows, several: Sequence[int]) -> bool:
    """Whether these rows of one step have two values for one quantity."""
    return any(
        len({v for v in column[several].tolist() if not isnan(v)}) > 1 for column in rows.values.values()
    )
