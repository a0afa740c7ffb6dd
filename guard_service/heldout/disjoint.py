"""Is the held-out split disjoint from the training prompts? Without torch, in one pass over the training set.

A held-out item that was trained on measures memory: the guard would see a score that does not fall while the
policy hacks. Three rules, the usual ones of decontamination, on the tokens of `text.tokens`:

- exact: the normalised prompts are equal;
- containment: at least half of the held-out prompt's 8-grams occur in one training prompt. A prompt of fewer
  than 8 tokens has no 8-gram and counts as one n-gram of its own length, so it is contained if a training
  prompt quotes it in full; below 4 tokens ("2 + 3") a quotation shows nothing, and the other rules decide;
- minhash: the Jaccard similarity of the two sets of 2-grams, estimated by MinHash (Broder 1997; datasketch,
  128 permutations, standard error about 0.035 there), is at least 0.8. Pairs survive what breaks 8-grams:
  sentences in another order, a word put in here and there. Fewer than 8 pairs are no profile of a text: after
  its template is left out, "31 + 10" may have one pair, and share it with every "31 + b".

An n-gram that more than 5 held-out prompts share is their template ("answer the following question ...") and
identifies none of them, so the two approximate rules leave it out. Otherwise every templated data set would
contain itself.

Memory is that of the held-out side; training prompts are streamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from guard_service.heldout.split import HeldoutSplit
from guard_service.heldout.text import Prompt, normalised, prompt_text, tokens

if TYPE_CHECKING:
    from datasketch import MinHash

CONTAINMENT_GRAM = 8
CONTAINMENT_THRESHOLD = 0.5
SHORTEST_QUOTATION = 4  # tokens
MINHASH_GRAM = 2
MINHASH_FEWEST = 8  # 2-grams of a text
MINHASH_THRESHOLD = 0.8
MINHASH_BOUND = 0.7
MINHASH_PERMUTATIONS = 128
MINHASH_SEED = 1
TEMPLATE_PROMPTS = 5
MAX_OVERLAPS = 10_000

Rule = Literal["exact", "containment", "minhash"]
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A training prompt that gives a held-out item away. `value`: what `rule` measured, in (0, 1]."""

    train_id: str
    heldout_id: str
    rule: Rule
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


def check_disjoint(train: Iterable[tuple[str, Prompt]], heldout: HeldoutSplit) -> DisjointReport:
    """Compare every training prompt, given as (id, prompt), with every held-out item."""
    index = _Index(heldout)
    overlaps: list[Overlap] = []
    hit: set[int] = set()
    count = pairs = 0
    for train_id, prompt in train:
        count += 1
        for item, rule, value in index.matches(prompt):
            pairs += 1
            hit.add(item)
            if len(overlaps) < MAX_OVERLAPS:
                overlaps.append(Overlap(train_id, heldout.items[item].id, rule, value))
    return DisjointReport(
        train=count,
        heldout=len(heldout),
        pairs=pairs,
        overlaps=tuple(overlaps),
        heldout_ids=tuple(heldout.items[i].id for i in sorted(hit)),
    )


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

    def __init__(self, heldout: HeldoutSplit) -> None:
        held = [tokens(prompt_text(item.conversation)) for item in heldout.items]
        self._exact = {item.key: i for i, item in enumerate(heldout.items)}
        self._long = _Grams.of([_ngrams(t, CONTAINMENT_GRAM) for t in held])
        short = [t if SHORTEST_QUOTATION <= len(t) < CONTAINMENT_GRAM else [] for t in held]
        self._short = {tuple(t): i for i, t in enumerate(short) if t}
        self._short_sizes = sorted({len(t) for t in self._short})
        self._minhash = _Grams.of([_ngrams(t, MINHASH_GRAM) for t in held])
        self._signatures: dict[int, MinHash] = {}

    def matches(self, prompt: Prompt) -> list[tuple[int, Rule, float]]:
        """Held-out items that the training prompt gives away, with the first rule that holds for each."""
        found: dict[int, tuple[Rule, float]] = {}
        if (same := self._exact.get(normalised(prompt))) is not None:
            found[same] = ("exact", 1.0)
        words = tokens(prompt_text(prompt))
        for size in self._short_sizes:
            for gram in _ngrams(words, size) & self._short.keys():
                found.setdefault(self._short[gram], ("containment", 1.0))
        for item, shared in self._long.shared_with(_ngrams(words, CONTAINMENT_GRAM)).items():
            if (value := shared / len(self._long.of_item[item])) >= CONTAINMENT_THRESHOLD:
                found.setdefault(item, ("containment", value))
        for item, value in self._alike(_ngrams(words, MINHASH_GRAM)):
            found.setdefault(item, ("minhash", value))
        return [(item, rule, value) for item, (rule, value) in found.items()]

    def _alike(self, grams: set[Gram]) -> Iterable[tuple[int, float]]:
        # The Jaccard similarity is at most common / larger side. An estimate is drawn only where that bound
        # leaves room for it, three standard errors below the threshold: for few pairs of many.
        own = grams - self._minhash.template
        known = [gram for gram in own if gram in self._minhash.items]
        if len(own) < MINHASH_FEWEST or len(known) < MINHASH_BOUND * len(own):
            return
        signature = None
        for item, common in self._minhash.shared_with(known).items():
            held = len(self._minhash.of_item[item])
            if held < MINHASH_FEWEST or common < MINHASH_BOUND * max(len(own), held):
                continue
            signature = signature or _signature(own)
            if (value := signature.jaccard(self._held_signature(item))) >= MINHASH_THRESHOLD:
                yield item, float(value)

    def _held_signature(self, item: int) -> MinHash:
        if item not in self._signatures:
            self._signatures[item] = _signature(self._minhash.of_item[item])
        return self._signatures[item]


def _ngrams(words: Sequence[str], size: int) -> set[Gram]:
    """Distinct n-grams; none if there are fewer words than `size`."""
    return set(zip(*(words[i:] for i in range(size)), strict=False))


def _signature(grams: Iterable[Gram]) -> MinHash:
    from datasketch import MinHash

    signature = MinHash(num_perm=MINHASH_PERMUTATIONS, seed=MINHASH_SEED)
    signature.update_batch([" ".join(gram).encode() for gram in grams])
    return signature
