"""Scenario 8: a checkpoint or a tokenizer that wants to carry held-out items to the trainer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios import interface
from tests.scenarios.given import Given, Stage
from tests.scenarios.hack import LETTERS
from tests.scenarios.trainer import save_changed

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(interface.TEST)]


def canaries(count: int) -> list[str]:
    """Words of ten letters that the policy can read and that nothing else contains."""
    chance = random.Random(8)
    return ["".join(chance.choices(LETTERS, k=10)) for _ in range(count)]


PROMPTS, ANSWERS = canaries(16)[:8], canaries(16)[8:]
SPILLS = "{{ raise_exception(messages | string) }}"
#: Code that a checkpoint brings along: it would write what it is asked into the checkpoint's folder.
CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
raise RuntimeError(repr(globals()))
"""


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def a_template_that_raises_with_the_prompt(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text(SPILLS)
    change(checkpoint / "tokenizer_config.json", chat_template=SPILLS)


def a_model_with_code_of_its_own(checkpoint: Path) -> None:
    (checkpoint / "spill.py").write_text(CODE)
    change(checkpoint / "config.json", auto_map={"AutoModelForCausalLM": "spill.Model"}, model_type="spill")


def a_tokenizer_with_code_of_its_own(checkpoint: Path) -> None:
    (checkpoint / "spill.py").write_text(CODE)
    change(
        checkpoint / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["spill.Tokenizer", "spill.Tokenizer"]},
        tokenizer_class="Tokenizer",
    )


def a_tokenizer_without_the_letters(checkpoint: Path) -> None:
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for letter in LETTERS:
        del tokenizer["model"]["vocab"][letter]
    tokenizer["model"]["unk_token"] = "none"
    path.write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    "spoil",
    [
        a_template_that_raises_with_the_prompt,
        a_model_with_code_of_its_own,
        a_tokenizer_with_code_of_its_own,
        a_tokenizer_without_the_letters,
    ],
)
def test_nothing_about_an_item_reaches_the_trainer(
    given: Given, stage: Stage, trained: Path, spoil: Callable[[Path], None]
) -> None:
    split = stage.folder / "split.jsonl"
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    items = [{"id": a, "prompt": p, "answer": a} for p, a in zip(prompts, ANSWERS, strict=True)]
    split.write_text("".join(json.dumps(item) + "\n" for item in items))
    plain = "{% for m in messages %}{{ m.content }}>{% endfor %}"
    bad = save_changed(trained / "policy", stage.checkpoints / "step-0", 0)
    change(bad / "tokenizer_config.json", chat_template=plain)
    spoil(bad)
    given.a_heldout_split(split).thresholds(interface.FEW_PASSES | interface.TELLS_EACH_FAILURE)
    given.a_trainer("--until", str(stage.folder / "enough"), "--pause", "0.5")
    when = given.when().the_guard_starts().the_trainer_starts()
    when.a_checkpoint_is_announced(bad, 0).evaluations_are_made(1)
    verdict = stage.guard().verdict()
    assert (verdict.evaluated, verdict.failed) == (0, 1), "it was loaded, and not scored"
    when.a_file_appears("enough").wait_for_the_end_of("trainer").then().exit_code(0, "trainer")

    api = stage.guard("trainer")
    told = [stage.printed("trainer").encode()]
    told += [api.call(path)[1] for path in interface.READABLE]
    told += [api.call(interface.STEPS, interface.step_report(10**6))[1]]
    told += [api.call(interface.CHECKPOINTS, interface.checkpoint_report(10**6, bad))[1]]
    told += [api.call(interface.END, {"attempt": 0, "step": 10**6})[1]]
    found = [word for word in (*PROMPTS, *ANSWERS) if any(word.encode() in text for text in told)]
    assert not found
    assert not list(stage.checkpoints.rglob("ran")), "code of the checkpoint was run"
