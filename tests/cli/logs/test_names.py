"""Which column is what: every framework of the table, every look-alike, W&B's decorations, --map."""

import time
import timeit
from functools import partial

import pytest

from guard_cli.logs.readers import read_log
from guard_cli.starting import settings_to_start, why_no_settings
from guard_follow.columns import heldout_candidates, quantity_of, resolve, why_not_kl
from guard_follow.decoders import MAX_NAME
from guard_follow.errors import InputError
from guard_follow.frameworks import BY_KEY
from tests.cli.logs.recorded import LOGS as RECORDED_LOGS

LOGS = {
    "TRL": {"step": "step", "reward": "reward", "kl": "kl", "entropy": "entropy", "reward_std": "reward_std"},
    "verl": {
        "step": "training/global_step",
        "reward": "critic/score/mean",
        "kl": "actor/reward_kl_penalty",
        "entropy": "actor/entropy",
    },
    "OpenRLHF": {
        "step": "global_step",
        "reward": "rollout/reward_mean",
        "kl": "kl",
        "entropy": "entropy_loss",
        "reward_std": "rollout/reward_std",
    },
    "NeMo-RL": {"step": "step", "reward": "reward", "kl": "kl_penalty", "entropy": "approx_entropy"},
    "SkyRL": {
        "step": "global_step",
        "reward": "reward/avg_raw_reward",
        "kl": "policy/policy_kl",
        "entropy": "policy/policy_entropy",
    },
    "ROLL": {
        "step": "step",
        "reward": "critic/score/mean",
        "kl": "math_rule/critic/kl",
        "entropy": "critic/entropy/mean",
    },
    "torchtune": {"step": "global_step", "reward": "rewards", "kl": "kl_loss"},
    "prime-rl": {
        "step": "step",
        "reward": "reward/all/mean",
        "entropy": "entropy/all/mean",
        "reward_std": "reward/all/std",
    },
}
TOKEN_MEAN = {"kl_penalty": "low_var_kl"}
#: Under these the KL of every framework is a token mean.
ARMED = {**TOKEN_MEAN, "kl.estimator": "k1", "kl.init_coef": "0.01", "kl_estimator_type": "k3"}
ARMED |= {"token_level_loss": "true", "reference_policy_kl_penalty": "0.01"}
EXTRAS = ["epoch", "loss", "grad_norm", "completions/mean_length", "rewards/grade/mean", "num_tokens"]


class TestFrameworks:
    @pytest.mark.parametrize("name", LOGS)
    def test_each_is_recognised(self, name: str) -> None:
        columns = resolve([*EXTRAS, *LOGS[name].values()], {}, settings=ARMED)
        assert columns.framework == name
        assert columns.source == LOGS[name]
        assert columns.notes == ()

    @pytest.mark.parametrize("name", LOGS)
    def test_wandb_and_tensorboard_put_train_before_it(self, name: str) -> None:
        wrapped = {ours: f"train/{theirs}" for ours, theirs in LOGS[name].items()}
        assert resolve(list(wrapped.values()), {}, settings=ARMED).source == wrapped

    def test_wandb_chart_export(self) -> None:
        columns = ["Step", *(f"my - run - train/reward{tail}" for tail in ("", "__MIN", "__MAX"))]
        assert resolve(columns, {}).source == {"step": "Step", "reward": "my - run - train/reward"}

    def test_the_guards_own_export(self) -> None:
        own = ["attempt", "step", "reward", "kl", "kl_kind", "entropy", "reward_std", "heldout", "items"]
        columns = resolve(own, {})
        assert columns.framework == "rlguard"
        assert columns.source == {name: name for name in own}

    def test_verl_has_two_kls_and_the_loss_is_none(self) -> None:
        both = ["step", "critic/score/mean", "actor/reward_kl_penalty", "actor/kl_loss"]
        assert resolve(both, {}, settings=TOKEN_MEAN).source["kl"] == "actor/reward_kl_penalty"
        [note] = resolve([*both[:2], both[3]], {}, settings=TOKEN_MEAN).notes
        assert "`actor/kl_loss` is not taken" in note and "use_kl_in_reward" in note

    def test_wandb_counts_log_calls_in_its_own_step(self) -> None:
        assert (
            resolve(["_step", "train/global_step", "train/reward"], {}).source["step"] == "train/global_step"
        )
        assert resolve(["_step", "train/reward"], {}).source["step"] == "_step"


