"""The rows of a log under their canonical names. Pure.

What the guard would not take, such as an infinite value, is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf, isnan
from typing import Any

from rlguard.cli.errors import CliError
from rlguard.cli.logs.table import OUTCOMES, Table, TableRow
from rlguard.core.rounds import TOLD, TRAINER_LIMIT, Evaluation
from rlguard.core.wire import EvaluationSampling, KlKind, SamplingSource
from rlguard.follow.attempts import VALUES
from rlguard.follow.columns import Columns

MAX_STEP = 2**53
MAX_ATTEMPT = 2**31
#: Whole numbers of a row, and their limits. A guard gives the events' numbers to a step and an evaluation.
WHOLE_NUMBERS = {
    **{"step": MAX_STEP, "attempt": MAX_ATTEMPT, "pass_index": MAX_ATTEMPT},
    **dict.fromkeys(("step_event", "heldout_event", "samples_per_item", TRAINER_LIMIT), MAX_STEP),
}
KL_KINDS = {kind.value: kind for kind in KlKind}


@dataclass(slots=True, eq=False)
class RunRow:
    """One row; `values` and `whole` have what is there, by canonical name, `figures` by column.

    `line`: where it stands. `begins`: with it a further file begins. `whole`: whole numbers. `kind`: of the
    KL. `evaluation`: one with per-item outcomes.
    """

    line: int
    begins: bool
    values: dict[str, float]
    whole: dict[str, int]
    kind: KlKind
    figures: dict[str, float]
    evaluation: Evaluation | None = None

    @property
    def attempt(self) -> int:
        """The attempt that it names, or 0."""
        return self.whole.get("attempt", 0)


@dataclass(slots=True)
class RowReader:
    """Reads the rows of a table. `source`: the log's name, for messages."""

    table: Table
    source: str
    columns: Columns
    _odd: dict[str, list[int]] = field(default_factory=dict)
    _length: tuple[int, int] | None = None  # of the first outcomes, and where they stand

    def read(self) -> tuple[list[RunRow], Sequence[str]]:
        """The rows, and a note for each kind of value that does not count.

        Raises:
            CliError: a value cannot be right.
        """
        return list(map(self._read, self.table.rows)), tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        for name, lines in self._odd.items():
            if name == "step":
                yield f"{len(lines)} rows without a step were left out (the first: line {lines[0]})."
            else:
                yield f"{len(lines)} values of {name} are infinite: unknown (line {lines[0]})."

    def _read(self, row: TableRow) -> RunRow:
        whole: dict[str, int] = {}
        for name, limit in WHOLE_NUMBERS.items():
            whole |= self._whole(row, name, limit)
        if "step" not in whole:
            self._odd.setdefault("step", []).append(row.line)
        values = {
            name: value for name in (*VALUES, "heldout") if (value := self._value(row, name)) is not None
        }
        figures = {
            column: row.cells[column]
            for column in (*self.columns.figures.values(), *self.columns.components)
            if column in row.cells and not isnan(row.cells[column])
        }
        found = RunRow(row.line, row.begins, values, whole, self._kind(row), figures)
        found.evaluation = self._evaluation(row, found)
        return found

    def _at(self, row: TableRow) -> str:
        return f"{self.source}: line {row.line}"

    def _cell(self, row: TableRow, name: str) -> Any:
        return row.cells.get(self.columns.source.get(name, ""))

    def _value(self, row: TableRow, name: str) -> float | None:
        value: float | None = self._cell(row, name)
        if value is None or isnan(value):
            return None
        if isinf(value):
            self._odd.setdefault(name, []).append(row.line)
            return None
        return max(value, 0.0) if name == "kl" else value  # as `rlguard.client.samples.sample_of` has it

    def _whole(self, row: TableRow, name: str, limit: int) -> dict[str, int]:
        """A whole number from 0 on by its name; {} where there is none."""
        value = self._cell(row, name)
        if value is None or isnan(value):
            return {}
        if not (0 <= value < limit and value == int(value)):
            raise CliError(f"{self._at(row)}: {name} is {value:g}, not a whole number from 0 on.")
        return {name: int(value)}

    def _kind(self, row: TableRow) -> KlKind:
        """The kind that the row states; a column that was taken for the KL is a token mean."""
        word = self._cell(row, "kl_kind")
        if word is None:
            return KlKind.REF_TOKEN_MEAN
        if not isinstance(word, str) or word not in KL_KINDS:
            raise CliError(f"{self._at(row)}: kl_kind is {word!r}; known: {', '.join(KL_KINDS)}.")
        return KL_KINDS[word]

    def _evaluation(self, row: TableRow, read: RunRow) -> Evaluation | None:
        """The evaluation in a row with per-item outcomes."""
        outcomes = {name: self._outcomes(row, name) for name in OUTCOMES}
        items = outcomes["items"]
        if items is None:
            return None
        cells = {name: self._cell(row, column) for name, column in TOLD.items()}
        known = {name: cell for name, cell in cells.items() if cell is not None and not isnan(cell)}
        return Evaluation(
            attempt=read.attempt,
            step=read.whole.get("step", 0),
            path="",
            items=items,
            pass_index=read.whole.get("pass_index", 0),
            truncated=known.get("truncated"),
            proxy_items=outcomes["proxy_items"],
            sampling=self._sampling(row, known, read.whole.get("samples_per_item", 1)),
            unanswered=known.get("unanswered"),
            unscored=known.get("unscored"),
            timed_out=known.get("timed_out"),
            fooled_items=outcomes["fooled_items"],
        )

    def _sampling(self, row: TableRow, known: Mapping[str, float], samples: int) -> EvaluationSampling | None:
        temperature, longest = known.get("temperature"), known.get("max_new_tokens")
        if temperature is None or longest is None:
            return None
        try:
            return EvaluationSampling(
                temperature=temperature,
                max_new_tokens=int(longest),
                samples=max(samples, 1),
                source=SamplingSource.SETTINGS,
            )
        except (ValueError, OverflowError):
            raise CliError(
                f"{self._at(row)}: {TOLD['temperature']} {temperature:g} and {TOLD['max_new_tokens']} "
                f"{longest:g} are no sampling of an evaluation."
            ) from None

    def _outcomes(self, row: TableRow, name: str) -> tuple[float, ...] | None:
        """Outcomes of items; None where there are none. They have one order and one number everywhere."""
        value = self._cell(row, name)
        if value is None:
            return None
        failed = name == "proxy_items" and value == []  # the training grader did
        good = isinstance(value, list) and (value or failed) and all(map(_is_outcome, value))
        if not good:
            raise CliError(f"{self._at(row)}: {name} must be a list of outcomes from 0 to 1: {value!r:.60}.")
        self._length = self._length or (len(value), row.line) if value else self._length
        first, line = self._length or (0, 0)
        if value and first != len(value):
            raise CliError(
                f"{self._at(row)} has {len(value)} items and {self.source}: line {line} has {first}: every "
                "evaluation and baseline pass must score the same items in the same order."
            )
        return tuple(map(float, value))


def _is_outcome(x: Any) -> bool:
    return isinstance(x, int | float) and 0.0 <= x <= 1.0
