"""What the guard learns from TRL's trainers: every one is real, trained on a tiny model with the callback.

A trainer that this release of TRL does not have is left out: the newest, which the lock names, has all but
those that TRL gave up, and `make test-trl` has these. The matrix is that of `concepts/trainer.md`; a trainer
that reports something else, a page that says something else, and a trainer that neither has, fail. Async GRPO
needs a vLLM server, so only its arguments are read.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlguard.core.wire import KlKind
from tests.trainer.faulty_guard import FaultyGuard
from tests.trainer.said import table_in

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]

STEPS = 3
PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "trainer.md"


def common(output: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "steps",
        "save_steps": STEPS,
        "save_only_model": True,
        "per_device_train_batch_size": 4,
        "max_steps": STEPS,
        "logging_steps": 2,
        "disable_tqdm": True,
    }


def rewarded(trainer: Any, config: Any, model: Path, output: Path, **settings: Any) -> Any:
    """A trainer that generates and asks a reward function."""
    from tests.trainer.tiny import digit_share, prompts

    data = prompts().add_column("privileged_context", ["1"] * 64)
    generation = {"num_generations": 4, "max_completion_length": 4}
    arguments = config(**(common(output) | generation | settings))
    return trainer(model=str(model), reward_funcs=digit_share, args=arguments, train_dataset=data)


def grpo(model: Path, output: Path, **settings: Any) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    return rewarded(GRPOTrainer, GRPOConfig, model, output, **({"beta": 0.04} | settings))


def grpo_without_beta(model: Path, output: Path) -> Any:
    return grpo(model, output, beta=0.0)


def gmpo(model: Path, output: Path) -> Any:
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    return rewarded(GMPOTrainer, GMPOConfig, model, output, beta=0.04)


def rloo(model: Path, output: Path) -> Any:
    from trl import RLOOConfig, RLOOTrainer

    return rewarded(RLOOTrainer, RLOOConfig, model, output, beta=0.05)


def sdpo(model: Path, output: Path) -> Any:
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    return rewarded(SDPOTrainer, SDPOConfig, model, output)


def a2po(model: Path, output: Path) -> Any:
    from transformers import AutoTokenizer
    from trl.experimental.a2po import A2POConfig, A2POTrainer

    from tests.trainer.tiny import digit_share, prompts

    return A2POTrainer(
        model=str(model),
        reward_funcs=digit_share,
        args=A2POConfig(**common(output), max_completion_length=4),
        train_dataset=prompts(16),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def online_dpo(model: Path, output: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    from tests.trainer.tiny import digit_share, prompts

    return OnlineDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=digit_share,
        args=OnlineDPOConfig(**common(output), max_new_tokens=4),
        train_dataset=prompts(),
    )


def xpo(model: Path, output: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.xpo import XPOConfig, XPOTrainer

    from tests.trainer.tiny import prompts

    return XPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        ref_model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=AutoModelForSequenceClassification.from_pretrained(model, num_labels=1),
        args=XPOConfig(**common(output), max_new_tokens=4),
        train_dataset=prompts(),
    )


def ppo(model: Path, output: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from tests.trainer.tiny import prompts

    tokenizer = AutoTokenizer.from_pretrained(model)
    data = prompts().map(lambda row: {"input_ids": tokenizer(row["prompt"])["input_ids"]})
    arguments = common(output) | {"max_steps": -1, "logging_steps": 1, "total_episodes": 4 * STEPS}
    reward, value = (
        AutoModelForSequenceClassification.from_pretrained(model, num_labels=1) for _ in range(2)
    )
    return PPOTrainer(
        args=PPOConfig(**arguments, response_length=4, num_mini_batches=1, num_sample_generations=0),
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(model),
        ref_model=AutoModelForCausalLM.from_pretrained(model),
        reward_model=reward,
        value_model=value,
        train_dataset=data.select_columns(["input_ids"]),
        eval_dataset=data.select_columns(["input_ids"]),
    )


def sft(model: Path, output: Path) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    rows = [{"prompt": f"{index}+1=", "completion": str(index)} for index in range(16)]
    return SFTTrainer(
        model=str(model),
        args=SFTConfig(**common(output)),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


TOKENS, SEQUENCE, NONE = KlKind.REF_TOKEN_MEAN, KlKind.REF_SEQ_SUM, KlKind.ABSENT

#: Trainer, and what every step's report has: (KL, entropy, spread of the reward); None: no step is reported.
MATRIX: list[tuple[Callable[[Path, Path], Any], tuple[KlKind, bool, bool] | None]] = [
    (grpo, (TOKENS, True, True)),
    (grpo_without_beta, (NONE, True, True)),
    (gmpo, (TOKENS, True, True)),
    (rloo, (TOKENS, True, True)),
    (sdpo, (NONE, False, True)),
    (a2po, (NONE, False, False)),
    (online_dpo, (SEQUENCE, False, False)),
    (xpo, (SEQUENCE, False, False)),
    (ppo, (SEQUENCE, False, False)),
    (sft, None),
]
NOT_IN_EVERY_RELEASE = (gmpo, sdpo, a2po, xpo, ppo)
PRESENT = [
    row
    for row in MATRIX
    if row[0] not in NOT_IN_EVERY_RELEASE or find_spec(f"trl.experimental.{row[0].__name__}")
]


@pytest.fixture
def guarded(
    tiny_model: Path, tmp_path: Path, guard: FaultyGuard, caplog: pytest.LogCaptureFixture
) -> Callable[..., Any]:
    from trainer_image.callback import GuardCallback

    def run(make: Callable[..., Any], **settings: Any) -> Any:
        trainer = make(tiny_model, tmp_path / "out", **settings)
        trainer.add_callback(GuardCallback(guard.url, trainer=trainer))
        with caplog.at_level(logging.INFO, "rlguard.trainer"):
            trainer.train()
        return trainer

    return run


@pytest.mark.parametrize(("make", "reported"), PRESENT, ids=[make.__name__ for make, _ in PRESENT])
def test_what_each_trainer_of_trl_reports(
    guarded: Any, guard: FaultyGuard, make: Any, reported: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = type(guarded(make)).__name__
    rows = table_in(caplog)
    told, later = rows["steps"], [r for r in caplog.records if "had a reward" in r.msg]
    assert later == [], "no second word about it"
    if reported is None:
        assert guard.steps == [] and told.level == "warn"
        assert f"{name} measures no in-loop reward" in told.says
        assert "KL to the reference" not in rows, "its beta is another"
        return
    assert [r.step for r in guard.steps] == list(range(1, STEPS + 1)), (
        "at every step, whatever logging_steps is"
    )
    for report in guard.steps:
        found = report.kl_kind, report.entropy is not None, report.reward_std is not None
        assert found == reported and (report.kl is not None) == (reported[0] is not NONE)
    assert told.level == "ok" and f"from {name} the guard learns at every step: reward" in told.says
    assert ("no KL to the reference" in told.says) == (reported[0] is NONE)
    assert "completions are sampled with temperature" in rows["sampling"].says
    said = {report.sampling for report in guard.checkpoints}
    assert {sampling.max_new_tokens for sampling in said if sampling is not None} == {4} and len(said) == 1


@pytest.mark.parametrize(("make", "reported"), MATRIX, ids=[make.__name__ for make, _ in MATRIX])
def test_the_page_has_the_matrix(make: Any, reported: Any) -> None:
    kls = {TOKENS: "token mean", SEQUENCE: "sum over the completion", NONE: "no"}
    name = make.__name__.replace("_without_beta", ", `beta` 0").replace("_", " ")
    cells = ["no"] * 4 if reported is None else ["yes", kls[reported[0]], *_yes(reported[1:])]
    rows = [line.lower() for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert any(row.startswith(f"| {name} |") and row.endswith(f"| {' | '.join(cells)} |") for row in rows), (
        cells
    )


def _yes(flags: tuple[bool, ...]) -> list[str]:
    return ["yes" if flag else "no" for flag in flags]


#: What TRL has beside those of the matrix, in whatever release: by what of the page they are covered.
LIKE_GRPO = ("AsyncGRPO", "DPPO", "GFPO", "GRPOWithReplayBuffer", "MiniLLM", "PAPO")
WITHOUT_A_REWARD = (
    *("AsyncDistillation", "BCO", "CPO", "DPO", "Distillation", "GKD", "GOLD", "IWOPD", "KTO", "ORPO"),
    *("PRM", "Reward", "SDFT", "SFT", "SSD", "ServerDistillation", "TPO"),
)


#: It does not run with the transformers of the lock.
UNTESTED = "NashMD"


def test_every_trainer_of_trl_is_classified() -> None:
    """One that a new release brings fails here until it is in the table of figures and on the page."""
    trl = find_spec("trl")
    assert trl is not None and trl.origin is not None
    sources = (path.read_text("utf-8") for path in Path(trl.origin).parent.rglob("*.py"))
    classes = {name for source in sources for name in re.findall(r"^class (\w+)Trainer\(", source, re.M)}
    tested = {make.__name__.replace("_", "") for make, _ in MATRIX}
    known = {*LIKE_GRPO, *WITHOUT_A_REWARD, UNTESTED}
    others = {name for name in classes - known if name.lower() not in tested}
    assert {name for name in others if "Base" not in name} == set()


#: Texts that an untrained model writes soon.
STOP = ["a", "e", "7"]


def test_a_text_that_ends_trls_completions_reaches_the_guard(guarded: Any, guard: FaultyGuard) -> None:
    """TRL gives `generate` no tokenizer, without which transformers refuses to look: so the model has one."""
    from tokenizers.decoders import Fuse

    seen: list[str] = []

    def ended(model: Path, output: Path) -> Any:
        trainer = grpo(model, output, max_completion_length=16, generation_kwargs={"stop_strings": STOP})
        trainer.processing_class.backend_tokenizer.decoder = Fuse()  # nothing between two characters
        trainer.model.generate = partial(trainer.model.generate, tokenizer=trainer.processing_class)
        reward = trainer.reward_funcs[0]

        def noting(completions: list[str], **more: Any) -> list[float]:
            seen.extend(completions)
            return reward(completions, **more)

        trainer.reward_funcs = [noting]
        return trainer

    guarded(ended)
    (report,) = guard.checkpoints
    assert report.sampling is not None and report.sampling.stop == tuple(STOP)
    ends = [text for text in seen if any(stop in text for stop in STOP)]
    assert ends and all(text.endswith(tuple(STOP)) for text in ends), "TRL's rewards see what ended it"
