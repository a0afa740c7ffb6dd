"""Is the held-out split disjoint from the training prompts? Without torch, in one pass over the training set.

A held-out item that was trained on measures memory: the guard would see a score that does not fall while the
policy hacks. Three rules, the usual ones of decontamination, on the tokens of `text.tokens`:

- exact: the normalised prompts are equal, or what their users ask is, where no other held-out item asks it;
- containment: at least half of the held-out prompt's 8-grams occur in one
  training prompt. Fewer than 8 of them are no profile: without its template "solve: 89 + 49 =" begins like
  every "solve: 89 + b", so such a prompt has to be quoted in full. A prompt of fewer than 8 tokens has no
  8-gram and counts as one n-gram of its own length; below 4 tokens ("2 + 3") a quotation shows nothing, and
  the other rules decide;
- jaccard: the Jaccard similarity of the two sets of 2-grams is at least 0.8. Pairs survive what breaks
  8-grams: sentences in another order, a word put in here and there. Again fewer than 8 pairs are no profile.

The exact rule always holds; the other two can be switched off. They compare what users ask, because a system
message is mostly the same for all; or every turn, where that does not tell the held-out items apart.

An n-gram that more than 5 held-out prompts share is their template ("answer the following question ...") and
identifies none of them, so the two approximate rules leave it out. Otherwise every templated data set would
contain itself.

Memory is that of the held-out side; training prompts are streamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.text import Prompt, asked, normalised, prompt_text, tokens, whole_text

CONTAINMENT = 0.5  # share of 8-grams
CONTAINMENT_GRAM = 8
CONTAINMENT_FEWEST = 8  # 8-grams of a text
SHORTEST_QUOTATION = 4  # tokens
JACCARD = 0.8  # similarity of the sets of 2-grams
JACCARD_GRAM = 2
JACCARD_FEWEST = 8  # 2-grams of a text
TEMPLATE_PROMPTS = 5
MAX_OVERLAPS = 10_000

OverlapRule = Literal["exact", "containment", "jaccard"]
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A training prompt that gives a held-out item away. `value`: what `rule` measured, in (0, 1]."""

    train_id: str
    heldout_id: str
    rule: OverlapRule
    value: float


@dataclass(frozen=True, slots=True)
class DisjointReport:
    """Outcome of `check_disjoint`; it names ids only.

    `overlaps`: one for each offending pair, with the first rule that holds, at most 10,000 of `pairs`.
    `heldout_ids`: every held-out item that overlaps with training, in the split's order.
    """

    train: int
    heldout: int
    pairs: int
    overlaps: tuple[Overlap, ...]
    heldout_ids: tuple[str, ...]

    @property
    def disjoint(self) -> bool:
        """Whether no rule holds for any pair."""
        return self.pairs == 0

    def summary(self, most: int = 10) -> str:
        """A few lines for people, with up to `most` offending pairs."""
        if self.disjoint:
            return f"disjoint: {self.heldout} held-out prompts against {self.train} training prompts"
        lines = [
            f"not disjoint: {len(self.heldout_ids)} of {self.heldout} held-out items overlap with training "
            f"({self.pairs} pairs, {self.train} training prompts): remove them from one side"
        ]
        lines += [
            f"  held-out {o.heldout_id!r} ~ training {o.train_id!r}: {o.rule} {o.value:.2f}"
            for o in self.overlaps[:most]
        ]
        if self.pairs > most:
            lines.append(f"  and {self.pairs - most} more")
        return "\n".join(lines)


def check_disjoint(
    train: Iterable[tuple[str, Prompt]],
    heldout: Sequence[HeldoutItem],
    near: bool = True,
) -> DisjointReport:
    """Compare every training prompt, given as (id, prompt), with every held-out item.

    `near`: also look for near-duplicates, and not for the same prompt only.
    """
    index = _Index(heldout, near)
    overlaps: list[Overlap] = []
    hit: set[int] = set()
    count = pairs = 0
    for train_id, prompt in train:
        count += 1
        for item, rule, value in index.matches(prompt):
            pairs += 1
            hit.add(item)
            if len(overlaps) < MAX_OVERLAPS:
                overlaps.append(Overlap(train_id, heldout[item].id, rule, value))
    return DisjointReport(
        train=count,
        heldout=len(heldout),
        pairs=pairs,
        overlaps=tuple(overlaps),
        heldout_ids=tuple(heldout[i].id for i in sorted(hit)),
    )


def disjoint_part(
    train: Callable[[Sequence[HeldoutItem]], Iterable[tuple[str, Prompt]]],
    heldout: Sequence[HeldoutItem],
    near: bool = True,
) -> tuple[HeldoutItem, ...]:
    """The items that are left when those that overlap with training are taken out; maybe none.

    Repeated until nothing overlaps: what is taken out may join the training side, and fewer held-out prompts
    have fewer templates. `train`: the training prompts beside the items that are left.
    """
    left = tuple(heldout)
    while overlapping := set(check_disjoint(train(left), left, near).heldout_ids):
        left = tuple(item for item in left if item.id not in overlapping)
    return left


