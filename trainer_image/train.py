"""The entrypoint of the trainer image: GRPO from a configuration file, alone or under torchrun.

    python -m rlguard.train --config grpo.yaml
    torchrun --nproc-per-node 8 -m rlguard.train --config grpo.yaml

With `RLGUARD_URL` set (on rank 0) the run is guarded; see `trainer_image.callback`.

Its exit codes are below 128, so that no restart policy takes them for an infrastructure failure. torchrun
turns the failure of a rank into 1.

Exit codes:
    0  training finished
    1  anything unexpected, with a traceback
    2  the configuration or the environment is wrong
    3  the guard fired
    4  the guard halted the run: no rule fired, but an action of its policy is `stop`
    5  no guard responded, or it refused every report, so the trainer stopped itself
    143  it was told to terminate (SIGTERM): a pod that is deleted, evicted or preempted
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlguard.client.errors import GuardConfigError, GuardHaltError, GuardLostError
from rlguard.core import CollapseStopError, __version__
from rlguard.core.wording import nearest, unknown
from trainer_image.config import LOSS_COLUMNS, TrainConfig, load_config, starting_elsewhere

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig

EXIT_CONFIG = 2
EXIT_FIRED = 3
EXIT_HALTED = 4
EXIT_NOT_GUARDED = 5

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rlguard.train",
        description="GRPO with TRL from a configuration file, guarded if RLGUARD_URL is set.",
        epilog="Example:\n\n    python -m rlguard.train --config grpo.yaml\n\n"
        "Exit codes: 0 finished, 2 wrong configuration, 3 the guard fired,\n"
        "4 the guard halted the run, 5 no guard responded.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="YAML file; docs/reference/settings.md lists its keys",
    )
    parser.add_argument("--version", action="version", version=__version__)
    arguments = parser.parse_args(argv)
    obey_sigterm()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        train(starting_elsewhere(load_config(arguments.config), os.environ))
    except GuardConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CollapseStopError as fire:
        print(f"stopped: the guard fired: {fire}", file=sys.stderr)
        return EXIT_FIRED
    except GuardLostError as lost:
        print(f"stopped: {lost}", file=sys.stderr)
        return EXIT_NOT_GUARDED
    except GuardHaltError as halt:
        print(f"stopped: the guard halted the run: {halt}", file=sys.stderr)
        return EXIT_HALTED
    return 0


def obey_sigterm() -> None:
    """End at once on SIGTERM, also as the first process of a container.

    The kernel keeps signals without a handler from that process, so the kubelet would wait out the pod's
    grace period before it kills; the guard, which ends after the trainer, would have no time for its last
    report.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))


def train(config: TrainConfig) -> None:
    """One training run; the last model is saved to `<output_dir>/final` unless the guard stopped it.

    Raises:
        GuardConfigError: the configuration does not fit the model, the data or TRL.
        CollapseStopError, GuardHaltError, GuardLostError: the guard stopped the run, strictly or softly.
    """
    if config.model.startswith((".", "/", "~")) and not Path(config.model).is_dir():
        raise GuardConfigError(f"model: there is no directory {config.model}")
    rewards = [reward_function(name) for name in config.reward_functions]
    arguments = grpo_arguments(config)
    adapter = lora_config(config)
    dataset = training_data(config)
    for weight, columns in LOSS_COLUMNS.items():
        for column in columns:
            if getattr(config, weight) > 0.0 and column not in dataset.column_names:
                raise GuardConfigError(f"{weight} > 0 needs the data column {column!r}")

    from trainer_image import ranks
    from trainer_image.callback import GuardCallback
    from trainer_image.checkpoints import latest_complete
    from trainer_image.guarded_trainer import GuardedGRPOTrainer

    try:
        trainer = GuardedGRPOTrainer(
            model=config.model,
            reward_funcs=rewards,
            args=arguments,
            train_dataset=dataset,
            peft_config=adapter,
            alpha_sdpo=config.alpha_sdpo,
            beta_replay=config.beta_replay,
        )
        callback = GuardCallback.from_env(trainer, optional=True)
        trainer.add_callback(callback)
        checkpoint = latest_complete(Path(config.output_dir)) if config.resume else None
        checkpoint = ranks.agree(checkpoint, arguments.device)
        if checkpoint is not None:
            log.info("resuming from %s", checkpoint)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if callback.stop is not None:
            raise callback.stop.error()
        trainer.save_model(str(Path(config.output_dir) / "final"))
    finally:
        ranks.shut_down()


