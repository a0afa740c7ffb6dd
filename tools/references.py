"""The generated references, `docs/reference/*.md`, from the code that they describe.

The prose around them (`docs/*.md`) is written by hand. `tests/docs` fails when a page is stale, or when a
route, metric, setting or code has no description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from guard_cli import split
from guard_cli.commands import COMMANDS
from guard_cli.errors import ExitCode
from guard_client.settings import variable_of
from guard_core.codes import Code, Level
from guard_core.frameworks import FIGURES
from guard_core.policy import Policy
from guard_core.wire import Condition, DetectorReading, EvaluationSampling, EvaluationSummary, KlKind, Verdict
from guard_follow.frameworks import FRAMEWORKS, Framework, Layout, Setting
from guard_operator import __main__ as operator_process
from guard_operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES
from guard_operator.reconcile.isolation import TABLE, On, Row
from guard_service import __main__ as guard_process
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.errors import MEDIA_TYPE, ProblemType
from guard_service.heldout.config import (
    HfEvaluatorSettings,
    VllmEvaluatorSettings,
)
from guard_service.metrics import GuardMetrics
from guard_service.settings import ENV_PREFIX, GuardSettings
from tools import ROOT
from tools.tables import (
    FIELD_COLUMNS,
    NOTE,
    Schema,
    field_rows,
    field_table,
    first_sentence,
    metric_table,
    table,
    type_of,
)
from trainer_image import train as trainer_process
from trainer_image.config import CallbackSettings, TrainConfig

REFERENCE = Path("docs/reference")

#: The environment of the trainer. `trainer_environment` compares it with the names that the code reads.
TRAINER_ENVIRONMENT = {
    "RLGUARD_URL": ("URL", "required", "Address of the guard, http or https."),
    "RLGUARD_TOKEN": ("text", "-", "The guard's ingest token."),
    "RLGUARD_CA": (
        "PEM",
        "the system's",
        "One of these certificates must have signed that of an https guard.",
    ),
    "RLGUARD_ATTEMPT": ("integer ≥ 0", "asked of the guard", "Start of the trainer, 0 for the first."),
    "RLGUARD_STRICT": (
        "`1` or `0`",
        "`1`",
        "`1` raises an error when training must stop, `0` ends the loop.",
    ),
    "RLGUARD_ON_UNREACHABLE": (
        "`stop` or `continue`",
        "`stop`",
        "What follows when the guard is unreachable.",
    ),
    "RLGUARD_UNREACHABLE_SECONDS": ("number > 0", "`300`", "After how many seconds that holds."),
    "RLGUARD_DRAIN_SECONDS": (
        "number ≥ 0",
        "`0`; the operator sets `300`",
        "How long the end of training may wait until every checkpoint is evaluated, seconds.",
    ),
    "RLGUARD_MAX_LAG": (
        "integer ≥ 0, or off",
        "`1`",
        "How many checkpoints may be unscored while training goes on; `off` never waits.",
    ),
    "RLGUARD_KEEP_BEST": ("0 or 1", "`0`", "Whether `save_total_limit` spares the best checkpoint so far."),
    "RLGUARD_SAVE_SOONER": (
        "0 or 1",
        "`0`",
        "Whether a checkpoint is saved sooner where the guard wants it.",
    ),
    "RLGUARD_RESUME_FROM": (
        "path",
        "-",
        "Checkpoint of another run to start from, as `rlguard resume` sets it.",
    ),
    "RLGUARD_RUN": ("text", "-", "Name of a directory in `output_dir` that the trainer image saves into."),
    "RLGUARD_ROLLOUTS": (
        "0 or 1",
        "`1`",
        "Whether dashboard and report show completions on training prompts.",
    ),
}


#: What the levels mean. Every level must be here: `verdict` looks each one up.
LEVELS = {
    Level.HEALTHY: "The rules judge the run, and nothing speaks against it.",
    Level.UNKNOWN: "The guard does not know: too little data, silence, failed evaluations, or a lost store.",
    Level.WARNING: "Training must stop by the action of a condition, or an alarm waits for its confirmation.",
    Level.FIRED: "A rule of the policy fired. Training must stop; the code says what was found.",
}


def outputs() -> dict[Path, str]:
    """Every generated page, relative to the root of the project, with its text."""
    made = {
        "frameworks.md": frameworks(),
        "isolation.md": isolation(),
        "metrics.md": metrics(),
        "problems.md": problems_page(),
        "settings.md": settings(),
        "trainer-config.md": trainer_config(),
        "verdict.md": verdict(),
    }
    return {REFERENCE / name: "\n".join([NOTE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}


# -- pages -----------------------------------------------------------------------------------------------


def isolation() -> Iterator[str]:
    """The isolation table."""
    yield "# Isolation"
    yield ""
    yield "What no pod of a run may have under `spec.guard.isolation: Strict`, the default. Everything else"
    yield "may be set: root, added capabilities, devices, resource claims, host paths of local disks, runtime"
    yield "classes. `isolation: Relaxed` admits these rows, too; the condition `Isolated` is then `False` and"
    yield "lists those that the pods break. What this does not stop: [threats](../threats.md)."
    for on in On:
        yield from ("", f"## Fields of a {on.value}", "")
        rows = [
            (f"`{row.id}`", "<br>".join(f"`{path}`" for path in row.paths), _when(row), row.why)
            for row in TABLE
            if row.on is on
        ]
        yield from table(("Row", "Field", "Broken if it", "Because"), rows)
    yield "*of the guard* means of this job's guard: the claim, Secret or ConfigMap of the held-out split,"
    yield "the claim of its state, and the Secret and ConfigMap that the operator makes for the job."
    yield from ("", "## Directories of the node", "")
    yield f"{', '.join(f'`{name}`' for name in NODE_DIRECTORIES)}."
    yield "The chart's `isolation.nodeDirectories` replaces them: name where kubelet and runtime are on your"
    yield "nodes. A path below the same disk that is neither passes, such as `/mnt/k8s-disks/0/scratch`."
    yield from ("", "## Tokens", "")
    yield f"Audiences that pass: {', '.join(f'`{name}`' for name in TOKEN_AUDIENCES)}"
    yield "(`isolation.tokenAudiences` of the chart)."


def _when(row: Row) -> str:
    """When a row is broken, in words."""
    values = f" {', '.join(f'`{value}`' for value in row.values)}" if row.values else ""
    where = "; only in the guard's pod" if row.beside else "; only in a template" if row.in_template else ""
    return f"{row.test.value}{values}{where}"


def frameworks() -> Iterator[str]:
    """Names, files and layouts of the frameworks."""
    yield "# Frameworks"
    yield ""
    yield "What `rlguard follow`, `rlguard run --follow` and `rlguard replay` read of each framework."
    yield "A prefix `train/` is taken off a name; of several names the first that is there counts. In a name"
    yield "`*` is one part that the run chooses, such as an agent; where several fit, `--map` chooses."
    yield ""
    known = [framework for framework in FRAMEWORKS if framework.reads]
    yield "## Metrics"
    yield ""
    yield from table(
        ("`--format`", "Reads", "Reward", "KL to the reference, token mean", "Entropy", "Tested with"),
        [(f"`{f.key}`", f.reads, _names(f.reward), _kl_names(f), _names(f.entropy), f.tested) for f in known],
    )
    yield "## Further figures"
    yield ""
    yield "What `rlguard replay` looks at for [symptoms](../replay.md#symptoms), whatever the framework."
    yield "Nothing is judged by them. Of several columns with one figure the first in the alphabet counts,"
    yield "and of several that fit one name with `*` none."
    yield "Components of the reward are `rewards/NAME/mean`, `rewards/NAME`, and `reward/NAME` beside"
    yield "`reward/overall`."
    yield ""
    listed = {figure: ", ".join(f"`{name}`" for name in names) for figure, names in FIGURES.items()}
    yield from table(("`--map`", "Names"), [(f"`{figure}`", names) for figure, names in listed.items()])
    yield "## Checkpoints"
    yield ""
    yield "Each must hold the whole model in safetensors, `config.json` and the tokenizer. Files that are not"
    yield "as long as their headers say are not complete, whatever a marker says."
    yield ""
    yield from table(
        ("`--format`", "Folder", "Complete when", "To get weights that can be scored"),
        [(f"`{f.key}`", *_layout(layout)) for f in known for layout in f.layouts or (None,)],
    )
    yield "## To start from a checkpoint"
    yield ""
    yield "A trainer that is followed knows nothing of `RLGUARD_RESUME_FROM`: its command has to say it."
    yield "`PATH` is the folder with the weights, `NEW` one in which no run has saved: verl, SkyRL, NeMo-RL"
    yield "and EasyR1 go on by themselves from the newest checkpoint they find, which is the stopped run's."
    yield ""
    starts = [
        (f"`{f.key}`", f"`{f.start.format(path='PATH', folder='NEW')}`" if f.start else "-", f.start_note)
        for f in known
        if f.start or f.start_note
    ]
    yield from table(("`--format`", "Settings", "To know"), starts)


def _names(names: Sequence[str]) -> str:
    return ", else ".join(f"`{name}`" for name in names) or "-"


def _kl_names(framework: Framework) -> str:
    told = []
    for name in framework.kl:
        needs = [_need(setting) for setting in framework.kl_needs.get(name, ())]
        told.append(f"`{name}`" + (f" (only with {' and '.join(needs)})" if needs else ""))
    return ", else ".join(told) or "-"


def _need(setting: Setting) -> str:
    values = " or ".join(setting.values) or "above 0"
    return f"`{setting.key}` {values}" + (f" (default {setting.default})" if setting.default else "")


def _layout(layout: Layout | None) -> tuple[str, str, str]:
    if layout is None:
        return ("-", "-", "no layout is known here: its checkpoints are not scored")
    places = [f"{layout.place}/{model}".rstrip("/") for model in layout.models]
    beside = [layout.place + layout.merged] if layout.merged else []
    return _names([*places, *beside]), layout.complete_when, layout.advice or "-"


def _exit_codes_of_a_run() -> Iterator[tuple[str, str, str]]:
    for code in ExitCode:
        yield str(code.value), f"`{code.name.lower()}`", code.meaning
    yield "128 + N", "", "ended by signal N"
    yield "any other", "", "the trainer's own exit code"


def problems_page() -> Iterator[str]:
    """Everything that an error can be told by: problem types and exit codes."""
    yield "# Problems and exit codes"
    yield ""
    yield "## Problems of the guard's API"
    yield ""
    yield f"Every response that is not a success is `{MEDIA_TYPE}` (RFC 9457). `type` is one of these and"
    yield "does not change between releases; `detail` says what was wrong this time, `errors` which fields."
    yield ""
    yield from table(
        ("Type", "Status", "Means", "What to do"),
        [(f"`{kind.urn}`", str(kind.status), kind.meaning, kind.remedy) for kind in ProblemType],
    )
    yield "## Exit codes of `rlguard run` and `rlguard demo`"
    yield ""
    yield from table(("Code", "Name", "Meaning"), list(_exit_codes_of_a_run()))
    yield "`rlguard demo` uses two of them in its own way: 0 if the guard did what it should (a fire on the"
    yield "grader with the hole, none with `--benign`), 1 if it did not."
    yield ""
    yield "## Exit codes of the other commands"
    yield ""
    yield "2 for wrong arguments, files or settings, with one line that says which. Besides that:"
    yield ""
    yield from table(("Command", "Code", "Meaning"), list(_exit_codes_of_commands()))
    for module, title, command in _PROCESSES:
        yield f"## Exit codes of {title}"
        yield ""
        yield f"`python -m {command}`"
        yield ""
        yield from table(("Code", "Meaning"), exit_codes(str(module.__doc__)))


def _exit_codes_of_commands() -> Iterator[tuple[str, str, str]]:
    """What each command declares, as its `--help` says it; `run` and `demo` have a table of their own."""
    for name, codes in declared_exit_codes():
        for place, (code, meaning) in enumerate(codes.items()):
            yield ("" if place else f"`rlguard {name}`"), str(code), meaning


def declared_exit_codes() -> Iterator[tuple[str, Mapping[int, str]]]:
    """Each command, but `run` and `demo`, with the exit codes that it declares."""
    for name, command in COMMANDS.items():
        if name == "split":
            yield "split check", split.EXIT_CODES
            yield "split make", split.EXIT_CODES_OF_MAKE
        elif name not in ("run", "demo"):
            yield name, import_module(command.module).EXIT_CODES


_PROCESSES = (
    (trainer_process, "the trainer image", "rlguard.train"),
    (guard_process, "the guard", "guard_service"),
    (operator_process, "the operator", "guard_operator"),
)


def exit_codes(docstring: str) -> list[tuple[str, str]]:
    """Code and meaning, from the lines after `Exit codes:` in the docstring of a process."""
    listed = docstring.partition("Exit codes:\n")[2]
    found = re.findall(r"^    (\d+)  (.+(?:\n {6,}\S.*)*)", listed, re.MULTILINE)
    return [(code, " ".join(meaning.split())) for code, meaning in found]


def trainer_config() -> Iterator[str]:
    """The keys of the trainer image's configuration file."""
    yield "# Keys of the trainer's configuration"
    yield ""
    yield f"YAML, for `python -m rlguard.train --config FILE`. {TrainConfig.__doc__}"
    yield "[The trainer image](../trainer-image.md) shows a whole file."
    yield ""
    yield from field_table(TrainConfig.model_json_schema())
    yield "Numbers may be written as `1e-6`."


