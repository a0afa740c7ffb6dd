"""The held-out split and the training prompts: read them, and refuse what is wrong with them.

Errors name the file, the line and the id, never a prompt or an answer (invariant 8). No torch here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guard_service.heldout.errors import SplitError
from guard_service.heldout.rows import (
    PROMPTS,
    DataRow,
    each,
    lines,
    missing_column,
    read_data_rows,
    unreadable,
    validate,
)
from guard_service.heldout.text import Prompt, normalised
from rlguard.core.evaluation import MAX_MARK, MAX_SYSTEM_PROMPT, ChatTemplateKwargs


class Message(BaseModel):
    """One chat message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str = Field(repr=False)


def _answer_text(value: Any) -> Any:
    """A number as it is written, without a `.0` at its end; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


class HeldoutItem(BaseModel):
    """One held-out item. Its repr shows the id only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] = Field(
        description="Unique name: 1 to 128 visible ASCII characters."
    )
    prompt: Annotated[str, Field(min_length=1)] | Annotated[tuple[Message, ...], Field(min_length=1)] = Field(
        description="Text, or chat messages.", repr=False
    )
    answer: str = Field(
        "", description="What the scorer compares with: a text, a number, or a list of answers.", repr=False
    )
    accepted: tuple[str, ...] = Field((), description="Further answers that are right.", repr=False)
    scorer: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Scorer of this item; the settings' scorer if absent."
    )
    group: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Items with the same group succeed or fail together, as those of one template do, and "
        "count as one.",
        repr=False,
    )
    system_prompt: Annotated[str, Field(max_length=MAX_SYSTEM_PROMPT)] | None = Field(
        None, description="System message of this item; empty: none; the settings' if absent.", repr=False
    )
    chat_template_kwargs: ChatTemplateKwargs = Field(
        None,
        description="Variables for the chat template; they win over the settings', name by name.",
        repr=False,
    )
    answer_after: Annotated[str, Field(max_length=MAX_MARK)] | None = Field(
        None,
        description="Mark after which the answer begins; empty: all is the answer; the settings' if absent.",
        repr=False,
    )
    meta: dict[str, Any] = Field(default_factory=dict, description="Passed to the scorer.", repr=False)

    @model_validator(mode="before")
    @classmethod
    def _accept(cls, row: Any) -> Any:
        """A number as text, and of a list of answers the first as `answer`, the others as `accepted`."""
        if not isinstance(row, dict):
            return row
        answer = row.get("answer")
        if isinstance(answer, list) and answer and all(isinstance(one, str | int | float) for one in answer):
            first, *others = map(_answer_text, answer)
            return {**row, "answer": first, "accepted": [*others, *row.get("accepted", ())]}
        return {**row, "answer": _answer_text(answer)} if "answer" in row else row

    @property
    def answers(self) -> tuple[str, ...]:
        """All that are right."""
        return (self.answer, *self.accepted)

    @model_validator(mode="after")
    def _one_system_message(self) -> Self:
        if self.system_prompt and not isinstance(self.prompt, str) and self.prompt[0].role == "system":
            raise ValueError("has a system message in its prompt, and a system_prompt: keep one")
        return self

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The prompt as chat messages, after the item's own system message; a text is one user message."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        if isinstance(self.prompt, str):
            return [*system, {"role": "user", "content": self.prompt}]
        return [*system, *(m.model_dump() for m in self.prompt)]

    @property
    def key(self) -> str:
        """The normalised prompt, by which items are the same."""
        return normalised(self.conversation)


@dataclass(frozen=True)
class HeldoutSplit:
    """A checked split in the file's order.

    `digest`: sha256 of the file, as `sha256sum` prints it.
    """

    path: Path
    items: tuple[HeldoutItem, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Places of the items that count as one, in the order of their first; most items stand alone."""
        places: dict[tuple[str, str | int], list[int]] = {}
        for place, item in enumerate(self.items):
            alone = item.group is None
            places.setdefault(("item", place) if alone else ("group", item.group or ""), []).append(place)
        return tuple(map(tuple, places.values()))

    def by_group(self, outcomes: Sequence[float]) -> list[float]:
        """Outcomes of the items, shape (n_items,), as one outcome of each group: the mean of its items.

        Every test of the detectors asks that outcomes are in [0, 1] and independent. Those of items that
        succeed or fail together are not; those of their groups are.
        """
        return [fmean(outcomes[place] for place in group) for group in self.groups]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a JSONL file.

        Raises:
            SplitError: the file cannot be read, or holds bad lines, duplicates or nothing; it names
                the first three by line number.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        ids: dict[str, int] = {}
        keys: dict[str, str] = {}

        def make(row: DataRow) -> HeldoutItem:
            item = validate(row.columns, HeldoutItem)
            if item.id in ids:
                raise ValueError(f"id {item.id!r} is already on line {ids[item.id]}: rename one")
            if (key := item.key) in keys:
                raise ValueError(
                    f"id {item.id!r} has the same prompt as {keys[key]}, up to case, spaces and punctuation: "
                    "remove one"
                )
            ids[item.id], keys[key] = row.number, f"{item.id!r} on line {row.number}"
            return item

        items = tuple(each(path, lines(data.split(b"\n")), make))
        if not items:
            raise SplitError(f"{path}: no items: a held-out split needs at least one line")
        return cls(path, items, hashlib.sha256(data).hexdigest())


class _TrainMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    role: str
    content: str | None = Field(None, repr=False)


class TrainRow(BaseModel):
    """A row of a training set: its prompt, and an id if it has one. Other columns do not matter here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str | int | None = None
    prompt: str | tuple[_TrainMessage, ...] = Field(repr=False)

    @property
    def text(self) -> Prompt:
        """The prompt, of messages only role and content."""
        if isinstance(self.prompt, str):
            return self.prompt
        return [{"role": m.role, "content": m.content or ""} for m in self.prompt]


def train_prompt(row: DataRow, column: str) -> Prompt:
    """The prompt of a training row, which is in this column.

    Raises:
        ValueError: there is none, or it is no prompt; the message quotes nothing of the row.
    """
    return _train_row(row, column).text


def _train_row(row: DataRow, column: str) -> TrainRow:
    if (prompt := row.column(column)) is None:
        reason, meant = missing_column([row], column, PROMPTS)
        raise ValueError(f"{reason}: is it {meant}?" if meant else reason)
    return validate({"id": row.columns.get("id"), "prompt": prompt}, TrainRow)


def read_train_prompts(path: Path, column: str = "prompt") -> Iterator[tuple[str, Prompt]]:
    """Yield (id, prompt) of a training set, of JSONL a line at a time; without an id it is `line N`.

    Raises:
        SplitError: while iterating: the file cannot be read, a row has no prompt, or there is no row.
    """

    def make(row: DataRow) -> tuple[str, Prompt]:
        found = _train_row(row, column)
        return f"line {row.number}" if found.id is None else str(found.id)[:128], found.text

    empty = True
    for prompt in each(path, read_data_rows(path), make):
        empty = False
        yield prompt
    if empty:
        raise SplitError(f"{path}: no training prompts")
