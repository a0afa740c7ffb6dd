"""Replay is live: the judge of a replayed history has the very verdict that the live judge had.

Histories are random: with and without KL, several attempts, evaluations with and without items, evaluations
that finish late. The export is written in the format of issue 5 and read back through the reader.
"""

import json
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.fold import fold_run
from rlguard.cli.replay.run import Run, load_run
from rlguard.core.judge import Judge
from rlguard.core.policy import HeldOutGuardPolicy, KlPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import KlKind, StepReport, Verdict

ITEMS = 16


def history(
    seed: int, steps: int, every: int, hack: float, kl: str
) -> tuple[list[StepReport], list[Evaluation]]:
    rng = random.Random(seed)
    reports, evaluations = [], []
    attempts = rng.choice([1, 1, 2, 3])
    for attempt in range(attempts):
        start = rng.randint(0, steps // 2) if attempt else 0
        for step in range(start + 1, start + steps + 1):
            value = None if kl == "absent" else 0.0 if kl == "zero" else rng.expovariate(1 / (0.002 * step))
            reports.append(
                StepReport(
                    attempt=attempt,
                    step=step,
                    reward=0.5 + hack * step + rng.gauss(0, 0.05),
                    kl=value,
                    kl_kind=KlKind.ABSENT if value is None else KlKind.REF_TOKEN_MEAN,
                    entropy=rng.random(),
                    reward_std=rng.random(),
                )
            )
            if step % every == 0:
                p = max(0.05, 0.6 - hack * step)
                items = tuple(float(rng.random() < p) for _ in range(ITEMS))
                evaluations.append(Evaluation(attempt, step, f"checkpoint-{step}", items))
    return reports, evaluations


def live(policy: Policy, reports: list[StepReport], evaluations: list[Evaluation], late: int) -> Judge:
    """Fold as the guard does: each evaluation finishes `late` steps after its checkpoint."""
    judge = Judge(policy)
    waiting: list[tuple[int, Evaluation]] = []
    by_step = {(e.attempt, e.step): e for e in evaluations}
    for i, report in enumerate(reports):
        judge.fold_step(report)
        if evaluation := by_step.get((report.attempt, report.step)):
            judge.fold_checkpoint()
            waiting.append((i + late, evaluation))
        while waiting and waiting[0][0] <= i:
            judge.fold_evaluation(waiting.pop(0)[1])
    for _, evaluation in waiting:
        judge.fold_evaluation(evaluation)
    return judge


def exported(reports: list[StepReport], evaluations: list[Evaluation], shuffle: int | None) -> Run:
    by_step = {(e.attempt, e.step): e for e in evaluations}
    lines = []
    for report in reports:
        line = report.model_dump(mode="json")
        if evaluation := by_step.get((report.attempt, report.step)):
            line |= {"heldout": evaluation.score, "items": list(evaluation.items)}
        lines.append(json.dumps(line))
    if shuffle is not None:
        random.Random(shuffle).shuffle(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        path.write_text("\n".join(lines) + "\n")
        return load_run(read_log(path), "history.jsonl", {})


def comparable(verdict: Verdict) -> dict:
    """The export names no checkpoint paths; everything else must be the same to the last bit."""
    body = verdict.model_dump(mode="json")
    for name in ("last_evaluation", "best_evaluation"):
        if body[name]:
            body[name].pop("path")
    del body["best_path"]
    return body


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 80),
    every=st.integers(1, 12),
    hack=st.sampled_from([0.0, 0.002, 0.01]),
    kl=st.sampled_from(["drift", "zero", "absent"]),
    late=st.integers(0, 9),
    min_steps=st.sampled_from([0, 3, 20]),
    shuffle=st.none() | st.integers(0, 100),
)
def test_replay_gives_the_live_verdict(
    seed: int, steps: int, every: int, hack: float, kl: str, late: int, min_steps: int, shuffle: int | None
) -> None:
    policy = Policy(
        detector="heldout_guard",
        heldout_guard=HeldOutGuardPolicy(min_steps=min_steps, ema_alpha=0.6),
        kl=KlPolicy(hard_stop=0.08, min_steps=min_steps),
    )
    reports, evaluations = history(seed, steps, every, hack, kl)
    run = exported(reports, evaluations, shuffle)
    punctual = live(policy, reports, evaluations, late=0)
    replayed = fold_run(run, policy)
    assert comparable(replayed.verdict()) == comparable(punctual.verdict())
    assert [*replayed.latches] == [*punctual.latches]

    # A late evaluation may let the KL fire first, or last; the rounds that were folded are the same.
    delayed = live(policy, reports, evaluations, late).verdict()
    for name in ("in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema", "rounds", "fire"):
        assert getattr(delayed, name) == getattr(replayed.verdict(), name)
