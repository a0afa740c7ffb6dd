"""Make a held-out split: by hash of the prompt, near-duplicates on one side; or from one that overlaps.

What is made passes `check_disjoint` with the same rule. Errors name files, lines and ids, never a prompt or
an answer (invariant 8). No torch here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guard_service.heldout.disjoint import disjoint_part, families
from guard_service.heldout.errors import SplitError
from guard_service.heldout.graders import ANSWERS
from guard_service.heldout.rows import (
    PROMPTS,
    DataRow,
    each,
    is_parquet,
    json_line,
    missing_column,
    read_data_rows,
    validate,
    write_parquet,
)
from guard_service.heldout.split import HeldoutItem, HeldoutSplit, read_train_prompts, train_prompt
from guard_service.heldout.text import Prompt, normalised


@dataclass(frozen=True, slots=True)
class MadeSplit:
    """What `make_split` wrote: rows of each side.

    `grouped`: held-out rows that count as one item with others. `repeated`: held-out rows left out because
    their prompt came before. `near`: rows that the hash held out,
    and that are on the training side because a training prompt is too much like them.
    """

    train: int
    heldout: int
    repeated: int
    near: int
    grouped: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the data set. `item`: what it is as a held-out item, None where the hash says training."""

    data: DataRow
    prompt: Prompt
    key: str
    item: HeldoutItem | None


def is_heldout(prompt: Prompt, fraction: float, salt: str) -> bool:
    """Whether the hash holds a prompt out: by its normalised text, so for ever."""
    digest = hashlib.sha256(f"{salt}\0{normalised(prompt)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def make_split(
    source: Path,
    train: Path,
    heldout: Path,
    *,
    fraction: float,
    salt: str = "rlguard",
    prompt_column: str = "prompt",
    answer_column: str | None = "answer",
    near: bool = True,
) -> MadeSplit:
    """Divide a data set (see `rows`) into training and held-out files that `check_disjoint` accepts.

    The hash of a prompt's normalised text says its side, with `fraction` and `salt` only: rows may be added,
    dropped and shuffled; a larger fraction only adds to the held-out side. Then a held-out prompt that is
    the near-duplicate of a training prompt goes to the training side, until there is none: an added row can
    move those that are like it.

    Training rows are written as they are; where the prompt is in another column it is there as `prompt`, too.
    Held-out rows get an id from the hash where they have none, and columns that a split does not know go
    under `meta`. Held-out near-duplicates of each other that have no `group` get one: they count as one item.

    Args:
        train: JSONL, or Parquet if its name ends so.
        fraction: expected share of distinct prompts that are held out, in (0, 1).
        prompt_column, answer_column: a name, or a dotted one; None: items have no answer.

    Raises:
        SplitError: a bad fraction, row or file, an output that exists, or a side that would be empty.
    """
    if not 0 < fraction < 1:
        raise SplitError(f"fraction={fraction:g}: it must lie between 0 and 1, for instance 0.05")
    for output in (train, heldout):
        _refuse_existing(output)
    if train.resolve() == heldout.resolve():
        raise SplitError(f"{train} cannot be both sides: name two files")
    rows = _read_rows(source, fraction, salt, prompt_column, answer_column)
    chosen = [row for row in rows if row.item is not None]

    def training(left: Sequence[HeldoutItem]) -> Iterator[tuple[str, Prompt]]:
        keys = {item.key for item in left}
        return ((f"line {row.data.number}", row.prompt) for row in rows if row.key not in keys)

    candidates: dict[str, HeldoutItem] = {}
    for row in chosen:  # a prompt that comes again is left out
        if row.item is not None:
            candidates.setdefault(row.key, row.item)
    held = _grouped(disjoint_part(training, tuple(candidates.values()), near), near)
    keys = {item.key for item in held}
    kept = [row.data for row in rows if row.key not in keys]
    for side, count in (("training", len(kept)), ("held-out", len(held))):
        if not count:
            raise SplitError(
                f"{source}: no row is left for the {side} side: change the fraction ({fraction:g}), or what "
                "counts as a near-duplicate"
            )
    _write_sides(heldout, held, train, kept, prompt_column)
    moved = sum(row.key not in keys for row in chosen)
    grouped = sum(item.group is not None for item in held)
    return MadeSplit(len(kept), len(held), len(chosen) - moved - len(held), moved, grouped)


def _write_sides(
    heldout: Path, held: Sequence[HeldoutItem], train: Path, kept: Sequence[DataRow], prompt_column: str
) -> None:
    """Write both files, or none."""
    try:
        _write(heldout, map(_split_line, held))
        HeldoutSplit.load(heldout)
        if is_parquet(train):
            write_parquet(train, kept)
        else:
            _write(train, (_training_line(row, prompt_column) for row in kept))
    except SplitError:
        heldout.unlink(missing_ok=True)
        raise


