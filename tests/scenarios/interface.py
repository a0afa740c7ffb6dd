"""Every name of RLGuard that the scenarios use: commands, paths, fields, files, exit codes, time limits.

A rebuild changes this file at most. Nothing here is an import of the product.
"""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

#: The command as it is installed beside this Python.
RLGUARD = str(Path(sys.executable).with_name("rlguard"))

# Exit codes of `rlguard run`.
FINISHED, REFUSED, FIRED, HALTED, NOT_JUDGED = 0, 2, 3, 4, 5

# Time limits, seconds. All are far above what an idle machine takes: none decides what is asserted.
START = 180.0  # until a process that was started is ready
SOON = 120.0  # until something that needs no evaluation is seen
EVALUATED = 300.0  # until evaluations are made
RUN = 600.0  # a whole run
TEST = 900.0  # a whole scenario

# Environment of a trainer.
URL, TOKEN = "RLGUARD_URL", "RLGUARD_TOKEN"
UNREACHABLE_AFTER = "RLGUARD_UNREACHABLE_SECONDS"

STEPS, CHECKPOINTS, END = "/v1/steps", "/v1/checkpoints", "/v1/end"
VERDICT, HISTORY, READY = "/v1/verdict", "/v1/history", "/readyz"
#: What else a guard may serve; a path that it does not have is no harm to who looks for leaks.
READABLE = (
    *(VERDICT, HISTORY, READY, "/", "/healthz", "/metrics", "/openapi.json", "/docs"),
    *(
        "/v1/run",
        "/v1/rollouts",
        "/v1/figures",
        "/v1/checkpoints",
        "/v1/evaluations",
        "/v1/events",
        "/v1/state",
    ),
)

# Policies. A limit on the KL fires without an evaluation, so most scenarios need no model.
KL_LIMIT = 1.0
FIRES_ON_KL = {"kl": {"hard_stop": KL_LIMIT, "min_steps": 5}}
STOPS_ON_FAILURE = {"evaluation_failing": {"after_failures": 1, "action": "stop"}}
TELLS_EACH_FAILURE = {"evaluation_failing": {"after_failures": 1}}
FEW_PASSES = {"calibrated": {"baseline_passes": 2}}
FOUR_PASSES = {"calibrated": {"baseline_passes": 4}}

FAR_KL = 50.0 * KL_LIMIT


def step_report(step: int, *, reward: float = 0.5, kl: float = 0.01, attempt: int = 0) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "reward": reward, "kl": kl, "kl_kind": "ref_token_mean"}


def checkpoint_report(step: int, path: Path, *, attempt: int = 0) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "path": str(path)}


class Verdict:
    """What a guard says of its run."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.level: str = body["level"]
        self.fired: bool = body["fire"]
        self.stop: bool = body["stop"]
        self.fired_at: int | None = body["latch_step"]
        self.steps: int = body["steps"]
        self.evaluated: int = body["evaluated"]
        self.waiting: int = body["waiting"]
        self.failed: int = body["failed"]


class Api:
    """HTTP of one guard with one token."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def call(self, path: str, body: object = None, timeout: float = 30.0) -> tuple[int, bytes]:
        """Status and body; refusals are results, and a guard that is away raises `OSError`."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except http.client.HTTPException as error:  # it was killed within its response
            raise ConnectionError(f"half a response: {error!r}") from error

    def ready(self) -> bool:
        try:
            return self.call(READY, timeout=5)[0] == 200
        except OSError:
            return False

    def verdict(self) -> Verdict:
        status, body = self.call(VERDICT)
        assert status == 200, body
        return Verdict(json.loads(body))

    def history(self) -> list[dict[str, Any]]:
        status, body = self.call(HISTORY)
        assert status == 200, body
        return [json.loads(line) for line in body.splitlines()]


def verdict_in(body: bytes) -> Verdict:
    """The verdict in the response to a report."""
    return Verdict(json.loads(body)["verdict"])


def reported_steps(history: list[dict[str, Any]], attempt: int = 0) -> list[int]:
    """Steps that this start of the trainer has reported; a checkpoint at step 0 has a line of its own."""
    return [line["step"] for line in history if line["attempt"] == attempt and line.get("reward") is not None]


def heldout_scores(history: list[dict[str, Any]]) -> list[float]:
    """The held-out score of each evaluated step, in order."""
    return [line["heldout"] for line in history if line.get("heldout") is not None]


def serve(
    state: Path, port: int, checkpoints: Path, tokens: Path, policy: Path, heldout: Path | None
) -> list[str]:
    """The command that starts a guard alone."""
    command = [RLGUARD, "serve", "--state-dir", str(state), "--port", str(port), "--policy", str(policy)]
    command += ["--checkpoints", str(checkpoints)]
    command += ["--ingest-token-file", str(tokens / "trainer"), "--read-token-file", str(tokens / "reader")]
    return command if heldout is None else [*command, "--heldout", str(heldout), "--device", "cpu", *SAMPLING]


#: How evaluations sample where no trainer says it.
SAMPLING = ("--max-new-tokens", "8", "--temperature", "1")


class Report:
    """The folder that `rlguard run` leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: What a guard needs to go on after `rlguard run` was killed.
        self.state = folder / "guard"

    def verdict(self) -> Verdict:
        return Verdict(json.loads((self.folder / "verdict.json").read_text()))

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "history.jsonl").read_text().splitlines()]

    def trainer_output(self) -> str:
        return (self.folder / "trainer.log").read_text()


def replay(path: Path) -> list[str]:
    """The command that judges a recorded run as the whole guard would."""
    return [RLGUARD, "replay", str(path), "--detector", "guard", "--json"]


def replayed(output: str) -> tuple[str, int | None]:
    """Level and step of the stop, None without one, of what that command printed."""
    found = json.loads(output)
    return found["level"], found["step"] if found["fired"] else None