class TestLookalikes:
    @pytest.mark.parametrize(
        ("column", "why"),
        [
            ("actor/ppo_kl", "the policy that sampled"),
            ("ppo_kl", "the policy that sampled"),
            ("approx_policy_kl", "the policy that sampled"),
            ("approx_policy_kls", "the policy that sampled"),
            ("losses/old_approx_kl", "the policy that sampled"),
            ("policy/approxkl_avg", "the policy that sampled"),
            ("mismatch_kl/all/mean", "inference engine"),
            ("train/gen_kl_error", "inference engine"),
            ("policy_kl_error", "inference engine"),
            ("js_divergence_error", "inference engine"),
            ("vllm_kl", "inference engine"),
            ("rollout_corr/k3_kl", "inference engine"),
            ("objective/kl", "summed over the tokens"),
        ],
    )
    def test_none_is_taken_and_the_note_says_why(self, column: str, why: str) -> None:
        columns = resolve(["step", "reward", column], {})
        assert "kl" not in columns.source
        assert len(columns.notes) == 1 and column in columns.notes[0] and why in columns.notes[0]
        with pytest.raises(InputError, match="is refused") as refused:
            resolve(["step", "reward", column], {"kl": column})
        assert why in str(refused.value)

    def test_a_coefficient_is_refused_but_not_worth_a_note(self) -> None:
        assert resolve(["step", "reward", "actor/reward_kl_penalty_coeff"], {}).notes == ()
        with pytest.raises(InputError, match="coefficient"):
            resolve(["step", "reward", "kl_coef"], {"kl": "kl_coef"})

    @pytest.mark.parametrize(
        ("reward", "mark", "why"),
        [
            ("reward", "ratio", "async_grpo"),
            ("reward", "kl_loss", "the policy that sampled"),
            ("scores", "approx_policy_kl", "summed over the tokens"),
            ("scores", "rlhf_reward", "summed over the tokens"),
        ],
    )
    def test_a_column_kl_that_is_none_by_the_company_it_keeps(self, reward: str, mark: str, why: str) -> None:
        columns = resolve(["step", reward, "kl", mark], {})
        assert "kl" not in columns.source
        assert any(why in note for note in columns.notes)
        with pytest.raises(InputError, match=why):
            resolve(["step", reward, "kl", mark], {"kl": "kl"})

    def test_a_ratio_in_the_log_of_a_script_of_ones_own_is_not_trls_async_grpo(self) -> None:
        columns = resolve(["step", "reward_mean", "kl", "ratio"], {"reward": "reward_mean"})
        assert columns.source["kl"] == "kl"

    def test_an_unknown_kl_is_offered_not_taken(self) -> None:
        columns = resolve(["step", "reward", "my/kl"], {})
        assert "kl" not in columns.source
        assert "--map kl=my/kl" in columns.notes[0]
        assert resolve(["step", "reward", "my/kl"], {"kl": "my/kl"}).source["kl"] == "my/kl"

    @pytest.mark.parametrize("name", ["time/compute_kl_penalty", "timing_s/kl", "kl/seconds"])
    def test_how_long_a_kl_took_is_not_offered_as_the_kl(self, name: str) -> None:
        assert resolve(["step", "reward", name], {}).notes == ()

    def test_the_trainers_own_validation_is_the_held_out_score_and_that_is_said(self) -> None:
        columns = resolve(["step", "reward", "eval_reward"], {})
        assert columns.source["heldout"] == "eval_reward"
        assert "trusts the trainer" in columns.notes[0]
        assert resolve(["step", "reward", "eval_reward"], {"heldout": "eval_reward"}).notes == ()

    def test_columns_like_a_held_out_score_are_offered_the_likeliest_first(self) -> None:
        columns = ["step", "reward", "eval_reward_std", "lr", "my/accuracy", "eval_words_reward", "eval/time"]
        assert heldout_candidates(columns) == ["eval_words_reward", "my/accuracy"]

    @pytest.mark.parametrize("settings", [{}, {"loss_agg_mode": "token-mean", "kl_loss_type": "k3"}])
    def test_verls_kl_loss_is_taken_for_no_setting_but_may_be_vouched_for(
        self, settings: dict[str, str]
    ) -> None:
        columns = resolve(["step", "critic/score/mean", "actor/kl_loss"], {}, settings=settings)
        assert "kl" not in columns.source
        assert "mini-batches" in columns.notes[0]
        vouched = resolve(["step", "critic/score/mean", "actor/kl_loss"], {"kl": "actor/kl_loss"})
        assert vouched.source["kl"] == "actor/kl_loss" and vouched.notes == ()

    @pytest.mark.parametrize(
        ("reward", "kl", "settings"),
        [
            ("critic/score/mean", "actor/reward_kl_penalty", {}),
            ("critic/score/mean", "critic/kl", {}),
            ("critic/score/mean", "math_rule/critic/kl", {}),
            ("reward/overall", "critic/kl", {}),
            ("reward/overall", "actor/kl_penalty", {}),
            ("reward/overall", "actor/kl_loss", {"loss_avg_mode": "token"}),
        ],
    )
    def test_a_kl_needs_an_estimator_of_the_kl(self, reward: str, kl: str, settings: dict[str, str]) -> None:
        for estimator in ("abs", "mse", "k2", "full", "new", None):
            more = {} if estimator is None else {"kl_penalty": estimator}
            columns = resolve(["step", reward, kl], {}, settings={**settings, **more})
            assert "kl" not in columns.source
            assert "kl_penalty" in columns.notes[0] and kl in columns.notes[0]
        for estimator in ("kl", "k1", "low_var_kl", "k3"):
            columns = resolve(["step", reward, kl], {}, settings={**settings, "kl_penalty": estimator})
            assert columns.source["kl"] == kl and columns.notes == ()

    @pytest.mark.parametrize("settings", [{}, {"loss_avg_mode": "sequence"}])
    def test_easyr1s_kl_loss_needs_to_be_a_token_mean_too(self, settings: dict[str, str]) -> None:
        columns = resolve(
            ["step", "reward/overall", "actor/kl_loss"], {}, settings={"kl_penalty": "kl", **settings}
        )
        assert "kl" not in columns.source and "loss_avg_mode" in columns.notes[0]

    def test_a_reward_after_the_kl_penalty_is_no_reward(self) -> None:
        with pytest.raises(InputError, match="has the KL penalty taken off"):
            resolve(["step", "critic/rewards/mean"], {})


