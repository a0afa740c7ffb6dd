"""The guard's settings as `rlguard run` and `rlguard serve` take them: a YAML file, options, environment.

Options win over the file, the file over `RLGUARD_GUARD_*`. What the settings mean is said in
`guard_service.settings` and nowhere else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, get_type_hints

import typer

from guard_cli.errors import CliError
from guard_core.extras import missing_extra, missing_vllm

if TYPE_CHECKING:
    from guard_core.wording import Named, Place
    from guard_service.settings import GuardSettings

#: Setting -> the option that sets it.
OPTIONS: Mapping[Place, str] = {
    ("run_name",): "--name",
    ("log_format",): "--log-format",
    ("state_dir",): "--state-dir",
    ("checkpoint_root",): "--checkpoints",
    ("policy_file",): "--policy",
    ("host",): "--host",
    ("port",): "--port",
    ("ingest_token_file",): "--ingest-token-file",
    ("read_token_file",): "--read-token-file",
    ("evaluations_token_file",): "--evaluations-token-file",
    ("heldout", "split"): "--heldout",
    ("heldout", "train_prompts"): "--train-prompts",
    ("heldout", "scorer"): "--scorer",
    ("heldout", "proxy_scorer"): "--proxy-scorer",
    ("heldout", "scorer_timeout_seconds"): "--scorer-timeout",
    ("heldout", "on_scorer_timeout"): "--on-scorer-timeout",
    ("heldout", "backlog"): "--backlog",
    ("heldout", "evaluator", "max_new_tokens"): "--max-new-tokens",
    ("heldout", "evaluator", "temperature"): "--temperature",
    ("heldout", "evaluator", "stop"): "--stop",
    ("heldout", "evaluator", "samples"): "--samples",
    ("heldout", "evaluator", "batch_size"): "--batch-size",
    ("heldout", "evaluator", "device"): "--device",
    ("heldout", "evaluator", "base_model"): "--base-model",
    ("heldout", "evaluator", "chat"): "--chat",
    ("heldout", "evaluator", "chat_template_kwargs"): "--chat-template-kwargs",
    ("heldout", "evaluator", "system_prompt"): "--system-prompt",
    ("heldout", "evaluator", "answer_after"): "--answer-after",
}

#: Devices of which a machine with a GPU has one: of NVIDIA, in WSL, of AMD.
_GPUS = ("nvidiactl", "nvidia0", "dxg", "kfd")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="YAML of guard settings (docs/reference/settings.md); options win over it."
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the run; that of its folder without it.")
]
HeldoutOption = Annotated[
    Path | None, typer.Option("--heldout", help="Held-out split: JSONL with id, prompt, answer.")
]
EvaluationsTokenOption = Annotated[
    Path | None,
    typer.Option(
        "--evaluations-token-file",
        help="Token of whoever evaluates checkpoints elsewhere and reports the outcomes (POST "
        "/v1/evaluations), in place of --heldout.",
    ),
]
TrainPromptsOption = Annotated[
    Path | None,
    typer.Option("--train-prompts", help="Training prompts (JSONL): refuse a split that overlaps with them."),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy", help="YAML with the thresholds of the run; the default of every rule without it."
    ),
]
CheckpointsOption = Annotated[
    Path | None, typer.Option("--checkpoints", help="Directory under which the trainer saves checkpoints.")
]
ScorerOption = Annotated[
    str | None,
    typer.Option(
        "--scorer",
        help="exact, numeric, regex, math, or module:function, also a reward function of TRL, verl or "
        "OpenRLHF.",
    ),
]
ProxyScorerOption = Annotated[
    str | None,
    typer.Option(
        "--proxy-scorer", help="The training grader, named as a scorer: does it pay for wrong answers?"
    ),
]
ScorerTimeoutOption = Annotated[
    float | None,
    typer.Option("--scorer-timeout", help="Limit of a scorer for one completion, seconds; none without it."),
]
OnScorerTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--on-scorer-timeout",
        help="What reaches that limit: error (the evaluation has failed) or wrong (it scores 0).",
    ),
]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option("--max-new-tokens", help="Longest completion of an evaluation, tokens; else the trainer's."),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="Temperature of evaluations, 0 is greedy; else the trainer's."),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Text that ends a completion, may be repeated; else the trainer's."),
]
SamplesOption = Annotated[int | None, typer.Option("--samples", help="Completions for each held-out item.")]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", help="Completions generated at once.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
BaseModelOption = Annotated[
    Path | None,
    typer.Option("--base-model", help="Base model of a run that trains a LoRA adapter: a directory."),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat", help="Prompts that are texts go through the chat template, or as they are."
    ),
]
ChatTemplateKwargsOption = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        help='Variables of the chat template: JSON, as in {"enable_thinking": false}.',
    ),
]
SystemPromptOption = Annotated[
    str | None, typer.Option("--system-prompt", help="System message before prompts that have none.")
]
AnswerAfterOption = Annotated[
    str | None,
    typer.Option(
        "--answer-after", help="Mark after which the answer begins, e.g. </think>: without it one is wrong."
    ),
]
VllmOption = Annotated[
    bool | None,
    typer.Option("--vllm", help="Generate with vLLM, which must be installed beside the guard."),
]
BacklogOption = Annotated[
    str | None,
    typer.Option(
        "--backlog",
        help="Where the guard is behind: every checkpoint in its turn, or the newest alone.",
    ),
]
KeepBestOption = Annotated[
    bool | None,
    typer.Option("--keep-best/--no-keep-best", help="Keep a copy of the best-scored checkpoint."),
]


class EvaluationOptions(TypedDict):
    """What every command takes that evaluates, or starts a guard that does."""

    scorer: ScorerOption
    proxy_scorer: ProxyScorerOption
    scorer_timeout: ScorerTimeoutOption
    on_scorer_timeout: OnScorerTimeoutOption
    max_new_tokens: MaxNewTokensOption
    temperature: TemperatureOption
    stop: StopOption
    samples: SamplesOption
    batch_size: BatchSizeOption
    device: DeviceOption
    base_model: BaseModelOption
    chat: ChatOption
    chat_template_kwargs: ChatTemplateKwargsOption
    system_prompt: SystemPromptOption
    answer_after: AnswerAfterOption
    vllm: VllmOption


def with_evaluation(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `EvaluationOptions` in place of its parameter `evaluation`.

    One that the command has itself, because it means something else there, is None among them.
    """
    of_command = signature(command, eval_str=True).parameters
    every = get_type_hints(EvaluationOptions, include_extras=True)
    shared = {name: option for name, option in every.items() if name not in of_command}

    @wraps(command)
    def with_them(**given: Any) -> None:
        command(evaluation=dict.fromkeys(every) | {name: given.pop(name) for name in shared}, **given)

    parameters: list[Parameter] = []
    for name, parameter in of_command.items():
        own = {name: parameter.annotation} if name != "evaluation" else shared
        default = parameter.default if name != "evaluation" else None
        parameters += [
            Parameter(n, Parameter.KEYWORD_ONLY, default=default, annotation=a) for n, a in own.items()
        ]
    with_them.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_them.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_them


