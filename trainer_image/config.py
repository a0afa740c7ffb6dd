"""The entrypoint's configuration file: read, checked, and every mistake named with its nearest valid key.

    model: /models/base                # a local directory, or a hub name
    dataset: /data/train.jsonl         # JSONL with a column `prompt`, or a hub name
    dataset_split: train               # of a hub data set
    reward_functions:                  # module:function, called as TRL calls them
      - rlguard.rewards:exact_match
    output_dir: /checkpoints/run       # checkpoints go here; the last model to <output_dir>/final
    lora:                              # train a LoRA adapter: any field of PEFT's LoraConfig
      r: 16
      target_modules: all-linear
    resume: true                       # from the latest complete checkpoint in output_dir
    alpha_sdpo: 0.0                    # weights of the auxiliary losses of GuardedGRPOTrainer
    beta_replay: 0.0
    grpo:                              # any field of TRL's GRPOConfig but output_dir
      beta: 0.04
      learning_rate: 1e-6

Imports neither torch nor TRL, so that a typing error is found before they load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlguard.client.errors import GuardConfigError
from rlguard.client.settings import ClientSettings
from rlguard.core.wording import EXPONENT, format_errors, not_yaml

#: The data columns that each auxiliary loss of `GuardedGRPOTrainer` needs, by the name of its weight.
LOSS_COLUMNS = {
    "alpha_sdpo": ("privileged_prompt",),
    "beta_replay": ("replay_prompt", "replay_completion"),
}


class CallbackSettings(ClientSettings):
    """The settings of `GuardCallback`, which describes them."""

    strict: bool = True
    keep_best: bool = False


NonEmptyText = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TrainConfig(BaseModel):
    """The keys of the file. An unknown one is refused, with the one that is probably meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: NonEmptyText = Field(description="The policy to start from: a directory, or a name on the hub.")
    dataset: NonEmptyText = Field(
        description="Training data: a JSONL file with a column `prompt`, or a name on the hub. Other columns "
        "go to the reward functions."
    )
    dataset_split: NonEmptyText = Field("train", description="Split of a data set of the hub.")
    reward_functions: Annotated[list[NonEmptyText], Field(min_length=1)] = Field(
        description="Each `module:function`, called as TRL calls reward functions; their sum is the reward."
    )
    output_dir: NonEmptyText = Field(
        description="Where checkpoints go, in the volume that the guard reads; the last model goes to "
        "`<output_dir>/final`."
    )
    lora: dict[str, Any] | None = Field(
        None,
        description="Train a LoRA adapter instead of the whole model: any field of PEFT's `LoraConfig`, such "
        "as `r`, `lora_alpha` and `target_modules`. The guard then needs its base model (`base_model`).",
    )
    resume: bool = Field(
        True,
        description="Go on from the newest complete checkpoint in `output_dir`, if there is one; `false` "
        "starts from `model`.",
    )
    alpha_sdpo: Weight = Field(
        0.0, description="Weight of the self-distillation loss; needs the column `privileged_prompt`."
    )
    beta_replay: Weight = Field(
        0.0,
        description="Weight of the replay loss; needs the columns `replay_prompt` and `replay_completion`.",
    )
    grpo: dict[str, Any] = Field(
        default_factory=dict,
        description="Any field of TRL's `GRPOConfig` but `output_dir`. `save_steps` says how often the guard "
        "can judge; without `beta` TRL computes no KL.",
    )


def starting_elsewhere(config: TrainConfig, environ: Mapping[str, str]) -> TrainConfig:
    """The configuration of a run that goes on from a checkpoint of another one; `config` if it does not.

    It starts from the weights alone, and saves into a directory of its own below `output_dir`, where later
    checkpoints of the other run may lie, from which it is not to go on.

    Args:
        config: as the file says.
        environ: `RLGUARD_RESUME_FROM` (directory of the checkpoint) and `RLGUARD_RUN` (name of this run), as
            `rlguard run --resume-from` and a job of `rlguard resume` set them.

    Raises:
        GuardConfigError: there is no such checkpoint, it is an adapter, or the run has no name that can be a
            directory.
    """
    start, run = environ.get("RLGUARD_RESUME_FROM"), environ.get("RLGUARD_RUN", "")
    if not start:
        return config
    if not Path(start).is_dir():
        raise GuardConfigError(
            f"RLGUARD_RESUME_FROM: there is no directory {start}: its trainer may have deleted it "
            "(save_total_limit), or this rank has not its volume. Name another checkpoint, or start from the "
            "beginning"
        )
    if (Path(start) / "adapter_config.json").exists():
        raise GuardConfigError(
            f"RLGUARD_RESUME_FROM: {start} is an adapter, and this entrypoint starts from whole models: "
            "merge it into its base model first, and name the result"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run):
        raise GuardConfigError(
            f"RLGUARD_RUN must be a name of letters, digits, . _ and -, got {run!r}: set it to one that no "
            "other run has, because this one saves into a directory of that name below output_dir"
        )
    return config.model_copy(update={"model": start, "output_dir": str(Path(config.output_dir) / run)})


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-6 as a number, as everybody who writes a learning rate means it."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def load_config(path: Path) -> TrainConfig:
    """Read a configuration file.

    Raises:
        GuardConfigError: it cannot be read, is no YAML mapping, or has a key or value that is wrong.
    """
    try:
        content = yaml.load(path.read_text("utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise GuardConfigError(f"cannot read the configuration {path}: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: of the 30th of February
        raise GuardConfigError(f"{path} is {not_yaml(error)}") from error
    if not isinstance(content, dict):
        raise GuardConfigError(f"{path} must be a YAML mapping with keys such as model and dataset")
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        raise GuardConfigError(f"{path}: {format_errors(error)}") from error