def metrics() -> Iterator[str]:
    """The Prometheus metrics, from what a guard renders."""
    yield "# Metrics"
    yield ""
    yield "`GET /metrics` in the Prometheus text format. No metric carries an item, a prompt or an answer."
    yield "A value that is not known has no sample: it is never 0."
    yield ""
    yield "It takes the read token. On a cluster nothing scrapes a guard: the operator exports every job."
    yield ""
    yield from metric_table(metric_families())


def settings() -> Iterator[str]:
    """Everything that can be configured."""
    yield "# Settings"
    yield ""
    yield "## The guard process"
    yield ""
    yield "`python -m guard_service` (and `rlguard serve`) read environment variables. `__` separates the"
    yield "levels of a nested setting; an empty variable counts as not set; an unknown one is an error. Those"
    yield "that Kubernetes makes of the Services of a namespace, such as `RLGUARD_GUARD_PORT=tcp://10.0.0.7:8470`"
    yield "of one named `rlguard-guard`, are passed over."
    yield ""
    yield from field_table(GuardSettings.model_json_schema(), ENV_PREFIX, env=True)
    yield "### Evaluators"
    yield ""
    rows: dict[tuple[str, ...], list[str]] = {}
    for model in (HfEvaluatorSettings, VllmEvaluatorSettings):
        kind = f"`{model.model_fields['kind'].default}`"
        for row in field_rows(model.model_json_schema(), f"{ENV_PREFIX}HELDOUT__EVALUATOR__", env=True):
            if "EVALUATOR__KIND`" not in row[0]:
                rows.setdefault(row, []).append(kind)
    kinds = "RLGUARD_GUARD_HELDOUT__EVALUATOR__KIND"
    yield f"`{kinds}` is `hf` or `vllm`."
    yield ""
    yield from table((*FIELD_COLUMNS, "Of"), [(*row, ", ".join(of)) for row, of in rows.items()])
    yield "## The policy file"
    yield ""
    yield "YAML. Every threshold of a run; an unknown key is refused. A changed policy is a new run."
    yield ""
    yield from field_table(Policy.model_json_schema())
    yield "## The trainer"
    yield ""
    yield "`GuardCallback.from_env(trainer)` reads these; `rlguard run` sets URL and token."
    yield ""
    yield from table(
        FIELD_COLUMNS, [(f"`{name}`", *rest) for name, rest in sorted(TRAINER_ENVIRONMENT.items())]
    )


