"""What `rlguard check` finds on this machine of a log that the guard will follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guard_cli.check.gather import look_at_followed
from guard_core.feed import Feed


def feed(path: str = "run/log.jsonl", saves: str = "run", config: str | None = None) -> Feed:
    follow = {"path": path, "format": "verl", "runConfig": config}
    return Feed.model_validate({"follow": follow, "checkpoints": {"path": saves}})


def test_a_log_need_not_be_there_yet(tmp_path: Path) -> None:
    found = look_at_followed(feed(), tmp_path, tmp_path / "run")
    assert (found.log, found.saves, found.format) == (tmp_path / "run/log.jsonl", tmp_path / "run", "verl")
    assert found.problem is None and not found.old and found.elsewhere is None


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["a file", "a folder of event files"])
def test_one_that_is_there_is_of_another_run(tmp_path: Path, make: object) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / "log.jsonl")  # type: ignore[operator]
    found = look_at_followed(feed(), tmp_path, None)
    assert found.problem is None and found.old


def test_where_the_trainer_saves_is_compared_with_where_the_guard_looks(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(tmp_path / "run")
    assert look_at_followed(feed(), tmp_path, tmp_path / "linked").elsewhere is None
    assert look_at_followed(feed(), tmp_path, tmp_path / "other").elsewhere == tmp_path / "other"
    assert look_at_followed(feed(), tmp_path, None).elsewhere is None


@pytest.mark.parametrize("place", ["log", "run"])
def test_what_leads_out_of_the_root_is_not_read(tmp_path: Path, place: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / place).symlink_to(outside)
    found = look_at_followed(feed(f"{place}/log.jsonl", "run"), root, None)
    assert found.problem is not None and f"leads out of {root}" in found.problem


def test_the_runs_configuration_is_looked_at_as_its_log_is(tmp_path: Path) -> None:
    root, named = tmp_path / "root", feed(config="run/config.yaml")
    (root / "run").mkdir(parents=True)
    assert look_at_followed(named, root, None).problem is None, "it need not be there yet"
    (root / "run" / "config.yaml").symlink_to("real.yaml")
    assert "config.yaml is a symbolic link" in str(look_at_followed(named, root, None).problem)
    (root / "up").symlink_to(tmp_path)
    problem = look_at_followed(feed(config="up/config.yaml"), root, None).problem
    assert f"leads out of {root}" in str(problem)


def _a_link(log: Path) -> None:
    (log.parent / "real.jsonl").touch()
    log.symlink_to("real.jsonl")


def _a_link_to_a_folder(log: Path) -> None:
    (log.parent / "real").mkdir()
    log.symlink_to("real")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_a_link, "is a symbolic link"),
        (_a_link_to_a_folder, "is a symbolic link"),
        (os.mkfifo, "is not a regular file"),
    ],
    ids=["a link", "a link to a folder", "a pipe"],
)
def test_what_the_follower_would_not_read_is_said_in_its_words(
    tmp_path: Path, make: object, why: str
) -> None:
    log = tmp_path / "run" / "log.jsonl"
    log.parent.mkdir()
    make(log)  # type: ignore[operator]
    problem = look_at_followed(feed(), tmp_path, None).problem
    assert problem is not None and why in problem
