"""Wall clocks that jump: `clock.c`, preloaded into a process, reads how far it is off from a file."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The wall clock of the processes that are started with `environment`; monotonic clocks stay right."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.jump_to(0)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}

    def jump_to(self, seconds: int) -> None:
        """Be this far off the true time from now on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))


def build_clock(directory: Path) -> Path:
    """The library that is preloaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("chaos makes clocks jump with a library of its own: install the package gcc")
    library = directory / "clock.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library