def heldout_options(
    *,
    heldout: Path | None,
    train_prompts: Path | None,
    backlog: str | None = None,
    **evaluation: Unpack[EvaluationOptions],
) -> dict[str, Any]:
    """The options of held-out evaluation as nested settings, without those that were not given."""
    base_model = evaluation["base_model"]
    variables = evaluation["chat_template_kwargs"]
    evaluator = given(
        kind="vllm" if evaluation["vllm"] else None,
        max_new_tokens=evaluation["max_new_tokens"],
        temperature=evaluation["temperature"],
        stop=evaluation["stop"] or None,
        samples=evaluation["samples"],
        batch_size=evaluation["batch_size"],
        device=evaluation["device"],
        base_model=None if base_model is None else str(base_model.absolute()),
        chat=evaluation["chat"],
        chat_template_kwargs=None if variables is None else _variables(variables),
        system_prompt=evaluation["system_prompt"],
        answer_after=evaluation["answer_after"],
    )
    return given(
        split=heldout,
        train_prompts=train_prompts,
        scorer=evaluation["scorer"],
        proxy_scorer=evaluation["proxy_scorer"],
        scorer_timeout_seconds=evaluation["scorer_timeout"],
        on_scorer_timeout=evaluation["on_scorer_timeout"],
        backlog=backlog,
        evaluator=evaluator or None,
    )


def _variables(text: str) -> dict[str, Any]:
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise CliError("--chat-template-kwargs must be a JSON object, such as '{\"enable_thinking\": false}'")
    return variables


def no_split() -> CliError:
    """What a command says that needs the held-out split and was given none."""
    return CliError(
        "no held-out split: give --heldout heldout.jsonl (make one with `rlguard split make`), or "
        "--evaluations-token-file where somebody else evaluates the checkpoints"
    )


