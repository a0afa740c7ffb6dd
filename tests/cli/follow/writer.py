"""A trainer that knows nothing of RLGuard: writes verl's log, prints its console, and saves checkpoints.

    python writer.py LOG CHECKPOINTS [hack | append]

Each start of its trainer truncates the log, as verl's FileLogger does, or goes on in it (`append`); the
second goes on from step 8. Its log is flushed in the middle of lines. `hack`: one start, whose KL
rises for ever.
"""

import json
import struct
import sys
import time
from pathlib import Path

PAUSE = 0.1 if sys.argv[3:] == ["append"] else 0.03


def save(root, step, attempt=0):
    model = root / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    (model / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + struct.pack("<f", step + attempt / 2)
    )
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def train(log, root, attempt, steps):
    with log.open("ab" if sys.argv[3:] == ["append"] else "wb", buffering=0) as file:
        for step in steps:
            data = {
                "critic/score/mean": 0.2 + step / 50 + attempt / 1000,
                "actor/kl_loss": step / 1000,
                "training/global_step": step,
            }
            line = json.dumps({"step": step, "data": data}).encode() + b"\n"
            file.write(line[: step + 10])
            time.sleep(PAUSE)
            file.write(line[step + 10 :])
            if step % 4 == 0:
                save(root, step, attempt)
            printed = " - ".join(f"{name}:{value}" for name, value in data.items())
            print(f"step:{step} - {printed}", flush=True)
        time.sleep(4)  # it loads its model; many times as long as two looks of the follower lie apart


if __name__ == "__main__":
    log, root = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3:] == ["hack"]:
        train(log, root, 0, range(1, 10_000))
    else:
        train(log, root, 0, range(1, 13))
        train(log, root, 1, range(9, 21))
