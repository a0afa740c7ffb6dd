"""What can never be scored, told by names alone and with the setting that changes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guard_follow.frameworks import FRAMEWORKS
from guard_service.heldout import scorable
from guard_service.heldout.scorable import why_unscorable

WHOLE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "optimizer.pt")


def made(directory: Path, *names: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).touch()
    return directory


@pytest.mark.parametrize(
    "names",
    [
        WHOLE,
        ("config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors", "vocab.json"),
        ("config.json", "model.safetensors", "spiece.model"),
        (*WHOLE, "adapter_config.json"),
        (*WHOLE, "pytorch_model.bin", "zero_to_fp32.py"),
    ],
)
def test_a_whole_model_is_fit_whatever_lies_beside_it(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert why_unscorable(made(tmp_path / "c", *names)) == ""


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "no config.json; save the model with save_pretrained"),
        (("config.json", "tokenizer.json"), "no model.safetensors; save the model with save_pretrained"),
        (("config.json", "model.safetensors"), "no tokenizer; give it to the trainer (processing_class"),
        (
            ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"),
            "it holds a PEFT adapter: give the guard the base model that it is trained on (--base-model DIR",
        ),
        (("config.json", "pytorch_model.bin", "vocab.json"), "pytorch_model.bin is a pickle"),
        (("config.json", "pytorch_model_fsdp_0"), "fsdp_state_dict_type to FULL_STATE_DICT"),
        (("config.json", "pytorch_model_fsdp_0", "__0_0.distcp"), "fsdp_state_dict_type to FULL_STATE_DICT"),
        (("config.json", "__0_0.distcp"), "(DCP): have the framework save whole weights in safetensors"),
        ((".metadata", "__0_0.distcp"), "NeMo-RL: checkpointing.save_consolidated=true"),
        ((".metadata", "__0_0.distcp"), "slime: --save-hf, SkyRL: trainer.hf_save_interval"),
        (("model_world_size_8_rank_0.pt",), "with SkyRL set trainer.hf_save_interval"),
        (("config.json", "zero_to_fp32.py"), "stage3_gather_16bit_weights_on_model_save"),
        (("mp_rank_00_model_states.pt",), "OpenRLHF: --ckpt.save_hf"),
        (("actor", "data.pt"), "actor_rollout_ref.actor.checkpoint.save_contents"),
        (("model_world_size_8_rank_0.pt", "huggingface"), "announce its actor/huggingface"),
    ],
)
def test_what_can_never_be_scored_is_told_with_what_to_set(
    tmp_path: Path, names: tuple[str, ...], told: str
) -> None:
    assert told in why_unscorable(made(tmp_path / "c", *names))


def test_no_framework_is_told_the_setting_of_another(tmp_path: Path) -> None:
    """As `policy/weights` of NeMo-RL, which has none of accelerate's."""
    told = why_unscorable(made(tmp_path / "c", ".metadata", "__0_0.distcp", "__1_0.distcp"))
    assert "fsdp_state_dict_type" not in told and "FSDP" not in told
    nemo_rl = next(framework for framework in FRAMEWORKS if framework.name == "NeMo-RL")
    assert nemo_rl.layouts and "checkpointing.save_consolidated=true" in nemo_rl.layouts[0].advice


@pytest.mark.parametrize("base", [None, Path("/base")])
def test_a_name_that_nothing_can_pass_on_is_refused(tmp_path: Path, base: Path | None) -> None:
    checkpoint = made(tmp_path / "c", *WHOLE)
    Path(os.fsdecode(os.fsencode(checkpoint / "tokenizer") + b"\x80.json")).touch()
    told = why_unscorable(checkpoint, base)
    assert r"b'tokenizer\x80.json', a name that is not UTF-8: rename it" in told and told.isascii()


def test_a_directory_that_is_gone_is_not_called_unfit(tmp_path: Path) -> None:
    assert why_unscorable(tmp_path / "rotated") == ""


def test_a_directory_that_may_not_be_read_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(scorable.os, "scandir", denied)  # the tests may run as root, who may read everything
    assert f"may not be read by the guard (user {os.getuid()})" in why_unscorable(tmp_path)


def test_the_look_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so: what is beyond it could be changed unnoticed."""
    monkeypatch.setattr(scorable, "MAX_NAMES", len(WHOLE))
    assert why_unscorable(made(tmp_path / "c", *WHOLE)) == ""
    assert why_unscorable(made(tmp_path / "d", *WHOLE, "more")).startswith(
        f"it has more than {len(WHOLE)} files: "
    )
