"""The logs that the frameworks' own writers made (`tests/data/README.md`), and what they hold.

Each is of a trainer that started twice; the second start went on from step RESUMED with other values. What
that does to the log differs: it appends to the file, cuts it to nothing, writes it anew without the steps
that come again, or begins another file, in the same folder or in one beside it.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

LOGS = Path(__file__).parents[2] / "data" / "logs"
STEPS = 12
RESUMED = 8


def reward(step, attempt=0):
    return 0.25 + step / 40 + attempt / 1000


def kl(step, attempt=0):
    return step / 1000 + attempt / 10_000


def steps(attempt):
    return range(1, STEPS + 1) if attempt == 0 else range(RESUMED + 1, STEPS + 3)


@dataclass(frozen=True)
class Recorded:
    """One recorded log.

    Fields:
        name: its folder in LOGS.
        format: the framework's key.
        armed: settings under which its KL is taken; None if it never is.
    """

    name: str
    format: str
    armed: dict[str, str] | None = None

    def files(self, attempt):
        """What start `attempt` wrote or changed, by path: all of each file, the log itself last."""
        root = LOGS / self.name / str(attempt)
        found = [file for file in root.rglob("*") if file.is_file()]
        return {
            str(f.relative_to(root)): f.read_bytes() for f in sorted(found, key=lambda f: f.stat().st_size)
        }

    @property
    def log(self):
        """Name of the file of lines, or of the event file of the first start."""
        return list(self.files(0))[-1].rpartition("/")[2]

    @property
    def has_lines(self):
        return ".tfevents." not in self.log

    def rolled(self):
        """The event file of the first start as two, by name: the second one is a second younger."""
        begins, *events = framed(self.start(0))
        # Between two steps: a step that two files share has the values of the first one.
        middle = next(at for at, step in enumerate(map(step_of, events)) if step > RESUMED // 2)
        first, later = b"".join(events[:middle]), b"".join(events[middle:])
        start, number, rest = re.fullmatch(r"(.*tfevents\.)(\d+)(.*)", self.log).groups()
        return {self.log: begins + first, f"{start}{int(number) + 1}{rest}": begins + later}

    def kept(self):
        """What the second start left of the log of the first."""
        first, second = (list(self.files(attempt).values())[-1] for attempt in (0, 1))
        same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        return first[: first.rfind(b"\n", 0, same) + 1] if self.has_lines else b""

    def start(self, attempt):
        """What one start alone wrote into the log."""
        data = list(self.files(attempt).values())[-1]
        return data[len(self.kept()) :] if attempt else data


def framed(data):
    """The records of an event file, each with the frame that it has there."""
    found = []
    while data:
        end = struct.unpack("<Q", data[:8])[0] + 16
        found.append(data[:end])
        data = data[end:]
    return found


def step_of(framed_event):
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event.FromString(framed_event[12:-4]).step


TOKENS = {"kl_penalty": "low_var_kl"}
NEMO_RL = {
    "token_level_loss": "true",
    "reference_policy_kl_penalty": "0.01",
    "reference_policy_kl_type": "k3",
    "use_kl_in_reward": "false",
}
SWIFT = {"kl_in_reward": "false"}
RECORDED = {
    log.name: log
    for log in (
        Recorded("trl-tensorboard", "trl", {}),
        Recorded("verl", "verl"),
        Recorded("verl-console", "verl"),
        Recorded("openrlhf", "openrlhf", {"kl.estimator": "k1", "kl.init_coef": "0.01"}),
        Recorded("nemo-rl", "nemo-rl", NEMO_RL),
        Recorded("torchtune", "torchtune", {}),
        Recorded("skyrl", "skyrl", {"kl_estimator_type": "k3"}),
        Recorded("slime", "slime"),
        Recorded("roll", "roll", TOKENS),
        Recorded("roll-tensorboard", "roll", {"kl_penalty": "kl"}),
        Recorded("easyr1", "easyr1", {**TOKENS, "loss_avg_mode": "token"}),
        Recorded("ms-swift", "ms-swift", SWIFT),
        Recorded("ms-swift-megatron", "ms-swift", SWIFT),
        Recorded("prime-rl", "prime-rl"),
        Recorded("tinker", "tinker", {}),
    )
}
