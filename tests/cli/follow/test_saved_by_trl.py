"""Checkpoints that TRL itself saves, with transformers' own code, while a follower looks at them."""

import threading
import time
from pathlib import Path

import pytest

from rlguard.follow.checkpoints import CompleteCheckpoint, find_checkpoints, layouts_of
from tests.cli.follow.followed import Followed

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]
STEPS = 5
TRL = layouts_of("trl")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.trainer.tiny import make_model

    return make_model(tmp_path_factory.mktemp("model"))


def tensors(checkpoint):
    from safetensors.torch import load_file

    return load_file(checkpoint / "model.safetensors")


def test_each_is_announced_once_and_whole_while_they_are_written_and_rotated(tmp_path, model):
    import torch
    from transformers import TrainerCallback

    from tests.trainer.tiny import grpo_trainer

    class Looks(TrainerCallback):
        """The follower looks when TRL has saved and rotated; it knows nothing of that."""

        def on_save(self, args, state, control, **kwargs):
            saved[state.global_step] = {n: p.detach().clone() for n, p in kwargs["model"].named_parameters()}
            followed.poll()

    def look():
        while not ended.is_set():
            for found in find_checkpoints(out, TRL):
                try:
                    assert isinstance(found, CompleteCheckpoint) and tensors(found.path)
                except Exception as error:  # whatever a file that is not whole raises
                    damaged.append((found.path, repr(error)))
            time.sleep(0)

    saved, whole, damaged, ended, out = {}, {}, [], threading.Event(), tmp_path / "out"
    out.mkdir()
    saving = {"save_steps": 1, "save_total_limit": 2, "save_only_model": False}
    trainer = grpo_trainer(model, out, max_steps=STEPS, **saving)
    trainer.add_callback(Looks())
    followed = Followed(out, "trl", checkpoints=out, new_run=True)
    announce = followed.guard.post_checkpoint
    followed.guard.post_checkpoint = lambda report: (
        whole.setdefault(report.step, tensors(Path(report.path))) and announce(report)
    )
    looking = threading.Thread(target=look)
    looking.start()
    try:
        trainer.train()
    finally:
        ended.set()
        looking.join()
    followed.finish()
    steps = range(1, STEPS + 1)
    assert followed.guard.checkpoints == [(0, step, str(out / f"checkpoint-{step}")) for step in steps]
    for step in steps:
        same = whole[step].keys() & saved[step].keys()
        assert same and all(torch.equal(saved[step][name], whole[step][name]) for name in same)
    # Of one that is being removed nothing is promised.
    assert [path for path, _ in damaged if path.exists()] == [], damaged
    logged = {row["step"]: row["reward"] for row in trainer.state.log_history if "reward" in row}
    assert {step: reward for _, step, reward, _ in followed.rows()} == logged
    assert list(logged) == list(steps)


def test_shards_that_transformers_writes_are_whole_with_their_index_alone(tmp_path, model):
    from transformers import AutoModelForCausalLM, TrainerState

    folder = tmp_path / "checkpoint-7"
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder, max_shard_size="20KB")
    TrainerState(global_step=7).save_to_json(str(folder / "trainer_state.json"))
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    for file in (folder / "model.safetensors.index.json", shards[1], folder / "trainer_state.json"):
        aside = file.rename(tmp_path / "aside")
        assert find_checkpoints(tmp_path, TRL) == [], file.name
        aside.rename(file)
    assert [found.step for found in find_checkpoints(tmp_path, TRL)] == [7]
