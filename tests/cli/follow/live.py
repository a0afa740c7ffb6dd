"""A trainer that writes a recorded log as it was written: in pieces, with pauses, a rotation, and a restart.

    python live.py NAME FOLDER

A log of lines is renamed and begun anew; of event files another one is begun, as `SummaryWriter` does that is
closed and used again. Before it rotates its log, and before the trainer starts again, it prints a line and
waits for one: what is cut away while nobody reads is lost, which is no fault of a reader. Everything else
happens at any moment.
"""

import os
import random
import sys
import time
from pathlib import Path

from tests.cli.logs.recorded import RECORDED

PIECES = 20
PAUSE = 0.01


def ready_for(what):
    print(what, flush=True)
    sys.stdin.readline()


def write(file, data, rotate):
    """Appends `data` in pieces that end anywhere; at the end of a line in the middle the log is renamed."""
    cuts = sorted(random.Random(1).sample(range(1, len(data)), min(PIECES, len(data) - 1)))
    lines = data.splitlines(keepends=True)
    middle = sum(map(len, lines[: len(lines) // 2])) if rotate else 0
    cuts = sorted({*cuts, middle, len(data)} - {0})
    for start, end in zip([0, *cuts], cuts, strict=False):
        with file.open("ab", buffering=0) as log:
            log.write(data[start:end])
        time.sleep(PAUSE)
        if end == middle:
            ready_for("rotates")
            file.rename(file.with_name(f"{file.name}.1"))


def main(name, folder):
    recorded = RECORDED[name]
    for attempt in (0, 1):
        for path, data in recorded.files(attempt).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.name == recorded.log and not recorded.has_lines:
                (_, first), (later, second) = recorded.rolled().items()
                write(file, first, False)
                ready_for("rotates")
                write(file.with_name(later), second, False)
            elif file.name != recorded.log or not recorded.has_lines:
                write(file, data, False) if data else file.touch()
            elif attempt == 0:
                write(file, data, True)
            else:
                if data[: len(recorded.files(0)[path])] != recorded.files(0)[path]:  # it does not just append
                    anew = file.with_name("anew")
                    anew.write_bytes(recorded.kept())
                    os.replace(anew, file) if recorded.kept() else file.write_bytes(b"")
                write(file, recorded.start(1), False)
        if attempt == 0:
            ready_for("starts again")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
