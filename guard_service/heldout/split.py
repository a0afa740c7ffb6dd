"""The held-out split: read it, refuse what is wrong with it, and make one by hash of the prompt.

Errors name the file, the line and the id, never a prompt or an answer (invariant 8). No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guard_service.heldout.errors import SplitError
from guard_service.heldout.text import Prompt, normalised

_Model = TypeVar("_Model", bound=BaseModel)

MAX_REPORTED = 20
_SHOWABLE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")  # anything else may be a prompt in a wrong place


class Message(BaseModel):
    """One chat message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str = Field(repr=False)


class HeldoutItem(BaseModel):
    """One held-out item. Its repr shows the id only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] = Field(
        description="Unique name: 1 to 128 visible ASCII characters."
    )
    prompt: Annotated[str, Field(min_length=1)] | Annotated[tuple[Message, ...], Field(min_length=1)] = Field(
        description="Text, or chat messages.", repr=False
    )
    answer: str = Field(description="What the scorer compares with.", repr=False)
    scorer: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Scorer of this item; the settings' scorer if absent."
    )
    meta: dict[str, Any] = Field(default_factory=dict, description="Passed to the scorer.", repr=False)

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The prompt as chat messages; a text is one user message."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return [m.model_dump() for m in self.prompt]

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

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a JSONL file.

        Raises:
            SplitError: the file cannot be read, or holds bad lines, duplicates or nothing; lists up to 20 of
                them by line number.
        """
        data = _read(path)
        items: list[HeldoutItem] = []
        problems: list[str] = []
        ids: dict[str, int] = {}
        keys: dict[str, str] = {}
        for number, line in _lines(data.split(b"\n")):
            try:
                item = _parse(line, HeldoutItem)
            except ValueError as error:
                problems.append(f"line {number}: {error}")
                continue
            key = item.key
            if item.id in ids:
                problems.append(
                    f"line {number}: id {item.id!r} is already on line {ids[item.id]}: rename one"
                )
            elif key in keys:
                problems.append(
                    f"line {number}: id {item.id!r} has the same prompt as {keys[key]}, up to case, spaces "
                    "and punctuation: remove one"
                )
            ids.setdefault(item.id, number)
            keys.setdefault(key, f"{item.id!r} on line {number}")
            items.append(item)
        _refuse(path, problems)
        if not items:
            raise SplitError(f"{path}: no items: a held-out split needs at least one line")
        return cls(path, tuple(items), hashlib.sha256(data).hexdigest())


class _TrainMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    role: str
    content: str | None = Field(None, repr=False)


class _TrainRow(BaseModel):
    """A row of a training set: its prompt, and an id if it has one. Other columns do not matter here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str | int | None = None
    prompt: str | tuple[_TrainMessage, ...] = Field(repr=False)

    @property
    def text(self) -> Prompt:
        if isinstance(self.prompt, str):
            return self.prompt
        return [{"role": m.role, "content": m.content or ""} for m in self.prompt]


def read_train_prompts(path: Path) -> Iterator[tuple[str, Prompt]]:
    """Yield (id, prompt) of a training set in JSONL, a line at a time; without an id it is `line N`.

    Raises:
        SplitError: while iterating: the file cannot be read, a line has no prompt, or there is no line.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in _lines(file):
                try:
                    row = _parse(line, _TrainRow)
                except ValueError as error:
                    raise SplitError(f"{path}: line {number}: {error}") from None
                yield f"line {number}" if row.id is None else str(row.id)[:128], row.text
    except OSError as error:
        raise _unreadable(path, error) from error
    if not number:
        raise SplitError(f"{path}: no training prompts")


@dataclass(frozen=True, slots=True)
class MadeSplit:
    """What `make_split` wrote. `repeated`: held-out rows left out because their prompt came before."""

    train: int
    heldout: int
    repeated: int


