"""What happens when on a kind cluster, drawn from a seed. Pure; times are seconds.

A kubelet backs off from what ends again and again, so there are fewer strikes here and more time than on the
level of the API server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from ..schedule import Run

#: Strikes begin within this time after the first run was submitted.
WINDOW = 150.0
BEGIN_WITHIN = 15.0
#: How long a run trains, once its guard has taken its first step, before it hacks or ends.
HACKS_AFTER = (2.0, 60.0)
ENDS_AFTER = (30.0, 90.0)
STRIKES, MIXED_STRIKES = 3, 6


class Fault(StrEnum):
    """What is broken; the value is its row in the table."""

    GUARDS = "guards killed"
    OPERATORS = "operators killed"
    TRAINING_OPERATOR = "training-operator killed"
    API_SERVER = "kube-apiserver killed"
    ETCD = "etcd killed"
    PARTITION = "pods cut off from the API server"


MIXED = "all of these"
#: How long a partition lasts; what is killed comes back when its kubelet starts it again.
PARTITION_SECONDS = (5.0, 40.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that begins `at`; `pick` in [0, 1): whom it hits, or for how long."""

    at: float
    fault: Fault
    pick: float


@dataclass(frozen=True, slots=True)
class Round:
    """A row of the table; a run's `acts` counts from its first step here."""

    name: str
    runs: tuple[Run, ...]
    strikes: tuple[Strike, ...]


def plan(seed: int, runs: int) -> tuple[Round, ...]:
    """All rounds: among them `runs` that hack and as many that are healthy, spread evenly."""
    names = [*Fault, MIXED]
    return tuple(
        one_round(seed, name, runs // len(names) + (index < runs % len(names)))
        for index, name in enumerate(names)
    )


def one_round(seed: int, name: str, each: int) -> Round:
    """The round of this name, with `each` runs that hack and as many healthy ones."""
    rng = random.Random(f"{seed}: {name}")
    runs = tuple(_run(rng, number, hacks=number % 2 == 0) for number in range(2 * each))
    faults = (
        [rng.choice([*Fault]) for _ in range(MIXED_STRIKES)] if name == MIXED else [Fault(name)] * STRIKES
    )
    turn = WINDOW / len(faults)
    strikes = (
        Strike(rng.uniform(n * turn, (n + 1) * turn), one, rng.random()) for n, one in enumerate(faults)
    )
    return Round(name, runs, tuple(strikes))


def _run(rng: random.Random, number: int, hacks: bool) -> Run:
    acts = rng.uniform(*(HACKS_AFTER if hacks else ENDS_AFTER))
    return Run(f"{'hacks' if hacks else 'healthy'}-{number}", rng.uniform(0.0, BEGIN_WITHIN), acts, hacks)
