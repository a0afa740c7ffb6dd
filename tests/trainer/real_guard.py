"""A real guard process on a free loopback port: start it, kill it, start it again on the same state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.token_files import with_token_files

#: KL fires as soon as five steps have carried one: any drift of the policy is above this threshold.
TIGHT_KL = {"kl": {"hard_stop": 1e-9, "min_steps": 5}}
#: KL never fires.
LOOSE_KL = {"kl": {"hard_stop": 1e9}}

INGEST, READ = "ingest-secret-of-the-test", "read-secret-of-the-test"


def digits(completion: str, answer: str, meta: object) -> float:
    """A scorer: the share of digits. It differs from completion to completion, also of a tiny model."""
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


class RealGuard:
    """`python -m guard_service` as a user runs it, with both tokens."""

    def __init__(
        self,
        directory: Path,
        checkpoint_root: Path,
        policy: dict[str, Any] | None = None,
        heldout: dict[str, Any] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        checkpoint_root.mkdir(parents=True, exist_ok=True)
        self._endpoint = directory / "state" / "endpoint.json"
        policy_file = directory / "policy.yaml"
        policy_file.write_text(json.dumps(policy or {}))
        self._environ = {
            "RLGUARD_GUARD_STATE_DIR": str(directory / "state"),
            "RLGUARD_GUARD_CHECKPOINT_ROOT": str(checkpoint_root),
            "RLGUARD_GUARD_POLICY_FILE": str(policy_file),
            "RLGUARD_GUARD_PORT": "0",
        }
        tokens = {"RLGUARD_GUARD_INGEST_TOKEN": INGEST, "RLGUARD_GUARD_READ_TOKEN": READ}
        self._environ |= with_token_files(tokens, directory)
        if heldout is not None:
            self._environ["RLGUARD_GUARD_HELDOUT"] = json.dumps(heldout)
        self._log = (directory / "guard.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start the process and wait until it listens; a second start takes the first one's port."""
        self._endpoint.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "guard_service"],
            env=os.environ | self._environ,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + 60
        while not self._endpoint.exists():
            assert self._process.poll() is None, Path(self._log.name).read_text()
            assert time.monotonic() < end, "the guard did not start in a minute"
            time.sleep(0.05)
        self.url = json.loads(self._endpoint.read_text())["url"]
        self._environ["RLGUARD_GUARD_PORT"] = self.url.rsplit(":", 1)[1]

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def history(self) -> list[dict[str, Any]]:
        """`GET /v1/history`: one object a step."""
        return [json.loads(line) for line in self._read("history").splitlines()]

    def verdict(self) -> dict[str, Any]:
        return json.loads(self._read("verdict"))

    def _read(self, what: str) -> bytes:
        request = urllib.request.Request(f"{self.url}/v1/{what}", headers={"Authorization": f"Bearer {READ}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()
