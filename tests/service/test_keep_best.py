"""The best checkpoint is kept beside what further passes are made of."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from guard_service.engine import evaluations
from guard_service.engine.evaluations import _keep


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    return stage(tmp_path, "one")


def stage(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "scratch" / f"stage-{content}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(content)
    return path


def kept(best: Path) -> str:
    return (best / "model.safetensors").read_text()


def test_what_is_kept_stays_where_it_was_scored_and_takes_no_more_room(tmp_path: Path, staged: Path) -> None:
    best = tmp_path / "best"
    _keep(staged, best)
    assert (best / "model.safetensors").samefile(staged / "model.safetensors")
    _keep(stage(tmp_path, "two"), best)
    assert kept(best) == "two" and kept(staged) == "one"
    assert not list(tmp_path.glob("best.*"))


def test_where_a_file_has_one_name_only_it_is_copied(
    tmp_path: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_source: str, _target: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    _keep(staged, tmp_path / "best")
    assert kept(tmp_path / "best") == kept(staged) == "one"


def test_without_room_the_former_one_stays(
    tmp_path: Path, staged: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = tmp_path / "best"
    _keep(staged, best)

    def full(_source: str, _target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evaluations, "_linked", full)
    with caplog.at_level(logging.ERROR, logger="rlguard.guard"):
        _keep(stage(tmp_path, "two"), best)
    assert "could not be kept" in caplog.text and kept(best) == "one"
    assert not list(tmp_path.glob("best.*")), "half of it would take room"


@pytest.mark.parametrize("restarted", [False, True])
def test_where_the_last_rename_fails_the_former_one_is_put_back(
    tmp_path: Path, staged: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Also where the guard was killed between the two, and the next one has no room."""
    best, rename = tmp_path / "best", Path.rename
    _keep(staged, best)

    def refuse(path: Path, target: Path) -> Path:
        if path.suffix == ".new":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    if restarted:
        best.rename(best.with_suffix(".old"))
    monkeypatch.setattr(Path, "rename", refuse)
    _keep(stage(tmp_path, "two"), best)
    assert kept(best) == "one" and not list(tmp_path.glob("best.*"))
