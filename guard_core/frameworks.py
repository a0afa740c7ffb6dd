"""The RL frameworks: under which names they log, into which files, and where their checkpoints lie. Data.

Replay, follower, guard and operator read this one table, and `docs/reference/frameworks.md` is made of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

QUANTITIES = ("reward", "kl", "entropy", "reward_std", "heldout")

#: In order of preference. W&B's `_step` counts log calls, so it comes last.
STEP_NAMES = ("global_step", "training/global_step", "trainer/global_step", "step", "Step", "_step")


def bare(column: str) -> str:
    """A column's name without what the tracker put around it: `my-run - train/reward` is `reward`."""
    return column.rpartition(" - ")[2].strip().removeprefix("train/")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a run on which it depends what a metric is.

    Fields:
        key: the last part of its name in the run's configuration, or the last ones, joined by dots.
        values: those under which the metric is a mean over tokens of an estimate of the KL; () where it is
            one under every number above 0, as of a coefficient: with 0 it is not computed, and 0 is logged.
        default: what it is where a configuration does not name it; "" for not known. Where no configuration
            is found nothing is known, so a framework with defaults alone would be armed by them.
    """

    key: str
    values: tuple[str, ...] = ()
    default: str = ""

    @property
    def condition(self) -> str:
        """When the metric is one, for people."""
        return f"{self.key}={' or '.join(self.values)}" if self.values else f"{self.key} above 0"

    def fits(self, value: str) -> bool:
        """Whether the metric is one under this value."""
        return value in self.values if self.values else _number(value) > 0

    def text(self, value: object) -> str | None:
        """A value of the configuration as `fits` takes it; None if this setting has no such values."""
        if not self.values:
            return str(value) if not isinstance(value, bool) and _number(value) >= 0 else None
        if _FLAGS.issuperset(self.values) and isinstance(value, int | float):
            return str(value != 0).lower()  # TensorBoard has a flag for a number
        return value if isinstance(value, str) else None


_FLAGS = frozenset({"true", "false"})


def _number(value: object) -> float:
    """The value as a number, as YAML has 1e-3 for a text; NaN if it is none."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the checkpoints of a framework lie, and when one is complete.

    Fields:
        folder: the name of a checkpoint's folder; the first group is its step.
        models: folders in it that may hold the model in safetensors, "" for itself; the first that does.
        marker: a file in it that the framework writes last; "" if there is none.
        known_by: a file in it without which it is of another layout; it does not say that it is complete.
        merged: what the folder beside it has after its name that holds the model where it holds none itself.
        latest: a file beside the folders that names the newest complete step, alone or in JSON; "" if none.
        latest_key: the key, where `latest` is JSON.
        advice: what to set so that there are weights that can be scored.
    """

    folder: re.Pattern[str]
    models: tuple[str, ...] = ("",)
    marker: str = ""
    known_by: str = ""
    merged: str = ""
    latest: str = ""
    latest_key: str = ""
    advice: str = ""

    @property
    def place(self) -> str:
        """The folder of a checkpoint, for people; `N` is its step."""
        return self.folder.pattern.replace(r"(\d{1,15})", "N")

    @property
    def marks(self) -> bool:
        """Whether the framework marks a checkpoint as complete."""
        return bool(self.latest or self.marker)

    @property
    def complete_when(self) -> str:
        """For people."""
        if self.latest:
            return f"`{self.latest}` names its step or a later one"
        if self.marker:
            return (
                f"it holds `{self.marker}`, no older than its weights (else as without one: quiet for 30 s)"
            )
        known = f"it holds `{self.known_by}`, " if self.known_by else ""
        return f"{known}its weights are whole, and no file changed for 30 s"


def fits(name: str, pattern: str) -> bool:
    """Whether `name` is `pattern`, in which `*` stands for one part between slashes."""
    if "*" not in pattern:
        return name == pattern
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(w in ("*", p) for p, w in zip(parts, wanted, strict=True))


@dataclass(frozen=True, slots=True)
class Framework:
    """Names that one framework logs under. Of several names for one quantity, the first present is taken.

    In a name `*` stands for one part that the run chooses, such as an agent or a task.

    Fields:
        name: as people write it.
        reward: mean in-loop reward before any KL penalty.
        kl: token-mean KL to the reference, nats/token.
        kl_needs: name of a KL to the settings that decide whether it is a token mean.
        not_kl: name of what looks like the KL to why it is not taken.
        marks: columns that it alone logs, where its names are those of another.
        derived_from: the framework whose names it logs too, under which it must not be found.
        metrics: the files or lines that can be read, for people.
        whole_rows: one record holds everything of a step, so that the step need not wait for the next one.
        layout: None where no checkpoint lies on a disk in a form that can be scored.
        other_layout: that of another trainer of the same framework.
        start: settings with which a new run starts from the weights in `{path}` and saves into a new
            `{folder}`; "" where none are known, as with a script of one's own.
        start_note: what to know of `start`, or why there is none: a clause; "" where there is nothing.
        tested: the release whose own writer made the log of the tests, or, of TRL, whose names are in it.
    """

    name: str
    reward: tuple[str, ...]
    kl: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    reward_std: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()
    kl_needs: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    not_kl: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    derived_from: str = ""
    metrics: str = ""
    whole_rows: bool = False
    layout: Layout | None = None
    other_layout: Layout | None = None
    start: str = ""
    start_note: str = ""
    tested: str = ""

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Where its checkpoints lie, whichever trainer of it trains."""
        return tuple(layout for layout in (self.layout, self.other_layout) if layout is not None)

    @property
    def key(self) -> str:
        """Its name as `--format` has it."""
        return self.name.lower()

    def pick(self, quantity: str, present: Collection[str]) -> str | None:
        """The first name of `quantity` that is present, or None."""
        return next(iter(self.picks(quantity, present)), None)

    def picks(self, quantity: str, present: Collection[str]) -> list[str]:
        """Every name that is present for the first name of `quantity`: several only where that has a `*`."""
        for name in getattr(self, quantity):
            if name in present:
                return [name]
            if "*" in name and (found := [p for p in present if fits(p, name)]):
                return found
        return []


