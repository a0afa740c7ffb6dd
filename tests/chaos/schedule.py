"""What happens when in each round, drawn from a seed. Pure; times are seconds since the round began."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

#: Strikes begin within this time; a run begins in the first part of it and may outlive it.
WINDOW = 36.0
BEGIN_WITHIN = 10.0
#: How long a run trains before it begins to hack, or ends by itself.
HACKS_AFTER = (2.0, 22.0)
ENDS_AFTER = (12.0, 30.0)
MIXED_STRIKES = 8
#: Where strikes are short, a Lease is, too; where they are long it is the installed one, which a busy machine
#: keeps.
LEASE_SECONDS, INSTALLED_LEASE_SECONDS = 6.0, 15.0
#: The round whose strikes outlast the silence that stops a run: when the first begins, how long each lasts,
#: and for how long all is well between two. Its healthy runs live on after the last for longer than that
#: silence, so that a stop that comes late is seen, too.
LONG_FROM, LONG_LASTS, LONG_PAUSE = 3.0, (40.0, 43.0), 6.0
LONG_HACKS_AFTER = (2.0, 145.0)
LONG_ENDS_LATER = (33.0, 35.0)


class Fault(StrEnum):
    """What is broken; the value is its row in the table."""

    OPERATOR_KILLED = "operator killed"
    LEADER_PAUSED = "leader paused, then resumed"
    OPERATOR_CUT_OFF = "operator cut off from the API server"
    WATCHES_FROZEN = "watches frozen"
    API_SERVER_KILLED = "kube-apiserver killed"
    ETCD_KILLED = "etcd killed"
    GUARDS_KILLED = "guards killed"
    GUARDS_CUT_OFF = "guards cut off from the operators"
    DISK_FULL = "disk full"
    CLOCK_JUMPS = "clocks jump"
    TRAINING_OPERATOR_AWAY = "training-operator away"


TWO_LEADERS = "two leaders at once, operators killed"
OUTLASTING = "longer than a guard may be silent"
MIXED = "all of these"


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that begins `at` and is mended after `lasts`; `pick` in [0, 1): whom it hits, or how hard.

    `both`: what hits an operator hits both of them.
    """

    at: float
    lasts: float
    fault: Fault
    pick: float
    both: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is submitted at `begins`; at `acts` it begins to hack, or, if healthy, it ends."""

    name: str
    begins: float
    acts: float
    hacks: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A row of the table.

    `reported_first`: its times count from when every guard has been heard; `lease_seconds`: of the operators.
    """

    name: str
    runs: tuple[Run, ...]
    strikes: tuple[Strike, ...]
    two_leaders: bool = False
    reported_first: bool = False
    lease_seconds: float = LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class _Habit:
    """How often a fault strikes in a round, and for how long at least and at most."""

    strikes: int
    shortest: float
    longest: float


_HABITS = {
    Fault.OPERATOR_KILLED: _Habit(4, 0.5, 8.0),
    Fault.LEADER_PAUSED: _Habit(2, 5.0, 15.0),
    Fault.OPERATOR_CUT_OFF: _Habit(2, 4.0, 15.0),
    Fault.WATCHES_FROZEN: _Habit(2, 4.0, 15.0),
    Fault.API_SERVER_KILLED: _Habit(3, 0.5, 6.0),
    Fault.ETCD_KILLED: _Habit(3, 0.5, 6.0),
    Fault.GUARDS_KILLED: _Habit(8, 0.5, 3.0),
    Fault.GUARDS_CUT_OFF: _Habit(2, 4.0, 15.0),
    Fault.DISK_FULL: _Habit(3, 2.0, 9.0),
    Fault.CLOCK_JUMPS: _Habit(6, 1.0, 6.0),
    Fault.TRAINING_OPERATOR_AWAY: _Habit(2, 5.0, 17.0),
}


#: What makes guards look silent that are not, in the order of that round.
OUTLASTING_FAULTS = (Fault.WATCHES_FROZEN, Fault.OPERATOR_CUT_OFF, Fault.GUARDS_CUT_OFF)


def plan(seed: int, runs: int) -> tuple[Round, ...]:
    """All rounds: among them `runs` that hack and as many that are healthy, spread evenly."""
    names = [*Fault, TWO_LEADERS, OUTLASTING, MIXED]
    return tuple(
        one_round(seed, name, runs // len(names) + (index < runs % len(names)))
        for index, name in enumerate(names)
    )


def one_round(seed: int, name: str, each: int) -> Round:
    """The round of this name, with `each` runs that hack and as many healthy ones. It depends on no other."""
    rng = random.Random(f"{seed}: {name}")
    if name == OUTLASTING:
        return _outlasting(rng, each)
    runs = tuple(_run(rng, number, HACKS_AFTER, ENDS_AFTER) for number in range(2 * each))
    if name == MIXED:
        faults = rng.sample(list(Fault), MIXED_STRIKES)
        strikes = [_strike(rng, fault, 2.0, WINDOW) for fault in faults]
    else:
        fault = Fault.OPERATOR_KILLED if name == TWO_LEADERS else Fault(name)
        strikes = _in_turn(rng, fault)
    return Round(name, runs, tuple(sorted(strikes, key=lambda one: one.at)), name == TWO_LEADERS)


def _outlasting(rng: random.Random, each: int) -> Round:
    """Long strikes in turn, of operators always both, and healthy runs that live through all of them."""
    at, strikes = LONG_FROM, list[Strike]()
    for fault in OUTLASTING_FAULTS:
        strikes.append(Strike(at, rng.uniform(*LONG_LASTS), fault, rng.random(), both=True))
        at += strikes[-1].lasts + LONG_PAUSE
    over = at - LONG_PAUSE
    ends = over + LONG_ENDS_LATER[0], over + LONG_ENDS_LATER[1]
    runs = tuple(_run(rng, number, LONG_HACKS_AFTER, ends) for number in range(2 * each))
    return Round(OUTLASTING, runs, tuple(strikes), reported_first=True, lease_seconds=INSTALLED_LEASE_SECONDS)


def _run(
    rng: random.Random, number: int, hacks_after: tuple[float, float], ends_after: tuple[float, float]
) -> Run:
    hacks = number % 2 == 0
    begins = rng.uniform(0.0, BEGIN_WITHIN)
    acts = begins + rng.uniform(*(hacks_after if hacks else ends_after))
    return Run(f"{'hacks' if hacks else 'healthy'}-{number}", begins, acts, hacks)


def _in_turn(rng: random.Random, fault: Fault) -> list[Strike]:
    """Strikes of one fault, each mended before the next begins."""
    turn = WINDOW / _HABITS[fault].strikes
    return [_strike(rng, fault, turn * n, turn * (n + 1)) for n in range(_HABITS[fault].strikes)]


def _strike(rng: random.Random, fault: Fault, earliest: float, latest: float) -> Strike:
    """A strike that begins at a random moment and, if it can, is over at `latest`."""
    habit = _HABITS[fault]
    at = rng.uniform(earliest, max(earliest, latest - habit.shortest))
    lasts = rng.uniform(habit.shortest, max(habit.shortest, min(habit.longest, latest - at)))
    return Strike(at, lasts, fault, rng.random())
