"""Run the user's own command after a run, such as one that sends a message."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from rlguard.cli.output import say
from rlguard.cli.run.outcome import RunOutcome

#: How long the command may take.
SECONDS = 60.0


def run_on_end(command: str, outcome: RunOutcome, folder: Path) -> None:
    """Run a shell command with the outcome in its environment; a failure is only printed."""
    environment = os.environ | {
        "RLGUARD_OUTCOME": outcome.sentence,
        "RLGUARD_RESULT": outcome.result,
        "RLGUARD_EXIT_CODE": str(outcome.code),
        "RLGUARD_FOLDER": str(folder.absolute()),
    }
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        say(f"rlguard: the command of --on-end was ended after {SECONDS:g} s")
    else:
        if code != 0:
            say(f"rlguard: the command of --on-end failed with exit code {code}")