def drop_overlapping(
    train: Path,
    heldout: Path,
    output: Path,
    *,
    prompt_column: str = "prompt",
    near: bool = True,
) -> tuple[int, int]:
    """Write a split without the items that overlap with training; gives (items written, items left out).

    Raises:
        SplitError: a file cannot be used, the output exists, or no item would be left.
    """
    _refuse_existing(output)
    split = HeldoutSplit.load(heldout)
    left = disjoint_part(lambda _: read_train_prompts(train, prompt_column), split.items, near)
    if not left:
        raise SplitError(f"{heldout}: every item overlaps with {train}: hold out other prompts")
    _write(output, map(_split_line, left))
    return len(left), len(split) - len(left)


def _read_rows(
    source: Path, fraction: float, salt: str, prompt_column: str, answer_column: str | None
) -> list[_Row]:
    def parsed(row: DataRow) -> DataRow:
        assert row.columns is not None
        return row

    def make(row: DataRow) -> _Row:
        prompt = train_prompt(row, prompt_column)
        key = normalised(prompt)
        held = is_heldout(prompt, fraction, salt)
        return _Row(row, prompt, key, _heldout_item(row, key, prompt_column, answer_column) if held else None)

    rows = list(each(source, read_data_rows(source), parsed))
    if prompt_column != "prompt" and any({"prompt", prompt_column} <= row.columns.keys() for row in rows):
        raise SplitError(f"{source}: columns prompt and {prompt_column} are both there: keep one of them")
    _refuse_missing(source, rows, "--prompt-column", prompt_column, PROMPTS)
    if answer_column is not None:
        own = "; for a scorer of your own that needs no answer, --no-answer"
        _refuse_missing(source, rows, "--answer-column", answer_column, ANSWERS, own)
    return list(each(source, rows, make))


def _refuse_missing(
    source: Path, rows: Sequence[DataRow], option: str, name: str, likely: Sequence[str], hint: str = ""
) -> None:
    """Refuse a data set without this column; raises SplitError, which names the option."""
    if rows and all(row.column(name) is None for row in rows):
        reason, meant = missing_column(rows, name, likely)
        raise SplitError(f"{source}: {reason}: name it with {option} {meant or 'COLUMN'}{hint}")


#: Columns that an item has by the same name; all others go under `meta`.
_OF_AN_ITEM = ("id", "scorer", "group", "system_prompt", "chat_template_kwargs", "answer_after")


def _heldout_item(row: DataRow, key: str, prompt_column: str, answer_column: str | None) -> HeldoutItem:
    """A data set's row as an item of a split."""
    more = {name: value for name, value in row.columns.items() if name not in (prompt_column, answer_column)}
    item = {"prompt": row.column(prompt_column)}
    if answer_column is not None:
        if (answer := row.column(answer_column)) is None:
            raise ValueError(missing_column([row], answer_column, ANSWERS)[0])
        item["answer"] = answer
    item |= {name: more.pop(name) for name in _OF_AN_ITEM if more.get(name) is not None}
    item |= {"group": str(item["group"])} if "group" in item else {}
    item["id"] = str(item.get("id", "h-" + hashlib.sha256(key.encode()).hexdigest()[:16]))
    given = more.pop("meta", None) or {}
    item["meta"] = {**more, **(given if isinstance(given, dict) else {"meta": given})}
    return validate(item, HeldoutItem)


def _grouped(items: Sequence[HeldoutItem], near: bool) -> tuple[HeldoutItem, ...]:
    """The same items; near-duplicates without a group get that of their family, else the first one's id."""
    group: dict[int, str] = {}
    for places in families(items, near):
        own = {named for place in places if (named := items[place].group) is not None}
        group |= dict.fromkeys(places, own.pop() if len(own) == 1 else items[places[0]].id)
    return tuple(
        item.model_copy(update={"group": group[place]}) if place in group and item.group is None else item
        for place, item in enumerate(items)
    )


def _training_line(row: DataRow, prompt_column: str) -> bytes:
    if prompt_column == "prompt":
        return row.line
    return json_line({"prompt": row.column(prompt_column), **row.columns})


def _split_line(item: HeldoutItem) -> bytes:
    return json_line(item.model_dump(mode="json", exclude_defaults=True))


def _write(path: Path, rows: Iterable[bytes]) -> None:
    try:
        path.write_bytes(b"".join(row + b"\n" for row in rows))
    except OSError as error:
        raise SplitError(f"{path}: {error.strerror}: nothing was written") from error


def _refuse_existing(output: Path) -> None:
    if output.exists():
        raise SplitError(f"{output} exists: a split is made once; name another file, or remove this one")