def verdict() -> Iterator[str]:
    """The verdict: its levels, its codes and its fields."""
    yield "# Verdict"
    yield ""
    yield "What `GET /v1/verdict` says, and what every response to a report carries. `fire`: a rule of the"
    yield "policy fired, and its code says what it found. `halt`: no rule fired, but a condition held whose"
    yield "action is `stop`. `stop`: training must stop, for either. A fire and a halt latch: nothing takes"
    yield "them back. A number that is not known is `null`, never 0."
    yield ""
    yield "## Levels"
    yield ""
    yield "The worst level of the conditions that hold is the level of the verdict."
    yield ""
    yield from table(
        ("Level", "Severity", "Meaning"),
        [(f"`{level.value}`", str(level.severity), LEVELS[level]) for level in Level],
    )
    yield "## Codes"
    yield ""
    yield from table(
        ("Code", "Level", "Meaning", "What it has found", "What to do"),
        [
            (
                f"`{code.value}`",
                code.level.value,
                code.meaning,
                code.finding.words if code.finding else "-",
                code.remedy or "-",
            )
            for code in Code
        ],
    )
    for model in (Verdict, Condition, DetectorReading, EvaluationSummary, EvaluationSampling):
        schema = model.model_json_schema(mode="serialization")
        yield f"## {model.__name__}"
        yield ""
        rows = schema["properties"].items()
        yield from table(
            ("Field", "Type", "Meaning"),
            [(f"`{name}`", type_of(field), _meaning(field, schema)) for name, field in rows],
        )
    yield "## Kinds of KL"
    yield ""
    yield f"What a trainer's `kl` is, as `kl_kind` says: {', '.join(f'`{kind.value}`' for kind in KlKind)}."
    yield "Only `ref_token_mean` can be held against `kl_hard_stop`; a KL that is exactly 0 at every step"
    yield "counts as absent."