def families(items: Sequence[HeldoutItem], near: bool = True) -> tuple[tuple[int, ...], ...]:
    """Places of held-out items that are near-duplicates of each other, directly or through others.

    By the same rules, so words that more than TEMPLATE_PROMPTS items share make no family.
    """
    index = _Index(items, near)
    family = list(range(len(items)))

    def root(place: int) -> int:
        while family[place] != place:
            place = family[place]
        return place

    for place, item in enumerate(items):
        for other, _, _ in index.matches(item.conversation):
            first, last = sorted((root(place), root(other)))
            family[last] = first
    found: dict[int, list[int]] = {}
    for place in range(len(items)):
        found.setdefault(root(place), []).append(place)
    return tuple(tuple(places) for places in found.values() if len(places) > 1)


@dataclass(frozen=True, slots=True)
class _Grams:
    """Inverted index of one kind of n-gram over the held-out prompts, templates left out."""

    of_item: list[set[Gram]]  # distinct n-grams of each item
    items: dict[Gram, list[int]]
    template: frozenset[Gram]

    @classmethod
    def of(cls, grams: Sequence[set[Gram]]) -> _Grams:
        shared = Counter(gram for own in grams for gram in own)
        template = frozenset(gram for gram, prompts in shared.items() if prompts > TEMPLATE_PROMPTS)
        left = [own - template for own in grams]
        items: dict[Gram, list[int]] = {}
        for item, own in enumerate(left):
            for gram in own:
                items.setdefault(gram, []).append(item)
        return cls(left, items, template)

    def shared_with(self, grams: Iterable[Gram]) -> Counter[int]:
        """How many of the given distinct n-grams each held-out item has."""
        return Counter(item for gram in grams if gram in self.items for item in self.items[gram])


class _Index:
    """The held-out side, ready to be asked about one training prompt after the other."""

    def __init__(self, heldout: Sequence[HeldoutItem], near: bool) -> None:
        self._near = near
        questions = [asked(item.conversation) for item in heldout]
        asking = Counter(questions)
        self._asked = {question: i for i, question in enumerate(questions) if asking[question] == 1}
        self._exact = {item.key: i for i, item in enumerate(heldout)}
        self._text = prompt_text if len(self._asked) == len(heldout) else whole_text
        held = [tokens(self._text(item.conversation)) for item in heldout]
        self._long = _Grams.of([_ngrams(t, CONTAINMENT_GRAM) for t in held])
        short = [t if SHORTEST_QUOTATION <= len(t) < CONTAINMENT_GRAM else [] for t in held]
        self._short = {tuple(t): i for i, t in enumerate(short) if t}
        self._short_sizes = sorted({len(t) for t in self._short})
        self._pairs = _Grams.of([_ngrams(t, JACCARD_GRAM) for t in held])

    def matches(self, prompt: Prompt) -> list[tuple[int, OverlapRule, float]]:
        """Held-out items that the training prompt gives away, with the first rule that holds for each."""
        found: dict[int, tuple[OverlapRule, float]] = {}
        for same in (self._exact.get(normalised(prompt)), self._asked.get(asked(prompt))):
            if same is not None:
                found[same] = ("exact", 1.0)
        if self._near:
            for item, rule, value in self._near_duplicates(prompt):
                found.setdefault(item, (rule, value))
        return [(item, rule, value) for item, (rule, value) in found.items()]

    def _near_duplicates(self, prompt: Prompt) -> Iterable[tuple[int, OverlapRule, float]]:
        words = tokens(self._text(prompt))
        for size in self._short_sizes:
            for gram in _ngrams(words, size) & self._short.keys():
                yield self._short[gram], "containment", 1.0
        for item, shared in self._long.shared_with(_ngrams(words, CONTAINMENT_GRAM)).items():
            grams = len(self._long.of_item[item])
            if shared / grams >= (CONTAINMENT if grams >= CONTAINMENT_FEWEST else 1.0):
                yield item, "containment", shared / grams
        pairs = _ngrams(words, JACCARD_GRAM) - self._pairs.template
        for item, common in self._pairs.shared_with(pairs).items():
            held = len(self._pairs.of_item[item])
            value = common / (len(pairs) + held - common)
            if value >= JACCARD and min(len(pairs), held) >= JACCARD_FEWEST:
                yield item, "jaccard", value


def _ngrams(words: Sequence[str], size: int) -> set[Gram]:
    """Distinct n-grams; none if there are fewer words than `size`."""
    return set(zip(*(words[i:] for i in range(size)), strict=False))
