"""Which of many places of a run stay where there is room for few. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rlguard.core.checkpoint_key import CheckpointKey

#: Evaluation rounds that the status of a job holds; with more of them so many are the newest.
MAX_ROUNDS, NEWEST_ROUNDS = 50, 25


def rounds_that_stay(places: Sequence[CheckpointKey], best: CheckpointKey | None) -> list[int]:
    """Which of these evaluation rounds are kept, by their index, in the order in which they were folded.

    With more than `MAX_ROUNDS` it is the first, the best, the newest, and of the others evenly chosen ones.

    Args:
        places: of the rounds; none stands there twice.
        best: the place of the last good checkpoint; None: there is none.
    """
    newest = range(max(0, len(places) - NEWEST_ROUNDS), len(places))
    return thinned(places, MAX_ROUNDS, {0, *newest, *(i for i, place in enumerate(places) if place == best)})


def thinned(places: Sequence[CheckpointKey], most: int, spared: Collection[int]) -> list[int]:
    """Which places stay, by their index: at most `most`, in their order.

    Those of `spared`, which are no more than that, always do. Of the others the first of every two steps of
    an attempt stays, of every four, and so on until they fit. So a list that is thinned again and again while
    it grows loses none of those that stay of the whole. Of more attempts than that the newest stay.
    """
    if len(places) <= most:
        return list(range(len(places)))
    levels = [math.inf if i in spared else _level(places, i) for i in range(len(places))]
    too_low = sorted(levels, reverse=True)[most]
    if too_low < math.inf:
        return [i for i, level in enumerate(levels) if level > too_low]
    begun = [i for i, level in enumerate(levels) if level == math.inf and i not in spared]
    return sorted({*spared, *begun[len(begun) - (most - len(spared)) :]})


def _level(places: Sequence[CheckpointKey], index: int) -> float:
    """Up to which power of two this is the first of so many steps; without end where its attempt begins."""
    place, before = places[index], places[index - 1] if index else None
    if before is None or before.attempt != place.attempt:
        return math.inf
    return (before.step ^ place.step).bit_length()


def evenly(count: int, most: int) -> list[int]:
    """At most `most` (2 or more) of so many places, by their index: evenly spread, both ends among them."""
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]


def fewer_lines(text: str, most: int) -> str | None:
    """The text, with so few of its lines that it has at most so many bytes; None if its first has more.

    The first always stays, and of the others every second goes, again and again, the last one last.
    """
    first, *others = text.split("\n")
    while others and size(first, *others) > most:
        others = others[-1::-2][::-1] if len(others) > 1 else []
    return "\n".join((first, *others)) if size(first, *others) <= most else None


def size(*lines: str) -> int:
    """Bytes of these lines as one text."""
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines) - 1
