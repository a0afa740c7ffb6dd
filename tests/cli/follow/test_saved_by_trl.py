"""Checkpoints that TRL itself saves, with transformers' own code, while a follower looks at them."""

import json
import threading
import time
from pathlib import Path

import pytest

from guard_follow.checkpoints import CompleteCheckpoint, find_checkpoints, layouts_of
from tests.cli.follow.test_follower import Followed

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]
STEPS = 5
KEPT = 2
TRL = layouts_of("trl")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.trainer.tiny import make_model

    return make_model(tmp_path_factory.mktemp("model"))


def trainer_of(model, out, callback=None):
    """A real GRPO run that saves at each step, with optimizer and random state, and keeps two checkpoints."""
    from tests.trainer.tiny import grpo_trainer

    out.mkdir()
    saving = {"save_steps": 1, "save_total_limit": KEPT, "save_only_model": False}
    trainer = grpo_trainer(model, out, max_steps=STEPS, **saving)
    if callback is not None:
        trainer.add_callback(callback)
    return trainer


def tensors(checkpoint):
    from safetensors.torch import load_file

    return load_file(checkpoint / "model.safetensors")


def test_each_is_announced_once_and_whole_before_it_is_rotated_away(tmp_path, model):
    import torch
    from transformers import TrainerCallback

    class Looks(TrainerCallback):
        """The follower looks when TRL has saved and rotated; it knows nothing of that."""

        def on_save(self, args, state, control, **kwargs):
            saved[state.global_step] = {n: p.detach().clone() for n, p in kwargs["model"].named_parameters()}
            followed.poll()

    saved, whole, out = {}, {}, tmp_path / "out"
    trainer = trainer_of(model, out, Looks())
    followed = Followed(out, "trl", checkpoints=out, new_run=True)
    announce = followed.guard.post_checkpoint

    def announced(report):
        whole[report.step] = tensors(Path(report.path))
        return announce(report)

    followed.guard.post_checkpoint = announced
    trainer.train()
    followed.finish()
    steps = range(1, STEPS + 1)
    assert followed.guard.checkpoints == [(0, step, str(out / f"checkpoint-{step}")) for step in steps]
    for step in steps:
        assert all(
            torch.equal(saved[step][name], value)
            for name, value in whole[step].items()
            if name in saved[step]
        )
        assert whole[step].keys() & saved[step].keys()
    assert not torch.equal(*(next(iter(whole[step].values())) for step in (1, STEPS)))
    assert sorted(folder.name for folder in out.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-5"]
    logged = {row["step"]: row["reward"] for row in trainer.state.log_history if "reward" in row}
    assert {step: reward for _, step, reward, _ in followed.rows()} == logged
    assert list(logged) == list(steps)


def test_none_is_complete_while_it_is_written_or_removed(tmp_path, model):
    out, ended = tmp_path / "out", threading.Event()
    seen, damaged, looks = set(), [], 0

    def look():
        nonlocal looks
        while not ended.is_set():
            looks += 1
            for found in find_checkpoints(out, TRL):
                assert isinstance(found, CompleteCheckpoint)
                try:
                    tensors(found.path)
                    json.loads((found.path / "trainer_state.json").read_text())
                    seen.add(found.step)
                except Exception as error:  # whatever a file that is not whole raises
                    damaged.append((found.path, repr(error)))
            time.sleep(0)

    trainer = trainer_of(model, out)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        trainer.train()
    finally:
        ended.set()
        looking.join()
    there = [path for path, _ in damaged if path.exists()]  # of one that is being removed nothing is promised
    assert there == [], damaged
    assert looks > STEPS and seen <= set(range(1, STEPS + 1))
    assert [found.step for found in find_checkpoints(out, TRL)] == [STEPS - 1, STEPS]


def test_shards_that_transformers_writes_are_whole_with_their_index_alone(tmp_path, model):
    from transformers import AutoModelForCausalLM, TrainerState

    folder = tmp_path / "checkpoint-7"
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder, max_shard_size="20KB")
    TrainerState(global_step=7).save_to_json(str(folder / "trainer_state.json"))
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert [found.step for found in find_checkpoints(tmp_path, TRL)] == [7]
    for file in (folder / "model.safetensors.index.json", shards[1], folder / "trainer_state.json"):
        aside = file.rename(tmp_path / "aside")
        assert find_checkpoints(tmp_path, TRL) == [], file.name
        aside.rename(file)
    assert [found.step for found in find_checkpoints(tmp_path, TRL)] == [7]
