"""Write the references, `docs/reference/*.md`, from the code that they describe.

The prose around them (`docs/*.md`) is written by hand. `tests/docs` fails when a page is stale, or when a
route, metric, setting or code has no description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from guard_service import __main__ as guard_process
from guard_service.errors import MEDIA_TYPE, ProblemType
from guard_service.heldout.config import HfEvaluatorSettings, VllmEvaluatorSettings
from guard_service.settings import ENV_PREFIX, GuardSettings
from rlguard.core.codes import Code
from rlguard.core.frameworks import FIGURES
from rlguard.core.policy import Policy
from rlguard.core.wire import KlKind
from rlguard.follow.frameworks import FRAMEWORKS, Framework, Layout, Setting
from rlguard.operator import __main__ as operator_process
from rlguard.operator.api.names import API_VERSION, KIND
from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.schema import root_schema
from rlguard.operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES
from rlguard.operator.reconcile.gauges import JobGauges
from rlguard.operator.reconcile.isolation import TABLE, On, Row
from rlguard.operator.runtime.metrics import OperatorMetrics, QueueGauges
from tools.tables import FIELD_COLUMNS, NOTE, field_rows, field_table, metric_table, table
from trainer_image import train as trainer_process
from trainer_image.config import TrainConfig

REFERENCE = Path("docs/reference")

#: The environment of the trainer; `tests/docs` compares it with the names that the code reads.
TRAINER_ENVIRONMENT = {
    "RLGUARD_URL": ("required", "Address of the guard, http or https."),
    "RLGUARD_TOKEN": ("-", "The guard's ingest token."),
    "RLGUARD_CA": ("the system's", "PEM; one of these certificates must have signed that of an https guard."),
    "RLGUARD_STRICT": ("`1`", "`1` raises an error when training must stop, `0` ends the loop."),
    "RLGUARD_ON_UNREACHABLE": ("`stop` (`continue`)", "What follows when the guard is unreachable."),
    "RLGUARD_UNREACHABLE_SECONDS": ("`300`", "After how many seconds that holds."),
    "RLGUARD_DRAIN_SECONDS": (
        "`0`; the operator sets `300`",
        "How long the end of training may wait until every checkpoint is evaluated, seconds.",
    ),
    "RLGUARD_MAX_LAG": ("`1`", "How many checkpoints may be unscored meanwhile; `off` never waits."),
    "RLGUARD_KEEP_BEST": ("`0`", "Whether `save_total_limit` spares the best checkpoint so far."),
    "RLGUARD_RESUME_FROM": ("-", "Checkpoint of another run to start from, as `rlguard resume` sets it."),
    "RLGUARD_RUN": ("-", "Name of a directory in `output_dir` that the trainer image saves into."),
    "RLGUARD_ROLLOUTS": ("`1`", "Whether dashboard and report show completions on training prompts."),
}


def outputs() -> dict[Path, str]:
    """Every generated page, relative to the root of the project, with its text."""
    made = {
        "codes.md": codes(),
        "frameworks.md": frameworks(),
        "guardedtrainingjob.md": guarded_training_job(),
        "isolation.md": isolation(),
        "metrics.md": metrics(),
        "settings.md": settings(),
    }
    return {REFERENCE / name: f"{NOTE}\n\n{text}" for name, text in made.items()}


# -- pages -----------------------------------------------------------------------------------------------


def isolation() -> str:
    """The isolation table."""
    parts = "\n".join(f"## Fields of a {on.value}\n\n{_isolation_table(on)}" for on in On)
    return f"""# Isolation