def reward_function(name: str) -> Callable[..., list[float]]:
    """Import `module:function`.

    Raises:
        GuardConfigError: there is no such module or function.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise GuardConfigError(f"reward_functions: {name!r} must look like module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise GuardConfigError(
            f"reward_functions: cannot import {module_name!r} of {name!r}: {error}"
        ) from error
    except AttributeError as error:
        raise GuardConfigError(f"reward_functions: {name!r}: {error}") from error
    if not callable(function):
        raise GuardConfigError(f"reward_functions: {name!r} is not a function")
    return function


def grpo_arguments(config: TrainConfig) -> GRPOConfig:
    """TRL's configuration from the section `grpo`.

    Raises:
        GuardConfigError: a key that GRPOConfig lacks, or a value that it refuses.
    """
    from trl import GRPOConfig

    if "output_dir" in config.grpo:
        raise GuardConfigError("grpo.output_dir: set output_dir at the top level instead")
    return _build(GRPOConfig, "grpo", config.grpo, output_dir=config.output_dir)


def lora_config(config: TrainConfig) -> LoraConfig | None:
    """PEFT's configuration from the section `lora`; None without one. Raises as `grpo_arguments`."""
    if config.lora is None:
        return None
    from peft import LoraConfig

    return _build(LoraConfig, "lora", config.lora, task_type="CAUSAL_LM")


def _build(kind: type[Any], section: str, values: Mapping[str, Any], **defaults: Any) -> Any:
    valid = sorted(field.name for field in dataclasses.fields(kind) if field.init)
    for key in values:
        if key not in valid:
            raise GuardConfigError(unknown((section, str(key)), valid, ".".join))
    try:
        return kind(**{**defaults, **values})
    except (ValueError, TypeError, ImportError) as error:
        raise GuardConfigError(f"{section}: {error}") from error


def training_data(config: TrainConfig) -> Dataset:
    """The data set, from a JSONL file or the hub.

    Raises:
        GuardConfigError: it cannot be read (with the line), or has no column `prompt`.
    """
    from datasets import Dataset, load_dataset

    path = Path(config.dataset)
    if path.is_file():
        return Dataset.from_list(read_rows(path))
    if path.suffix in (".json", ".jsonl"):
        raise GuardConfigError(f"dataset: there is no file {path}")
    try:
        dataset = load_dataset(config.dataset, split=config.dataset_split)
    except (ValueError, OSError) as error:
        raise GuardConfigError(f"dataset: cannot load {config.dataset!r}: {error}") from error
    if "prompt" not in dataset.column_names:
        raise GuardConfigError(f"dataset: {config.dataset!r} has no column 'prompt'")
    return dataset


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, each an object with a `prompt`; blank lines are passed over.

    Raises:
        GuardConfigError: naming the line that is wrong.
    """
    rows = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise GuardConfigError(f"dataset: {path} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or "prompt" not in row:
            alike = nearest("prompt", row) if isinstance(row, dict) else ""
            hint = f": is it {alike!r}?" if alike else ""
            raise GuardConfigError(f"dataset: {path} line {number} must be an object with a 'prompt'{hint}")
        rows.append(row)
    if not rows:
        raise GuardConfigError(f"dataset: {path} has no rows")
    return rows


if __name__ == "__main__":
    sys.exit(main())