class TestPartsThatTheRunChooses:
    AGENT = "train/agg/all/solver/reward/mean"

    def test_the_reward_of_the_only_agent(self) -> None:
        others = ["train/agg/effective/solver/reward/mean", "train/gsm8k/all/solver/reward/mean"]
        columns = resolve(["step", *others, self.AGENT], {})
        assert columns.framework == "prime-rl" and columns.source["reward"] == self.AGENT

    def test_of_two_agents_one_is_chosen_by_the_user(self) -> None:
        log = ["step", self.AGENT, "train/agg/all/proposer/reward/mean"]
        with pytest.raises(InputError, match=f"`{self.AGENT}`, .*Choose one with --map reward={self.AGENT}"):
            resolve(log, {})
        assert resolve(log, {"reward": self.AGENT}).source["reward"] == self.AGENT

    @pytest.mark.parametrize(
        "name", ["agg/all/a/b/reward/mean", "agg/all/reward/mean", "x/agg/all/a/reward/mean"]
    )
    def test_it_is_one_part(self, name: str) -> None:
        assert not quantity_of(name)
        assert quantity_of(self.AGENT)

    def test_the_kls_of_two_tasks_are_not_the_kl(self) -> None:
        log = ["step", "critic/score/mean", "critic/entropy/mean", "math/critic/kl", "code/critic/kl"]
        columns = resolve(log, {}, settings=TOKEN_MEAN)
        assert "kl" not in columns.source
        assert any("KLs of parts of the batch" in note for note in columns.notes)


