"""Of which start of the trainer each row of a log is, by the rule by which a follower says it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from guard_cli.logs.table import Floats
from guard_follow.starts import VALUES, Starts

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class _Step(NamedTuple):
    """What the rows of one step say, and which group of rows they are."""

    group: int
    step: int
    reward: float | None
    kl: float | None
    entropy: float | None
    reward_std: float | None


def attempts_of(
    step: Ints,
    named: Ints | None,
    values: Mapping[str, Floats],
    begins: Sequence[int],
    whole_rows: bool,
    judged: Bools,
) -> tuple[Ints, Bools]:
    """The attempt of each row, and whether what it measured counts; see `_of_judged`.

    Args:
        step: see `_of_judged`.
        named: see `_of_judged`.
        values: see `_of_judged`.
        begins: see `_of_judged`.
        whole_rows: see `_of_judged`.
        judged: rows with anything that is judged, shape (rows,); another one ends no step, as for a follower.
    """
    rows = np.flatnonzero(judged)
    attempt, counts = np.zeros(len(step), dtype=np.int64), np.ones(len(step), dtype=bool)
    if not len(rows):
        return attempt if named is None else named, counts
    begun = np.searchsorted(rows, begins)
    attempt[rows], counts[rows] = _of_judged(
        step[rows],
        None if named is None else named[rows],
        {name: column[rows] for name, column in values.items()},
        begun[begun < len(rows)].tolist(),
        whole_rows,
    )
    return _beside(step, attempt, rows) if named is None else named, counts


def _of_judged(
    step: Ints, named: Ints | None, values: Mapping[str, Floats], begins: Sequence[int], whole_rows: bool
) -> tuple[Ints, Bools]:
    """The attempt of each row, and whether what it measured counts.

    Rows of one step that stand together are one step, as for a follower, which reports it when the next one
    begins: what comes later is not of it. A row without a reward is of the start that it stands in.

    Args:
        step: shape (rows,).
        named: the attempt that the log itself names, shape (rows,); None where it names none.
        values: what each row measured, by `starts.VALUES`, each of shape (rows,); NaN: nothing.
        begins: rows with which another file begins.
        whole_rows: a row with a reward is a step by itself.
    """
    new = np.diff(step, prepend=-1) != 0
    new |= False if named is None else np.diff(named, prepend=-1) != 0
    new[list(begins)] = True
    if whole_rows:
        new[1:] |= ~np.isnan(values["reward"][:-1])
    group = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    gathered = {name: _first_in_group(values[name], first) for name in VALUES}
    is_step = np.flatnonzero(~np.isnan(gathered["reward"]))
    if named is not None:
        counts = np.zeros(len(first), dtype=bool)
        counts[is_step[_first_of_each(named[first][is_step], step[first][is_step])]] = True
        return named, counts[group]
    attempt, counts = _placed(step[first], gathered, is_step, group[list(begins)])
    return attempt[group], counts[group]


def _first_in_group(values: Floats, first: Ints) -> Floats:
    """Of each group of rows the first value that is there."""
    place = np.where(np.isnan(values), len(values), np.arange(len(values)))
    return np.append(values, np.nan)[np.minimum.reduceat(place, first)]


def _first_of_each(attempt: Ints, step: Ints) -> Ints:
    """Where each (attempt, step) stands for the first time."""
    order = np.lexsort((step, attempt))  # stable
    again = (np.diff(attempt[order], prepend=-1) == 0) & (np.diff(step[order], prepend=-1) == 0)
    found: Ints = order[~again]
    return found


def _placed(step: Ints, values: Mapping[str, Floats], is_step: Ints, begins: Ints) -> tuple[Ints, Bools]:
    """The attempt of each group of rows, and whether it counts."""
    attempt, counts = np.zeros(len(step), dtype=np.int64), np.zeros(len(step), dtype=bool)
    counts[is_step] = True
    back = np.flatnonzero(np.diff(step[is_step]) <= 0)
    if not len(back):
        return attempt, counts
    first = int(back[0]) + 1  # the steps before it are of the first start, whatever they measured
    cells = (_or_none(values[name][is_step]) for name in VALUES)
    steps = list(map(_Step, is_step.tolist(), step[is_step].tolist(), *cells))
    starts = Starts({0: {one.step: one for one in steps[:first]}})
    starts.place(steps[first - 1])
    another_file = np.diff(np.searchsorted(begins, is_step, side="right"), prepend=0) > 0
    for one, begun in zip(steps[first:], another_file[first:].tolist(), strict=True):
        if begun:
            starts.another_file()
        counts[one.group] = starts.place(one) is not None
        attempt[one.group] = starts.current or 0
    return _beside(step, attempt, is_step), counts


def _or_none(values: Floats) -> list[float | None]:
    """Numbers of Python; None for NaN."""
    found = values.astype(object)
    found[np.isnan(values)] = None
    return list(found)


def _beside(step: Ints, attempt: Ints, is_step: Ints) -> Ints:
    """The attempts, and for what is no step that of the step before it, or after it where it went back."""
    after = np.searchsorted(is_step, np.arange(len(step)), side="left")
    before = np.maximum(after - 1, 0)
    here, there = is_step[before], is_step[np.minimum(after, len(is_step) - 1)]
    goes_back = (step < step[here]) & (step <= step[there])
    found: Ints = attempt[np.where(goes_back, there, here)]
    found[is_step] = attempt[is_step]
    return found
