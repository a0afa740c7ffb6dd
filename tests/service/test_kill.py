"""kill -9 at random moments: what was acknowledged is on disk, and no latch opens.

A run is one state directory. Three clients post to it (single steps, lists, a checkpoint now and then) and
note every acknowledgement. The guard is killed at a random moment, start-up included, and started again.
After each kill the files are copied and folded from the first event by a fresh judge; the restarted guard
must give exactly that verdict. Some of the runs drift in KL until the guard fires.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guard_service.history import export_history
from rlguard.core.judge import Judge
from rlguard.core.policy import Policy
from rlguard.core.wire import Verdict
from tests.service.filled_store import folded

RUNS, LIVES = 2, 31
CLIENTS = 3
LONGEST_LIFE = 0.1  # seconds after the guard listens
KILL_WHILE_STARTING = 0.15  # share of lives that end before the guard listens


@dataclass
class Client:
    """A trainer that repeats what was not acknowledged, with the same values."""

    attempt: int
    rng: random.Random
    drifts: bool = False
    acknowledged: dict[int, dict[str, Any]] = field(default_factory=dict)
    unsure: list[dict[str, Any]] = field(default_factory=list)
    next_step: int = 0
    saw_fire: str = ""

    def post_until_killed(self, url: str, checkpoints: Path) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        try:
            while True:
                self._post_once(connection, checkpoints)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    def _post_once(self, connection: http.client.HTTPConnection, checkpoints: Path) -> None:
        if not self.unsure:
            size = self.rng.choice((1, 1, 1, 2, 20))
            self.unsure = [self._step(self.next_step + i) for i in range(size)]
            self.next_step += size
        content = self.unsure if len(self.unsure) > 1 else self.unsure[0]
        answer = self._send(connection, "/v1/steps", content)
        assert answer["accepted"] + answer["duplicates"] == len(self.unsure)
        self.acknowledged |= {report["step"]: report for report in self.unsure}
        self.unsure = []
        if answer["verdict"]["fire"]:
            self.saw_fire = answer["verdict"]["reason"]
        if self.rng.random() < 0.05:
            path = checkpoints / f"{self.attempt}-{self.next_step}"
            path.mkdir(exist_ok=True)
            report = {"attempt": self.attempt, "step": self.next_step, "path": str(path)}
            self._send(connection, "/v1/checkpoints", report)

    def _step(self, number: int) -> dict[str, Any]:
        kl = (5.0 if self.drifts else 0.01) + self.rng.random() * 0.001
        return {
            "attempt": self.attempt,
            "step": number,
            "reward": self.rng.gauss(0.5, 0.1),
            "kl": kl,
            "kl_kind": "ref_token_mean",
        }

    @staticmethod
    def _send(connection: http.client.HTTPConnection, path: str, content: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer ingest-token-0123456789"}
        connection.request("POST", path, json.dumps(content), headers)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)


def replay(state: Path, copy: Path, policy: Policy) -> tuple[Verdict, dict[tuple[int, int], dict[str, Any]]]:
    """The verdict and the steps that the files at rest hold, from the first event on."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for file in state.glob("guard.db*"):
        shutil.copy(file, copy)
    if not (copy / "guard.db").exists():  # killed before there was a log
        return alone(Judge(policy)), {}
    judge = folded(copy, policy)
    steps = {(line["attempt"], line["step"]): line for line in export_history(copy)}
    return alone(judge), steps


def alone(judge: Judge) -> Verdict:
    """What a guard says that scores nothing: no evaluation is yet to be made."""
    return judge.verdict().model_copy(update={"waiting": 0})


def get_verdict(url: str) -> Verdict:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("GET", "/v1/verdict", headers={"Authorization": "Bearer read-token-0123456789"})
    verdict = Verdict.model_validate_json(connection.getresponse().read())
    connection.close()
    # What no judge knows: where checkpoints lie, and the time.
    return verdict.model_copy(update={"checkpoint_root": None, "latched_at": None})


def run_lives(guard: Any, seed: int, drifts: bool, lives: int, policy: Policy) -> int:
    rng = random.Random(seed)
    clients = [Client(i, random.Random(rng.random())) for i in range(CLIENTS)]
    fired = ""
    kills = 0
    expected = alone(Judge(policy))
    for life in range(lives):
        for client in clients:
            client.drifts = drifts and life >= lives // 2
        guard.launch()
        if rng.random() < KILL_WHILE_STARTING:
            time.sleep(rng.random() * 0.1)
        else:
            endpoint = guard.state / "endpoint.json"
            while not endpoint.exists():
                assert guard.is_alive(), guard.log
                time.sleep(0.001)
            url = json.loads(endpoint.read_text())["url"]
            assert get_verdict(url) == expected
            threads = [
                threading.Thread(target=c.post_until_killed, args=(url, guard.directory / "checkpoints"))
                for c in clients
            ]
            for thread in threads:
                thread.start()
            time.sleep(rng.random() * LONGEST_LIFE)
            os.kill(guard.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
        assert guard.end(signal.SIGKILL) == -signal.SIGKILL
        kills += 1
        expected, steps = replay(guard.state, guard.directory / "copy", policy)
        for client in clients:
            for number, report in client.acknowledged.items():
                kept = steps[client.attempt, number]
                assert {name: kept[name] for name in report} == report
            fired = fired or client.saw_fire
        if fired:
            assert expected.fire and expected.reason == fired
    guard.start()
    assert get_verdict(guard.url) == expected
    assert not drifts or fired, "a run that drifts must fire, or the latch was not tested"
    assert guard.end() == 0
    return kills


def test_killed_at_random_moments(new_guard: Callable[..., Any], guard_policy: Policy) -> None:
    seed = int(os.environ.get("RLGUARD_TEST_SEED", random.SystemRandom().getrandbits(32)))
    print(f"RLGUARD_TEST_SEED={seed}")
    guards = [new_guard(f"run-{i}") for i in range(RUNS)]
    with ThreadPoolExecutor(RUNS) as pool:
        kills = sum(
            pool.map(lambda i: run_lives(guards[i], seed + i, i % 2 == 0, LIVES, guard_policy), range(RUNS))
        )
    assert kills >= 50