NEMO_RL = {"token_level_loss": "true", "reference_policy_kl_penalty": "0.01"}
OPENRLHF = {"kl.estimator": "k1", "kl.init_coef": "1e-3"}
SKYRL = {"kl_estimator_type": "k3"}


COLUMNS = (
    (["reward", "approx_entropy", "kl_penalty"], NEMO_RL),
    (["rollout/reward_mean", "rollout/reward_std", "kl"], OPENRLHF),
    (["reward/avg_raw_reward", "policy/policy_kl"], SKYRL),
)


class TestAKlThatTheLogAloneDoesNotTell:
    """Each is 0, averaged otherwise or another distance under some settings, by the framework's source."""

    @pytest.mark.parametrize(("columns", "enough"), COLUMNS)
    def test_it_is_not_taken_without_the_runs_configuration(
        self, columns: list[str], enough: dict[str, str]
    ) -> None:
        for left_out in (*enough, None):
            settings = {} if left_out is None else {k: v for k, v in enough.items() if k != left_out}
            found = resolve(["step", *columns], {}, settings=settings)
            [note] = found.notes
            assert "kl" not in found.source and found.source["reward"] == columns[0]
            assert f"`{columns[-1]}` is not taken" in note and "was found: give it with --run-config" in note
            assert (left_out or next(iter(enough))) in note
        taken = resolve(["step", *columns], {}, settings=enough)
        assert taken.source["kl"] == columns[-1] and taken.notes == ()
        vouched = resolve(["step", *columns], {"kl": columns[-1]})
        assert vouched.source["kl"] == columns[-1] and vouched.notes == ()

    @pytest.mark.parametrize(
        ("columns", "settings"),
        [
            *((COLUMNS[0][0], NEMO_RL | {"reference_policy_kl_type": other}) for other in ("k2", "abs")),
            (COLUMNS[0][0], NEMO_RL | {"token_level_loss": "false"}),
            (COLUMNS[0][0], NEMO_RL | {"use_kl_in_reward": "true"}),
            *((COLUMNS[0][0], NEMO_RL | {"reference_policy_kl_penalty": zero}) for zero in ("0", "0.0", "x")),
            (COLUMNS[1][0], OPENRLHF | {"kl.estimator": "k2"}),
            (COLUMNS[1][0], OPENRLHF | {"kl.init_coef": "0"}),
            (COLUMNS[1][0], OPENRLHF | {"kl.use_loss": "true"}),
            (COLUMNS[2][0], {"kl_estimator_type": "k2"}),
            (COLUMNS[2][0], SKYRL | {"use_kl_loss": "false"}),
        ],
    )
    def test_nor_under_settings_that_make_it_something_else(
        self, columns: list[str], settings: dict[str, str]
    ) -> None:
        found = resolve(["step", *columns], {}, settings=settings)
        assert "kl" not in found.source and found.source["reward"] == columns[0]
        assert any(f"the run has {key}='{value}', and" in found.notes[0] for key, value in settings.items())

    @pytest.mark.parametrize("estimator", ["k1", "k3"])
    def test_any_estimator_of_the_kl_will_do(self, estimator: str) -> None:
        for (columns, enough), key in zip(
            COLUMNS, ("reference_policy_kl_type", "kl.estimator", "kl_estimator_type"), strict=True
        ):
            found = resolve(["step", *columns], {}, settings=enough | {key: estimator})
            assert found.source["kl"] == columns[-1]


