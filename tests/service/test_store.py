"""The store by itself: what makes it durable and append-only, and what a group of requests becomes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_service import database
from guard_service.database import journal_mode
from guard_service.errors import ChangedRunError, StoreError
from guard_service.event_log import EventLog
from guard_service.events import Appended, Conflict, Failure, Note, StepRun, StoredEvent
from guard_service.history import export_history
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.judge import Judge, Latch, StepTuple
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.wire import CheckpointReport, KlKind, StepReport

ROUND = Round(0.5, 0.01, 1, 0.1, 0.2, 0.3, None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventLog]:
    store = EventLog(tmp_path, Policy())
    yield store
    store.close()


def step(number: int, attempt: int = 0, **values: Any) -> StepReport:
    return StepReport(attempt=attempt, step=number, **({"reward": 0.5} | values))


def append_steps(store: EventLog, batches: list[list[StepReport]]) -> list[Appended | Conflict]:
    """As a guard does it: what is new of several requests in one transaction."""
    results = store.sort_out(batches)
    store.append([report for result in results if isinstance(result, Appended) for report in result.new])
    return results


def folded(store: EventLog) -> list[StoredEvent | StepTuple]:
    """What is folded, in order: each step, and each other event."""
    events = (event for event in store.events(0) if not isinstance(event, Note))
    return [one for event in events for one in (event.rows if isinstance(event, StepRun) else (event,))]


def row(report: StepReport) -> StepTuple:
    return (report.attempt, report.step, report.reward, report.kl, report.kl_kind)


@pytest.mark.parametrize("local", [True, False])
def test_a_transaction_is_flushed_and_the_file_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """Where the file system is not known to be local, with the rollback journal."""
    if not local:
        monkeypatch.setattr(database, "LOCAL_FILE_SYSTEMS", frozenset())
    made: list[sqlite3.Connection] = []

    class Connection(sqlite3.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(sqlite3, "connect", Connection)
    store = EventLog(tmp_path, Policy())
    names = ("synchronous", "locking_mode", "journal_mode")
    used = [made[-1].execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert used == [3, "exclusive", "wal" if local else "delete"], "3: EXTRA"
    store.append([step(1)])
    with pytest.raises(StoreError, match="another process"):
        next(export_history(tmp_path))
    store.close()
    monkeypatch.undo()
    with closing(EventLog(tmp_path, Policy())) as store:  # and the mode may change between two starts
        assert folded(store) == [row(step(1))]


@pytest.mark.parametrize("kind", ["ext4", "nfs4", "fuse.sshfs", "lustre", None])
def test_the_nearest_mount_decides_and_an_unknown_one_means_the_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:1 / {tmp_path} rw shared:1 - {kind} server:/x rw\n"
        "3 1 8:2 / /elsewhere rw - xfs /dev/b rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts if kind else "")
    assert journal_mode(tmp_path / "state") == ("WAL" if kind == "ext4" else "DELETE")
    assert journal_mode(Path("/other")) == ("WAL" if kind else "DELETE")


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET step = 7"])
def test_events_cannot_be_changed(store: EventLog, tmp_path: Path, statement: str) -> None:
    store.append([step(1)])
    store.close()
    with (
        closing(sqlite3.connect(tmp_path / "guard.db")) as db,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        db.execute(statement)


FLOATS = st.floats(-1e100, 1e100)
STEPS = st.builds(
    StepReport,
    attempt=st.integers(0, 2),
    step=st.integers(0, 30) | st.integers(0, 2**53 - 1),
    reward=FLOATS,
    kl=st.floats(0, 1e100),
    kl_kind=st.sampled_from([KlKind.REF_TOKEN_MEAN, KlKind.BEHAVIOUR]),
    entropy=st.none() | FLOATS,
)


@given(groups=st.lists(st.lists(st.lists(STEPS, max_size=6), max_size=4), max_size=4))
@settings(max_examples=25, deadline=None)
def test_each_request_of_a_group_stands_alone_and_reads_back_bit_for_bit_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[list[StepReport]]]
) -> None:
    """One that contradicts what is on disk, an earlier request or itself keeps nothing."""
    directory = tmp_path_factory.mktemp("store")
    store = EventLog(directory, Policy())
    model: dict[tuple[int, int], StepReport] = {}
    for group in groups:
        for reports, result in zip(group, append_steps(store, group), strict=True):
            contradicts = False
            mine: dict[tuple[int, int], StepReport] = {}
            for report in reports:
                key = (report.attempt, report.step)
                known = mine.get(key) or model.get(key)
                contradicts = contradicts or (known is not None and known != report)
                mine.setdefault(key, report)
            assert isinstance(result, Conflict) is contradicts
            if isinstance(result, Appended):
                assert list(result.new) == [r for k, r in mine.items() if k not in model]
                model |= {k: r for k, r in mine.items() if k not in model}
    store.close()
    with closing(EventLog(directory, Policy())) as store:
        assert folded(store) == [row(report) for report in model.values()]
    lines = {(line["attempt"], line["step"]): line for line in export_history(directory)}
    assert {key: {name: line[name] for name in StepReport.model_fields} for key, line in lines.items()} == {
        key: report.model_dump(mode="json") for key, report in model.items()
    }


def test_every_kind_of_event_reads_back_and_when_each_latch_closed(store: EventLog, tmp_path: Path) -> None:
    checkpoint = CheckpointReport(attempt=0, step=1, path="/checkpoints/1")
    graded = Evaluation(
        0, 1, "/checkpoints/1", (0.1, 1 / 3), "sha", 0, 1 / 3, (0.2, 2 / 3), fooled_items=(0.5, 0.0),
        unanswered=0.25, timed_out=0.125, parts={"load": 2.5},
    )  # fmt: skip
    further = Evaluation(0, 1, "/checkpoints/1", (1.0, 0.0), None, 1, None, ())  # the grader failed
    fire = Latch(True, "hacking_gap", "gap", 0, 1)
    stop = Latch(False, "silent", "silence", 0, 1)
    failure = Failure(0, 2, 0, "gone")
    assert store.latched_at() == {}
    store.append([step(1)])
    store.append([checkpoint])
    store.append([graded, fire], ROUND)
    store.append([further], ROUND)
    store.append([failure, stop])
    assert folded(store) == [row(step(1)), checkpoint, graded, fire, further, failure, stop]
    assert store.pending_checkpoints() == []
    assert store.is_settled(CheckpointKey(0, 1), 1) and not store.is_settled(CheckpointKey(0, 1), 2)
    at = store.latched_at()
    assert at.keys() == {True, False} and at[True] <= at[False]
    assert abs((datetime.now(UTC) - at[True]).total_seconds()) < 600
    [summary] = store.thinned_history(10)["evaluations"]
    assert (summary["truncated"], summary["unanswered"], summary["timed_out"]) == (1 / 3, 0.25, 0.125)
    assert summary["parts"] == {"load": 2.5} and summary["proxy_score"] == pytest.approx(13 / 30)
    assert "fooled" not in str(summary) and "proxy_items" not in summary
    store.close()
    with closing(EventLog(tmp_path, Policy())) as again:
        assert again.latched_at() == at
    first, second = export_history(tmp_path)
    assert (first["proxy_items"], first["fooled_items"]) == ([0.2, 2 / 3], [0.5, 0.0])
    assert second["proxy_items"] == [] and "fooled_items" not in second


def test_a_long_history_is_exported_whole_and_an_evaluation_without_a_reward_has_a_line_of_its_own(
    store: EventLog, tmp_path: Path
) -> None:
    store.append([step(i) for i in range(4_500)])
    store.append([Evaluation(0, 4_500, "/c", (1.0,), None)], ROUND)
    store.close()
    *lines, last = export_history(tmp_path)
    assert [line["step"] for line in lines] == list(range(4_500)) and "heldout" not in lines[-1]
    assert (last["step"], last["reward"], last["heldout"], last["items"]) == (4_500, None, 1.0, [1.0])
    with pytest.raises(StoreError, match="no guard has run"):
        next(export_history(tmp_path / "nowhere"))


def test_rounds_are_the_ones_that_the_judge_folded(store: EventLog) -> None:
    kls: list[float | None] = [0.01, 0.03, None, 0.2, 0.02, 0.04]
    steps = [
        StepReport(attempt=0, step=n, reward=float(n), kl=kl, kl_kind="absent" if kl is None else kind)
        for n, (kl, kind) in enumerate(
            zip(kls, ["ref_token_mean"] * 3 + ["behaviour"] + ["ref_token_mean"] * 2, strict=True)
        )
    ]
    steps.append(StepReport(attempt=1, step=3, reward=7.0))
    store.append(steps)
    judge = Judge(Policy(detector="heldout_guard"))
    for one in steps:
        judge.fold_step(one)
    for attempt, number, index, items in (
        (0, 2, 0, (1.0, 0.0)),
        (0, 2, 1, (0.0, 0.0)),  # a further pass is no round
        (0, 5, 0, (1.0, 1.0)),
        (1, 2, 0, (0.0, 0.0)),  # no step before it: no round
        (1, 3, 0, (0.0, 1.0)),
    ):
        evaluation = Evaluation(attempt, number, "/c", items, None, index)
        judge.fold_evaluation(evaluation)
        store.append([evaluation], judge.newest_round)
    rounds = [one for one in store.thinned_history(10)["evaluations"] if one["reward"] is not None]
    assert [tuple(one[name] for name in ("attempt", "step", "score", "reward", "kl")) for one in rounds] == [
        (0, 2, 0.5, 1.0, 0.02),
        (0, 5, 1.0, 4.0, 0.03),
        (1, 3, 0.5, 7.0, None),
    ]


def test_a_changed_evaluation_is_refused(store: EventLog) -> None:
    measure = {"scorer": "exact", "evaluator": {"temperature": 1.0, "top_p": None}}
    for _ in range(2):
        store.check_evaluation("one", measure)
    for split, other, said in (
        ("two", measure, "split: was 'one', now 'two'"),
        ("one", measure | {"evaluator": {"temperature": 0}}, r"evaluator\.temperature: was 1\.0, now 0"),
        ("one", measure | {"scorer_code": {"m:f": "b"}}, r"scorer_code: was None, now \{'m:f': 'b'\}"),
    ):
        with pytest.raises(ChangedRunError, match=said):
            store.check_evaluation(split, other)
