"""What becomes of NaN, missing values, repeated steps, restarts, unordered lines and per-item outcomes."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from rlguard.cli.errors import CliError
from rlguard.cli.logs.options import read_map
from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.fold import as_logged
from rlguard.cli.replay.run import KINDS, Run, load_run
from rlguard.core.policy import Policy
from tests.cli.follow.followed import followed_to_the_end

NAN = float("nan")


def run_of(tmp_path: Path, rows: Iterable[dict], **overrides: str) -> Run:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_run(read_log(path, set(overrides.values())), "log.jsonl", overrides)


def row(step: int, reward: float | None = 0.5, **more: object) -> dict:
    return {"step": step, "reward": reward, **more}


class TestValues:
    def test_a_step_without_reward_is_no_step_of_the_guard(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [row(1), row(2, None, kl=0.1), row(3, NAN), row(4, float("inf")), {"step": 5}])
        assert run.step.tolist() == [1]
        assert any("4 of 5 steps have no reward" in note for note in run.notes)
        assert any("1 values of reward are infinite: unknown (line 4)" in note for note in run.notes)

    def test_a_negative_kl_counts_as_0_as_in_a_report_and_one_that_is_none_is_unknown(
        self, tmp_path: Path
    ) -> None:
        run = run_of(tmp_path, [row(1, kl=0.1), row(2, kl=-0.1), row(3, kl=NAN)])
        assert run.armed_kl().tolist() == [True, True, False] and run.kl[1] == 0.0
        steps = followed_to_the_end(tmp_path / "log.jsonl").guard.steps
        assert [steps[0, s].kl for s in (1, 2, 3)] == [0.1, 0.0, None]

    def test_the_kind_of_the_kl_is_kept(self, tmp_path: Path) -> None:
        kinds = ["ref_token_mean", "ref_seq_sum", "behaviour", "absent"]
        rows = [row(i, kl=None if k == "absent" else 0.1, kl_kind=k) for i, k in enumerate(kinds, start=1)]
        run = run_of(tmp_path, rows)
        assert [KINDS[k].value for k in run.kl_kind] == kinds
        assert run.armed_kl().tolist() == [True, False, False, False]

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ({"kl": 0.1, "kl_kind": "k1", "step": 2}, "line 2: kl_kind is 'k1'; known: ref_token_mean"),
            *(
                ({"step": step}, r"line 2: step is .* not a whole number from 0 on")
                for step in (-1, 1.5, 2**53, float("inf"))
            ),
            *(
                ({"step": 2, "items": items}, "line 2: items must be a list of outcomes from 0 to 1")
                for items in ([], [2], [-0.1], ["a"], "x", 3, [None], [NAN], [True, [1]])
            ),
            ({"step": 2, "items": [1]}, r"line 2 has 1 items and log\.jsonl: line 1 has 2"),
        ],
    )
    def test_what_cannot_be_right_is_named(self, tmp_path: Path, bad: dict, message: str) -> None:
        with pytest.raises(CliError, match=message):
            run_of(tmp_path, [row(1, items=[1, 0]), {"reward": 0.1} | bad])

    def test_rows_without_a_step(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [row(1), {"reward": 0.2}])
        assert run.step.tolist() == [1]
        assert any("1 rows without a step" in note and "line 2" in note for note in run.notes)


class TestOrder:
    def test_unordered_lines(self, tmp_path: Path) -> None:
        rows = [row(i, i / 100, **({"items": [1, 0]} if i % 10 == 0 else {})) for i in range(1, 101)]
        shuffled = random.Random(1).sample(rows, len(rows))
        straight, mixed = run_of(tmp_path, rows), run_of(tmp_path, shuffled)
        assert mixed.step.tolist() == straight.step.tolist()
        assert mixed.reward.tolist() == straight.reward.tolist()
        assert mixed.evaluations == straight.evaluations and mixed.attempts == 1

    @pytest.mark.parametrize(
        ("rows", "rewards", "kls", "note"),
        [
            ([row(1), row(2), row(2)], [0.5, 0.5], [NAN, NAN], "1 rows repeat a step"),
            (
                [row(1, kl=0.1), {"step": 2, "reward": 0.7}, {"step": 2, "kl": 0.2}],
                [0.5, 0.7],
                [0.1, 0.2],
                "",
            ),
            ([row(1), row(2, 0.6), row(2, 0.9)], [0.5, 0.6], [NAN, NAN], "e.g. step 2: lines 2 and 3"),
        ],
        ids=["again", "in several rows", "contradicting"],
    )
    def test_rows_of_one_step(
        self, tmp_path: Path, rows: list[dict], rewards: list[float], kls: list[float], note: str
    ) -> None:
        run = run_of(tmp_path, rows)
        assert run.step.tolist() == [1, 2] and run.reward.tolist() == rewards
        assert run.kl.tolist() == pytest.approx(kls, nan_ok=True)
        assert any(note in one for one in run.notes)

    @pytest.mark.parametrize(
        "rows",
        [
            [(s, 0.1) for s in range(1, 21)] + [(s, 0.2) for s in range(11, 31)],
            # The first steps that come again measured the same: the trainer had the same seed.
            [(s, 0.1) for s in range(1, 21)] + [(s, 0.1 if s < 15 else 0.2) for s in range(11, 31)],
            [(s, 0.1) for s in (1, 2, 3, 2, 3)] + [(s, 0.3) for s in (2, 3, 4)] + [(2, 0.5), (5, 0.5)],
            [(5, 0.1), (3, 0.1), (4, 0.1), (3, 0.2), (1, 0.2), (6, 0.2)],
        ],
        ids=range(4),
    )
    def test_attempts_are_those_that_a_follower_reports(
        self, tmp_path: Path, rows: list[tuple[int, float]]
    ) -> None:
        run = run_of(tmp_path, [row(step, reward) for step, reward in rows])
        assert run.attempts > 1 and any(f"read as {run.attempts} attempts" in note for note in run.notes)
        replayed = zip(run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), strict=True)
        followed = followed_to_the_end(tmp_path / "log.jsonl").rows()
        assert [one[:3] for one in followed] == sorted(replayed)

    def test_attempts_that_the_log_states(self, tmp_path: Path) -> None:
        rows = [row(2, 0.2, attempt=1), row(1, 0.1, attempt=0), row(2, 0.3, attempt=0)]
        run = run_of(tmp_path, rows)
        assert list(zip(run.attempt.tolist(), run.step.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 2)]


class TestHeldOut:
    def test_baseline_lines_have_step_0_and_only_items(self, tmp_path: Path) -> None:
        rows = [
            {"step": 0, "items": [1, 0]},
            {"step": 0, "items": [0, 0], "reward": None, "kl": None},
            {"step": 0, "items": [1, 1], "reward": 0.5},
            row(1, items=[0, 1]),
        ]
        run = run_of(tmp_path, rows)
        assert run.baseline == ((1.0, 0.0), (0.0, 0.0)) and run.has_items
        assert [(e.step, e.items) for e in run.evaluations] == [(0, (1.0, 1.0)), (1, (0.0, 1.0))]

    def test_a_training_grader_that_failed_is_known_from_one_that_is_not_there(self, tmp_path: Path) -> None:
        rows = [
            {"step": 0, "items": [1, 0], "proxy_items": [1, 1], "fooled_items": [0, 0.5]},
            {"step": 0, "items": [0, 0], "proxy_items": []},
            {"step": 0, "items": [0, 1]},
            row(1, items=[0, 1]),
        ]
        run = run_of(tmp_path, rows)
        assert [one.proxy_items for one in run.passes] == [(1.0, 1.0), (), None]
        assert [one.fooled_items for one in run.passes] == [(0.0, 0.5), None, None]

    def test_a_mean_without_items_and_items_without_a_reward(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [row(1, heldout=0.25), row(2)])
        assert [e.score for e in run.evaluations] == [0.25] and not run.has_items
        run = run_of(tmp_path, [row(1), {"step": 2, "items": [1, 0]}, row(3)])
        assert run.step.tolist() == [1, 3] and [e.step for e in run.evaluations] == [2]

    @pytest.mark.parametrize(("said", "samples"), [({"samples_per_item": 4}, 4), ({}, 2)])
    def test_how_many_samples_are_behind_an_outcome_is_what_the_log_says(
        self, tmp_path: Path, said: dict, samples: int
    ) -> None:
        policy = Policy.model_validate({"calibrated": {"samples": 2, "baseline_passes": 3}})
        run = run_of(tmp_path, [row(s, items=[0.25, 0.75], **said) for s in (1, 2)])
        assert as_logged(policy, run).calibrated.samples == samples


class TestMap:
    def test_mapped_columns_are_read(self, tmp_path: Path) -> None:
        assert read_map(["reward=a/b=c", "kl=x"]) == {"reward": "a/b=c", "kl": "x"}
        rows = [{"i": 1, "my/r": 0.1, "my/test": 0.2}]
        run = run_of(tmp_path, rows, step="i", reward="my/r", heldout="my/test")
        assert run.reward.tolist() == [0.1] and [e.score for e in run.evaluations] == [0.2]

    @pytest.mark.parametrize(
        ("pairs", "message"),
        [
            *(([pair], "expected NAME=COLUMN") for pair in ("reward", "=x", "reward=", "reward:x")),
            (["reward=a", "reward=b"], "given twice"),
        ],
    )
    def test_no_pair(self, pairs: list[str], message: str) -> None:
        with pytest.raises(CliError, match=message):
            read_map(pairs)