class TestHostileNames:
    """`re` lets no other thread run meanwhile, not the one that ends the trainer."""

    @pytest.mark.parametrize(
        "part", ["kl/", "kl", "ppo_kl/", "approx_", "eval_reward\n", "n_", "kl_coef", " - "]
    )
    def test_no_name_is_slow_for_its_length(self, part: str) -> None:
        def seconds(name: str) -> float:
            look = partial(resolve, ["step", "reward", name], {})
            return min(timeit.repeat(look, timer=time.process_time, number=3, repeat=5))

        assert seconds("eval_" + part * 40) < 30 * seconds("eval_" + "a" * len(part * 40))
        assert seconds(part * 40) < 30 * seconds("a" * len(part * 40))

    def test_a_longer_one_is_not_looked_at_and_that_is_told_once(self) -> None:
        longest, longer, longer_still = ("kl/" + "x" * (MAX_NAME - 3 + more) for more in (0, 1, 2))
        columns = resolve(["step", "reward", longest, longer, longer_still], {})
        *_, told = columns.notes
        assert told == "Columns with names of more than 200 characters are ignored."
        assert len(columns.notes) == 2 and longest in columns.notes[0]
        assert resolve(["step", "reward"], {}).notes == ()

    @pytest.mark.parametrize(
        "column",
        [
            "a/ppo_kl/b",
            "rollout_is/a/my_kl",
            "mismatch_kl",
            "a/kl_sample_train_x/b",
            "a/kl/coeffs",
            "klbeta",
            "x/kl_reward",
        ],
    )
    def test_a_lookalike_is_known_by_its_parts(self, column: str) -> None:
        assert why_not_kl(column, ())

    @pytest.mark.parametrize(
        "column", ["my_ppo_kl", "rollout_is", "beta", "kl", "kl/betax", "a/objective/kl"]
    )
    def test_another_is_none(self, column: str) -> None:
        assert why_not_kl(column, ()) is None


class TestErrors:
    def test_two_frameworks_disagree_about_the_reward(self) -> None:
        with pytest.raises(InputError, match=r"`reward` \(TRL\), `critic/score/mean` \(verl\).*--map reward"):
            resolve(["step", "reward", "critic/score/mean"], {})
        assert (
            resolve(["step", "reward", "critic/score/mean"], {"reward": "reward"}).source["reward"]
            == "reward"
        )

    def test_no_step(self) -> None:
        with pytest.raises(InputError, match=r"no column says the step.*found: `loss`, `reward`"):
            resolve(["loss", "reward"], {})

    def test_no_reward_says_what_was_found(self) -> None:
        with pytest.raises(InputError, match=r"--map reward=score; found: `score`, `step`"):
            resolve(["step", "score"], {})

    def test_several_runs_in_one_export(self) -> None:
        with pytest.raises(InputError, match="several runs"):
            resolve(["Step", "a - train/reward", "b - train/reward"], {})

    def test_map_to_a_column_that_is_not_there(self) -> None:
        with pytest.raises(InputError, match=r"there is no such column. Found: `step`"):
            resolve(["step"], {"reward": "x"})

    def test_map_with_a_slip(self) -> None:
        with pytest.raises(InputError, match=r"there is no such column. Did you mean `my/score`\? Found"):
            resolve(["step", "my/score"], {"reward": "my/scroe"})
        with pytest.raises(InputError, match=r"rewrd is not a quantity: did you mean reward\?"):
            resolve(["step", "my/score"], {"rewrd": "my/score"})

    def test_map_of_a_name_that_is_not_canonical(self) -> None:
        with pytest.raises(InputError, match="loss is not a quantity: known are"):
            resolve(["step", "reward", "loss"], {"loss": "loss"})


@pytest.mark.parametrize(
    ("key", "settings", "to_know"),
    [
        (
            "slime",
            "--load PATH --save NEW --save-hf NEW/{rollout_id}`",
            "it starts from `--ref-load` without",
        ),
        ("torchtune", "checkpointer.checkpoint_dir=PATH output_dir=NEW`", "`ref_checkpointer` stays)"),
    ],
)
def test_what_makes_it_start_from_weights_is_told_with_what_to_know(
    key: str, settings: str, to_know: str
) -> None:
    told = settings_to_start(key, "PATH", "NEW")
    assert settings in told and to_know in told and why_no_settings(key) == ""