What no pod of a run may have under `spec.guard.isolation: Strict`, the default. `Relaxed` admits it, and
the condition `Isolated=False` lists what is broken. [Why, and what is
admitted](../concepts/threats.md#why-a-row-is-there)

{parts}
*of the guard* means of this job's guard: the claim, Secret or ConfigMap of the held-out split, the claim of
its state, and the Secret and ConfigMap that the operator makes for the job.

Directories of the node (`isolation.nodeDirectories` of the chart replaces them): {_code(NODE_DIRECTORIES)}.
Audiences of tokens that pass (`isolation.tokenAudiences`): {_code(TOKEN_AUDIENCES)}.
"""


def _isolation_table(on: On) -> str:
    rows = [
        (f"`{row.id}`", "<br>".join(f"`{path}`" for path in row.paths), _when(row), row.why)
        for row in TABLE
        if row.on is on
    ]
    return table(("Row", "Field", "Broken if it", "Because"), rows)


def _when(row: Row) -> str:
    """When a row is broken, in words."""
    values = f" {_code(row.values)}" if row.values else ""
    where = "; only in the guard's pod" if row.beside else "; only in a template" if row.in_template else ""
    return f"{row.test.value}{values}{where}"


def _code(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def frameworks() -> str:
    """Names, files and layouts of the frameworks."""
    known = [framework for framework in FRAMEWORKS if framework.reads]
    names = table(
        ("`--format`", "Reads", "Reward", "KL to the reference, token mean", "Entropy", "Tested with"),
        [(f"`{f.key}`", f.reads, _names(f.reward), _kl_names(f), _names(f.entropy), f.tested) for f in known],
    )
    layouts = table(
        ("`--format`", "Folder", "Complete when", "To get weights that can be scored"),
        [(f"`{f.key}`", *_layout(layout)) for f in known for layout in f.layouts or (None,)],
    )
    starts = table(
        ("`--format`", "Settings", "To know"),
        [
            (f"`{f.key}`", f"`{f.start.format(path='PATH', folder='NEW')}`" if f.start else "-", f.start_note)
            for f in known
            if f.start or f.start_note
        ],
    )
    return f"""# Frameworks

What `rlguard follow`, `rlguard run --follow` and `rlguard replay` read of each framework. A prefix `train/`
is taken off a name; of several names the first that is there counts. In a name `*` is one part that the run
chooses, such as an agent; where several fit, `--map` chooses.

## Metrics

{names}
## Further figures

What `rlguard replay` looks at for [symptoms](../tasks/replay-a-run.md#symptoms). Components of the reward are
`rewards/NAME/mean`, `rewards/NAME`, and `reward/NAME` beside `reward/overall`.

{table(("`--map`", "Names"), [(f"`{figure}`", _code(found)) for figure, found in FIGURES.items()])}
## Checkpoints

Each must hold the whole model in safetensors, `config.json` and the tokenizer. Files that are not as long as
their headers say are not complete, whatever a marker says.

{layouts}
## To start from a checkpoint

The command of a trainer that is followed has to say it. `PATH` is the folder with the weights, `NEW` one in
which no run has saved: verl, SkyRL, NeMo-RL and EasyR1 go on by themselves from the newest checkpoint they
find, which is the stopped run's.

{starts}"""


def _names(names: Sequence[str]) -> str:
    return _code(names, ", else ") or "-"


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


def metrics() -> str:
    """The Prometheus metrics of the operator, from what it renders."""
    operator = OperatorMetrics()
    operator.registry.register(QueueGauges(lambda: 0, list))
    operator.registry.register(JobGauges(list, list, list, lambda _: None))
    return f"""# Metrics

`GET /metrics` of the operator, in the Prometheus text format. It has what every guard says; nothing scrapes a
guard. A value that is not known has no sample: it is never 0.

{metric_table(operator.registry.collect())}"""


def settings() -> str:
    """Everything that can be configured."""
    evaluators: dict[tuple[str, ...], list[str]] = {}
    for model in (HfEvaluatorSettings, VllmEvaluatorSettings):
        for row in field_rows(model.model_json_schema()):
            if row[0] != "`kind`":
                evaluators.setdefault(row, []).append(str(model.model_fields["kind"].default))
    own = [(*row[:2], row[2] if len(of) > 1 else f"{of[0]}: {row[2]}") for row, of in evaluators.items()]
    trainer = [(f"`{name}`", *rest) for name, rest in sorted(TRAINER_ENVIRONMENT.items())]
    return f"""# Settings

There are four places: the policy file, the guard's settings, the trainer's environment, and the file of the
trainer image.

## The policy file

YAML, for `--policy`; on a cluster `spec.guard.policy`, in camelCase. An unknown key is refused. A changed
policy is a new run.

{field_table(Policy.model_json_schema())}
## The guard

YAML, for `--config`. Each is also an environment variable: `heldout.scorer` is
`{ENV_PREFIX}HELDOUT__SCORER`. An unknown one is an error.

{field_table(GuardSettings.model_json_schema())}
### Evaluators

Below `heldout.evaluator`, whose `kind` is `hf` or `vllm`.

{table(FIELD_COLUMNS, own)}
## The trainer

`GuardCallback.from_env(trainer)` reads these; `rlguard run` sets URL and token.

{table(FIELD_COLUMNS, trainer)}
## The trainer image

YAML, for `python -m rlguard.train --config FILE`
([an example](../tasks/run-on-kubernetes.md#the-trainer-image)). Numbers may be written as `1e-6`.

{field_table(TrainConfig.model_json_schema())}"""


def codes() -> str:
    """Everything that a verdict, an error or a process ends with by a stable name."""
    found = [(f"`{one.value}`", one.level.value, one.meaning, one.remedy or "-") for one in Code]
    problems = [(f"`{kind.urn}`", str(kind.status), kind.meaning, kind.remedy) for kind in ProblemType]
    processes = {
        "rlguard.train": trainer_process,
        "guard_service": guard_process,
        "rlguard.operator": operator_process,
    }
    ends = [
        (f"`python -m {name}`", *one)
        for name, module in processes.items()
        for one in exit_codes(str(module.__doc__))
    ]
    return f"""# Codes

Names that do not change, while messages may: codes of the verdict, problems of the API, exit codes.
[Levels](../concepts/how-it-decides.md) and [conditions of a job](guardedtrainingjob.md#conditions) are on
other pages. `curl URL/openapi.json` of any guard has every field of the API.

## Codes of the verdict

{table(("Code", "Level", "Meaning", "What to do"), found)}
`kl_kind` is one of {_code(KlKind)}. Only `ref_token_mean` has a limit.

## Problems of the API

Every response that is not a success is `{MEDIA_TYPE}` (RFC 9457): `type` is one of these,
`detail` says what was wrong this time, `errors` which fields.

{table(("Type", "Status", "Means", "What to do"), problems)}
## Exit codes

Those of `rlguard run` are [on its page](../tasks/run-on-one-machine.md#exit-codes). `rlguard COMMAND --help`
has those of the other commands.

{table(("Process", "Code", "Meaning"), ends)}"""


def exit_codes(docstring: str) -> list[tuple[str, str]]:
    """Code and meaning, from the lines after `Exit codes:` in the docstring of a process."""
    listed = docstring.partition("Exit codes:\n")[2]
    found = re.findall(r"^    (\d+)  (.+(?:\n {6,}\S.*)*)", listed, re.MULTILINE)
    return [(code, " ".join(meaning.split())) for code, meaning in found]


def guarded_training_job() -> str:
    """The job: its spec, and its conditions with their reasons."""
    return f"""# {KIND}

`{API_VERSION}`, namespaced, short name `gtj`. `kubectl explain gtj.spec --recursive` prints every
field of spec and status. Fields of `heldout` and `policy` are [the settings](settings.md), in camelCase.

## Spec

{field_table(root_schema()["properties"]["spec"], "spec.", depth=2)}
## Conditions

{table(("Type", "True means"), [(f"`{one}`", one.meaning) for one in ConditionType])}
{table(("Reason", "Meaning"), [(f"`{one}`", one.meaning) for one in Reason])}"""
