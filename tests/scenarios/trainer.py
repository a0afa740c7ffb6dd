"""A trainer without torch: it reports steps and checkpoints through `rlguard.Guard`, and stops when it must.

    python trainer.py --steps 20 --kl-from FILE --checkpoint-every 5 --policy FOLDER --checkpoints FOLDER

With `--until FILE` it goes on with steps until the file is there. It prints one line a step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from pathlib import Path

from rlguard import Guard


def save_changed(policy: Path, to: Path, seed: int) -> Path:
    """A copy of the policy, with one weight a little different."""
    shutil.copytree(policy, to)
    with (to / "model.safetensors").open("r+b") as file:
        header = int.from_bytes(file.read(8), "little")
        file.seek(8 + header)
        file.write(bytes([seed % 256, seed // 256 % 256]))  # the low bits of the first weight
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kl-from", type=Path, help="once this is there, the KL is far above any limit")
    parser.add_argument("--kl", type=float, default=50.0)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--started", type=Path, help="write the process id and the environment's guard here")
    options = parser.parse_args()
    if options.started is not None:
        mine = {name: value for name, value in os.environ.items() if name.startswith("RLGUARD_")}
        new = options.started.with_suffix(".new")
        new.write_text(json.dumps({"pid": os.getpid()} | mine))
        new.rename(options.started)
    with Guard.from_env() as guard:
        if options.checkpoint_every:
            guard.checkpoint(save_changed(options.policy, options.checkpoints / "step-0", 0), step=0)
        for step in itertools.count(1):
            far = options.kl_from is not None and options.kl_from.exists()
            guard.step(step, reward=0.5, kl=options.kl if far else 0.01, kl_kind="ref_token_mean")
            if options.checkpoint_every and step % options.checkpoint_every == 0:
                saved = save_changed(options.policy, options.checkpoints / f"step-{step}", step)
                guard.checkpoint(saved, step=step)
            print(f"step {step} done", flush=True)
            guard.raise_if_halted()
            time.sleep(options.pause)
            if step >= options.steps and (options.until is None or options.until.exists()):
                break
    print("the training is complete", flush=True)


if __name__ == "__main__":
    main()
