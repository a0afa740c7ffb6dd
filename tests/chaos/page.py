"""The table, and the page around it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .counts import Count, Facts, totals, wrong

PAGE = Path(__file__).with_name("page.md").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Played:
    """A round that was played: its row, how often it was struck, and what was seen of its runs."""

    name: str
    strikes: int
    facts: tuple[Facts, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """How the results were made."""

    seed: int
    commit: str
    minutes: float
    cores: int


def table(rounds: Sequence[Played]) -> str:
    """A row for each round and one of all."""
    head = [
        "what breaks",
        "strikes",
        "fires",
        "healthy",
        *(count.value for count in Count),
        "slowest stop, s",
    ]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *(_row(one) for one in rounds)]
    everything = Played("**all**", sum(one.strikes for one in rounds), sum((one.facts for one in rounds), ()))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [*rows, _row(everything)])


def _row(played: Played) -> list[str]:
    counted = totals(played.facts)
    fires = sum(facts.run.hacks for facts in played.facts)
    stops = [facts.stop_seconds for facts in played.facts if facts.stop_seconds is not None]
    return [
        played.name,
        str(played.strikes),
        str(fires),
        str(len(played.facts) - fires),
        *(str(counted[count]) for count in Count),
        f"{max(stops):.0f}" if stops else "",
    ]


def findings(rounds: Sequence[Played]) -> str:
    """One line for each thing that went wrong; "" if nothing did."""
    return "\n".join(
        f"- {played.name}, {one.run}: {one.count.value}: {one.what}"
        for played in rounds
        for facts in played.facts
        for one in wrong(facts)
    )


def page(rounds: Sequence[Played], made: Made, around: str) -> str:
    """The whole page; `around` is the text around the results."""
    found = findings(rounds)
    return around.format(
        seed=made.seed,
        commit=made.commit,
        minutes=made.minutes,
        cores=made.cores,
        table=table(rounds),
        findings=f"What was not 0:\n\n{found}" if found else "Every count is 0.",
    )
