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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict, get_type_hints

import typer

from rlguard.cli.errors import CliError
from rlguard.core.extras import missing_extra, missing_vllm

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings
    from rlguard.core.wording import Named, Place

#: Devices of which a machine with a GPU has one: of NVIDIA, in WSL, of AMD.
_GPUS = ("nvidiactl", "nvidia0", "dxg", "kfd")

_CONFIG = "YAML of guard settings (docs/reference/settings.md); options win over it."
_REPORTED = (
    "Token of whoever evaluates checkpoints elsewhere and reports the outcomes (POST /v1/evaluations), in "
    "place of --heldout."
)
_COMPARED = "Training prompts (JSONL): refuse a split that overlaps with them."
_POLICY = "YAML with the thresholds of the run; the default of every rule without it."
_BACKLOG = "Where the guard is behind: every checkpoint in its turn, or the newest alone."
ConfigOption = Annotated[Path | None, typer.Option("--config", help=_CONFIG)]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the run; else that of its folder.")]
HeldoutOption = Annotated[Path | None, typer.Option(help="Held-out split: JSONL with id, prompt, answer.")]
EvaluationsTokenOption = Annotated[Path | None, typer.Option(help=_REPORTED)]
TrainPromptsOption = Annotated[Path | None, typer.Option(help=_COMPARED)]
PolicyOption = Annotated[Path | None, typer.Option("--policy", help=_POLICY)]
CheckpointsOption = Annotated[
    Path | None, typer.Option(help="Folder in which the trainer saves checkpoints.")
]
BacklogOption = Annotated[str | None, typer.Option("--backlog", help=_BACKLOG)]
KeepBestOption = Annotated[bool | None, typer.Option(help="Keep a copy of the best-scored checkpoint.")]


class _Option(NamedTuple):
    """An option of every command that evaluates: its type, help and flags, and the setting that it is."""

    name: str
    type: Any
    help: str
    place: Place = ()
    flags: str = ""


def _scoring(name: str, type_: Any, help_: str, place: str = "") -> _Option:
    return _Option(name, type_, help_, (place or name,), f"--{name.replace('_', '-')}")


def _evaluator(name: str, type_: Any, help_: str, flags: str = "") -> _Option:
    return _Option(name, type_, help_, ("evaluator", name), flags or f"--{name.replace('_', '-')}")


_FUNCTION = (
    "exact, numeric, regex, math, or module:function, also a reward function of TRL, verl or OpenRLHF."
)
_TIMED_OUT = "What reaches that limit: error (the evaluation has failed) or wrong (it scores 0)."
_CHAT = "Prompts that are texts go through the chat template, or as they are."
_VARIABLES = 'Variables of the chat template: JSON, as in {"enable_thinking": false}.'
_MARK = "Mark after which the answer begins, e.g. </think>: without it one is wrong."
_EVALUATION = (
    _scoring("scorer", str, _FUNCTION),
    _scoring("proxy_scorer", str, "The training grader, named as a scorer: does it pay for wrong answers?"),
    _scoring(
        "scorer_timeout", float, "Limit for one completion, seconds; else none.", "scorer_timeout_seconds"
    ),
    _scoring("on_scorer_timeout", str, _TIMED_OUT),
    _evaluator("max_new_tokens", int, "Longest completion of an evaluation, tokens; else the trainer's."),
    _evaluator("temperature", float, "Temperature of evaluations, 0 is greedy; else the trainer's."),
    _evaluator("stop", list[str], "Text that ends a completion, may be repeated; else the trainer's."),
    _evaluator("samples", int, "Completions for each held-out item."),
    _evaluator("batch_size", int, "Completions generated at once."),
    _evaluator("device", str, "auto, cpu, cuda, cuda:N or mps."),
    _evaluator("base_model", Path, "Base model of a run that trains a LoRA adapter: a directory."),
    _evaluator("chat", bool, _CHAT, "--chat/--no-chat"),
    _evaluator("chat_template_kwargs", str, _VARIABLES),
    _evaluator("system_prompt", str, "System message before prompts that have none."),
    _evaluator("answer_after", str, _MARK),
    _evaluator("vllm", bool, "Generate with vLLM, which must be installed beside the guard.", "--vllm"),
)
#: Setting -> the option that sets it.
OPTIONS: Mapping[Place, str] = {
    **{
        (name,): f"--{name.replace('_', '-')}"
        for name in (
            *("state_dir", "host", "port"),
            *("ingest_token_file", "read_token_file", "evaluations_token_file"),
        )
    },
    ("run_name",): "--name",
    ("checkpoint_root",): "--checkpoints",
    ("policy_file",): "--policy",
    ("heldout", "split"): "--heldout",
    ("heldout", "train_prompts"): "--train-prompts",
    ("heldout", "backlog"): "--backlog",
    **{("heldout", *one.place): one.flags.partition("/")[0] for one in _EVALUATION if one.name != "vllm"},
}

