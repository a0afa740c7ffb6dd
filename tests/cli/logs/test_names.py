"""Which column is what: every framework of the table, every look-alike, W&B's decorations, --map."""

import time

import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.starting import start_hint
from rlguard.follow.columns import heldout_candidates, quantity_of, resolve, why_not_kl
from rlguard.follow.decoders import MAX_NAME
from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import BY_KEY
from tests.cli.logs.recorded import LOGS as RECORDED_LOGS

TOKEN_MEAN = {"kl_penalty": "low_var_kl"}
NEMO_RL = {"token_level_loss": "true", "reference_policy_kl_penalty": "0.01"}
OPENRLHF = {"kl.estimator": "k1", "kl.init_coef": "1e-3"}
SKYRL = {"kl_estimator_type": "k3"}


class TestFrameworks:
    def test_wandb_chart_export(self) -> None:
        columns = ["Step", *(f"my - run - train/reward{tail}" for tail in ("", "__MIN", "__MAX"))]
        assert resolve(columns, {}).source == {"step": "Step", "reward": "my - run - train/reward"}

    def test_wandb_counts_log_calls_in_its_own_step(self) -> None:
        both = ["_step", "train/global_step", "train/reward"]
        assert resolve(both, {}).source["step"] == "train/global_step"
        assert resolve(["_step", "train/reward"], {}).source["step"] == "_step"

    def test_the_guards_own_export(self) -> None:
        own = ["attempt", "step", "reward", "kl", "kl_kind", "entropy", "reward_std", "heldout", "items"]
        columns = resolve(own, {})
        assert columns.framework == "rlguard" and columns.source == {name: name for name in own}

    def test_the_trainers_own_validation_is_the_held_out_score_and_that_is_said(self) -> None:
        columns = resolve(["step", "reward", "eval_reward"], {})
        assert columns.source["heldout"] == "eval_reward" and "trusts the trainer" in columns.notes[0]
        assert resolve(["step", "reward", "eval_reward"], {"heldout": "eval_reward"}).notes == ()

    def test_columns_like_a_held_out_score_are_offered_the_likeliest_first(self) -> None:
        columns = ["step", "reward", "eval_reward_std", "lr", "my/accuracy", "eval_words_reward", "eval/time"]
        assert heldout_candidates(columns) == ["eval_words_reward", "my/accuracy"]


class TestLookalikes:
    @pytest.mark.parametrize(
        ("column", "why"),
        [
            ("actor/ppo_kl", "the policy that sampled"),
            ("losses/old_approx_kl", "the policy that sampled"),
            ("mismatch_kl/all/mean", "inference engine"),
            ("rollout_corr/k3_kl", "inference engine"),
            ("a/kl_sample_train_x/b", "inference engine"),
            ("objective/kl", "summed over the tokens"),
            ("x/kl_reward", "penalty"),
        ],
    )
    def test_none_is_taken_and_the_note_says_why(self, column: str, why: str) -> None:
        columns = resolve(["step", "reward", column], {})
        assert "kl" not in columns.source
        assert len(columns.notes) == 1 and column in columns.notes[0] and why in columns.notes[0]
        with pytest.raises(InputError, match="is refused") as refused:
            resolve(["step", "reward", column], {"kl": column})
        assert why in str(refused.value)

    @pytest.mark.parametrize("column", ["my_ppo_kl", "rollout_is", "beta", "kl/betax", "a/objective/kl"])
    def test_a_name_that_only_contains_one_is_none(self, column: str) -> None:
        assert why_not_kl(column, ()) is None

    @pytest.mark.parametrize("column", ["actor/reward_kl_penalty_coeff", "kl_coef", "a/kl/coeffs", "klbeta"])
    def test_a_coefficient_is_refused_but_not_worth_a_note(self, column: str) -> None:
        assert resolve(["step", "reward", column], {}).notes == ()
        with pytest.raises(InputError, match="coefficient"):
            resolve(["step", "reward", column], {"kl": column})

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
        assert "kl" not in columns.source and any(why in note for note in columns.notes)
        with pytest.raises(InputError, match=why):
            resolve(["step", reward, "kl", mark], {"kl": "kl"})

    def test_a_ratio_in_the_log_of_a_script_of_ones_own_is_not_trls_async_grpo(self) -> None:
        columns = resolve(["step", "reward_mean", "kl", "ratio"], {"reward": "reward_mean"})
        assert columns.source["kl"] == "kl"

    def test_an_unknown_kl_is_offered_not_taken_and_how_long_it_took_is_neither(self) -> None:
        columns = resolve(["step", "reward", "my/kl", "timing_s/kl"], {})
        [note] = columns.notes
        assert "kl" not in columns.source and "--map kl=my/kl" in note
        assert resolve(["step", "reward", "my/kl"], {"kl": "my/kl"}).source["kl"] == "my/kl"

    def test_a_reward_after_the_kl_penalty_is_no_reward(self) -> None:
        with pytest.raises(InputError, match="has the KL penalty taken off"):
            resolve(["step", "critic/rewards/mean"], {})


