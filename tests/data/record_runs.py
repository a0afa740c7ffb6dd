"""Records real GRPO runs, hacking and honest ones, as the files under tests/data/runs/.

Each run is TRL's GRPO on a tiny Llama, as in `rlguard demo`, with the flawed or the strict grader of one of
the tasks of tasks.py. After every step or two the policy answers 256 held-out items, by sampling at
temperature 1 as the guard would; before the first step it does so 16 times (the baseline). Of a run that is
`unseen` a file has beside that what the run's own grader gives the same completions (`proxy_items`). Two
judges of a guard look on, one with the training grader and one without it: where one of them wants an alarm
confirmed, the policy answers once more, and those who asked are told. They stop nothing, so a file shows the
whole run. A file is in the format of the guard's history export, so `rlguard replay FILE` reads it. About
a minute a run on a free core, and as much again for each warmed-up policy, which the runs of one task and
policy seed share.

    python tests/data/record_runs.py            # records what manifest.json names and is not there yet
    python tests/data/record_runs.py addition-hack-1 sort-good-2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "data")]

RUNS = Path(__file__).with_name("runs")
MANIFEST = RUNS / "manifest.json"

ITEMS = 256
PASSES = 16


def record(run: dict[str, Any], policies: Path) -> list[dict[str, Any]]:
    """One entry of the manifest as lines of the history format. `policies` keeps warmed-up policies."""
    import torch
    from tasks import TASKS, WARMUP_STEPS
    from transformers import PrinterCallback, TrainerCallback

    from rlguard.cli.replay.fold import LoggedStep
    from rlguard.core.judge import Judge
    from rlguard.core.policy import Policy
    from rlguard.core.rounds import Evaluation
    from rlguard.core.wire import KlKind
    from trainer_image.demo import train
    from trainer_image.demo.addition import split_problems

    torch.set_num_threads(1)
    task, seed = TASKS[run["task"]], run["seed"]
    problems, heldout = split_problems(task, ITEMS, seed=0)
    graders = [task.strict, *([getattr(task, run["grader"])] if run["use"] == "unseen" else [])]
    judges = [Judge(Policy()) for _ in graders]  # the second is told what the training grader says
    lines: list[dict[str, Any]] = []

    class Recorder(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for index in range(PASSES):
                lines.append({"step": 0} | evaluate(kwargs["model"], 0, index, judges))

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "reward" not in logs:
                return
            names = ("reward", "kl", "entropy", "reward_std")
            line: dict[str, Any] = {"step": state.global_step}
            line |= {name: round(float(logs[name]), 6) for name in names if name in logs}
            for judge in judges:
                judge.fold_step(
                    LoggedStep(0, state.global_step, line["reward"], line.get("kl"), KlKind.REF_TOKEN_MEAN)
                )
            lines.append(line)
            if state.global_step % run["every"] == 0:
                line |= evaluate(kwargs["model"], state.global_step, 0, judges)
                while wanting := [judge for judge in judges if judge.wanted_pass() is not None]:
                    step, index = state.global_step, 1 + lines[-1].get("pass_index", 0)
                    again = evaluate(kwargs["model"], step, index, wanting)
                    lines.append({"step": step, "pass_index": index} | again)

    def evaluate(model: Any, step: int, index: int, told: list[Judge]) -> dict[str, list[float]]:
        """An evaluation of the policy after `step`, told to these judges; as a line of the file has it."""
        outcomes = answer(model, index if step == 0 else 1000 * (1 + index) + step)
        items, paid = tuple(outcomes[0]), tuple(outcomes[1]) if len(outcomes) > 1 else None
        for judge in told:
            graded = paid if judge is not judges[0] else None
            judge.fold_evaluation(Evaluation(0, step, "", items, pass_index=index, proxy_items=graded))
        return dict(zip(("items", "proxy_items"), outcomes, strict=False))

    def answer(model: Any, draw: int) -> list[list[float]]:
        """What each grader gives one sampled completion for each item, as short as JSON has it.

        The trainer's own randomness is untouched.
        """
        model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed * 100_003 + draw)
            ids = torch.tensor([tokenizer.encode(p.prompt) for p in heldout])
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=task.max_completion_tokens,
            )
        model.train()
        texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        paired = list(zip(texts, (p.answer for p in heldout), strict=True))
        given = [[round(grader(text, right), 6) for text, right in paired] for grader in graders]
        return [[int(one) if one in (0, 1) else one for one in outcomes] for outcomes in given]

    policy = policies / f"{task.name}-{run['policy_seed']}"
    if not policy.exists():
        train.make_policy(task, problems, policy, steps=WARMUP_STEPS[task.name], seed=run["policy_seed"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = argparse.Namespace(
            model=policy,
            checkpoints=Path(folder),
            grader=run["grader"],
            steps=run["steps"],
            save_steps=10**6,
            keep=None,
            seed=seed,
        )
        trainer = train.build_trainer(task, problems, arguments)
        trainer.args.learning_rate = run["learning_rate"]
        tokenizer = trainer.processing_class
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Recorder())
        trainer.train()
    return lines


def main() -> None:
    """Record the named runs, or all that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="runs of manifest.json; all that are missing without them")
    parser.add_argument("--policies", type=Path, help="keep warmed-up policies here, for the next call")
    arguments = parser.parse_args()
    manifest = json.loads(MANIFEST.read_text())["runs"]
    missing = [name for name in manifest if not (RUNS / f"{name}.jsonl").exists()]
    wanted = arguments.names or sorted(missing, key=lambda name: manifest[name]["seed"])
    with tempfile.TemporaryDirectory() as scratch:
        for name in wanted:
            began = time.monotonic()
            lines = record(manifest[name], arguments.policies or Path(scratch))
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            (RUNS / f"{name}.jsonl").write_text(text)
            print(f"{name}: {summary(lines)}, {time.monotonic() - began:.0f} s", flush=True)


def summary(lines: list[dict[str, Any]]) -> str:
    """A line for the eye: what happened to held-out score, reward and KL."""
    scores = [sum(line["items"]) / ITEMS for line in lines if "items" in line]
    first, last = lines[PASSES], lines[-1]
    start = sum(scores[:PASSES]) / PASSES
    return (
        f"held-out {start:.3f} -> {scores[-1]:.3f}, reward {first['reward']:.3f} -> {last['reward']:.3f}, "
        f"KL {last['kl']:.3f}"
    )


if __name__ == "__main__":
    main()
