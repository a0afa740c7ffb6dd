"""The evaluation process: its answers, and that its death or slowness costs one evaluation at most.

Real processes; the policy is an endpoint of the test, so that none needs torch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult, EvaluationWorker
from rlguard.core.wire import FailureKind
from tests import stub_policy
from tests.heldout.evaluated import alive, wait_for
from tests.stub_policy import Policy as ModelPolicy
from tests.stub_policy import Reply, save_checkpoint

SECRET = "xyzzy"
ROOM = tempfile.TemporaryDirectory()
REQUEST = EvaluationRequest(0, 10, save_checkpoint(Path(ROOM.name) / "checkpoint-10"))


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelPolicy]:
    """A policy that answers "3" to everything."""
    with stub_policy.policy(lambda asked: Reply("3")) as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture
def settings(policy: ModelPolicy, tmp_path: Path) -> Callable[..., HeldoutSettings]:
    def make(scorer: str = "exact", **more: Any) -> HeldoutSettings:
        split = tmp_path / "split.jsonl"
        meta = {"once": str(tmp_path / "once"), "nice": os.nice(0)}
        rows = [
            {"id": f"i{n}", "prompt": f"{SECRET} {n}+1=", "answer": str(n + 1), "meta": meta}
            for n in range(4)
        ]
        if not split.exists():
            split.write_text("".join(json.dumps(row) + "\n" for row in rows))
        name = scorer if scorer in {"exact", "nowhere"} else f"tests.heldout.odd_scorers:{scorer}"
        return HeldoutSettings.model_validate({"split": split, "scorer": name, **more})

    return make


def run(settings: HeldoutSettings, scratch: Path, act: Callable[[EvaluationWorker], Awaitable[Any]]) -> Any:
    """Start a worker, do something with it, and close it."""

    async def all_of_it() -> Any:
        worker = EvaluationWorker(settings, scratch)
        try:
            await worker.start()
            return await act(worker)
        finally:
            await worker.close()

    return asyncio.run(all_of_it())


async def fails(
    worker: EvaluationWorker, request: EvaluationRequest = REQUEST, kind: FailureKind = FailureKind.UNDERWAY
) -> str:
    """Any failure that may depend on an item is one kind: `underway`."""
    with pytest.raises(EvaluationError) as caught:
        await worker.evaluate(request)
    assert SECRET not in str(caught.value) and caught.value.kind is kind
    return str(caught.value)


def written(folder: Path) -> Callable[[], object]:
    """Whether the scorer has said which process it is in."""
    return lambda: (folder / "once").exists() and (folder / "once").read_text()


def test_outcomes_in_the_splits_order(settings, tmp_path: Path) -> None:
    leftover = tmp_path / "scratch" / "stage-old"  # of a guard that was killed
    leftover.mkdir(parents=True)

    async def act(worker: EvaluationWorker) -> EvaluationResult:
        assert not leftover.exists()
        await fails(worker, replace(REQUEST, path=tmp_path), FailureKind.CHECKPOINT)
        return await worker.evaluate(REQUEST)

    result = run(settings(), tmp_path / "scratch", act)
    assert result.items == (0.0, 0.0, 1.0, 0.0)
    assert len(result.sha256 or "") == 64 and result.seconds > 0


@pytest.mark.nightly
def test_the_file_of_a_scorer_is_part_of_what_decides_a_score(
    settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own, the training grader's, and no file of ours; what it imports is another matter."""
    for name in ("own_scorer", "own_grader"):
        (tmp_path / f"{name}.py").write_text("def right(completion, answer, meta):\n    return 1.0\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"], *sys.path]))
    own = {"scorer": "own_scorer:right", "proxy_scorer": "own_grader:right"}
    given = settings().model_copy(update=own)

    async def look(worker: EvaluationWorker) -> Any:
        return worker.measure["scorer_code"]

    async def edit(worker: EvaluationWorker) -> str:
        await worker.evaluate(REQUEST)
        (tmp_path / "own_grader.py").write_text("def right(completion, answer, meta):\n    return 0.5\n")
        os.kill(worker.pid, signal.SIGKILL)  # as by the kernel for its memory
        return await fails(worker) + await fails(worker, kind=FailureKind.EVALUATOR)

    before = run(given, tmp_path / "scratch", look)
    assert before.keys() == {"own_scorer:right", "own_grader:right"}
    assert run(given, tmp_path / "scratch", look) == before
    assert "the file of a scorer changed while the guard ran" in run(given, tmp_path / "scratch", edit)
    after = run(given, tmp_path / "scratch", look)
    assert after["own_scorer:right"] == before["own_scorer:right"]
    assert after["own_grader:right"] != before["own_grader:right"]
    with pytest.raises(KeyError):
        run(settings(), tmp_path / "scratch", look)