def is_heldout(prompt: Prompt, fraction: float, salt: str) -> bool:
    """Whether a prompt belongs to the held-out side: by hash of its normalised text, so for ever."""
    digest = hashlib.sha256(f"{salt}\0{normalised(prompt)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def make_split(
    source: Path, train: Path, heldout: Path, *, fraction: float, salt: str = "rlguard"
) -> MadeSplit:
    """Divide a JSONL data set with `prompt` and `answer` columns into training and held-out files.

    Which side a prompt is on depends on its normalised text, `fraction` and `salt` only: rows may be added,
    dropped and shuffled, and no prompt changes sides; a larger fraction only adds to the held-out side.
    Training rows are written as they are. Held-out rows get an id from the hash where they have none, and
    columns that a split does not know go under `meta`. Prompts that are merely alike may part: run
    `check_disjoint` on the result.

    Args:
        fraction: expected share of distinct prompts that are held out, in (0, 1).

    Raises:
        SplitError: a bad fraction, row or file, an output that exists, or a side that would be empty.
    """
    if not 0 < fraction < 1:
        raise SplitError(f"fraction={fraction:g}: it must lie between 0 and 1, for instance 0.05")
    for output in (train, heldout):
        if output.exists():
            raise SplitError(f"{output} exists: a split is made once; name another file, or remove this one")
    kept: list[bytes] = []
    held: dict[str, str] = {}
    problems: list[str] = []
    repeated = 0
    for number, line in _lines(_read(source).split(b"\n")):
        try:
            prompt = _parse(line, _TrainRow).text
            if not is_heldout(prompt, fraction, salt):
                kept.append(line.strip())
            elif (key := normalised(prompt)) in held:
                repeated += 1
            else:
                held[key] = _heldout_row(line, key)
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    _refuse(source, problems)
    for side, rows in (("training", len(kept)), ("held-out", len(held))):
        if not rows:
            raise SplitError(f"{source}: no row fell on the {side} side: change the fraction ({fraction:g})")
    try:
        heldout.write_text("".join(f"{row}\n" for row in held.values()), encoding="utf-8")
        HeldoutSplit.load(heldout)
        train.write_bytes(b"".join(line + b"\n" for line in kept))
    except OSError as error:
        raise SplitError(f"{error.filename}: {error.strerror}: nothing was split") from error
    except SplitError:
        heldout.unlink()
        raise
    return MadeSplit(train=len(kept), heldout=len(held), repeated=repeated)


def _heldout_row(line: bytes, key: str) -> str:
    """A data set's row as a line of a split."""
    row = _object(line)
    item = {name: row.pop(name) for name in ("id", "prompt", "answer", "scorer") if row.get(name) is not None}
    item["id"] = str(item.get("id", "h-" + hashlib.sha256(key.encode()).hexdigest()[:16]))
    given = row.pop("meta", None) or {}
    if meta := {**row, **(given if isinstance(given, dict) else {"meta": given})}:
        item["meta"] = meta
    _validate(item, HeldoutItem)
    return json.dumps(item, ensure_ascii=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> SplitError:
    return SplitError(f"{path}: {error.strerror}: check the path and who may read it")


def _lines(raw: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number the lines from 1 and leave out blank ones. Lines end at a newline byte and nowhere else."""
    return ((number, line) for number, line in enumerate(raw, 1) if line.strip())


def _parse(line: bytes, model: type[_Model]) -> _Model:
    return _validate(_object(line), model)


def _object(line: bytes) -> dict[str, Any]:
    """One JSON object.

    Raises:
        ValueError: it is none; the message quotes nothing of the line.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno} ({error.msg}): one object a line") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object: one object a line")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key stands twice in an object: keep one")
    return row


def _validate(row: Mapping[str, Any], model: type[_Model]) -> _Model:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        # Of pydantic's message only where and what, never `input`.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        told = {_told(e["loc"], e["type"], e["msg"]): None for e in found}
        raise ValueError("; ".join(told)) from None


def _told(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    top = str(loc[0]) if loc else "line"
    name = top if _SHOWABLE_KEY.fullmatch(top) else "<unnameable>"
    if kind == "extra_forbidden" and len(loc) == 1:
        return f"unknown key {name}: an item has id, prompt, answer, scorer and meta; put it under meta"
    if kind == "missing" and len(loc) == 1:
        return f"{name} is missing"
    if name == "prompt":
        return "prompt must be a text, or a list of messages with role (system, user, assistant) and content"
    if name == "id":
        return "id must be 1 to 128 visible ASCII characters without spaces"
    return f"{name}: {message}"


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        more = len(problems) - MAX_REPORTED
        listed = problems[:MAX_REPORTED] + ([f"and {more} more"] if more > 0 else [])
        raise SplitError("\n  ".join([f"{path}: {len(problems)} bad lines:", *listed]))
