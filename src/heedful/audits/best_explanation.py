"""Erasure of words in the order of an explanation, and a search for the best order that there is.

Faithfulness by erasure has no natural unit: a drop of .2 may be all that any explanation achieves on a text, or hardly
anything. The search looks for the order of words that optimizes the measure itself; 0 is what random scores achieve.
Up to `MAX_ENUMERATED_WORDS` words it reads every set of words and is exact. Of longer texts it tries orders of a few
candidate words and gives a lower bound of what is achievable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.method import Baseline, Feature, feature_counts, feature_index
from heedful.measures.erasure import removal_sizes
from heedful.trials.faithfulness import ErasureEvaluator, FeatureOutputs
from heedful.types import Batch, Model

MAX_ENUMERATED_WORDS = 8
"""Of a text of so many words all 256 sets can be read."""
PAIRED_WORDS = 5
"""Words of a longer text of which the search tries every pair, and then larger sets."""
BEAM = 2
"""Sets of more than two words that go on to the next step."""


def word_erasure(deletion: Baseline, seed: int = 0, feature: Feature = "word") -> ErasureEvaluator:
    """What removes and keeps words, or other features: at sizes of equal weight, and without random removals."""
    return ErasureEvaluator(deletion, steps=None, samples=0, seed=seed, feature=feature, quantized=False, bins=None)


@dataclass(frozen=True)
class BestErasure:
    """The best values that a search found for each text: lower bounds of the achievable, `[batch]` in float64.

    Args:
        flip: NaN for regression.
        order: of each text, the words whose removal gives the best comprehensiveness, first removed first.
        passes: forward passes per text.
        full: output of the whole text.
        without_each: of each text, the output without each single word.
    """

    comprehensiveness: Tensor
    sufficiency: Tensor
    flip: Tensor
    order: tuple[tuple[int, ...], ...]
    passes: Tensor
    full: Tensor
    without_each: tuple[tuple[float, ...], ...]


def search_best_erasure(
    model: Model,
    batch: Batch,
    target: Tensor,
    deletion: Baseline,
    *,
    exact: int = MAX_ENUMERATED_WORDS,
    candidates: int = PAIRED_WORDS,
    beam: int = BEAM,
    feature: Feature = "word",
) -> BestErasure:
    """Search words whose removal lowers the output most, and words that alone keep it highest, for every text.

    Args:
        exact: texts of at most so many words are searched by enumeration.
        feature: what is removed together; "word" in the other descriptions stands for it.
    """
    outputs = FeatureOutputs(model, batch, target, deletion, feature)
    words = feature_counts(feature_index(batch, feature))
    searches = [
        _TextSearch(size, [count for count in bins if count], candidates, beam, is_exact=size <= exact)
        for size, bins in zip(words.tolist(), removal_sizes(words).tolist(), strict=True)
    ]
    _run_together(searches, outputs)
    device = target.device

    def tensor(values: Iterator[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=device)

    flip = tensor(search.flip for search in searches)
    return BestErasure(
        comprehensiveness=tensor(search.full + search.removal.mean for search in searches),
        sufficiency=tensor(search.full - search.keeping.mean for search in searches),
        flip=flip if model.task.num_classes > 1 else torch.full_like(flip, torch.nan),
        order=tuple(search.removal.order for search in searches),
        passes=torch.tensor([len(search.outputs) for search in searches], device=device),
        full=tensor(search.full for search in searches),
        without_each=tuple(search.without_each for search in searches),
    )


def _run_together(searches: Sequence[_TextSearch], outputs: FeatureOutputs) -> None:
    """Run the searches of all texts side by side: what they ask for at the same step is read in one call."""
    width = max(1, max((search.words for search in searches), default=1))
    running = {row: search.run() for row, search in enumerate(searches)}
    while running:
        asked: dict[int, list[int]] = {}
        for row, steps in [*running.items()]:
            kept_sets = next(steps, None)
            if kept_sets is None:
                del running[row]
            elif new := [kept for kept in dict.fromkeys(kept_sets) if kept not in searches[row].outputs]:
                asked[row] = new
        if not asked:
            continue
        # A text with fewer sets than another repeats one of them, which is read once.
        most = max(map(len, asked.values()))
        sets = torch.ones(len(searches), most, width, dtype=torch.bool)
        for row, kept_sets in asked.items():
            places = torch.tensor([[kept >> word & 1 for word in range(width)] for kept in kept_sets], dtype=torch.bool)
            sets[row] = places[[*range(len(kept_sets)), *[0] * (most - len(kept_sets))]]
        values, decisions = (part.tolist() for part in outputs(sets.to(outputs.target.device)))
        for row, kept_sets in asked.items():
            read = zip(values[row], decisions[row], strict=True)
            searches[row].outputs.update(zip(kept_sets, read, strict=False))


@dataclass(frozen=True)
class _Path:
    """Words in the order in which they were chosen, and the sum of the values at the bins passed."""

    order: tuple[int, ...] = ()
    total: float = 0.0


@dataclass(frozen=True)
class _Best:
    """The order with the best mean value over bins."""

    order: tuple[int, ...]
    mean: float


class _TextSearch:
    """The search for the best orders of one text. A set of words is a number whose bits are its words.

    Attributes:
        outputs: output and predicted class of every set of words that was read, by the words that were kept.
    """

    def __init__(self, words: int, bins: Sequence[int], candidates: int, beam: int, *, is_exact: bool) -> None:
        self.words, self.bins, self.candidates, self.beam, self.is_exact = words, bins, candidates, beam, is_exact
        self.all = (1 << words) - 1
        self.outputs: dict[int, tuple[float, int]] = {}
        self.paths: dict[bool, list[_Path]] = {True: [], False: []}

    def run(self) -> Iterator[Sequence[int]]:
        """Yields the sets of kept words whose outputs are needed next."""
        yield [self.all]
        if self.words < 1:
            return
        if self.is_exact:
            for removes in (True, False):
                yield from self._grow(range(self.words), removes=removes, largest=max(self.bins), beam=None)
            return
        singles = [1 << word for word in range(self.words)]
        yield [*(self.all ^ single for single in singles), *singles]
        effects = {removes: [self._value(single, removes=removes) for single in singles] for removes in (True, False)}
        ranked = {removes: _ranked(values) for removes, values in effects.items()}
        first = [word for pair in zip(ranked[True], ranked[False], strict=True) for word in pair]
        chosen = list(dict.fromkeys(first))[: self.candidates]
        places = {removes: {word: place for place, word in enumerate(order)} for removes, order in ranked.items()}
        both = sorted(range(self.words), key=lambda word: (places[True][word] + places[False][word], word))
        orders = [*ranked.values(), both]
        # Pairs also where no bin has two words: a single removal shows nothing of evidence that is given twice.
        largest = max((size for size in (2, *self.bins) if size <= min(len(chosen), max(self.bins))), default=0)
        for removes in (True, False):
            yield from self._grow(chosen, removes=removes, largest=largest, beam=self.beam)
            begun = [(), *(path.order for path in self.paths[removes])]
            whole = [
                (*path, *(word for word in order if word not in path))[: max(self.bins)]
                for path in begun
                for order in orders
            ]
            sizes = sorted({*self.bins})
            yield [self._kept(_as_set(order[:size]), removes=removes) for order in whole for size in sizes]
            self.paths[removes] = [
                _Path(order, sum(self._value(_as_set(order[:size]), removes=removes) for size in self.bins))
                for order in dict.fromkeys(whole)
            ]

    def _grow(
        self, candidates: Sequence[int], *, removes: bool, largest: int, beam: int | None
    ) -> Iterator[Sequence[int]]:
        """Sets of candidates one word larger at each step; the best way to each set is kept.

        Args:
            beam: number of sets of more than one word that go on; None keeps all, which is exact.
        """
        paths = {0: _Path()}
        for size in range(1, largest + 1):
            grown: dict[int, _Path] = {}
            for chosen, path in paths.items():
                for word in candidates:
                    larger = chosen | 1 << word
                    if larger != chosen and (larger not in grown or path.total > grown[larger].total):
                        grown[larger] = _Path((*path.order, word), path.total)
            times = self.bins.count(size)
            if times or beam is not None:
                yield [self._kept(chosen, removes=removes) for chosen in grown]
                grown = {
                    chosen: _Path(path.order, path.total + times * self._value(chosen, removes=removes))
                    for chosen, path in grown.items()
                }
            if beam is not None and size > 1:
                left = sum(bin_size > size for bin_size in self.bins)

                def promise(chosen: int, grown: dict[int, _Path] = grown, left: int = left) -> tuple[float, int]:
                    """The total if the value stayed as it is."""
                    return (-grown[chosen].total - left * self._value(chosen, removes=removes), chosen)

                grown = {chosen: grown[chosen] for chosen in sorted(grown, key=promise)[:beam]}
            paths = grown
        self.paths[removes] = list(paths.values())

    def _kept(self, chosen: int, *, removes: bool) -> int:
        return self.all ^ chosen if removes else chosen

    def _value(self, chosen: int, *, removes: bool) -> float:
        """Higher is better: minus the output without the chosen words, or the output with them alone."""
        output, _ = self.outputs[self._kept(chosen, removes=removes)]
        return -output if removes else output

    def _best(self, *, removes: bool) -> _Best:
        if not self.words:
            return _Best((), -self.full if removes else self.full)
        best = max(self.paths[removes], key=lambda path: path.total)
        return _Best(best.order, best.total / len(self.bins))

    @property
    def full(self) -> float:
        """The output for the whole text."""
        return self.outputs[self.all][0]

    @property
    def without_each(self) -> tuple[float, ...]:
        """The output without each single word."""
        return tuple(self.outputs[self.all ^ 1 << word][0] for word in range(self.words))

    @property
    def removal(self) -> _Best:
        """The order of removal that lowers the output most."""
        return self._best(removes=True)

    @property
    def keeping(self) -> _Best:
        """The order that keeps the output highest."""
        return self._best(removes=False)

    @property
    def flip(self) -> float:
        """The smallest share of the words, among the bins, whose removal changed the decision; 1 if none did."""
        _, decision = self.outputs[self.all]
        sizes = [self.words - kept.bit_count() for kept, (_, other) in self.outputs.items() if other != decision]
        return min((size / self.words for size in sizes if size in self.bins), default=1.0)


def _ranked(values: Sequence[float]) -> list[int]:
    """
    >>> _ranked([0.1, 0.5, 0.5])
    [1, 2, 0]
    """
    return sorted(range(len(values)), key=lambda place: (-values[place], place))


def _as_set(words: Sequence[int]) -> int:
    """
    >>> _as_set([0, 3])
    9
    """
    return sum(1 << word for word in words)
