"""Reading a store from outside: while its guard writes, when it has ended, and when it is damaged."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from guard_core.judge import Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, Code, StepReport
from guard_service import inspection
from guard_service.errors import StoreError
from guard_service.inspection import copied, summarize_store
from guard_service.store import FILE_NAME, Store


def steps(first: int, last: int, attempt: int = 0) -> list[StepReport]:
    return [StepReport(attempt=attempt, step=step, reward=0.5) for step in range(first, last)]


@pytest.fixture
def store(tmp_path: Path):
    opened = Store(tmp_path / "state", Policy())
    yield opened
    opened.close()


def test_a_store_is_read_while_it_is_open_and_nothing_is_changed(store: Store, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store.append_steps([steps(1, 4), steps(1, 3, attempt=1)])
    before = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in state.iterdir()}
    found = summarize_store(state)
    assert found["events"]["step"] == 5
    assert found["attempts"] == [
        {"attempt": 0, "steps": 3, "first": 1, "last": 3},
        {"attempt": 1, "steps": 2, "first": 1, "last": 2},
    ]
    assert (found["verdict"]["steps"], found["verdict"]["attempt"], found["verdict"]["step"]) == (5, 1, 2)
    assert found["policy"]["detector"] == Policy().detector
    assert before == {path.name: hashlib.sha256(path.read_bytes()).digest() for path in state.iterdir()}
    store.append_steps([steps(4, 5)])
    assert summarize_store(state)["events"]["step"] == 6, "what was written since"


def test_every_copy_is_one_moment_while_the_store_is_written(store: Store, tmp_path: Path) -> None:
    """A step is written with its number; a copy holds all steps up to some one, and none twice."""
    done = threading.Event()

    def write() -> None:
        step = 1
        while not done.is_set() and step < 20_000:
            store.append_steps([steps(step, step + 50)])
            step += 50

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            [one] = summarize_store(tmp_path / "state")["attempts"] or [{"steps": 0, "last": 0}]
            assert one["steps"] == one["last"] and one["steps"] % 50 == 0
    finally:
        done.set()
        writer.join()


def test_a_copy_during_a_change_is_made_again(store: Store, tmp_path: Path, monkeypatch) -> None:
    store.append_steps([steps(1, 4)])
    states = iter([("a",), ("b",), None, None, ("c",), ("c",)])
    seen = []

    def state(_: Path):
        seen.append(1)
        return next(states)

    monkeypatch.setattr(inspection, "_state", state)
    monkeypatch.setattr(inspection, "PAUSE_SECONDS", 0.0)
    with copied(tmp_path / "state") as copy:
        assert (copy / FILE_NAME).exists() and copy.stat().st_mode & 0o077 == 0
    assert len(seen) == 6 and not copy.exists()


def test_a_store_that_always_changes_is_said_so(store: Store, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(inspection, "_state", lambda _: None)
    monkeypatch.setattr(inspection, "PAUSE_SECONDS", 0.0)
    with pytest.raises(StoreError, match="changed whenever it was copied"):
        summarize_store(tmp_path / "state")


def test_the_journal_of_a_change_under_way_is_no_quiet_moment(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "state" / FILE_NAME
    assert inspection._state(source) is not None
    source.with_name(f"{source.name}-journal").touch()
    assert inspection._state(source) is None


def test_a_fire_is_seen(store: Store, tmp_path: Path) -> None:
    store.append_steps([steps(1, 3)])
    store.append_checkpoint(CheckpointReport(attempt=0, step=2, path="/c/2"))
    store.append_latches([Latch(fire=True, attempt=0, step=2, code=Code.KL_HARD_STOP, message="too far")])
    found = summarize_store(tmp_path / "state")
    assert found["events"]["fire"] == 1 and found["verdict"]["fire"] is True
    assert found["verdict"]["code"] == Code.KL_HARD_STOP


def test_where_no_guard_has_run_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no guard has run"):
        summarize_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_damaged_store_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StoreError, match=r"guard\.db"):
        summarize_store(tmp_path)


def test_every_damage_is_a_sentence_that_names_the_store(store: Store, tmp_path: Path) -> None:
    store.append_steps([steps(1, 200)])
    store.close()
    whole, damaged = (tmp_path / "state" / FILE_NAME).read_bytes(), tmp_path / "damaged"
    damaged.mkdir()
    for start in range(4096, len(whole), 4096):
        (damaged / FILE_NAME).write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
        with pytest.raises(StoreError, match=f"^{damaged / FILE_NAME} "):
            summarize_store(damaged)