#: Estimators whose mean is the KL, k1 and k3. `abs` and `mse` (k2) are distances of other size.
ESTIMATORS = ("kl", "k1", "low_var_kl", "k3")
KL_IN_REWARD = Setting("kl_penalty", ESTIMATORS)
#: With it ms-swift logs the sum over a completion's tokens under the same name. It is on by itself for rloo
#: and reinforce_plus_plus, so nothing is known without the run's args.json.
SWIFT_KL_IN_REWARD = Setting("kl_in_reward", ("false",))

HUGGING_FACE = Layout(re.compile(r"checkpoint-(\d{1,15})"), marker="trainer_state.json")
#: What Megatron writes as the first of the files beside the weights tells its checkpoints from those of
#: Hugging Face's trainer, which are complete by their marker alone. By default an adapter is merged.
SWIFT_MEGATRON = Layout(
    re.compile(r"checkpoint-(\d{1,15})"),
    known_by="latest_checkpointed_iteration.txt",
    merged="-merged",
    advice="with Megatron leave `--save_safetensors` on",
)

FRAMEWORKS = (
    Framework("rlguard", ("reward",), ("kl",), ("entropy",), ("reward_std",), ("heldout",)),
    Framework(  # Axolotl and Unsloth train with TRL's trainer
        "TRL",
        ("reward",),
        ("kl",),
        ("entropy",),
        ("reward_std",),
        ("killswitch/heldout_score",),
        # TRL has no such setting, but ms-swift's event files have nothing that tells them from TRL's.
        kl_needs={"kl": (replace(SWIFT_KL_IN_REWARD, default="false"),)},
        metrics='TensorBoard (`report_to="tensorboard"`), `trainer_state.json` of each checkpoint',
        layout=HUGGING_FACE,
        tested="1.16",
    ),
    Framework(
        "verl",
        ("critic/score/mean",),
        ("actor/reward_kl_penalty",),
        ("actor/entropy",),
        kl_needs={"actor/reward_kl_penalty": (KL_IN_REWARD,)},
        not_kl={
            "actor/kl_loss": "is a sum over mini-batches and epochs from 0.7 on, divided by the gradient "
            "accumulation before that, and 0 without use_kl_loss; algorithm.use_kl_in_reward=True logs "
            "`actor/reward_kl_penalty`, which is a token mean"
        },
        metrics='`trainer.logger=["console","file"]`: its JSONL, or its console',
        whole_rows=True,
        layout=Layout(
            re.compile(r"global_step_(\d{1,15})"),
            models=("actor/lora_adapter", "actor/huggingface"),
            latest="latest_checkpointed_iteration.txt",
            advice="set `actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]`",
        ),
        start="actor_rollout_ref.model.path={path} trainer.default_local_dir={folder}",
        tested="0.9.1",
    ),
    Framework(
        "OpenRLHF",
        ("reward", "rollout/reward_mean"),
        ("kl",),
        ("entropy_loss",),
        ("rollout/reward_std",),
        kl_needs={
            "kl": (
                Setting("kl.estimator", ("k1", "k3")),
                Setting("kl.init_coef"),
                # With it the log has a share of each micro-batch in the step's mean, which under dynamic
                # batches is so many times too small as there are of them.
                Setting("kl.use_loss", ("false",), default="false"),
            )
        },
        marks=("actor_lr",),  # of releases whose other names were TRL's
        metrics="TensorBoard (`--logger.tensorboard_dir`)",
        layout=Layout(
            re.compile(r"global_step(\d{1,15})_hf"),
            advice="add `--ckpt.save_hf`",
        ),
        start="--actor.model_name_or_path {path} --ckpt.path {folder}",
        tested="0.11.2",
    ),
    Framework(
        "NeMo-RL",
        ("reward",),
        ("kl_penalty",),
        ("approx_entropy",),
        # Of several optimizer steps a rollout it is the mean: a worker divides by their number what is added
        # up. 0 is logged where there is no penalty, or where it is in the reward.
        kl_needs={
            "kl_penalty": (
                Setting("token_level_loss", ("true",)),
                Setting("reference_policy_kl_penalty"),
                Setting("use_kl_in_reward", ("false",), default="false"),
                Setting("reference_policy_kl_type", ("k1", "k3"), default="k3"),
            )
        },
        metrics="TensorBoard (`logger.tensorboard_enabled=true`)",
        layout=Layout(
            re.compile(r"step_(\d{1,15})"),
            models=(
                "policy/weights/model/consolidated",
                "policy/weights/consolidated",
                "policy/weights/model",
                "policy/weights",
            ),
            advice="set `checkpointing.save_consolidated=true`",
        ),
        start="policy.model_name={path} checkpointing.checkpoint_dir={folder}",
        tested="August 2026",
    ),
    Framework(
        "torchtune",
        ("rewards", "scores"),
        ("kl_loss",),
        metrics="TensorBoard",
        start="checkpointer.checkpoint_dir={path} output_dir={folder}",
        start_note="with that folder's files as `checkpointer.checkpoint_files`; `ref_checkpointer` stays",
        tested="0.6.1",
    ),
    Framework(
        "prime-rl",
        ("agg/all/*/reward/mean", "all/reward/mean", "reward/all/mean"),
        (),
        ("entropy/all/mean",),
        ("all/reward/std", "reward/all/std"),
        metrics="`metrics.jsonl` of its orchestrator's file monitor",
        whole_rows=True,
        layout=Layout(
            re.compile(r"step_(\d{1,15})"),
            models=("weight", ""),
            marker="STABLE",
            advice="let it save weights as safetensors",
        ),
        start="--model.name {path} --output-dir {folder}",
        tested="August 2026",
    ),
    Framework(
        "SkyRL",
        ("reward/avg_raw_reward",),
        ("policy/policy_kl",),
        ("policy/policy_entropy",),
        kl_needs={
            "policy/policy_kl": (
                Setting("kl_estimator_type", ("k1", "k3")),
                Setting("use_kl_loss", ("true",), default="true"),  # without it Megatron's worker logs 0
            )
        },
        metrics="TensorBoard (`trainer.logger=tensorboard`)",
        layout=Layout(
            re.compile(r"global_step_(\d{1,15})"),
            models=("policy",),
            advice="set `trainer.hf_save_interval`",
        ),
        start="trainer.policy.model.path={path} trainer.ckpt_path={folder} trainer.export_path={folder}",
        tested="0.3.0",
    ),
    Framework(
        "slime",
        ("rollout/raw_reward",),
        not_kl={"kl_loss": "is counted in optimizer steps, and the reward in rollouts"},
        metrics="TensorBoard (`--use-tensorboard`), in the `TENSORBOARD_DIR` of all its processes",
        layout=Layout(
            re.compile(r"(\d{1,15})"),
            advice="add `--save-hf DIR/{rollout_id}`",
        ),
        start="--load {path} --save {folder} --save-hf {folder}/{{rollout_id}}",
        start_note="if it loads that type of model from Hugging Face's form: else it starts from "
        "`--ref-load` without a word, so convert the weights to Megatron's form first",
        tested="August 2026",
    ),
    Framework(
        "ROLL",
        ("critic/score/mean",),
        ("critic/kl", "*/critic/kl"),
        ("critic/entropy/mean", "actor/entropy"),
        kl_needs={"critic/kl": (KL_IN_REWARD,), "*/critic/kl": (KL_IN_REWARD,)},
        not_kl={"actor/kl_loss": "is aggregated as the run's loss is, which its log does not say"},
        metrics="its standard output (`metrics_tag: …`), TensorBoard",
        whole_rows=True,
        # Its first rank writes the tokenizer after the weights and their index. Not so of HF's trainer.
        layout=Layout(
            re.compile(r"checkpoint-(\d{1,15})"),
            marker="tokenizer_config.json",
            advice="with Megatron set `actor_train.training_args.save_hf_model: true`",
        ),
        start_note="its command takes none; its YAML names the weights as `model_args.model_name_or_path` of "
        "`actor_train` and `actor_infer`, and must name those of `reference`, too: without one of the three "
        "`pretrain` counts for all",
        tested="August 2026",
    ),
    Framework(
        "EasyR1",
        ("reward/overall",),
        ("actor/kl_loss", "actor/kl_penalty", "critic/kl"),
        ("actor/entropy_loss",),
        kl_needs={
            "actor/kl_loss": (Setting("loss_avg_mode", ("token",)), KL_IN_REWARD),
            "actor/kl_penalty": (KL_IN_REWARD,),
            "critic/kl": (KL_IN_REWARD,),
        },
        derived_from="verl",
        metrics="`experiment_log.jsonl`",
        whole_rows=True,
        layout=Layout(
            re.compile(r"global_step_(\d{1,15})"),
            models=("actor/huggingface",),
            latest="checkpoint_tracker.json",
            latest_key="last_global_step",
            advice="merge its shards with `scripts/model_merger.py`",
        ),
        start="worker.actor.model.model_path={path} trainer.save_checkpoint_path={folder}",
        tested="July 2026",
    ),
    Framework(
        "ms-swift",
        ("reward",),
        ("kl",),
        ("entropy",),
        ("reward_std",),
        kl_needs={"kl": (SWIFT_KL_IN_REWARD,)},
        marks=("global_step/max_steps", "train_speed(s/it)"),  # the second with Megatron, too
        metrics="`logging.jsonl`, with `--add_version false`",
        whole_rows=True,
        layout=HUGGING_FACE,
        other_layout=SWIFT_MEGATRON,
        start="--model {path} --output_dir {folder} --add_version false",
        tested="4.6.0",
    ),
    Framework(
        "tinker",
        ("env/all/reward/total", "reward/mean", "reward/total"),
        ("kl_policy_base",),
        metrics="`metrics.jsonl`",
        whole_rows=True,
        start_note="its weights are in Tinker's service, and `load_checkpoint_path` takes their `tinker://` "
        "address, which no guard knows",
        tested="0.6.1",
    ),
)

