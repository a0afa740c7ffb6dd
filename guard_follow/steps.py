"""Records of a log into reports: which values are one step. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from guard_client.samples import StepSample, sample_of, wrong_in_step
from guard_core.frameworks import bare
from guard_core.wire import KlKind, StepReport
from guard_follow import names
from guard_follow.errors import InputError
from guard_follow.frameworks import BY_KEY, FRAMEWORKS, STEP_NAMES
from guard_follow.names import Columns
from guard_follow.records import AGAIN, Record, number
from guard_follow.starts import VALUES, Starts

#: By attempt and step, what the guard has.
ReportedSteps = dict[int, dict[int, StepSample]]

#: Frameworks of which a row with a reward is a step by itself.
WHOLE = frozenset(framework.name for framework in FRAMEWORKS if framework.whole_rows)
#: An event has the step and one value: what else belongs to the step comes after it, whoever writes.
_OF_AN_EVENT = 2
#: What `--map` may name of which a step is made; no step is whole without them.
_OF_A_STEP = ("step", "attempt", "kl_kind", *VALUES)
#: Of which a row must have one: else it says nothing of a step.
_MEASURED = (*VALUES, "heldout", "items")
_KINDS = {kind.value: kind for kind in KlKind}
_MAX_COLUMNS = 5_000
_MAX_ATTEMPT = 2**31
#: Steps that wait until the columns are known.
_MAX_WAITING = 10_000
#: Records after which it is told that no step can be read, though none was found whole.
_MANY_RECORDS = 100
_MAX_NAME = 100


@dataclass(slots=True)
class Counts:
    """What of the log became no report."""

    not_finite: int = 0
    wrong: int = 0
    unknown_kinds: int = 0


class StepGatherer:
    """Gathers the records of one step, and gives it when it is whole.

    Args:
        attempts: places each step.
        overrides: canonical name to column, from `--map`.
        framework: key of the framework that writes, or None.
        settings: gives what the run's own configuration says by now; see `names.resolve`.
        say: gets each sentence that the user should read, once.
    """

    def __init__(
        self,
        attempts: Starts[StepSample],
        overrides: Mapping[str, str],
        framework: str | None,
        settings: Callable[[], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self.attempts = attempts
        self.counts = Counts()
        self._overrides, self._framework, self._settings, self._say = overrides, framework, settings, say
        self._measured = {theirs for ours, theirs in overrides.items() if ours in _MEASURED}
        self._seen: dict[str, None] = {}
        self._columns: Columns | None = None
        self._trouble = ""
        self._unread = 0
        self._step: tuple[int | None, int] | None = None  # (attempt that the log names, step)
        self._values: dict[str, Any] = {}
        self._waiting: deque[tuple[tuple[int | None, int], dict[str, Any]]] = deque(maxlen=_MAX_WAITING)

    def take(self, record: Record) -> list[StepReport]:
        """The reports that this record makes whole; an empty one says that another file begins.

        What comes after it is no part of the step that is being gathered.
        """
        if not record:
            done = self.rest()
            if record is AGAIN:
                self.attempts.read_again()
            else:
                self.attempts.another_file()
            return done
        if any(name not in self._seen for name in record):
            self._learn(record)
        self._unread += self._columns is None
        if self._unread == _MANY_RECORDS and not (self._trouble or self._missing()):
            self._resolve()  # no column was worth a look
        number_of_step = self._step_of(record)
        if number_of_step is None:
            return []
        if not self._is_of_a_step(record):
            return []
        step = self._attempt_of(record), number_of_step
        done = self.rest() if self._step is not None and step != self._step else []
        self._step = step
        self._gather(record)
        if len(record) > _OF_AN_EVENT and self._is_whole():
            done += self.rest()
        return done

    def _gather(self, record: Record) -> None:
        """Take of a record what the step has not yet: the first value counts that can, as in the replay."""
        for name, value in record.items():
            ours = name in self._overrides.values() or names.wanted(name)
            if not ours or value == "":
                continue
            before = self._values.get(name)
            if before is None:
                self._values[name] = value
            elif self._counts(name, value) and not self._counts(name, before):
                self._values[name] = value
                if self._is_kl(name):  # it is of the kind that its own record says
                    self._values |= {n: kind for n, kind in record.items() if self._is_kind(n) and kind}

    def rest(self) -> list[StepReport]:
        """The reports of the step that was being gathered, and of those that waited for their columns."""
        if self._step is not None:
            self._waiting.append((self._step, self._values))
        self._step, self._values = None, {}
        if self._columns is None:
            return []
        reports: list[StepReport] = []
        while self._waiting:
            (named, step), values = self._waiting.popleft()
            sample = self._sample(step, values, self._columns)
            attempt = None if sample is None else self.attempts.place(sample, named)
            if sample is not None and attempt is not None:
                reports.append(sample.report(attempt))
        return reports

    @property
    def gathers(self) -> bool:
        """Whether a step waits for the rest of its values."""
        return self._step is not None

    @property
    def trouble(self) -> str:
        """Why no step can be read, when there should have been one; "" once one can."""
        if self._columns is not None or not (self._waiting or self._unread >= _MANY_RECORDS):
            return ""
        missing = self._missing()
        return " ".join(map(self._not_there, missing)) if missing else self._trouble

    def _missing(self) -> list[str]:
        """What `--map` names of a step, and no record had so far."""
        return [ours for ours in _OF_A_STEP if self._overrides.get(ours, "") not in {"", *self._seen}]

    def _not_there(self, ours: str) -> str:
        theirs = self._overrides[ours]
        near = get_close_matches(theirs, [name for name in self._seen if len(name) <= _MAX_NAME], cutoff=0.5)
        found = f"near to it: {names.listing(near)}" if near else f"found: {names.listing(self._seen)}"
        return f"--map {ours}={theirs}: no record has such a column yet; {found}."

    def _learn(self, record: Record) -> None:
        new = [name for name in record if name not in self._seen]
        kept = new[: max(0, _MAX_COLUMNS - len(self._seen))]
        self._seen.update(dict.fromkeys([*kept, *(name for name in new if name in self._overrides.values())]))
        if not any(names.wanted(name) or name in self._overrides.values() or "kl" in name for name in new):
            return
        if self._missing():
            return
        self._resolve()

    def _resolve(self) -> None:
        """Find out which columns are what, or why that cannot be known."""
        here = {ours: theirs for ours, theirs in self._overrides.items() if theirs in self._seen}
        try:
            columns = names.resolve(list(self._seen), here, self._framework, self._settings())
        except InputError as error:
            self._trouble = str(error)
            return
        if columns != self._columns:
            self._tell(columns)
        self._columns = columns

    def _tell(self, columns: Columns) -> None:
        read_as = ", ".join(f"{ours} = {theirs}" for ours, theirs in columns.source.items())
        self._say(f"{columns.framework}: read as {read_as}")
        for note in columns.notes:
            self._say(note)

    def _step_of(self, record: Record) -> int | None:
        known = self._columns.source["step"] if self._columns is not None else self._overrides.get("step")
        name = known or next((n for n in self._by_preference(record)), None)
        if name is None or name not in record:
            return None
        value = _whole_number(record[name], 2**53)
        self.counts.wrong += value is None
        return value

    def _attempt_of(self, record: Record) -> int | None:
        """The attempt that the log names; None where it names none."""
        name = self._columns.source.get("attempt") if self._columns is not None else None
        value = _whole_number(record.get(name or "attempt"), _MAX_ATTEMPT)
        self.counts.wrong += value is None and record.get(name or "attempt") not in (None, "")
        return value

    def _by_preference(self, record: Record) -> list[str]:
        found = [name for name in record if bare(name) in STEP_NAMES]
        return sorted(found, key=lambda name: STEP_NAMES.index(bare(name)))

    def _is_of_a_step(self, record: Record) -> bool:
        """Whether it can begin or end a step: what is logged beside may count otherwise, such as in seconds.

        Until the columns are known everything does, but to what is being gathered.
        """
        if self._columns is None:
            return any(map(self._may_be_judged, record)) or not any(map(self._may_be_judged, self._values))
        judged = (self._columns.source.get(name, "") for name in _MEASURED)
        return any(record.get(name, "") != "" for name in judged)

    def _counts(self, name: str, value: Any) -> bool:
        """Whether a step can have this value: a finite number, and no KL below 0."""
        try:
            read = number(value)
        except ValueError:
            return False
        return read is not None and math.isfinite(read) and (read >= 0 or not self._is_kl(name))

    def _is_kl(self, name: str) -> bool:
        known = self._overrides if self._columns is None else self._columns.source
        return name == known["kl"] if "kl" in known else self._columns is None and names.is_kl(name)

    def _is_kind(self, name: str) -> bool:
        return name == self._overrides.get("kl_kind", "") or bare(name) == "kl_kind"

    def _may_be_judged(self, name: str) -> bool:
        return name in self._measured or names.is_judged(name)

    def _is_whole(self) -> bool:
        if self._columns is None:
            return False
        framework = self._framework and BY_KEY[self._framework].name
        reward = self._columns.source["reward"]
        whole_row = (framework or self._columns.framework) in WHOLE
        return whole_row and self._counts(reward, self._values.get(reward))

    def _sample(self, step: int, values: Mapping[str, Any], columns: Columns) -> StepSample | None:
        read: dict[str, float | None] = {}
        for name in VALUES:
            try:
                read[name] = number(values.get(columns.source.get(name, "")))
            except ValueError:
                self.counts.wrong += 1
        if (kl := read.get("kl")) is not None and kl < 0:
            read["kl"] = None  # an estimate that can be negative, as the replay has it
        kind = self._kind(values.get(columns.source.get("kl_kind", "")))
        if kind is KlKind.NOT_FINITE:
            read["kl"] = math.nan
        if wrong_in_step(step, read, KlKind.REF_TOKEN_MEAN) is not None:
            self.counts.wrong += 1
            return None
        sample = sample_of(step, read, kind or KlKind.ABSENT)
        if sample.reward is not None:
            return sample
        without = "reward" in read and columns.source["reward"] in values
        self.counts.not_finite += without
        return sample if without else None

    def _kind(self, word: Any) -> KlKind | None:
        """Which KL the row says it has, by itself a token mean; None if there is no such kind."""
        if word in (None, ""):
            return KlKind.REF_TOKEN_MEAN
        kind = _KINDS.get(word) if isinstance(word, str) else None
        if kind is None and not self.counts.unknown_kinds:
            self._say(
                f"a row says kl_kind={word!r:.40}: known are {', '.join(_KINDS)}. "
                "The KL of such rows is left out"
            )
        self.counts.unknown_kinds += kind is None
        return kind


def _whole_number(value: Any, limit: int) -> int | None:
    """A whole number from 0 on; None if it is none."""
    try:
        read = number(value)
    except ValueError:
        return None
    return int(read) if read is not None and 0 <= read < limit and read == int(read) else None
