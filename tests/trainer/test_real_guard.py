"""Trainer and guard together: a real TRL training reports to a real guard process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlguard.core import CollapseStopError
from rlguard.core.wire import Sampling
from tests.trainer.real_guard import INGEST, TIGHT_KL, RealGuard, digits

pytestmark = [pytest.mark.nightly, pytest.mark.torch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    guards = []

    def make(policy: dict[str, Any] | None = None, heldout: dict[str, Any] | None = None) -> RealGuard:
        guards.append(RealGuard(tmp_path / "guard", tmp_path / "out", policy, heldout))
        return guards[-1]

    yield make
    for guard in guards:
        guard.close()


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path) -> Any:
    from tests.trainer.tiny import grpo_trainer
    from trainer_image.callback import GuardCallback

    def make(guard: RealGuard, strict: str = "1", drain: int = 0, **overrides: Any) -> Any:
        trainer = grpo_trainer(tiny_model, tmp_path / "out", **overrides)
        environ = {"RLGUARD_URL": guard.url, "RLGUARD_TOKEN": INGEST, "RLGUARD_STRICT": strict}
        environ |= {"RLGUARD_DRAIN_SECONDS": str(drain)}
        trainer.add_callback(GuardCallback.from_env(trainer, environ))
        return trainer

    return make


def test_the_guard_has_what_trl_logged_and_a_second_start_is_a_second_attempt(start: Any, train: Any) -> None:
    guard, logged = start(), []
    for _ in range(2):
        trainer = train(guard, max_steps=3, save_strategy="steps", save_steps=3)
        trainer.train()
        logged += [e for e in trainer.state.log_history if "reward" in e]
    steps = [line for line in guard.history() if "reward" in line]
    assert [(line["attempt"], line["step"]) for line in steps] == [(a, n) for a in (0, 1) for n in (1, 2, 3)]
    for line, entry in zip(steps, logged, strict=True):
        assert line["kl_kind"] == "ref_token_mean"
        for name in ("reward", "kl", "entropy", "reward_std"):
            assert line[name] == pytest.approx(entry[name], rel=1e-6)


@pytest.mark.always
def test_a_kl_fire_stops_training_and_every_restart(start: Any, train: Any) -> None:
    guard = start(TIGHT_KL)
    trainer = train(guard, max_steps=2000)
    with pytest.raises(CollapseStopError, match="hard stop") as stop:
        trainer.train()
    assert 5 <= trainer.state.global_step < 2000
    assert stop.value.status.kl_ema > 1e-9

    guard.kill()
    guard.start()
    restarted = train(guard)
    with pytest.raises(CollapseStopError, match="hard stop"):
        restarted.train()
    assert restarted.state.global_step == 0

    softly = train(guard, strict="0")
    softly.train()
    assert softly.state.global_step == 0
    assert {line["attempt"] for line in guard.history()} == {0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guard_evaluates_as_the_trainer_samples(
    start: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes on the guard's disk are those of completions made here, as TRL samples, by the seed."""
    from guard_service.heldout.config import HfEvaluatorSettings
    from guard_service.heldout.evaluators.hf import HfEvaluator
    from guard_service.heldout.split import HeldoutSplit
    from guard_service.heldout.worker import EvaluationRequest
    from guard_service.history import export_history

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    split = tmp_path / "split.jsonl"
    split.write_text(
        "".join(json.dumps({"id": f"i{n}", "prompt": f"{n}+{n}=", "answer": "7"}) + "\n" for n in range(9))
    )
    evaluator = {"kind": "hf", "seed": 3, "score_truncated": True}
    scorer = "tests.trainer.real_guard:digits"
    guard = start(
        {"calibrated": {"baseline_passes": 3}},
        {"split": str(split), "scorer": scorer, "evaluator": evaluator},
    )
    told = {"temperature": 0.7, "top_k": 9, "max_completion_length": 6}
    train(guard, drain=200, max_steps=2, **told).train()
    last = guard.verdict()["last_evaluation"]
    expected = Sampling(temperature=0.7, top_k=9, max_new_tokens=6)
    assert last["step"] == 2
    assert last["sampling"] == expected.model_dump() | {"samples": 1, "source": "trainer"}
    guard.close()

    settings = HfEvaluatorSettings.model_validate(evaluator)
    paths = {0: tmp_path / "out" / "_rlguard-start", 2: tmp_path / "out" / "checkpoint-2"}
    stored = [line for line in export_history(tmp_path / "guard" / "state") if "items" in line]
    assert [(line["step"], line.get("pass_index", 0)) for line in stored] == [(0, 0), (0, 1), (0, 2), (2, 0)]
    for line in stored:
        index = line.get("pass_index", 0)
        request = EvaluationRequest(0, line["step"], paths[line["step"]], index, expected)
        made = HfEvaluator(settings, tmp_path).complete(HeldoutSplit.load(split).items, request)
        assert line["items"] == [digits(text, "", None) for (text,) in made.texts]
        assert max(len(text.split()) for (text,) in made.texts) == 6, "a token is a word to this tokenizer"
    assert stored[0]["items"] != stored[1]["items"] != stored[2]["items"], "each pass draws anew"