#: Names of further figures, whatever the framework, as `guard_core.symptoms.Logged` has them; nothing
#: is judged by them.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "clipped": (
        *("completions/clipped_ratio", "response_length/clip_ratio", "is_truncated/all/mean"),
        *("agg/all/*/is_truncated/mean", "rollout/truncated_ratio", "rollout/truncated_rate"),
        "truncation_rate",
    ),
    "zero_std": ("frac_reward_zero_std",),
    "mixed": ("env/all/by_group/frac_mixed",),
    "length": (
        *("completions/mean_length", "response_length/mean", "completion_length"),
        *("rollout/response_length_mean", "token/response_length/mean"),
        *("mean_gen_tokens_per_sample", "generate/avg_num_tokens", "agg/all/*/num_output_tokens/mean"),
    ),
    "longest": (
        *("completions/max_length", "response_length/max", "max_gen_tokens_per_sample"),
        *("gen_tokens_per_sample/max", "generate/max_num_tokens", "agg/all/*/num_output_tokens/max"),
    ),
}

#: Of names that begin as a component of the reward does: what is a spread, a whole, or of a preference loss.
NO_COMPONENTS = frozenset(
    {"mean", "std", "min", "max", "total", "overall", "chosen", "rejected", "margins", "accuracies"}
)