def test_the_training_grader_scores_the_same_completions(
    settings, policy: ModelPolicy, tmp_path: Path
) -> None:
    asked = len(policy.asked)
    proxy = "tests.heldout.odd_scorers:always_right"
    rows = [json.loads(line) for line in settings().split.read_text().splitlines()]
    rows[1]["scorer"] = "numeric"  # an item's own scorer is the truth's, and not the training grader's
    settings().split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run(settings(proxy_scorer=proxy), tmp_path / "scratch", lambda w: w.evaluate(REQUEST))
    assert result.items == (0.0, 0.0, 1.0, 0.0) and result.proxy_items == (1.0,) * 4
    assert len(policy.asked) == asked + 4 and result.truncated == 0.0
    plain = run(settings(), tmp_path / "scratch", lambda w: w.evaluate(REQUEST))
    assert plain.proxy_items is None


def test_a_training_grader_that_fails_costs_its_own_outcomes_alone(
    settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = settings(proxy_scorer="tests.heldout.odd_scorers:impatient")
    result = run(odd, tmp_path / "scratch", lambda w: w.evaluate(REQUEST))
    assert result.items == (0.0, 0.0, 1.0, 0.0) and result.proxy_items == ()
    assert "the proxy_scorer failed; the evaluation goes on without it" in caplog.text
    assert "this evaluation goes on without it" in (tmp_path / "scratch" / "worker.log").read_text()


def test_the_child_is_nice_knows_no_token_and_is_light(
    settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RLGUARD_GUARD_INGEST_TOKEN", "RLGUARD_TOKEN", "RLGUARD_MY_KEY"):
        monkeypatch.setenv(name, "t")
    for name in set(os.environ) - {"RLGUARD_GUARD_INGEST_TOKEN", "RLGUARD_TOKEN", "RLGUARD_MY_KEY"}:
        if name.startswith("RLGUARD_"):
            monkeypatch.delenv(name)
    result = run(settings("reports_its_process"), tmp_path / "scratch", lambda w: w.evaluate(REQUEST))
    assert result.items == (1.0,) * 4


@pytest.mark.parametrize(
    ("scorer", "told"),
    [
        ("killed_once", "ended (SIGKILL, out of memory?) before it responded; its last words are in"),
        ("exits_once", "ended (status 7) before it responded"),
        ("raises_what_it_should_not", "ended (status 1) before it responded"),
    ],
)
def test_a_child_that_dies_costs_one_evaluation(settings, tmp_path: Path, scorer: str, told: str) -> None:
    async def act(worker: EvaluationWorker) -> tuple[str, EvaluationResult]:
        return await fails(worker), await worker.evaluate(REQUEST)

    message, result = run(settings(scorer), tmp_path / "scratch", act)
    assert told in message and result.items == (1.0,) * 4


def test_a_time_out_kills_the_child(settings, tmp_path: Path) -> None:
    async def act(worker: EvaluationWorker) -> tuple[str, EvaluationResult]:
        return await fails(worker), await worker.evaluate(REQUEST)

    hasty = settings("stuck_once", evaluator={"timeout_seconds": 20.0})
    message, result = run(hasty, tmp_path / "scratch", act)
    assert "within timeout_seconds=20: raise it" in message and result.items == (1.0,) * 4
    assert not alive(int((tmp_path / "once").read_text()))


def test_closing_ends_an_evaluation_under_way(settings, tmp_path: Path) -> None:
    async def act(worker: EvaluationWorker) -> str:
        task = asyncio.create_task(fails(worker))
        await asyncio.to_thread(wait_for, written(tmp_path))
        await worker.close()
        return await task

    assert "the evaluation process" in run(settings("stuck_once"), tmp_path / "scratch", act)
    assert not alive(int((tmp_path / "once").read_text()))


def test_what_a_scorer_prints_is_no_answer_and_reaches_no_log(
    settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    scratch = tmp_path / "scratch"
    result = run(settings("chatty"), scratch, lambda w: w.evaluate(REQUEST))
    assert result.items == (0.5,) * 4
    assert "items" not in caplog.text and "items" not in "".join(capfd.readouterr())
    assert (scratch / "worker.log").stat().st_mode & 0o077 == 0
    assert '{"items": [0.0]} 3' in (scratch / "worker.log").read_text()


def test_an_error_that_nobody_foresaw_is_told_by_its_type(settings, tmp_path: Path) -> None:
    """Its text may quote a prompt."""

    async def act(worker: EvaluationWorker) -> str:
        shutil.rmtree(tmp_path / "scratch")
        with pytest.raises(EvaluationError) as caught:
            await worker.pins(REQUEST)
        return str(caught.value)

    told = run(settings(), tmp_path / "scratch", act)
    assert told == "the evaluation process failed with FileNotFoundError"


def test_a_split_that_changed_is_never_scored(settings, tmp_path: Path) -> None:
    async def act(worker: EvaluationWorker) -> str:
        await fails(worker)
        with (tmp_path / "split.jsonl").open("a") as file:
            file.write(json.dumps({"id": "new", "prompt": "9+9=", "answer": "18"}) + "\n")
        return await fails(worker, kind=FailureKind.EVALUATOR)

    assert "changed while the guard ran" in run(settings("killed_once"), tmp_path / "scratch", act)


def refused(settings: HeldoutSettings, scratch: Path) -> str:
    with pytest.raises(SplitError) as caught:
        run(settings, scratch, lambda worker: worker.evaluate(REQUEST))
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_start_refuses_what_must_be_mended_first(settings, tmp_path: Path) -> None:
    good = settings()
    assert "scorer 'nowhere' is unknown" in refused(settings("nowhere"), tmp_path / "scratch")
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"id": "t", "prompt": f"{SECRET} 2 + 1 ="}) + "\n")
    told = refused(good.model_copy(update={"train_prompts": train}), tmp_path / "scratch")
    assert "not disjoint: 1 of 4 held-out items" in told
    assert "held-out 'i2' ~ training 't': exact 1.00" in told
    told = refused(good.model_copy(update={"train_prompts": tmp_path / "no"}), tmp_path / "scratch")
    assert "no: No such file" in told
    with (tmp_path / "split.jsonl").open("a") as file:
        file.write("{\n")
    assert "line 5: not JSON" in refused(good, tmp_path / "scratch")