def test_of_a_framework_without_such_settings_it_is_told_why() -> None:
    assert "ROLL: its command takes none; its YAML names the weights" in why_no_settings("roll")
    assert "tinker: its weights are in Tinker's service" in why_no_settings("tinker")
    assert [settings_to_start(key, "PATH", "NEW") for key in ("roll", "tinker", "jsonl")] == ["", "", ""]
    assert [why_no_settings(key) for key in ("verl", "trl", "jsonl")] == ["", "", ""]
    followed = [f for f in BY_KEY.values() if f.reads and f.key != "trl"]
    assert all(f.start or f.start_note for f in followed)


def test_ms_swift_is_told_to_write_where_it_is_looked_for() -> None:
    """By itself it makes a new folder at each start, whose name nobody knows before."""
    assert "`--add_version false`" in BY_KEY["ms-swift"].reads
    assert "--output_dir NEW --add_version false`" in settings_to_start("ms-swift", "PATH", "NEW")


class TestTwoThatLogUnderTheSameNames:
    """ms-swift trains with TRL's trainer, and its logs say so in every name but a few of their own."""

    @pytest.mark.parametrize("mark", BY_KEY["ms-swift"].marks)
    def test_ms_swift_is_told_from_trl_by_what_it_alone_logs(self, mark: str) -> None:
        columns = {"global_step", "reward", "kl", "reward_std", "entropy"}
        assert resolve(columns, {}).framework == "TRL"
        assert resolve({*columns, mark}, {}).framework == "ms-swift"

    def test_openrlhf_before_it_had_names_of_its_own_is_told_from_trl(self) -> None:
        """Its KL takes the run's configuration to be known for a token mean; TRL's does not."""
        columns = {"global_step", "train/reward", "train/kl", "train/return", "train/response_length"}
        assert resolve({*columns, "train/actor_lr"}, {}).framework == "OpenRLHF"
        assert resolve(columns, {}).framework == "TRL", "nothing in it tells them apart"

    @pytest.mark.parametrize("framework", ["trl", "ms-swift", None])
    @pytest.mark.parametrize("mark", BY_KEY["ms-swift"].marks)
    @pytest.mark.parametrize("said", [None, "true"])
    def test_ms_swifts_kl_is_a_sum_with_kl_in_reward(
        self, framework: str | None, mark: str, said: str | None
    ) -> None:
        """By default for two of its algorithms; `--format trl` makes nothing else of it."""
        columns = ["global_step", "reward", "kl", mark]
        found = resolve(columns, {}, framework, {} if said is None else {"kl_in_reward": said})
        assert "kl" not in found.source and found.source["reward"] == "reward"
        assert "`kl` is not taken as the KL to the reference" in found.notes[0]
        assert "kl_in_reward=false" in found.notes[0]
        assert resolve(columns, {}, framework, {"kl_in_reward": "false"}).source["kl"] == "kl"

    def test_an_event_file_of_ms_swift_has_no_mark_but_its_run_an_args_json(self) -> None:
        columns = ["step", "train/reward", "train/kl"]
        assert resolve(columns, {}).source["kl"] == "train/kl"
        assert "kl" not in resolve(columns, {}, settings={"kl_in_reward": "true"}).source

    def test_a_mark_decides_nothing_of_a_log_without_its_reward(self) -> None:
        columns = {"step", "critic/score/mean", "actor/entropy", "train_speed(s/it)"}
        assert resolve(columns, {}).framework == "verl"

    @pytest.mark.parametrize("name", ["ms-swift", "ms-swift-megatron", "trl-tensorboard"])
    def test_in_the_logs_that_their_writers_made(self, name: str) -> None:
        by = "TRL" if name.startswith("trl") else "ms-swift"
        folder = RECORDED_LOGS / name / "0"
        table = read_log(folder if by == "TRL" else folder / "logging.jsonl")
        assert resolve(table.names, {}).framework == by