class TestAKlThatTheLogAloneDoesNotTell:
    """Each is 0, averaged otherwise or another distance under some settings, by the framework's source."""

    @pytest.mark.parametrize(
        ("columns", "enough", "wrong"),
        [
            (["critic/score/mean", "actor/reward_kl_penalty"], TOKEN_MEAN, {"kl_penalty": "mse"}),
            (
                ["reward/overall", "actor/kl_loss"],
                TOKEN_MEAN | {"loss_avg_mode": "token"},
                {"loss_avg_mode": "sequence"},
            ),
            (["reward", "approx_entropy", "kl_penalty"], NEMO_RL, {"use_kl_in_reward": "true"}),
            (["reward", "approx_entropy", "kl_penalty"], NEMO_RL, {"reference_policy_kl_penalty": "0.0"}),
            (["rollout/reward_mean", "rollout/reward_std", "kl"], OPENRLHF, {"kl.use_loss": "true"}),
            (["reward/avg_raw_reward", "policy/policy_kl"], SKYRL, {"use_kl_loss": "false"}),
        ],
    )
    def test_it_is_taken_with_a_configuration_that_makes_it_one_or_if_the_user_vouches(
        self, columns: list[str], enough: dict[str, str], wrong: dict[str, str]
    ) -> None:
        log, reward, kl = ["step", *columns], columns[0], columns[-1]
        for left_out in enough:
            settings = {k: v for k, v in enough.items() if k != left_out}
            found = resolve(log, {}, settings=settings)
            assert "kl" not in found.source and found.source["reward"] == reward
            assert f"`{kl}` is not taken" in found.notes[0] and left_out in found.notes[0]
            assert "give it with --run-config" in found.notes[0]
        found = resolve(log, {}, settings=enough | wrong)
        [(key, value)] = wrong.items()
        assert "kl" not in found.source and f"the run has {key}='{value}', and" in found.notes[0]
        for taken in (resolve(log, {}, settings=enough), resolve(log, {"kl": kl})):
            assert taken.source["kl"] == kl and taken.notes == ()

    @pytest.mark.parametrize("estimator", ["kl", "k1", "low_var_kl", "k3"])
    def test_any_estimator_of_the_kl_will_do(self, estimator: str) -> None:
        log = ["step", "critic/score/mean", "actor/reward_kl_penalty", "actor/kl_loss"]
        found = resolve(log, {}, settings={"kl_penalty": estimator})
        assert found.source["kl"] == "actor/reward_kl_penalty"

    def test_verls_kl_loss_is_taken_for_no_setting_but_may_be_vouched_for(self) -> None:
        log = ["step", "critic/score/mean", "actor/kl_loss"]
        columns = resolve(log, {}, settings={"loss_agg_mode": "token-mean", "kl_loss_type": "k3"})
        assert "kl" not in columns.source and "mini-batches" in columns.notes[0]
        assert resolve(log, {"kl": "actor/kl_loss"}).source["kl"] == "actor/kl_loss"


class TestPartsThatTheRunChooses:
    AGENT = "train/agg/all/solver/reward/mean"

    def test_the_reward_of_the_only_agent(self) -> None:
        others = ["train/agg/effective/solver/reward/mean", "train/gsm8k/all/solver/reward/mean"]
        columns = resolve(["step", *others, self.AGENT], {})
        assert columns.framework == "prime-rl" and columns.source["reward"] == self.AGENT
        for name in ("agg/all/a/b/reward/mean", "agg/all/reward/mean", "x/agg/all/a/reward/mean"):
            assert quantity_of(name) is None, "it is one part"

    def test_of_two_agents_one_is_chosen_by_the_user(self) -> None:
        log = ["step", self.AGENT, "train/agg/all/proposer/reward/mean"]
        with pytest.raises(InputError, match=f"`{self.AGENT}`, .*Choose one with --map reward={self.AGENT}"):
            resolve(log, {})
        assert resolve(log, {"reward": self.AGENT}).source["reward"] == self.AGENT

    def test_the_kls_of_two_tasks_are_not_the_kl(self) -> None:
        log = ["step", "critic/score/mean", "critic/entropy/mean", "math/critic/kl", "code/critic/kl"]
        columns = resolve(log, {}, settings=TOKEN_MEAN)
        assert "kl" not in columns.source
        assert any("KLs of parts of the batch" in note for note in columns.notes)


