"""What a guard's own history tells of an evaluation beside its items: a replay judges by it, too."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from guard_service.event_log import EventLog
from guard_service.history import export_history
from rlguard.cli.errors import CliError
from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.fold import fold_run
from rlguard.cli.replay.run import load_run
from rlguard.core.codes import Code
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, EvaluationSampling, Sampling, SamplingSource, StepReport

POLICY = Policy(calibrated=CalibratedPolicy(baseline_passes=2))
ITEMS = 256
TRAINER = Sampling(temperature=1.0, max_new_tokens=2048)

#: Step, score, and share that is cut off, of each checkpoint.
CUT_SHORT = ((0, 0.6, 0.02), (10, 0.58, 0.05), (20, 0.3, 0.4), (30, 0.2, 0.5), (40, 0.2, 0.5))


def used(temperature: float) -> EvaluationSampling:
    return EvaluationSampling(
        temperature=temperature, max_new_tokens=512, samples=1, source=SamplingSource.SETTINGS
    )


def evaluations(
    temperature: float, trainer: Sampling | None
) -> Iterator[tuple[CheckpointReport, Evaluation]]:
    for step, score, cut in CUT_SHORT:
        items = tuple(float((i * 37) % ITEMS < round(score * ITEMS)) for i in range(ITEMS))
        yield (
            CheckpointReport(attempt=0, step=step, path=f"/c/{step}", sampling=trainer),
            Evaluation(
                *(0, step, f"/c/{step}", items),
                truncated=cut,
                unscored=cut,
                sampling=used(temperature),
                timed_out=cut,
                unanswered=0.3,
            ),
        )


def lived(directory: Path, temperature: float, trainer: Sampling | None, after: int) -> Judge:
    """A guard's judge and store: completions become longer than the evaluator lets them. A step is reported
    `after` so many from each checkpoint.
    """
    judge = Judge(POLICY)
    with closing(EventLog(directory, POLICY)) as store:
        for report, evaluation in evaluations(temperature, trainer):
            step = StepReport(attempt=0, step=report.step + after, reward=0.5)
            judge.fold_step(step)
            store.append([step])
            judge.fold_checkpoint(report)
            store.append([report])
            passes = [evaluation]
            while passes:
                one = passes.pop()
                judge.fold_evaluation(one)
                store.append([one], judge.newest_round)
                if (wanted := judge.wanted_pass()) is not None:
                    passes.append(Evaluation(**{**fields(evaluation), "pass_index": wanted.index}))
    return judge


def fields(evaluation: Evaluation) -> dict[str, Any]:
    return {name: getattr(evaluation, name) for name in evaluation.__dataclass_fields__}


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("trainer", [TRAINER, None], ids=["its limit is known", "it says nothing"])
@pytest.mark.parametrize(("form", "after"), [("state", 1), ("jsonl", 1), ("csv", 1), ("jsonl", 0)])
def test_a_replay_says_what_the_guard_said(
    tmp_path: Path, temperature: float, trainer: Sampling | None, form: str, after: int
) -> None:
    live = lived(tmp_path / "state", temperature, trainer, after).verdict()
    source, lines = tmp_path / "state", list(export_history(tmp_path / "state"))
    if form != "state":
        source = tmp_path / f"history.{form}"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if form == "csv":
        names = dict.fromkeys(name for line in lines for name in line)
        with source.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*names])
            writer.writeheader()
            writer.writerows(
                {name: json.dumps(v) if isinstance(v, list) else v for name, v in line.items()}
                for line in lines
            )
    replayed = fold_run(load_run(read_log(source), str(source), {}), POLICY).verdict()

    def told(verdict: Any) -> list[tuple[Code, str]]:
        return sorted((c.code, c.message) for c in verdict.conditions)

    assert told(replayed) == told(live)
    assert (replayed.code, replayed.level, replayed.fire) == (live.code, live.level, live.fire)
    assert (Code.CUT_SHORT in {c.code for c in live.conditions}) is (trainer is not None)


def test_what_came_late_is_folded_in_the_order_in_which_the_guard_had_it(tmp_path: Path) -> None:
    """A step after the evaluation of a later one, and a checkpoint after a newer one."""
    policy = Policy(detector="heldout_guard", heldout_guard=HeldOutGuardPolicy(min_steps=2, ema_alpha=0.5))
    judge = Judge(policy)
    with closing(EventLog(tmp_path, policy)) as store:
        for kind, step in (
            *(("step", 1), ("step", 2), ("step", 4), ("score", 4), ("step", 3), ("step", 6), ("score", 6)),
            *(("score", 5), ("step", 7), ("step", 8), ("score", 8)),
        ):
            if kind == "step":
                report = StepReport(attempt=0, step=step, reward=-1.0 if step == 3 else step / 10)
                judge.fold_step(report)
                store.append([report])
            else:
                checkpoint = CheckpointReport(attempt=0, step=step, path=f"/c/{step}")
                judge.fold_checkpoint(checkpoint)
                store.append([checkpoint])
                evaluation = Evaluation(0, step, f"/c/{step}", (1.0, step / 10))
                judge.fold_evaluation(evaluation)
                store.append([evaluation], judge.newest_round)
    lines = [json.dumps(line) for line in export_history(tmp_path)]
    (log := tmp_path / "history.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    live = judge.verdict()
    for source in (tmp_path, log):
        replayed = fold_run(load_run(read_log(source), str(source), {}), policy).verdict()
        for name in ("rounds", "in_loop_ema", "heldout_ema", "proxy_real_gap", "steps_since_evaluation"):
            assert getattr(replayed, name) == getattr(live, name), name


def test_what_cannot_be_a_sampling_is_a_sentence(tmp_path: Path) -> None:
    line = {"step": 1, "reward": 0.5, "items": [1, 0], "heldout_temperature": -1, "heldout_max_new_tokens": 5}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(line) + "\n")
    with pytest.raises(CliError, match="line 1: heldout_temperature -1 and heldout_max_new_tokens 5 are no"):
        load_run(read_log(log), "log.jsonl", {})
