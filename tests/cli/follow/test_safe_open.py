"""A process that is confined opens nothing outside one folder, whatever lies there, and waits for nothing."""

import json
import os

import pytest

from rlguard.follow import safe_open
from rlguard.follow.checkpoints import CompleteCheckpoint, find_checkpoints, layouts_of
from rlguard.follow.errors import InputError
from rlguard.follow.preexisting import PreexistingFiles, scan
from rlguard.follow.safe_open import entries, named, named_below, open_regular, restrict_to
from rlguard.follow.tail import Tail
from tests.cli.follow.writer import save

SECRET = json.dumps({"id": 1, "prompt": "a held-out prompt", "answer": "7"}) + "\n"


@pytest.fixture
def volume(tmp_path, monkeypatch):
    """A checkpoint volume to which this process is confined, beside what the trainer may not read."""
    monkeypatch.setattr(safe_open, "_root", None)  # and it is free again after the test
    (tmp_path / "heldout").mkdir()
    (tmp_path / "heldout" / "metrics.jsonl").write_text(SECRET)
    volume = tmp_path / "volume"
    volume.mkdir()
    restrict_to(volume)
    return volume


def test_what_lies_in_the_folder_is_read_also_through_a_link_to_a_folder_of_it(volume):
    (volume / "run-1").mkdir()
    (volume / "run-1" / "m.jsonl").write_text("{}\n")
    (volume / "latest").symlink_to("run-1")
    assert [data for _, data in Tail(volume / "latest" / "m.jsonl").read()] == [b"{}\n"]


@pytest.mark.parametrize(
    ("where", "name"),
    [("..", "heldout/metrics.jsonl"), ("/proc/self", "environ"), ("../heldout", "metrics.jsonl")],
)
def test_a_folder_that_is_a_link_leads_nowhere(volume, where, name):
    (volume / "logs").symlink_to(where)
    path = volume / "logs" / name
    assert path.exists(), "the link works"
    with pytest.raises(InputError, match="leads out of"):
        open_regular(path)
    with pytest.raises(InputError) as refused:
        list(Tail(path).read())
    assert "prompt" not in str(refused.value)
    assert not list(entries(path.parent)) and not named(path.parent, "") and not named_below(path.parent, "")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(volume, kind):
    path = volume / "m.jsonl"
    path.symlink_to("../heldout/metrics.jsonl") if kind == "link" else os.mkfifo(path)
    with pytest.raises(InputError, match=r"symbolic link|not a regular file"):
        open_regular(path)


def test_where_the_kernel_does_not_say_where_a_file_is_it_is_not_read(volume, monkeypatch):
    (volume / "m.jsonl").write_text("{}\n")

    def none(*_):
        raise OSError(2, "no /proc")

    monkeypatch.setattr(os, "readlink", none)
    with pytest.raises(InputError, match="leads out of"):
        open_regular(volume / "m.jsonl")


def test_weights_outside_are_no_checkpoint(volume):
    save(volume, 5)
    save(volume.parent / "heldout", 6)
    outside = volume.parent / "heldout" / "global_step_6"
    (volume / "latest_checkpointed_iteration.txt").write_text("9")
    (volume / "global_step_6").symlink_to(outside)
    (volume / "global_step_7").mkdir()
    (volume / "global_step_7" / "actor").symlink_to(outside / "actor")
    found = find_checkpoints(volume, layouts_of("verl"), now=2e18)
    assert [one.step for one in found if isinstance(one, CompleteCheckpoint)] == [5]


def test_of_a_tree_a_bounded_part_is_looked_at_and_no_link(volume, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_ENTRIES", 50)
    here = volume
    for _ in range(200):
        here /= "d"
        here.mkdir()
    (here / "events.out.tfevents.9.h").touch()
    (volume / "d" / "events.out.tfevents.1.h").touch()
    (volume / "again").symlink_to("d")
    (volume / "loop").symlink_to(".")
    for confined in (True, False):
        if not confined:
            monkeypatch.setattr(safe_open, "_root", None)
        assert named_below(volume, "events.") == [volume / "d" / "events.out.tfevents.1.h"]
    for number in range(100):
        (volume / f"f{number}").touch()
    assert len(list(entries(volume))) == 50


@pytest.mark.parametrize(
    ("now", "new"), [("old\nnew\n", b"new\n"), ("first\nsecond\n", b"first\nsecond\n")], ids=["on", "anew"]
)
def test_a_log_that_lay_there_is_read_from_where_it_ended_unless_it_is_written_anew(tmp_path, now, new):
    log = tmp_path / "m.jsonl"
    log.write_text("old\n")
    save(tmp_path, 5)
    before = scan(log, tmp_path, None)
    assert before.checkpoints and PreexistingFiles.from_json(before.to_json()) == before
    log.write_text(now)
    assert [data for _, data in Tail(log, before.logs[str(log)]).read()] == [new]