class TestHostileNames:
    @pytest.mark.parametrize("part", ["kl/", "kl", "ppo_kl/", "approx_", "eval_reward\n", "kl_coef", " - "])
    def test_no_name_holds_up_the_process(self, part: str) -> None:
        """`re` lets no other thread run meanwhile, not the one that ends the trainer."""
        began = time.thread_time()
        resolve(["step", "reward", (part * 100_000)[:100_000], (part * MAX_NAME)[:MAX_NAME]], {})
        assert time.thread_time() - began < 10  # it takes milliseconds; what is quadratic takes minutes

    def test_names_that_are_too_long_are_left_out_and_that_is_said(self) -> None:
        columns = resolve(["step", "reward", "kl" + "x" * MAX_NAME], {})
        assert columns.notes == (f"Columns with names of more than {MAX_NAME} characters are ignored.",)


class TestErrors:
    @pytest.mark.parametrize(
        ("columns", "overrides", "message"),
        [
            (
                ["step", "reward", "critic/score/mean"],
                {},
                r"`reward` \(TRL\), `critic/score/mean` \(verl\).*--map reward",
            ),
            (["loss", "reward"], {}, "no column says the step.*found: `loss`, `reward`"),
            (["step", "score"], {}, "--map reward=score; found: `score`, `step`"),
            (["Step", "a - train/reward", "b - train/reward"], {}, "several runs"),
            (["step"], {"reward": "x"}, "there is no such column. Found: `step`"),
            (["step", "my/score"], {"reward": "my/scroe"}, r"Did you mean `my/score`\? Found"),
            (["step", "s"], {"rewrd": "s"}, r"rewrd is not a quantity: did you mean reward\?"),
            (["step", "reward", "loss"], {"loss": "loss"}, "loss is not a quantity: known are"),
        ],
    )
    def test_each_is_a_sentence_that_says_what_to_do(
        self, columns: list[str], overrides: dict[str, str], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            resolve(columns, overrides)


class TestTwoThatLogUnderTheSameNames:
    """ms-swift trains with TRL's trainer, and its logs say so in every name but a few of their own."""

    @pytest.mark.parametrize("mark", BY_KEY["ms-swift"].marks)
    @pytest.mark.parametrize("framework", ["trl", "ms-swift", None])
    def test_ms_swift_is_told_from_trl_by_what_it_alone_logs(self, framework: str | None, mark: str) -> None:
        """Its KL is a sum with kl_in_reward; `--format trl` makes nothing else of it."""
        columns = ["global_step", "reward", "kl", mark]
        assert resolve(columns[:3], {}).framework == "TRL"
        assert resolve(columns, {}).framework == "ms-swift"
        for settings in ({}, {"kl_in_reward": "true"}):
            found = resolve(columns, {}, framework, settings)
            assert "kl" not in found.source and "kl_in_reward=false" in found.notes[0]
        assert resolve(columns, {}, framework, {"kl_in_reward": "false"}).source["kl"] == "kl"

    def test_an_event_file_of_ms_swift_has_no_mark_but_its_run_an_args_json(self) -> None:
        columns = ["step", "train/reward", "train/kl"]
        assert resolve(columns, {}).source["kl"] == "train/kl"
        assert "kl" not in resolve(columns, {}, settings={"kl_in_reward": "true"}).source

    def test_openrlhf_before_it_had_names_of_its_own_is_told_from_trl(self) -> None:
        columns = {"global_step", "train/reward", "train/kl", "train/return", "train/response_length"}
        assert resolve({*columns, "train/actor_lr"}, {}).framework == "OpenRLHF"
        assert resolve(columns, {}).framework == "TRL", "nothing in it tells them apart"

    def test_a_mark_decides_nothing_of_a_log_without_its_reward(self) -> None:
        columns = {"step", "critic/score/mean", "actor/entropy", "train_speed(s/it)"}
        assert resolve(columns, {}).framework == "verl"

    @pytest.mark.parametrize("name", ["ms-swift", "ms-swift-megatron", "trl-tensorboard"])
    def test_in_the_logs_that_their_writers_made(self, name: str) -> None:
        by = "TRL" if name.startswith("trl") else "ms-swift"
        folder = RECORDED_LOGS / name / "0"
        table = read_log(folder if by == "TRL" else folder / "logging.jsonl")
        assert resolve(table.names, {}).framework == by


def test_what_makes_a_framework_start_from_weights_or_why_nothing_does() -> None:
    slime = start_hint("slime", "PATH", "NEW")
    assert "--load PATH --save NEW --save-hf NEW/{rollout_id}`" in slime
    assert "it starts from `--ref-load` without" in slime
    assert "for ROLL: its command takes none; its YAML names the weights" in start_hint("roll", "PATH", "NEW")
    assert start_hint("trl", "PATH", "NEW") == start_hint("csv", "PATH", "NEW") == ""
    followed = [f for f in BY_KEY.values() if f.reads and f.key != "trl"]
    assert all(f.start or f.start_note for f in followed)