def test_the_child_ends_with_the_guard_even_while_it_holds_the_interpreter(settings, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from guard_service.heldout.config import HeldoutSettings\n"
        "from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker\n"
        "async def main():\n"
        "    worker = EvaluationWorker(HeldoutSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "    await worker.start()\n"
        "    await worker.evaluate(EvaluationRequest(0, 1, Path(sys.argv[3])))\n"
        "asyncio.run(main())"
    )
    arguments = [settings("stuck_once").model_dump_json(), str(tmp_path / "scratch"), str(REQUEST.path)]
    with subprocess.Popen([sys.executable, "-c", code, *arguments]) as guard:
        wait_for(written(tmp_path))
        child = int((tmp_path / "once").read_text())
        assert alive(child)
        guard.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(child))


def children(pid: int | None) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_is_killed_before_any_item_is_looked_at_ran_out_of_memory(
    settings, tmp_path: Path
) -> None:
    """Which says more than that the checkpoint's files could not be taken, and depends on no item."""

    async def kind(worker: EvaluationWorker) -> FailureKind:
        for pid in children(worker.pid):
            os.kill(pid, signal.SIGSTOP)
        task = asyncio.create_task(worker.pins(REQUEST))
        await asyncio.sleep(0.1)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EvaluationError, match="SIGKILL, out of memory") as caught:
            await task
        return caught.value.kind

    assert run(settings(), tmp_path / "scratch", kind) is FailureKind.OUT_OF_MEMORY
