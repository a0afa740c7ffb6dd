"""Inputs as people have them, through the command line: each works, or is one line that says what to do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., subprocess.CompletedProcess[str]]

GRADERS = """
def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if ground_truth in solution_str else -1.0}

def of_verl_in_batches(data_sources, solution_strs, ground_truths, extra_infos=None):
    return [float(a == s) for s, a in zip(solution_strs, ground_truths)]

def with_more(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    return score if ground_truth in solution_str else 0.0

def of_trl(prompts, completions, answer, **kwargs):
    return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]

def of_chats(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]

async def that_pays_all(completions, answer, **kwargs):
    return [1.0 for _ in completions]

def of_openrlhf(queries, prompts, labels):
    return {"rewards": [float(q.endswith(a)) for q, a in zip(queries, labels)]}

def that_pays_nothing(completion, answer, meta):
    return 0.0
"""


OTHERS = ("of_verl_in_batches", "with_more", "of_chats")


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def first_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


class TestGraders:
    @pytest.fixture
    def checked(
        self, rlguard: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[str], str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "my_graders.py").write_text(GRADERS)
        rows = [{"id": name, "prompt": f"{name}?", "answer": answer} for name, answer in ("a4", "b6")]
        held = jsonl(tmp_path / "h.jsonl", rows)

        def check(grader: str) -> str:
            lines = rlguard("check", "--heldout", held, "--proxy-scorer", f"my_graders:{grader}").stdout
            return next(line for line in lines.splitlines() if line.startswith("training grader"))

        return check

    @pytest.mark.parametrize(
        "grader",
        [
            "of_verl",
            "of_trl",
            *(pytest.param(one, marks=pytest.mark.nightly) for one in OTHERS),
            "of_openrlhf",
        ],
    )
    def test_one_of_a_framework_is_tried_as_that_calls_it(
        self, checked: Callable[[str], str], grader: str
    ) -> None:
        assert "pays 1.00 for right answers, and 0.00 for the answers of other items" in checked(grader)

    def test_one_that_pays_everything_is_warned_of(self, checked: Callable[[str], str]) -> None:
        assert "warn" in (line := checked("that_pays_all")) and "does not tell right from wrong" in line

    def test_one_that_pays_nothing_for_right_answers_is_refused(self, checked: Callable[[str], str]) -> None:
        assert "refuse" in (line := checked("that_pays_nothing")) and "pays 0 for the own answers" in line


class TestData:
    @pytest.fixture
    def split(self, rlguard: Invoke, tmp_path: Path) -> Callable[..., Any]:
        def make(source: Path, *options: str) -> Any:
            train, held = tmp_path / "train.out", tmp_path / "held.out"
            arguments = ("--train", train, "--heldout", held, "--fraction", "0.3", *options)
            done = rlguard("split", "make", source, *arguments)
            if done.returncode:
                return done
            return [json.loads(line) for line in held.read_text().splitlines()]

        return make

    @staticmethod
    def rows(answer: Callable[[int], Any]) -> list[dict[str, Any]]:
        return [{"prompt": f"What is {n} times {n + 1}?", "answer": answer(n)} for n in range(40)]

    def of_verl(self) -> list[dict[str, Any]]:
        return [
            {"prompt": [{"role": "user", "content": f"{n}?"}], "reward_model": {"ground_truth": str(n)}}
            for n in range(40)
        ]

    def test_nested_columns_by_a_dotted_name_from_parquet(
        self, split: Callable[..., Any], tmp_path: Path
    ) -> None:
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.Table.from_pylist(self.of_verl()), tmp_path / "verl.parquet")
        items = split(tmp_path / "verl.parquet", "--answer-column", "reward_model.ground_truth")
        assert items and all(one["prompt"][0]["content"] == f"{one['answer']}?" for one in items)

    def test_a_missing_column_is_one_line_that_names_option_and_column(
        self, split: Callable[..., Any], tmp_path: Path
    ) -> None:
        done = split(jsonl(tmp_path / "verl.jsonl", self.of_verl()))
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "name it with --answer-column reward_model.ground_truth" in done.stderr

    def test_numbers_are_answers(self, split: Callable[..., Any], tmp_path: Path) -> None:
        items = split(jsonl(tmp_path / "data.jsonl", self.rows(lambda n: n)))
        assert items and all(isinstance(one["answer"], str) for one in items)

    def test_each_of_a_list_of_answers_is_right(
        self, split: Callable[..., Any], rlguard: Invoke, tmp_path: Path
    ) -> None:
        items = split(jsonl(tmp_path / "data.jsonl", self.rows(lambda n: [str(n), f"{n}.0"])))
        assert items and all(one["accepted"] == [f"{one['answer']}.0"] for one in items)

    def test_none_is_needed_by_a_scorer_of_ones_own(self, split: Callable[..., Any], tmp_path: Path) -> None:
        rows = [{"prompt": f"Say something kind about day {n}."} for n in range(40)]
        done = split(jsonl(tmp_path / "data.jsonl", rows), "--exact-only")
        assert done.returncode == 2 and "a scorer of your own" in done.stderr and "--no-answer" in done.stderr
        items = split(tmp_path / "data.jsonl", "--no-answer", "--exact-only")
        assert items and all("answer" not in one for one in items)


class TestLogs:
    @pytest.fixture
    def replay(self, rlguard: Invoke, tmp_path: Path) -> Callable[..., Any]:
        def replay(name: str, content: Any, *options: str) -> Any:
            path = tmp_path / name
            if isinstance(content, str):
                path.write_text(content)
            else:
                jsonl(path, content)
            return rlguard("replay", path, *options)

        return replay

    def test_a_refusal_lists_first_what_looks_like_a_reward(self, replay: Callable[..., Any]) -> None:
        others = dict.fromkeys("abcdefghijklmn", 0.1)
        done = replay("log.jsonl", [{**others, "reward_mean": 0.1 * n, "step": n} for n in range(5)])
        assert done.returncode == 2 and "Try --map reward=reward_mean; found: `reward_mean`" in done.stderr

    def test_two_columns_that_may_be_the_reward_are_both_named(self, replay: Callable[..., Any]) -> None:
        done = replay("log.jsonl", [{"step": n, "mean_reward": 0.4, "reward/mean": -0.2} for n in range(5)])
        assert done.returncode == 2 and "could be `reward/mean`, `mean_reward`" in done.stderr

    @pytest.mark.parametrize(
        "document",
        [
            {"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3]},
            {"step": {"0": 1, "1": 2, "2": 3}, "reward": {"0": 0.1, "1": 0.2, "2": 0.3}},
            {"history": [{"step": n, "reward": 0.1} for n in (1, 2, 3)]},
        ],
    )
    def test_a_document_with_rows_or_columns_is_a_log(
        self, replay: Callable[..., Any], document: Any
    ) -> None:
        done = replay("log.json", json.dumps(document))
        assert done.returncode == 0 and "3 steps" in done.stdout

    def test_the_consoles_of_slime_and_prime_rl_are_read(self, replay: Callable[..., Any]) -> None:
        slime = "".join(
            f"[2026-11-20 10:00:00] rollout.py:268 - perf {n}: {{'rollout/raw_reward': 0.{n}}}\n"
            f"[2026-11-20 10:00:30] train.py:401 - step {9 * n}: {{'train/loss': 0.01}}\n"
            for n in range(1, 9)
        )
        found = json.loads(replay("slime.log", slime, "--json").stdout)
        assert (found["framework"], found["steps"]) == ("slime", 8)
        prime = "".join(
            f"10:00:00 SUCCESS Step {n} | 12.3s | Reward 0.{n}000 | Trainable 60/64 (94%) | Truncation 1.6%\n"
            for n in range(1, 9)
        )
        found = json.loads(replay("prime.log", prime, "--json").stdout)
        assert (found["framework"], found["steps"]) == ("prime-rl", 8)

    def test_another_console_is_told_which_file_to_replay(self, replay: Callable[..., Any]) -> None:
        done = replay("run.log", "INFO nemo_rl.algorithms.grpo: starting\n")
        assert done.returncode == 2 and "NeMo-RL: replay what that writes, TensorBoard" in done.stderr

    def test_the_kl_of_asynchronous_grpo_is_not_that_to_the_reference(
        self, replay: Callable[..., Any]
    ) -> None:
        rows = [{"step": n, "reward": 0.3, "kl": 0.12, "clip_ratio/low_mean": 0.01} for n in range(1, 40)]
        found = json.loads(replay("log.jsonl", rows, "--json").stdout)
        assert "kl" not in found["columns"] and any("async GRPO" in note for note in found["notes"])
        rows = [row | {"reward_std": 0.1} for row in rows]
        assert json.loads(replay("log.jsonl", rows, "--json").stdout)["columns"]["kl"] == "kl"

    @pytest.mark.parametrize("more", ["timing_s/step", "response_length/mean", "training/global_step"])
    def test_a_log_of_verl_is_labelled_so(self, replay: Callable[..., Any], more: str) -> None:
        rows = [{"step": n, "critic/score/mean": 0.3, "critic/kl": 0.1, more: n} for n in range(1, 9)]
        assert json.loads(replay("log.jsonl", rows, "--json").stdout)["framework"] == "verl"


class TestTheFirstLine:
    @staticmethod
    def validated(**columns: Any) -> list[dict[str, Any]]:
        rows = []
        for step in range(0, 201):
            row = {"step": step, "critic/score/mean": 0.3 + step * 0.003, "timing_s/step": 3.0}
            if step % 10 == 0:
                row["val-core/openai/gsm8k/acc/mean@1"] = 0.62 - max(0, step - 60) * 0.002
            rows.append(row | columns)
        return rows

    def test_the_runs_own_validation_is_judged_once_its_size_is_known(
        self, rlguard: Invoke, tmp_path: Path
    ) -> None:
        path = jsonl(tmp_path / "verl.jsonl", self.validated())
        assert first_line(rlguard("replay", path)) == (
            "cannot judge: `val-core/openai/gsm8k/acc/mean@1` is a mean; say of how many items it is: "
            "--heldout-items N"
        )
        done = rlguard("replay", path, "--heldout-items", "1319")
        assert first_line(done).startswith("would have stopped at step ") and "held-out" in first_line(done)
        assert "trusts the trainer" in done.stdout
        assert [line for line in done.stdout.splitlines() if "fired" in line][1:] == [], "advice never fires"

    def test_a_mean_that_is_no_share_has_no_number_of_items(self, rlguard: Invoke, tmp_path: Path) -> None:
        rows = [{"step": n, "reward": 0.1, "eval_reward": 3.5} for n in range(5)]
        done = rlguard("replay", jsonl(tmp_path / "log.jsonl", rows), "--heldout-items", "9")
        assert done.returncode == 2 and "Leave the option out" in done.stderr

    def test_without_a_held_out_column_the_likeliest_is_named(self, rlguard: Invoke, tmp_path: Path) -> None:
        rows = [{"step": n, "reward": 0.1, "my_accuracy": 0.5, "lr": 1.0} for n in range(5)]
        assert first_line(rlguard("replay", jsonl(tmp_path / "log.jsonl", rows))) == (
            "cannot judge: no held-out column; found `my_accuracy`, try --map heldout=my_accuracy"
        )
