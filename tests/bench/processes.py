"""The operator's process, as `bench_operator.py` measures it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from fleet import IMAGE, OPERATOR_NAMESPACE, ROOT

sys.path.insert(0, str(ROOT / "tests" / "operator"))

from integration.waiting import eventually

PATIENCE_SECONDS = 300.0


class Process:
    """An operator, measured from outside."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        command = [
            sys.executable, "-m", "rlguard.operator", f"--kubeconfig={kubeconfig}", f"--guard-image={IMAGE}",
            f"--lease-namespace={OPERATOR_NAMESPACE}", "--lease-seconds=30", "--bind=127.0.0.1", "--port=0",
        ]  # fmt: skip
        self._log, self._started = log, time.monotonic()
        self._popen = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, cwd=ROOT)

    def works(self) -> bool:
        """Whether the process is there: one that lost its Lease ends, and nobody starts another here."""
        if (code := self._popen.poll()) is not None:
            end = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"the operator ended with {code}; its log ends so:\n{end}")
        return True

    def memory(self, field: str = "VmRSS") -> float:
        """Resident memory, MiB; `VmHWM`: the most there has been."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self._popen.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def processor(self) -> float:
        """Processor time used so far, seconds."""
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._popen.terminate()
        self._popen.wait(60)

    def leading_after(self) -> float:
        """Seconds from the start of the process until it leads."""
        eventually(lambda: "leading as" in self._log.read_text(), "it leads", within=PATIENCE_SECONDS)
        return time.monotonic() - self._started

    def settled_after(self) -> float:
        """Seconds from the start until it has looked at everything."""

        def idle() -> bool:
            self.works()
            page = self.metrics()
            idle = ("workqueue_depth", "controller_runtime_active_workers")
            return all(re.search(rf"^{name}{{.*}} 0\.0$", page, re.MULTILINE) for name in idle)

        eventually(idle, "its queue is empty", within=PATIENCE_SECONDS)
        return time.monotonic() - self._started

    def metrics(self) -> str:
        """Its page of metrics."""
        found = re.search(r"probes and metrics on port (\d+)", self._log.read_text())
        assert found, self._log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


def share(operator: Process, seconds: float) -> float:
    """Of one core, in these seconds, percent."""
    before, started = operator.processor(), time.monotonic()
    time.sleep(seconds)
    return 100 * (operator.processor() - before) / (time.monotonic() - started)
