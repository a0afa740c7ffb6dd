"""The guard's own base model: no place where the trainer writes, and the same files for a whole run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_service.__main__ import _worker
from guard_service.errors import SettingsError
from guard_service.heldout.base_model import look_at, why_the_trainers
from guard_service.heldout.errors import SplitError, StartAgainError
from guard_service.settings import GuardSettings
from rlguard.core.policy import Policy


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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the trainer writes."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def linked(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def of_links(root: Path, base: Path) -> tuple[Path, Path]:
    """Only its weights are there, as in the cache of a hub."""
    weights = base / "model.safetensors"
    weights.rename(root / "blob")
    linked(weights, root / "blob")
    return base, root


TRAINERS: dict[str, Callable[[Path, Path], tuple[Path, Path]]] = {
    "in it": lambda root, _: (made(root / "base"), root),
    "by a path that climbs": lambda root, base: (
        made(root / "base") and base / "../../checkpoints/base",
        root,
    ),
    "a link": lambda root, base: (linked(base.with_name("link"), made(root / "base")), root),
    "files that are links": of_links,
    "a root that is a link": lambda root, base: (made(root / "base"), linked(base.with_name("out"), root)),
    "neither is there yet": lambda root, _: (root / "later" / "base", root / "later"),
}


@pytest.mark.parametrize("place", TRAINERS.values(), ids=TRAINERS.keys())
def test_one_that_the_trainer_could_exchange_is_refused(
    root: Path, base: Path, place: Callable[[Path, Path], tuple[Path, Path]]
) -> None:
    path, under = place(root, base)
    told = why_the_trainers(path, under)
    assert told.startswith(f"base_model {path}") and f"under the checkpoint root {under}, where" in told


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


def test_a_guard_that_scores_does_not_start_on_the_trainers(root: Path, base: Path) -> None:
    def start(base_model: Path, **more: Any) -> Any:
        given: dict[str, Any] = {"state_dir": root.parent / "state", "checkpoint_root": root, **more}
        given["heldout"] = {"split": root.parent / "split", "evaluator": {"base_model": str(base_model)}}
        return _worker(GuardSettings(allow_unauthenticated_loopback=True, **given), Policy())

    made(root / "base")
    with pytest.raises(SettingsError, match="lies under the checkpoint root"):
        start(root / "base")
    assert start(base) is not None and start(root / "base", replica_index=1) is None


# -- what it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (shutil.rmtree, "cannot be read: No such file or directory: mount it"),
        (lambda p: (p / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda p: (p / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda p: (p / "adapter_config.json").write_text("{}"), "it has an adapter_config.json: give the"),
        (lambda p: (p / "config.json").write_text('{"auto_map": {}}'), "config.json has an auto_map"),
        (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    ],
)
def test_one_that_cannot_be_used_is_refused(base: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(base)
    with pytest.raises(SplitError) as refused:
        look_at(base)
    assert f"base_model {base}" in str(refused.value) and told in str(refused.value)


def rewrite(file: Path) -> None:
    """Other bytes, as many, with the time of the ones before: whoever may write a file can do that."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"\xff\xff")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("cached", [False, True], ids=["", "in the cache of a hub"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_files_that_were_touched_are_read_again(base: Path, tmp_path: Path, name: str, cached: bool) -> None:
    path = base
    if cached:
        path = tmp_path / "snapshot"
        path.mkdir()
        for file in base.iterdir():
            linked(path / file.name, file)
    before = look_at(path)
    assert before.sha256 == look_at(base).sha256
    before.refuse_changed()
    rewrite(base / name)
    with pytest.raises(StartAgainError):
        before.refuse_changed()
    assert look_at(path).sha256 != before.sha256
