"""The guard's settings as `rlguard run` and `rlguard serve` take them: a YAML file, options, environment.

Options win over the file, the file over `RLGUARD_GUARD_*`. What the settings mean is said in
`guard_service.settings` and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guard_cli.errors import CliError

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings

#: Last part of a variable's name -> the option that sets it.
OPTIONS = {
    "STATE_DIR": "--state-dir",
    "CHECKPOINT_ROOT": "--checkpoints",
    "SPLIT": "--heldout",
    "TRAIN_PROMPTS": "--train-prompts",
    "POLICY_FILE": "--policy",
    "SCORER": "--scorer",
    "MAX_NEW_TOKENS": "--max-new-tokens",
    "TEMPERATURE": "--temperature",
    "SAMPLES": "--samples",
    "BATCH_SIZE": "--batch-size",
    "DEVICE": "--device",
    "BASE_URL": "--openai-url",
    "MODEL": "--openai-model",
    "HOST": "--host",
    "PORT": "--port",
    "INGEST_TOKEN_FILE": "--ingest-token-file",
    "READ_TOKEN_FILE": "--read-token-file",
}

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="YAML of guard settings (docs/reference/settings.md); options win over it."
    ),
]
HeldoutOption = Annotated[
    Path | None, typer.Option("--heldout", help="Held-out split: JSONL with id, prompt, answer.")
]
TrainPromptsOption = Annotated[
    Path | None,
    typer.Option("--train-prompts", help="Training prompts (JSONL): refuse a split that overlaps with them."),
]
PolicyOption = Annotated[Path | None, typer.Option("--policy", help="YAML with the thresholds of the run.")]
CheckpointsOption = Annotated[
    Path | None, typer.Option("--checkpoints", help="Directory under which the trainer saves checkpoints.")
]
ScorerOption = Annotated[
    str | None, typer.Option("--scorer", help="exact, numeric, regex, math, or module:function.")
]
MaxNewTokensOption = Annotated[
    int | None, typer.Option("--max-new-tokens", help="Longest completion of an evaluation, tokens.")
]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", help="Sampling temperature of evaluations; 0 is greedy.")
]
SamplesOption = Annotated[int | None, typer.Option("--samples", help="Completions for each held-out item.")]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", help="Completions generated at once.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
OpenAIOption = Annotated[
    str | None,
    typer.Option("--openai-url", help="Ask this OpenAI-compatible server instead of loading checkpoints."),
]
ModelOption = Annotated[
    str | None, typer.Option("--openai-model", help="Model name there; may contain {step}.")
]


def heldout_options(
    *,
    heldout: Path | None,
    train_prompts: Path | None,
    scorer: str | None,
    max_new_tokens: int | None,
    temperature: float | None,
    samples: int | None,
    batch_size: int | None,
    device: str | None,
    openai_url: str | None,
    openai_model: str | None,
) -> dict[str, Any]:
    """The options of held-out evaluation as nested settings, without those that were not given."""
    if (openai_url is None) != (openai_model is None):
        raise CliError("--openai-url and --openai-model belong together: give both or neither")
    evaluator = _given(
        kind=None if openai_url is None else "openai",
        base_url=openai_url,
        model=openai_model,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        samples=samples,
        batch_size=batch_size,
        device=device,
    )
    if evaluator:
        evaluator.setdefault("kind", "checkpoint")
    return _given(split=heldout, train_prompts=train_prompts, scorer=scorer, evaluator=evaluator or None)


def read_config(path: Path | None) -> dict[str, Any]:
    """A YAML mapping of guard settings; {} without a file.

    Raises:
        CliError: it cannot be read, or is no mapping.
    """
    if path is None:
        return {}
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"--config {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise CliError(f"--config {path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise CliError(f"--config {path} must be a mapping of guard settings, such as `heldout:`")
    return content


def make_settings(config: Mapping[str, Any], options: Mapping[str, Any]) -> GuardSettings:
    """Validated settings.

    Raises:
        CliError: a setting is wrong or unknown, or the split or the policy cannot be used.
    """
    from guard_service.errors import GuardError
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.split import HeldoutSplit
    from guard_service.settings import load_settings

    try:
        settings = load_settings(**_merged(config, options))
        settings.policy()
        if settings.heldout is not None:
            HeldoutSplit.load(settings.heldout.split)
    except (GuardError, SplitError) as error:
        raise CliError(_in_options(str(error))) from None
    return settings


def to_environment(settings: GuardSettings) -> dict[str, str]:
    """The settings as `RLGUARD_GUARD_*` variables. Tokens travel in files, so none is among them."""
    from guard_service.settings import ENV_PREFIX

    values = settings.model_dump(mode="json", exclude_none=True)
    return {
        ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def absolute(path: Path | None) -> Path | None:
    """The path from the root: the guard may have another working directory."""
    return None if path is None else path.absolute()


def _merged(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` over `config`, mapping by mapping; options that are None were not given."""
    merged = dict(config)
    for name, value in options.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merged(merged[name], value)
        elif value is not None:
            merged[name] = value
    return merged


def _in_options(message: str) -> str:
    """The message with the option that sets a variable, where there is one, in the variable's place."""
    return re.sub(
        r"RLGUARD_GUARD_(?:HELDOUT__)?(?:EVALUATOR__(?:CHECKPOINT__|OPENAI__)?)?([A-Z_]+)",
        lambda found: OPTIONS.get(found[1], found[0]),
        message,
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