def _meaning(field: Schema, schema: Schema) -> str:
    other = schema.get("$defs", {}).get(str(field.get("$ref", "")).rpartition("/")[2], {})
    return first_sentence(field.get("description") or other.get("description"))


# -- sources ---------------------------------------------------------------------------------------------


def guard_app() -> FastAPI:
    """A guard's app. Its engine is not started, so nothing is read or written."""
    nowhere = Path("/nonexistent")
    engine = Engine(state_dir=nowhere, checkpoint_root=nowhere, policy=Policy())
    return create_app(engine, Tokens(None, None))


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the guard."""
    return guard_app().openapi()


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of every documented route."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def metric_families() -> list[Any]:
    """The metric families that a guard exposes when every value is known."""
    summary = EvaluationSummary(
        attempt=0,
        step=1,
        score=0.5,
        items=1,
        truncated=0.5,
        unanswered=0.5,
        timed_out=0.5,
        proxy_score=0.5,
        path="/checkpoints/checkpoint-1",
    )
    names = ("in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema", "kl_start", "kl_hard_stop")
    places = {"attempt": 0, "step": 1, "last_evaluation": summary, "best_evaluation": summary}
    known = Verdict(level=Level.UNKNOWN, code=Code.NO_STEPS, reason="", fire=False, halt=False, stop=False)
    engine = SimpleNamespace(
        verdict=known.model_copy(update={**dict.fromkeys(names, 0.5), **places}),
        store_works=True,
        store_bytes=0,
        store_full=False,
        queue_length=0,
        silent_for=0.0,
        following=SimpleNamespace(trouble="", bad=0),
    )
    exposed = GuardMetrics()
    exposed.observe(engine)
    return [*exposed.registry.collect()]


def trainer_environment() -> set[str]:
    """The `RLGUARD_*` variables that the trainer's code reads."""
    sources = (
        path for package in ("guard_client", "trainer_image") for path in (ROOT / package).rglob("*.py")
    )
    found = re.compile(r'environ\.get\(\s*"(RLGUARD_\w+)"')
    names = {name for source in sources for name in found.findall(source.read_text("utf-8"))}
    return names | {variable_of((name,)) for name in CallbackSettings.model_fields}
