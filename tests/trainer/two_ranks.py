"""One rank of a real two-process training; `test_two_ranks.py` starts it under torchrun.

Arguments: model directory, output directory, and the URLs of three guards: of the strict run, of the soft run
and of the entrypoint's. One process does all runs, because loading torch takes longer than all of them. Each
rank writes what it saw to `<output>/rank<i>.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer

from rlguard.core import CollapseStopError, HeldOutGuard
from tests.trainer.real_guard import INGEST
from tests.trainer.tiny import grpo_trainer, prompts
from trainer_image import ranks, train
from trainer_image.callback import GuardCallback
from trainer_image.guarded_trainer import GuardedGRPOTrainer

RANK = int(os.environ["RANK"])


def result(trainer: GRPOTrainer, callback: GuardCallback | None = None) -> dict[str, Any]:
    """Train; say how it ended."""
    raised = None
    try:
        trainer.train()
    except CollapseStopError as stop:
        raised = stop.status.reason
    stop = None if callback is None or callback.stop is None else callback.stop.reason
    return {"step": trainer.state.global_step, "raised": raised, "stop": stop}


def guarded(model: Path, output: Path, url: str, strict: str, **overrides: Any) -> dict[str, Any]:
    """A run with the callback. As in a cluster, only the master knows the guard's address."""
    environ = {"RANK": str(RANK), "RLGUARD_STRICT": strict}
    if RANK == 0:
        environ |= {"RLGUARD_URL": url, "RLGUARD_TOKEN": INGEST}
    trainer = grpo_trainer(model, output, **overrides)
    callback = GuardCallback.from_env(trainer, environ)
    trainer.add_callback(callback)
    return result(trainer, callback)


def killswitch(model: Path, output: Path) -> dict[str, Any]:
    """The kill switch with a held-out score that differs between the ranks, and both auxiliary losses.

    Only some rows have the losses' columns, so that a rank may get a batch without any.
    """
    calls: list[int] = []

    def score() -> float:
        calls.append(1)
        return 0.9 if RANK == 1 or len(calls) < 3 else 0.0

    rows = prompts(64).to_list()
    for index, row in enumerate(rows):
        row["privileged_prompt"] = row["answer"] + row["prompt"] if index % 2 else None
        row["replay_prompt"] = row["prompt"] if index % 3 == 0 else None
        row["replay_completion"] = row["answer"] if index % 3 == 0 else None
    keywords = {
        "heldout_guard": HeldOutGuard(min_steps=1, ema_alpha=0.0, max_proxy_real_gap=0.5),
        "heldout_eval_fn": score,
        "alpha_sdpo": 0.1,
        "beta_replay": 0.1,
    }
    data = Dataset.from_list(rows)
    return result(
        grpo_trainer(model, output, GuardedGRPOTrainer, data, trainer_kwargs=keywords, max_steps=500)
    )


def entrypoint(model: Path, output: Path, url: str) -> int:
    """`python -m rlguard.train` in this process; its exit code."""
    if RANK == 0:
        os.environ |= {"RLGUARD_URL": url, "RLGUARD_TOKEN": INGEST}
        (output / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts(16)))
        content = {
            "model": str(model),
            "dataset": str(output / "train.jsonl"),
            "reward_functions": ["tests.trainer.tiny:digit_share"],
            "output_dir": str(output / "entrypoint"),
            "grpo": {
                "use_cpu": True,
                "bf16": False,
                "report_to": [],
                "per_device_train_batch_size": 4,
                "num_generations": 4,
                "max_completion_length": 4,
                "max_steps": 2,
                "save_steps": 1,
                "beta": 0.04,
            },
        }
        (output / "grpo.yaml").write_text(json.dumps(content))
    ranks.barrier()
    return train.main(["--config", str(output / "grpo.yaml")])


def main() -> None:
    """All runs, one after the other; the entrypoint's leaves the process group."""
    model, output = Path(sys.argv[1]), Path(sys.argv[2])
    strict_url, soft_url, entrypoint_url = sys.argv[3:]
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    results = {
        "strict": guarded(model, output, strict_url, "1", max_steps=500, **saving),
        "soft": guarded(model, output, soft_url, "0", max_steps=500),
        "restarted": guarded(model, output, soft_url, "1", max_steps=500),
        "killswitch": killswitch(model, output),
        "entrypoint": entrypoint(model, output, entrypoint_url),
    }
    (output / f"rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