def figure_of(column: str) -> str:
    """Which of `FIGURES` a column is; "components" for a component of the reward; "" for anything else.

    TRL logs a component as `rewards/NAME/mean`, EasyR1 as `reward/NAME` beside `reward/overall`. Tables of a
    notebook have spaces around the slashes.
    """
    name = bare(column).replace(" / ", "/")
    first, slash, rest = name.partition("/")
    if slash and first in ("reward", "rewards"):
        part = rest.removesuffix("/mean")
        return "components" if part not in NO_COMPONENTS and not part.endswith("/std") else ""
    known = _FIGURE_BY_NAME.get(name)
    return known or next((figure for wanted, figure in FIGURE_PATTERNS if fits(name, wanted)), "")


_FIGURE_BY_NAME = {name: figure for figure, names in FIGURES.items() for name in names}
#: Names of figures with a part that the run chooses, and the figure of each.
FIGURE_PATTERNS = tuple((name, figure) for name, figure in _FIGURE_BY_NAME.items() if "*" in name)

BY_KEY = {framework.key: framework for framework in FRAMEWORKS}

#: Formats that are no framework's: only how the file is to be read.
FILE_FORMATS = ("auto", "tensorboard", "jsonl", "csv")
#: What a log can be said to be.
FORMATS = (*FILE_FORMATS, *BY_KEY)
