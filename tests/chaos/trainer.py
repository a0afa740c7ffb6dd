"""A trainer that reports steps to its guard, deaf to what the guard says, until its pod ends.

It repeats what was not acknowledged, with the same values, and notes what was and what it was told.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from tests.service.conftest import INGEST

Json = dict[str, Any]

PAUSE_SECONDS = 0.3
HIGH_KL = 2.0


class Trainer:
    """See the module. `hack` and `finish` say what it does next; `end` is SIGKILL."""

    def __init__(self, address: str, port: int, certificate: str, rng: random.Random) -> None:
        self.acknowledged: dict[int, Json] = {}
        self.verdicts: list[bool] = []  # without repetitions
        self.fired_at: float | None = None  # monotonic
        self.refused = 0
        self._address, self._port, self._rng = address, port, rng
        self._context = ssl.create_default_context(cadata=certificate)
        self._context.check_hostname = False  # nobody else has a certificate like this one
        self._next, self._unsure = 0, list[Json]()
        self._hacks = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def hack(self) -> None:
        self._hacks.set()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _train(self) -> None:
        while not self._over.wait(PAUSE_SECONDS * (0.5 + self._rng.random())):
            if not self._unsure:
                self._unsure = [self._step() for _ in range(self._rng.choice((1, 1, 2, 5)))]
            with suppress(OSError, http.client.HTTPException):  # the guard is down: the same again
                self._post()

    def _step(self) -> Json:
        self._next += 1
        kl = HIGH_KL if self._hacks.is_set() else 0.01 + self._rng.random() * 0.001
        reward = self._rng.gauss(0.5, 0.1)
        return {"attempt": 0, "step": self._next, "reward": reward, "kl": kl, "kl_kind": "ref_token_mean"}

    def _post(self) -> None:
        connection = http.client.HTTPSConnection(self._address, self._port, timeout=10, context=self._context)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {INGEST}"}
            connection.request("POST", "/v1/steps", json.dumps(self._unsure), headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
        finally:
            connection.close()
        self._note(bool((said.get("verdict") or {}).get("fire")))
        if answer.status != 200:
            self.refused += 1
            return
        self.acknowledged |= {report["step"]: report for report in self._unsure}
        self._unsure = []

    def _note(self, fire: bool) -> None:
        if fire and self.fired_at is None:
            self.fired_at = time.monotonic()
        if self.verdicts[-1:] != [fire]:
            self.verdicts.append(fire)
