"""What each framework writes, as pieces of bytes of a log of STEPS steps: the shapes of their writers.

Those of verl and TRL were made by the frameworks' own writers (`tests/data/record_logs.py`). Those of
frameworks that log to TensorBoard are messages of the package `tensorboard` under their tags. The others have
the exact shape of the source. Attempt 1 is a later start of the trainer, which goes on from step 8.
"""

import json
import struct
from pathlib import Path

from guard_follow.records import _masked_crc

DATA = Path(__file__).parents[2] / "data" / "logs"
STEPS = 12
RESUMED = 8


def reward(step, attempt=0):
    return 0.25 + step / 40 + attempt / 1000


def kl(step, attempt=0):
    return step / 1000 + attempt / 10_000


def steps(attempt):
    return range(1, STEPS + 1) if attempt == 0 else range(RESUMED + 1, STEPS + 3)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def verl(attempt):
    if attempt == 0:
        return (DATA / "verl.jsonl").read_bytes()
    return lines(
        {
            "step": s,
            "data": {
                "actor/kl_loss": kl(s, attempt),
                "critic/score/mean": reward(s, attempt),
                "training/global_step": s,
            },
        }
        for s in steps(attempt)
    )


def verl_console(attempt):
    if attempt == 0:
        text = (DATA / "verl-console.log").read_text().splitlines()
    else:
        text = [
            f"step:{s} - actor/kl_loss:{kl(s, attempt)!r} - "
            f"critic/score/mean:np.float64({reward(s, attempt)!r}) - training/global_step:{s}"
            for s in steps(attempt)
        ]
    prefix = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
    noise = (
        "(WorkerDict pid=12) loading step:3 of nothing - done\n{'loss': 0.1}\nTraining Progress:   8%|8\r\n"
    )
    return "".join(f"{noise}{prefix}{line}\n" for line in text).encode()


def easyr1(attempt):
    return lines(
        {
            "step": s,
            "reward": {"overall": reward(s, attempt), "format": 1.0},
            "actor": {"kl_loss": kl(s, attempt), "ppo_kl": -0.1, "lr": 1e-6},
            "critic": {"score": {"mean": reward(s, attempt)}},
        }
        for s in steps(attempt)
    )


def prime_rl(attempt):
    rows = []
    for s in steps(attempt):
        rows.append({"step": s, "time": 1e9 + s, "train/all/reward/mean": reward(s, attempt)})
        rows.append({"step": s, "time": 1e9 + s, "entropy/all/mean": 0.5, "mismatch_kl/all/mean": 0.01})
    return lines(rows)


def ms_swift(attempt):
    return lines(
        {
            "reward": reward(s, attempt),
            "kl": kl(s, attempt),
            "reward_std": 0.1,
            "frac_reward_zero_std": 0.2,
            "global_step/max_steps": f"{s}/500",
            "elapsed_time": "1m 2s",
            "memory(GiB)": 4.2,
        }
        for s in steps(attempt)
    )


def tinker(attempt):
    return lines(
        {
            "step": s,
            "env/all/reward/total": reward(s, attempt),
            "env/all/total_episodes": 64,
            "kl_policy_base": kl(s, attempt),
        }
        for s in steps(attempt)
    )


def roll(attempt):
    return "".join(
        f"[2026-08-01 10:00:0{s % 10}] [tracking.py (161)] [INFO] metrics_tag: "
        + json.dumps(
            {"step": s, "metrics": {"critic/score/mean": reward(s, attempt), "critic/kl": kl(s, attempt)}}
        )
        + "\n"
        for s in steps(attempt)
    ).encode()


def own_csv(attempt):
    rows = "".join(f"{s},{reward(s, attempt)!r},{kl(s, attempt)!r},\r\n" for s in steps(attempt))
    return ("step,reward,kl,note\r\n" + rows).encode()


def tensorboard(tags):
    """Event files as `EventFileWriter` frames them, with the messages of the tensorboard package."""

    def write(attempt):
        from tensorboard.compat.proto import event_pb2, summary_pb2

        data = record(event_pb2.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        for s in steps(attempt):
            for tag, value in tags(s, attempt).items():
                summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
                event = event_pb2.Event(wall_time=1.0, step=s, summary=summary)
                data += record(event.SerializeToString())
        return data

    return write


def record(message):
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked_crc(length)) + message + struct.pack("<I", _masked_crc(message))


openrlhf = tensorboard(
    lambda s, a: {"train/policy_loss": 0.1, "train/reward": reward(s, a), "train/kl": kl(s, a)}
)
nemo_rl = tensorboard(
    lambda s, a: {"train/loss": 0.1, "train/reward": reward(s, a), "train/kl_penalty": kl(s, a)}
)
skyrl = tensorboard(lambda s, a: {"reward/avg_raw_reward": reward(s, a), "policy/policy_kl": kl(s, a)})
slime = tensorboard(lambda s, a: {"rollout/raw_reward": reward(s, a), "train/kl_loss": kl(s, a)})
torchtune = tensorboard(lambda s, a: {"rewards": reward(s, a), "kl_loss": kl(s, a), "successes": 0.5})

#: Name of a log: (format, name of the file, what writes it, whether its KL is armed without a configuration).
SHAPES = {
    "verl": ("verl", "run.jsonl", verl, False),
    "verl-console": ("verl", "driver.log", verl_console, False),
    "easyr1": ("easyr1", "experiment_log.jsonl", easyr1, False),
    "prime-rl": ("prime-rl", "metrics.jsonl", prime_rl, False),
    "ms-swift": ("ms-swift", "logging.jsonl", ms_swift, True),
    "tinker": ("tinker", "metrics.jsonl", tinker, True),
    "roll": ("roll", "output.log", roll, False),
    "openrlhf": ("openrlhf", "events.out.tfevents.1.host.1.0", openrlhf, True),
    "nemo-rl": ("nemo-rl", "events.out.tfevents.1.host.1.0", nemo_rl, True),
    "skyrl": ("skyrl", "events.out.tfevents.1.host.1.0", skyrl, False),
    "slime": ("slime", "events.out.tfevents.1.host.1.0", slime, False),
    "torchtune": ("torchtune", "events.out.tfevents.1.host.1.0", torchtune, True),
    "csv": ("trl", "log.csv", own_csv, True),
}
