"""The guard's own base model: no place where the trainer writes, and the same files for a whole run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_core.policy import Policy
from guard_service.__main__ import _worker
from guard_service.errors import SettingsError
from guard_service.heldout.base_model import look_at, why_the_trainers
from guard_service.heldout.errors import EvaluationError
from guard_service.settings import GuardSettings


def made(path: Path) -> Path:
    """A directory that is taken for a base model."""
    path.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    (path / "model.safetensors").write_bytes(bytes(range(256)))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return made(tmp_path / "models" / "base")


# -- where it may lie ------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the trainer writes."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def linked(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def a_link_to_it(root: Path, base: Path) -> tuple[Path, Path]:
    return linked(base.with_name("link"), made(root / "base")), root


def of_links(root: Path, base: Path) -> tuple[Path, Path]:
    """Only its weights are there, as in the cache of a hub."""
    weights = base / "model.safetensors"
    weights.rename(root / "blob")
    linked(weights, root / "blob")
    return base, root


def whose_root_is_a_link(root: Path, base: Path) -> tuple[Path, Path]:
    return made(root / "base"), linked(base.with_name("out"), root)


TRAINERS: dict[str, Callable[[Path, Path], tuple[Path, Path]]] = {
    "in it": lambda root, _: (made(root / "base"), root),
    "by a path that climbs": lambda root, base: (
        made(root / "base") and base / "../../checkpoints/base",
        root,
    ),
    "all of it": lambda root, _: (root, root),
    "a link": a_link_to_it,
    "files that are links": of_links,
    "a root that is a link": whose_root_is_a_link,
    "neither is there yet": lambda root, _: (root / "later" / "base", root / "later"),
}


@pytest.mark.parametrize("place", TRAINERS.values(), ids=TRAINERS.keys())
def test_one_that_the_trainer_could_exchange_is_refused(
    root: Path, base: Path, place: Callable[[Path, Path], tuple[Path, Path]]
) -> None:
    path, under = place(root, base)
    told = why_the_trainers(path, under)
    assert told.startswith(f"base_model {path}") and f"under the checkpoint root {under}, where" in told
    assert "give the guard a copy" in told


def test_a_volume_that_is_mounted_twice_is_one(
    root: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same directory by another path, which no link leads to."""
    mounted = base.parent
    monkeypatch.setattr(Path, "samefile", lambda one, other: {one, other} == {mounted, root})
    assert "lies under the checkpoint root" in why_the_trainers(base, root)


def test_any_other_place_is_the_guards(root: Path, base: Path) -> None:
    assert why_the_trainers(base, root) == ""
    assert why_the_trainers(base, root.with_name("check")) == "", "a name that begins alike"
    assert why_the_trainers(base.with_name("gone"), root) == "", "which is told when it is read"
    (base / "out").symlink_to(root)
    assert why_the_trainers(base, root) == "", "nothing is read there"


def settings(root: Path, base_model: str, **more: Any) -> GuardSettings:
    given: dict[str, Any] = {"state_dir": root.parent / "state", "checkpoint_root": root, **more}
    given["heldout"] = {"split": root.parent / "split.jsonl", "evaluator": {"base_model": base_model}}
    return GuardSettings(allow_unauthenticated_loopback=True, **given)


@pytest.mark.parametrize("given", ["checkpoints/base", "{root}/base"])
def test_a_guard_does_not_start_on_it(root: Path, base: Path, given: str) -> None:
    made(root / "base")
    with pytest.raises(SettingsError, match="lies under the checkpoint root"):
        _worker(settings(root, given.format(root=root)), Policy())
    assert _worker(settings(root, str(base)), Policy()) is not None


def test_a_guard_that_scores_nothing_needs_none(root: Path) -> None:
    made(root / "base")
    assert _worker(settings(root, "checkpoints/base", replica_index=1), Policy()) is None


# -- that it stays the same ------------------------------------------------------------------------------


def rewrite(file: Path) -> None:
    """Other bytes, as many, with the time of the ones before: whoever may write a file can do that."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"\xff\xff")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    """The same by another file."""
    before = file.stat()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("exchange", [rewrite, replace, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_other_files_are_another_model(base: Path, name: str, exchange: Callable[[Path], None]) -> None:
    started_with = look_at(base)
    assert started_with.refreshed() is started_with
    kept = (base / name).read_bytes()
    exchange(base / name)
    with pytest.raises(EvaluationError, match="no longer the one that the guard started with"):
        started_with.refreshed()
    (base / name).write_bytes(kept)
    back = started_with.refreshed()
    assert back is not None and back.sha256 == started_with.sha256, "what is restored is the same one"
    assert back.refreshed() is back, "and is not read again each time"


def test_what_makes_no_other_model_stops_no_run(base: Path) -> None:
    started_with = look_at(base)
    os.utime(base / "model.safetensors", ns=(1, 1))
    (base / "config.json").chmod(0o600)
    now = started_with.refreshed()
    assert now is not None and now.sha256 == started_with.sha256 and now != started_with