if TYPE_CHECKING:
    EvaluationOptions = dict[str, Any]
else:
    EvaluationOptions = TypedDict(
        "EvaluationOptions",
        {o.name: Annotated[o.type | None, typer.Option(o.flags, help=o.help)] for o in _EVALUATION},
    )


def with_evaluation(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `EvaluationOptions` in place of its parameter `evaluation`.

    One that the command has itself, because it means something else there, is None among them.
    """
    every = get_type_hints(EvaluationOptions, include_extras=True)
    parameters = signature(command, eval_str=True).parameters
    shared = {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in every.items()
        if name not in parameters
    }
    taken = Signature(
        [
            one
            for parameter in parameters.values()
            for one in (
                shared.values()
                if parameter.name == "evaluation"
                else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
            )
        ]
    )

    @wraps(command)
    def with_them(**given: Any) -> None:
        command(evaluation=dict.fromkeys(every) | {name: given.pop(name) for name in shared}, **given)

    with_them.__signature__ = taken  # type: ignore[attr-defined]
    with_them.__annotations__ = {one.name: one.annotation for one in taken.parameters.values()}
    return with_them


def heldout_options(
    *, heldout: Path | None, train_prompts: Path | None, backlog: str | None = None, **evaluation: Any
) -> dict[str, Any]:
    """The options of held-out evaluation as nested settings, without those that were not given."""
    found = given(split=heldout, train_prompts=train_prompts, backlog=backlog)
    for one in _EVALUATION:
        value = evaluation.get(one.name)
        if value is None or (one.name in ("stop", "vllm") and not value):
            continue
        if one.name == "base_model":
            value = str(value.absolute())
        elif one.name == "chat_template_kwargs":
            value = _variables(value)
        elif one.name == "vllm":
            value = "vllm"
        section = found.setdefault("evaluator", {}) if len(one.place) > 1 else found
        section["kind" if one.name == "vllm" else one.place[-1]] = value
    return found


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
        CliError: a setting is wrong or unknown, the split or the policy cannot be used, or a package or a GPU
            that the evaluator needs is not there.
    """
    from guard_service.heldout.errors import SplitError
    from guard_service.heldout.split import HeldoutSplit

    settings = _load(config, options)
    if settings.heldout is None:
        return settings
    evaluator = settings.heldout.evaluator
    vllm, device = evaluator.kind == "vllm", evaluator.device if evaluator.kind == "hf" else ""
    if device.startswith("cuda") and not any(Path("/dev", name).exists() for name in _GPUS):
        raise CliError(f"--device {device}: this machine has no GPU: leave --device out, or use cpu")
    if missing := missing_vllm() if vllm else missing_extra("the evaluator 'hf'", ["eval-hf"]):
        raise CliError(missing)
    try:
        HeldoutSplit.load(settings.heldout.split)
    except SplitError as error:
        raise CliError(str(error)) from None
    return settings


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
