"""Gathers the records of a log into reports: which values are one step. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rlguard.client.samples import StepSample, sample_of, wrong_in_step
from rlguard.core.frameworks import bare
from rlguard.core.wire import KlKind, StepReport
from rlguard.follow import columns as names
from rlguard.follow.attempts import VALUES, Attempts
from rlguard.follow.columns import Columns
from rlguard.follow.decoders import AGAIN, Record, number
from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import BY_KEY, FRAMEWORKS, STEP_NAMES

#: Frameworks of which a row with a reward is a step by itself.
_WHOLE = frozenset(framework.name for framework in FRAMEWORKS if framework.whole_rows)
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
#: Records after which it is an error that no step could be read, though none was found whole.
_MANY_RECORDS = 100
_MAX_NAME = 100

_NamedStep = tuple[int | None, int]  # (attempt that the log names, step)


@dataclass(slots=True)
class Counts:
    """What of the log became no report."""

    not_finite: int = 0
    wrong: int = 0
    unknown_kinds: int = 0


class StepGatherer:
    """Gathers the records of one step, and gives its report when it is whole.

    Args:
        attempts: places each step.
        overrides: canonical name to column, from `--map`.
        framework: key of the framework that writes, or None.
        settings: gives what the run's own configuration says by now; see `columns.resolve`.
        say: gets each sentence that the user should read, once.
    """

    def __init__(
        self,
        attempts: Attempts,
        overrides: Mapping[str, str],
        framework: str | None,
        settings: Callable[[], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self.attempts = attempts
        self.counts = Counts()
        self._overrides, self._framework, self._settings, self._say = overrides, framework, settings, say
        self._mapped = frozenset(overrides.values())
        self._measured = {theirs for ours, theirs in overrides.items() if ours in _MEASURED}
        self._seen: dict[str, None] = {}
        self._columns: Columns | None = None
        self._trouble = ""
        self._unread = 0
        self._step: _NamedStep | None = None
        self._values: dict[str, Any] = {}
        self._waiting: deque[tuple[_NamedStep, dict[str, Any]]] = deque(maxlen=_MAX_WAITING)

    def take(self, record: Record) -> list[StepReport]:
        """The reports that this record makes whole; BOUNDARY or AGAIN ends the step that is gathered."""
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
        step = self._step_of(record)
        if step is None or not self._is_of_a_step(record):
            return []
        named = self._attempt_of(record), step
        done = self.rest() if self._step is not None and named != self._step else []
        self._step = named
        self._gather(record)
        if len(record) > _OF_AN_EVENT and self._is_whole():
            done += self.rest()
        return done

    def rest(self) -> list[StepReport]:
        """The reports of the step that was being gathered, and of those that waited for their columns."""
        if self._step is not None:
            self._waiting.append((self._step, self._values))
        self._step, self._values = None, {}
        reports: list[StepReport] = []
        while self._columns is not None and self._waiting:
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

    # -- which columns are what --------------------------------------------------------------------------

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
        self._seen.update(dict.fromkeys([*kept, *(name for name in new if name in self._mapped)]))
        telling = any(names.quantity_of(name) or name in self._mapped or "kl" in name for name in new)
        if telling and not self._missing():
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
            read_as = ", ".join(f"{ours} = {theirs}" for ours, theirs in columns.source.items())
            self._say(f"{columns.framework}: read as {read_as}")
            for note in columns.notes:
                self._say(note)
        self._columns = columns

    # -- which step a record is of -----------------------------------------------------------------------

    def _step_of(self, record: Record) -> int | None:
        known = self._columns.source["step"] if self._columns is not None else self._overrides.get("step")
        if known is None:
            found = {bare(name): name for name in record if bare(name) in STEP_NAMES}
            known = next((found[name] for name in STEP_NAMES if name in found), None)
        if known is None or known not in record:
            return None
        value = _whole_number(record[known], 2**53)
        self.counts.wrong += value is None
        return value

    def _attempt_of(self, record: Record) -> int | None:
        """The attempt that the log names; None where it names none."""
        name = self._columns.source.get("attempt") if self._columns is not None else None
        named = record.get(name or "attempt")
        value = _whole_number(named, _MAX_ATTEMPT)
        self.counts.wrong += value is None and named not in (None, "")
        return value

    def _is_of_a_step(self, record: Record) -> bool:
        """Whether it can begin or end a step: what is logged beside may count otherwise, such as in seconds.

        Until the columns are known everything does, but to what is being gathered.
        """
        if self._columns is None:
            return any(map(self._may_be_judged, record)) or not any(map(self._may_be_judged, self._values))
        judged = (self._columns.source.get(name, "") for name in _MEASURED)
        return any(record.get(name, "") != "" for name in judged)

    def _may_be_judged(self, name: str) -> bool:
        return name in self._measured or names.is_judged(name)

    def _is_whole(self) -> bool:
        if self._columns is None:
            return False
        framework = BY_KEY[self._framework].name if self._framework else self._columns.framework
        reward = self._columns.source["reward"]
        return framework in _WHOLE and _is_finite(self._values.get(reward))

    # -- its values --------------------------------------------------------------------------------------

    def _gather(self, record: Record) -> None:
        """Take of a record what the step has not yet: the first value counts that can, as in the replay."""
        for name, value in record.items():
            if value == "" or not (name in self._mapped or names.quantity_of(name)):
                continue
            before = self._values.get(name)
            if before is None:
                self._values[name] = value
            elif _is_finite(value) and not _is_finite(before):
                self._values[name] = value
                if self._is_kl(name):  # it is of the kind that its own record says
                    self._values |= {n: kind for n, kind in record.items() if self._is_kind(n) and kind}

    def _is_kl(self, name: str) -> bool:
        known = self._overrides if self._columns is None else self._columns.source
        if "kl" in known:
            return name == known["kl"]
        return self._columns is None and names.quantity_of(name) == "kl"

    def _is_kind(self, name: str) -> bool:
        return name == self._overrides.get("kl_kind", "") or bare(name) == "kl_kind"

    def _sample(self, step: int, values: Mapping[str, Any], columns: Columns) -> StepSample | None:
        read: dict[str, float | None] = {}
        for name in VALUES:
            try:
                read[name] = number(values.get(columns.source.get(name, "")))
            except ValueError:
                self.counts.wrong += 1
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


def _is_finite(value: Any) -> bool:
    try:
        read = number(value)
    except ValueError:
        return False
    return read is not None and math.isfinite(read)


def _whole_number(value: Any, limit: int) -> int | None:
    """A whole number from 0 on; None if it is none."""
    try:
        read = number(value)
    except ValueError:
        return None
    return int(read) if read is not None and 0 <= read < limit and read == int(read) else None
