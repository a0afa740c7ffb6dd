"""What each framework writes, as bytes of a log of STEPS steps, and two logs of our own.

Attempt 1 is a later start of the trainer, which goes on from step RESUMED.
"""

import struct
from json import dumps

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from tests.cli.logs.recorded import LOGS as DATA
from tests.cli.logs.recorded import RECORDED, RESUMED, STEPS, kl, reward, steps

__all__ = ["DATA", "RESUMED", "SHAPES", "STEPS", "kl", "lines", "reward", "tensorboard"]


def lines(rows):
    return "".join(dumps(row) + "\n" for row in rows).encode()


def through_ray(attempt):
    """verl's console as Ray's driver prints it: with the actor's name, colours, and lines of others."""
    prefix = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
    noise = (
        "(WorkerDict pid=12) loading step:3 of nothing - done\n{'loss': 0.1}\nTraining Progress:   8%|8\r\n"
    )
    text = RECORDED["verl-console"].start(attempt).decode().splitlines()
    return "".join(f"{noise}{prefix}{line}\n" for line in text).encode()


def own_csv(attempt):
    rows = "".join(f"{s},{reward(s, attempt)!r},{kl(s, attempt)!r},\r\n" for s in steps(attempt))
    return ("step,reward,kl,note\r\n" + rows).encode()


def tensorboard(tags):
    """Event files as `EventFileWriter` frames them, with the messages of the tensorboard package."""

    def write(attempt):
        from tensorboard.compat.proto import event_pb2

        data = record(event_pb2.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        return data + b"".join(event(s, *tag) for s in steps(attempt) for tag in tags(s, attempt).items())

    return write


def event(step, tag, value):
    """One scalar, as in an event file."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
    return record(event_pb2.Event(wall_time=1.0, step=step, summary=summary).SerializeToString())


def record(message):
    length = struct.pack("<Q", len(message))
    return (
        length
        + struct.pack("<I", masked_crc32c(length))
        + message
        + struct.pack("<I", masked_crc32c(message))
    )


#: Name of a log: (format, name of the file, what writes it, whether its KL is armed without a configuration).
SHAPES = {
    **{log.name: (log.format, log.log, log.start, log.armed == {}) for log in RECORDED.values()},
    "verl-console": ("verl", "driver.log", through_ray, False),
    "csv": ("trl", "log.csv", own_csv, True),
}