def read_config(path: Path | None) -> dict[str, Any]:
    """A YAML mapping of guard settings; {} without a file.

    Raises:
        CliError: it cannot be read, or is no mapping.
    """
    if path is None:
        return {}
    from guard_service.errors import SettingsError
    from guard_service.policy_file import read_yaml

    try:
        content = read_yaml(path, "--config")
    except SettingsError as error:
        raise CliError(str(error)) from None
    if not isinstance(content, dict):
        raise CliError(f"--config {path} must be a mapping of guard settings, such as `heldout:`")
    # A key that is no text is no setting either; as one it is told like any other.
    return {str(key): value for key, value in content.items()}


def make_settings(config: Mapping[str, Any], options: Mapping[str, Any]) -> GuardSettings:
    """Validated settings.

    Raises:
        CliError: a setting is wrong or unknown, the split or the policy cannot be used, or a package that
            the evaluator needs is not installed.
    """
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.split import HeldoutSplit

    settings = _load(config, options)
    if settings.heldout is not None:
        evaluator = settings.heldout.evaluator
        _refuse_missing_gpu(evaluator.device if evaluator.kind == "hf" else "")
        missing = _missing(settings.heldout.evaluator.kind)
        if missing is not None:
            raise CliError(missing)
        try:
            HeldoutSplit.load(settings.heldout.split)
        except SplitError as error:
            raise CliError(str(error)) from None
    return settings


def _refuse_missing_gpu(device: str) -> None:
    """Raise at once if a GPU is asked for and this machine has none."""
    if device.startswith("cuda") and not any(Path("/dev", name).exists() for name in _GPUS):
        raise CliError(f"--device {device}: this machine has no GPU: leave --device out, or use cpu")


def _missing(evaluator: str) -> str | None:
    if evaluator == "vllm":
        return missing_vllm()
    return missing_extra("the evaluator 'hf'", ["eval-hf"])


def _load(config: Mapping[str, Any], options: Mapping[str, Any]) -> GuardSettings:
    from guard_service.errors import GuardError
    from guard_service.settings import load_settings

    try:
        named = _named(config, options)
        settings = load_settings(named, **_merged(config, options))
        settings.policy(named(("policy_file",)))
    except GuardError as error:
        raise CliError(str(error)) from None
    return settings


def without_a_guard(
    config: Mapping[str, Any], options: Mapping[str, Any], root: Path | None = None
) -> GuardSettings:
    """Settings for a command that starts no guard. The split is not read yet.

    `root`: checkpoint_root where neither file nor environment has one; else the working directory.

    Raises:
        CliError: a setting is wrong or unknown, or the policy cannot be used.
    """
    own: dict[str, Any] = {
        "state_dir": Path.cwd(),
        "host": "127.0.0.1",
        "allow_unauthenticated_loopback": True,
    }
    if not is_set("checkpoint_root", config):
        own["checkpoint_root"] = root or Path.cwd()
    return _load(config, {**options, **own})


def is_set(name: str, config: Mapping[str, Any]) -> bool:
    """Whether the file, or the environment, has this setting."""
    from guard_service.settings import ENV_PREFIX

    variable = ENV_PREFIX + name.upper()
    return name in config or any(one == variable or one.startswith(f"{variable}__") for one in os.environ)


def to_environment(settings: GuardSettings) -> dict[str, str]:
    """The settings as `RLGUARD_GUARD_*` variables. Tokens travel in files, so none is among them."""
    from guard_service.settings import ENV_PREFIX

    values = settings.model_dump(mode="json")
    return {
        ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value is not None  # inside a section null may be what was chosen
    }


def absolute(path: Path | None) -> Path | None:
    """The path from the root: the guard may have another working directory."""
    return None if path is None else path.absolute()


def _merged(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` over `config`, mapping by mapping; options that are None were not given.

    What should be a mapping in the file and is none stays, and is refused as what it is.
    """
    merged = dict(config)
    for name, value in options.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merged(merged[name], value)
        elif value is not None and not (isinstance(value, Mapping) and merged.get(name) is not None):
            merged[name] = value
    return merged


def _named(config: Mapping[str, Any], options: Mapping[str, Any]) -> Named:
    """Names what the user wrote: an option, a line of the file or a variable; or what is to be written."""
    from guard_service.settings import variable

    def named(place: Place) -> str:
        if isinstance(_value(options, place[:-1]), list):  # one value of an option that was repeated
            place = place[:-1]
        line = f"{'.'.join(place)} in --config"
        in_file, in_options = _value(config, place), _value(options, place)
        if in_file is not None and (in_options is None or isinstance(in_options, Mapping)):
            return line
        if variable(place) in os.environ:
            return variable(place)
        return OPTIONS.get(place) or (
            line if place[1:] and _value(config, place[:-1]) is not None else variable(place)
        )

    return named


def _value(settings: Any, place: Place) -> Any:
    """What the nested settings have there; None if nothing."""
    for part in place:
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}
