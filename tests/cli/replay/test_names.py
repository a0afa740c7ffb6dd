"""Which column is what: every framework of the table, every look-alike, W&B's decorations, --map."""

import pytest

from guard_cli.errors import CliError
from guard_cli.replay.names import resolve

LOGS = {
    "TRL": {"step": "step", "reward": "reward", "kl": "kl", "entropy": "entropy", "reward_std": "reward_std"},
    "verl": {
        "step": "training/global_step",
        "reward": "critic/score/mean",
        "kl": "actor/kl_loss",
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
    "torchtune": {"step": "global_step", "reward": "rewards", "kl": "kl_loss"},
    "prime-rl": {
        "step": "step",
        "reward": "reward/all/mean",
        "entropy": "entropy/all/mean",
        "reward_std": "reward/all/std",
    },
}
EXTRAS = ["epoch", "loss", "grad_norm", "completions/mean_length", "rewards/grade/mean", "num_tokens"]


class TestFrameworks:
    @pytest.mark.parametrize("name", LOGS)
    def test_each_is_recognised(self, name: str) -> None:
        columns = resolve([*EXTRAS, *LOGS[name].values()], {})
        assert columns.framework == name
        assert columns.source == LOGS[name]
        assert columns.notes == ()

    @pytest.mark.parametrize("name", LOGS)
    def test_wandb_and_tensorboard_put_train_before_it(self, name: str) -> None:
        wrapped = {ours: f"train/{theirs}" for ours, theirs in LOGS[name].items()}
        assert resolve(list(wrapped.values()), {}).source == wrapped

    def test_wandb_chart_export(self) -> None:
        columns = ["Step", *(f"my - run - train/reward{tail}" for tail in ("", "__MIN", "__MAX"))]
        assert resolve(columns, {}).source == {"step": "Step", "reward": "my - run - train/reward"}

    def test_the_guards_own_export(self) -> None:
        own = ["attempt", "step", "reward", "kl", "kl_kind", "entropy", "reward_std", "heldout", "items"]
        columns = resolve(own, {})
        assert columns.framework == "rlguard"
        assert columns.source == {name: name for name in own}

    def test_verl_has_two_kls_and_the_loss_comes_first(self) -> None:
        both = ["step", "critic/score/mean", "actor/reward_kl_penalty", "actor/kl_loss"]
        assert resolve(both, {}).source["kl"] == "actor/kl_loss"
        assert resolve(both[:3], {}).source["kl"] == "actor/reward_kl_penalty"

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
        with pytest.raises(CliError, match="is refused") as refused:
            resolve(["step", "reward", column], {"kl": column})
        assert why in str(refused.value)

    def test_a_coefficient_is_refused_but_not_worth_a_note(self) -> None:
        assert resolve(["step", "reward", "actor/reward_kl_penalty_coeff"], {}).notes == ()
        with pytest.raises(CliError, match="coefficient"):
            resolve(["step", "reward", "kl_coef"], {"kl": "kl_coef"})

    @pytest.mark.parametrize(
        ("reward", "mark", "why"),
        [
            ("reward", "ratio", "async_grpo"),
            ("scores", "approx_policy_kl", "summed over the tokens"),
            ("scores", "rlhf_reward", "summed over the tokens"),
        ],
    )
    def test_a_column_kl_that_is_none_by_the_company_it_keeps(self, reward: str, mark: str, why: str) -> None:
        columns = resolve(["step", reward, "kl", mark], {})
        assert "kl" not in columns.source
        assert any(why in note for note in columns.notes)
        with pytest.raises(CliError, match=why):
            resolve(["step", reward, "kl", mark], {"kl": "kl"})

    def test_an_unknown_kl_is_offered_not_taken(self) -> None:
        columns = resolve(["step", "reward", "my/kl"], {})
        assert "kl" not in columns.source
        assert "--map kl=my/kl" in columns.notes[0]
        assert resolve(["step", "reward", "my/kl"], {"kl": "my/kl"}).source["kl"] == "my/kl"

    def test_an_evaluation_by_the_training_reward_is_no_held_out_score(self) -> None:
        columns = resolve(["step", "reward", "eval_reward"], {})
        assert "heldout" not in columns.source
        assert "--map heldout=eval_reward" in columns.notes[0]
        assert resolve(["step", "reward", "eval_reward"], {"heldout": "eval_reward"}).notes == ()

    def test_a_reward_after_the_kl_penalty_is_no_reward(self) -> None:
        with pytest.raises(CliError, match="has the KL penalty taken off"):
            resolve(["step", "critic/rewards/mean"], {})


class TestErrors:
    def test_two_frameworks_disagree_about_the_reward(self) -> None:
        with pytest.raises(CliError, match=r"`reward` \(TRL\), `critic/score/mean` \(verl\).*--map reward"):
            resolve(["step", "reward", "critic/score/mean"], {})
        assert (
            resolve(["step", "reward", "critic/score/mean"], {"reward": "reward"}).source["reward"]
            == "reward"
        )

    def test_no_step(self) -> None:
        with pytest.raises(CliError, match=r"no column says the step.*Found: `loss`, `reward`"):
            resolve(["loss", "reward"], {})

    def test_no_reward_says_what_was_found(self) -> None:
        with pytest.raises(CliError, match=r"Found: `step`, `score`.*--map reward=NAME"):
            resolve(["step", "score"], {})

    def test_several_runs_in_one_export(self) -> None:
        with pytest.raises(CliError, match="several runs"):
            resolve(["Step", "a - train/reward", "b - train/reward"], {})

    def test_map_to_a_column_that_is_not_there(self) -> None:
        with pytest.raises(CliError, match=r"there is no such column. Found: `step`"):
            resolve(["step"], {"reward": "x"})

    def test_map_of_a_name_that_is_not_canonical(self) -> None:
        with pytest.raises(CliError, match="'loss' is none of step"):
            resolve(["step", "reward", "loss"], {"loss": "loss"})
