"""The store by itself: what makes it durable and append-only, and what a group of requests becomes."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Judge, Latch, StepTuple
from guard_core.policy import Policy
from guard_core.rounds import Evaluation, Round
from guard_core.wire import CheckpointReport, KlKind, StepReport
from guard_service import database
from guard_service.database import journal_mode
from guard_service.errors import ChangedRunError, StoreError
from guard_service.event_log import EventLog
from guard_service.events import Appended, Conflict, Failure, Note, StepRun, StoredEvent
from guard_service.history import export_history

ROUND = Round(0.5, 0.01, 1, 0.1, 0.2, 0.3, None)


@pytest.fixture
def store(tmp_path: Path) -> Any:
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


def pragma(store: EventLog, name: str) -> Any:
    return store._db.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_transaction_is_flushed_and_the_file_is_locked(store: EventLog, tmp_path: Path) -> None:
    assert pragma(store, "synchronous") == 3  # EXTRA
    assert pragma(store, "locking_mode") == "exclusive"
    assert pragma(store, "journal_mode") == journal_mode(tmp_path).lower()


def test_the_rollback_journal_works_where_the_file_system_is_not_known_to_be_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCAL_FILE_SYSTEMS", frozenset())
    store = EventLog(tmp_path, Policy())
    assert pragma(store, "journal_mode") == "delete"
    store.append([step(1)])
    store.close()
    monkeypatch.undo()
    store = EventLog(tmp_path, Policy())  # and the mode may change between two starts
    assert folded(store) == [row(step(1))]
    store.close()


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", "WAL"), ("nfs4", "DELETE"), ("fuse.sshfs", "DELETE"), ("lustre", "DELETE")]
)
def test_the_nearest_mount_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:1 / {tmp_path} rw shared:1 - {kind} server:/x rw\n"
        "3 1 8:2 / /elsewhere rw - xfs /dev/b rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
    assert journal_mode(tmp_path / "state") == mode
    assert journal_mode(Path("/other")) == "WAL"


def test_an_unknown_mount_table_means_the_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise FileNotFoundError("/proc/self/mountinfo")

    monkeypatch.setattr(Path, "read_text", fail)
    assert journal_mode(tmp_path) == "DELETE"


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET step = 7"])
def test_events_cannot_be_changed(store: EventLog, tmp_path: Path, statement: str) -> None:
    store.append([step(1)])
    store.close()
    with (
        closing(sqlite3.connect(tmp_path / "guard.db")) as db,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        db.execute(statement)


def test_a_group_is_one_transaction_and_each_request_stands_alone(store: EventLog) -> None:
    results = append_steps(
        store,
        [
            [step(1), step(2)],
            [step(3), step(2, reward=0.9)],  # contradicts the first request
            [step(2), step(4)],  # repeats of the first request
            [step(5), step(5, reward=0.9)],  # contradicts itself
            [step(3, reward=0.7)],  # the second request kept nothing
            [],
        ],
    )
    kinds = [r.duplicates if isinstance(r, Appended) else r.errors[0].field for r in results]
    assert kinds == [0, "1.reward", 1, "1.reward", 0, 0]
    assert folded(store) == [row(one) for one in (step(1), step(2), step(4), step(3, reward=0.7))]


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
def test_what_was_appended_reads_back_bit_for_bit_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[list[StepReport]]]
) -> None:
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
    store = EventLog(directory, Policy())
    events = folded(store)
    store.close()
    assert events == [row(report) for report in model.values()]
    lines = {(line["attempt"], line["step"]): line for line in export_history(directory)}
    assert {key: {name: line[name] for name in StepReport.model_fields} for key, line in lines.items()} == {
        key: report.model_dump(mode="json") for key, report in model.items()
    }


def test_every_kind_of_event_reads_back(store: EventLog) -> None:
    checkpoint = CheckpointReport(attempt=0, step=1, path="/checkpoints/1")
    evaluation = Evaluation(0, 1, "/checkpoints/1", (0.1, 1 / 3), "sha", 0, 1 / 3, (0.2, 2 / 3))
    further = Evaluation(0, 1, "/checkpoints/1", (1.0, 0.0), None, 1)
    fire = Latch(True, "hacking_gap", "gap", 0, 1)
    stop = Latch(False, "silent", "silence", 0, 1)
    failure = Failure(0, 2, 0, "gone")
    store.append([step(1)])
    store.append([checkpoint])
    store.append([evaluation, fire], ROUND)
    store.append([further], ROUND)
    store.append([failure, stop])
    assert folded(store) == [row(step(1)), checkpoint, evaluation, fire, further, failure, stop]
    assert store.pending_checkpoints() == []
    assert store.latched_at().keys() == {True, False}
    assert store.is_settled(CheckpointKey(0, 1), 1) and not store.is_settled(CheckpointKey(0, 1), 2)


def test_when_each_latch_closed_is_known_to_who_opens_the_store_later(
    store: EventLog, tmp_path: Path
) -> None:
    assert store.latched_at() == {}
    store.append([Latch(False, "silent", "silence", 0, 1)])
    halted = store.latched_at()
    assert halted.keys() == {False} and abs((datetime.now(UTC) - halted[False]).total_seconds()) < 60
    store.append([Failure(0, 2, 0, "gone"), Latch(True, "hacking_gap", "gap", 0, 1)])
    store.close()
    again = EventLog(tmp_path, Policy())
    known = again.latched_at()
    again.close()
    assert known.keys() == {True, False} and known[False] == halted[False] <= known[True]


def test_an_evaluation_of_a_step_without_reward_has_a_line_of_its_own(
    store: EventLog, tmp_path: Path
) -> None:
    store.append([step(1)])
    store.append([Evaluation(0, 2, "/c", (1.0,), None)], ROUND)
    store.close()
    first, second = export_history(tmp_path)
    assert "heldout" not in first
    assert (second["step"], second["reward"], second["heldout"], second["items"]) == (2, None, 1.0, [1.0])


@pytest.mark.parametrize("total", [1, 59, 60, 61, 600])
def test_of_many_steps_evenly_spread_ones_are_read(store: EventLog, total: int) -> None:
    assert store.thinned_history(60) == {"steps": [], "evaluations": [], "total_steps": 0}
    store.append([step(number) for number in reversed(range(total))])
    history = store.thinned_history(60)
    numbers = [one["step"] for one in history["steps"]]
    assert history["total_steps"] == total and len(numbers) == min(60, total)
    assert numbers == sorted(numbers) and (numbers[0], numbers[-1]) == (0, total - 1)
    apart = {later - former for former, later in itertools.pairwise(numbers)}
    assert not apart or max(apart) - min(apart) <= 1


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
    for step in steps:
        judge.fold_step(step)
    for attempt, step, index, items in (
        (0, 2, 0, (1.0, 0.0)),
        (0, 2, 1, (0.0, 0.0)),  # a further pass is no round
        (0, 5, 0, (1.0, 1.0)),
        (1, 2, 0, (0.0, 0.0)),  # no step before it: no round
        (1, 3, 0, (0.0, 1.0)),
    ):
        evaluation = Evaluation(attempt, step, "/c", items, None, index)
        judge.fold_evaluation(evaluation)
        store.append([evaluation], judge.newest_round)
    told = ("attempt", "step", "score", "reward", "kl")
    evaluations = store.thinned_history(10)["evaluations"]
    assert [tuple(one[name] for name in told) for one in evaluations if one["reward"] is not None] == [
        (0, 2, 0.5, 1.0, 0.02),
        (0, 5, 1.0, 4.0, 0.03),
        (1, 3, 0.5, 7.0, None),
    ]


def test_what_the_training_grader_gave_is_kept_with_the_items(store: EventLog, tmp_path: Path) -> None:
    store.append([step(1), step(2)])
    store.append([Evaluation(0, 1, "/c", (0.0, 1.0), None, 0, 0.5, (1.0, 0.25))], ROUND)
    store.append(
        [Evaluation(0, 2, "/c", (0.0, 1.0), unanswered=0.25, timed_out=0.125, parts={"load": 2.5})], ROUND
    )
    first, second = store.thinned_history(10)["evaluations"]
    assert first["unanswered"] is None and second["unanswered"] == 0.25
    assert first["timed_out"] is None and second["timed_out"] == 0.125
    assert (first["parts"], second["parts"]) == ({}, {"load": 2.5})
    assert (first["truncated"], first["proxy_score"]) == (0.5, 0.625)
    assert second["truncated"] is second["proxy_score"] is None
    store.close()
    first, second = export_history(tmp_path)
    assert first["proxy_items"] == [1.0, 0.25] and "proxy_items" not in second


def test_where_the_training_grader_was_fooled_is_kept_and_stays_here(store: EventLog, tmp_path: Path) -> None:
    store.append([step(1)])
    evaluation = Evaluation(0, 1, "/c", (0.5, 1.0), None, 0, 0.5, (1.0, 0.25), fooled_items=(0.5, 0.0))
    store.append([evaluation], ROUND)
    (kept,) = (event for event in store.events(0) if isinstance(event, Evaluation))
    assert (kept.items, kept.proxy_items, kept.fooled_items) == ((0.5, 1.0), (1.0, 0.25), (0.5, 0.0))
    told = str(store.thinned_history(10))
    assert "fooled" not in told and "proxy_items" not in told
    store.close()
    (line,) = export_history(tmp_path)
    assert (line["proxy_items"], line["fooled_items"]) == ([1.0, 0.25], [0.5, 0.0])


def test_that_the_training_grader_failed_is_kept(store: EventLog, tmp_path: Path) -> None:
    failed = Evaluation(0, 1, "/c", (0.0, 1.0), None, 0, 0.5, ())
    store.append([failed], ROUND)
    assert failed.summary().proxy_score is None
    assert [event.proxy_items for event in store.events(0) if isinstance(event, Evaluation)] == [()]
    store.close()
    assert next(iter(export_history(tmp_path)))["proxy_items"] == []


def test_a_long_history_is_exported_whole(store: EventLog, tmp_path: Path) -> None:
    store.append([step(i) for i in range(4_500)])
    store.close()
    assert [line["step"] for line in export_history(tmp_path)] == list(range(4_500))


def test_an_export_says_what_is_wrong(store: EventLog, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="another process"):
        next(export_history(tmp_path))
    with pytest.raises(StoreError, match="no guard has run"):
        next(export_history(tmp_path / "nowhere"))


def test_a_changed_policy_split_or_evaluation_is_refused(store: EventLog, tmp_path: Path) -> None:
    measure = {"scorer": "exact", "evaluator": {"temperature": 1.0, "top_p": None}}
    store.check_evaluation("one", measure)
    store.check_evaluation("one", measure)
    with pytest.raises(ChangedRunError, match="split"):
        store.check_evaluation("two", measure)
    with pytest.raises(ChangedRunError, match=r"evaluator\.temperature: was 1\.0, now 0"):
        store.check_evaluation("one", measure | {"evaluator": {"temperature": 0, "top_p": None}})
    with pytest.raises(ChangedRunError, match=r"scorer_code: was None, now \{'m:f': 'b'\}"):
        store.check_evaluation("one", measure | {"scorer_code": {"m:f": "b"}})
    store.close()
    with pytest.raises(ChangedRunError, match=r"silent\.after_seconds: was 1800\.0, now 5\.0"):
        EventLog(tmp_path, Policy.model_validate({"silent": {"after_seconds": 5.0}}))
