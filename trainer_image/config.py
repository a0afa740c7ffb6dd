"""The entrypoint's configuration file: read, checked, and every mistake named with its nearest valid key.

    model: /models/base                # a local directory, or a hub name
    dataset: /data/train.jsonl         # JSONL with a column `prompt`, or a hub name
    dataset_split: train               # of a hub data set
    reward_functions:                  # module:function, called as TRL calls them
      - trainer_image.rewards:exact_match
    output_dir: /checkpoints/run       # checkpoints go here; the last model to <output_dir>/final
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
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer_image.errors import GuardConfigError

#: The data columns that each auxiliary loss of `GuardedGRPOTrainer` needs, by the name of its weight.
LOSS_COLUMNS = {
    "alpha_sdpo": ("privileged_prompt",),
    "beta_replay": ("replay_prompt", "replay_completion"),
}

Name = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TrainConfig(BaseModel):
    """See the module's docstring for the meaning of every key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Name
    dataset: Name
    dataset_split: Name = "train"
    reward_functions: Annotated[list[Name], Field(min_length=1)]
    output_dir: Name
    resume: bool = True
    alpha_sdpo: Weight = 0.0
    beta_replay: Weight = 0.0
    grpo: dict[str, Any] = Field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-6 as a number, as everybody who writes a learning rate means it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load(path: Path) -> TrainConfig:
    """Read a configuration file.

    Raises:
        GuardConfigError: it cannot be read, is no YAML mapping, or has a key or value that is wrong.
    """
    try:
        content = yaml.load(path.read_text("utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise GuardConfigError(f"cannot read the configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise GuardConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise GuardConfigError(f"{path} must be a YAML mapping with keys such as model and dataset")
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        raise GuardConfigError(f"{path}: " + "; ".join(map(_explain, error.errors()))) from error


def unknown_key(key: str, valid: Iterable[str], where: str = "") -> str:
    """What to say of a key that does not exist, with the nearest one that does."""
    valid = sorted(valid)
    near = get_close_matches(key, valid, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
    return f"unknown key {where + key!r}; {hint}"


def _explain(error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return unknown_key(key, TrainConfig.model_fields)
    if error["type"] == "missing":
        return f"key {key!r} is missing"
    return f"{key}: {error['msg']}, got {error['input']!r}"
