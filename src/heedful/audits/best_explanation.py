"""Erasure of words in the order of an explanation, and a search for the best order that there is.

Faithfulness by erasure has no natural unit: a drop of .2 may be all that any explanation achieves on a text, or hardly
anything. The search removes (or keeps) words so as to optimise the measure itself, step by step with a beam, and gives
a lower bound of what is achievable; 0 is what random scores achieve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.method import Baseline, feature_counts, feature_index
from heedful.measures.erasure import bin_counts
from heedful.trials.faithfulness import ErasureEvaluator, FeatureOutputs
from heedful.types import Batch, Model

MAX_PASSES = 100
"""Forward passes of the search per text and direction; each word is tried once for every bin even if these are more."""
BEAM = 2
"""Orders that the search keeps, if the passes allow it; else it is greedy."""


def word_erasure(deletion: Baseline, seed: int = 0) -> ErasureEvaluator:
    """What removes and keeps words for an audit: in the bins of comprehensiveness only, and without random removals."""
    return ErasureEvaluator(deletion, steps=None, samples=0, seed=seed, feature="word", quantized=False)


@dataclass(frozen=True)
class BestErasure:
    """The best values that a search found for each text: lower bounds of the achievable, `[batch]` in float64.

    Args:
        flip: NaN for regression.
        order: of each text, the words whose removal gives the best comprehensiveness, first removed first.
        passes: forward passes per text.
    """

    comprehensiveness: Tensor
    sufficiency: Tensor
    flip: Tensor
    order: tuple[tuple[int, ...], ...]
    passes: Tensor


def search_best_erasure(
    model: Model, batch: Batch, target: Tensor, deletion: Baseline, *, beam: int = BEAM, max_passes: int = MAX_PASSES
) -> BestErasure:
    """Search words whose removal lowers the output most, and words that alone keep it highest, for every text.

    At each step every word that is left is tried, and the `beam` best sets go on. Long texts take several words at a
    step, so that the number of passes stays bounded.
    """
    outputs = FeatureOutputs(model, batch, target, deletion, "word")
    words = feature_counts(feature_index(batch, "word"))
    everything = torch.ones(len(batch), 1, max(1, int(words.max())), dtype=torch.bool, device=words.device)
    whole, decisions = outputs(everything)
    bins, sizes = bin_counts(words).tolist(), words.tolist()
    widths = [
        beam if beam * _greedy_passes(size, counts) <= max_passes else 1
        for size, counts in zip(sizes, bins, strict=True)
    ]
    plans = [
        _step_sizes(size, counts, width, max_passes) for size, counts, width in zip(sizes, bins, widths, strict=True)
    ]
    removal, keeping = (
        _Search(outputs, sizes, bins, plans, widths, decisions[:, 0].tolist(), removes=removes)
        for removes in (True, False)
    )
    removal.run()
    keeping.run()
    full = whole[:, 0]
    flip = torch.tensor(removal.flips, dtype=torch.float64, device=full.device)
    if model.task.num_classes < 2:
        flip = torch.full_like(flip, torch.nan)
    is_empty = words < 1  # nothing can be removed, and nothing changes
    return BestErasure(
        comprehensiveness=(full + removal.best_means()).masked_fill(is_empty, 0.0),
        sufficiency=(full - keeping.best_means()).masked_fill(is_empty, 0.0),
        flip=flip,
        order=tuple(max(paths, key=lambda path: path.total).order for paths in removal.paths),
        passes=1 + removal.passes() + keeping.passes(),
    )


def _greedy_passes(words: int, bins: Sequence[int]) -> int:
    """Passes of a greedy search that adds one word at a time up to the largest bin.

    >>> _greedy_passes(4, [1, 2])
    7
    """
    return sum(words - chosen for chosen in range(max(bins, default=0)))


def _step_sizes(words: int, bins: Sequence[int], beam: int, max_passes: int) -> list[int]:
    """The sizes of the sets that a search goes through: those of all bins, and as many between as the passes allow.

    >>> _step_sizes(10, [1, 1, 1, 2, 5], 2, 100), _step_sizes(100, [1, 5, 10, 20, 50], 1, 700)
    ([1, 2, 3, 4, 5], [1, 5, 10, 17, 20, 33, 50])
    """
    needed = sorted({size for size in bins if size > 0})
    if beam * _greedy_passes(words, bins) <= max_passes:
        return list(range(1, needed[-1] + 1)) if needed else []
    largest, allowed = needed[-1] if needed else 0, max_passes // max(1, beam * words)
    extra = max(0, allowed - len(needed))
    between = {round(largest * (step + 1) / (extra + 1)) for step in range(extra)}
    return sorted({*needed, *between} & set(range(1, largest + 1)))


@dataclass(frozen=True)
class _Path:
    """Words in the order in which they were chosen, the sum of the values at the bins passed, and the last value."""

    order: tuple[int, ...] = ()
    total: float = 0.0
    value: float = 0.0


class _Search:
    """Beam search over sets of words, all texts of a batch side by side."""

    def __init__(
        self,
        outputs: FeatureOutputs,
        words: Sequence[int],
        bins: Sequence[Sequence[int]],
        plans: Sequence[Sequence[int]],
        widths: Sequence[int],
        decisions: Sequence[int],
        *,
        removes: bool,
    ) -> None:
        self.outputs, self.words, self.bins, self.plans, self.widths = outputs, words, bins, plans, widths
        self.decisions, self.removes = decisions, removes
        self.paths: list[list[_Path]] = [[_Path()] for _ in words]
        self.flips = [1.0] * len(words)
        self.counts = [0] * len(words)

    def run(self) -> None:
        """Go through the steps of all texts."""
        for step in range(max(map(len, self.plans), default=0)):
            rows = [row for row, plan in enumerate(self.plans) if step < len(plan)]
            tried = {
                row: [
                    (path, word)
                    for path in self.paths[row]
                    for word in range(self.words[row])
                    if word not in path.order
                ]
                for row in rows
            }
            values = self._evaluate({row: [(*path.order, word) for path, word in tried[row]] for row in rows})
            grown = {row: self._extend(row, self.plans[row][step], tried[row], values[row]) for row in rows}
            joint = {
                row: [path.order for path in paths if len(path.order) - len(self.paths[row][0].order) > 1]
                for row, paths in grown.items()
            }
            joint_values = self._evaluate(joint) if any(joint.values()) else {row: [] for row in rows}
            for row in rows:
                known = {
                    frozenset((*path.order, word)): value
                    for (path, word), value in zip(tried[row], values[row], strict=True)
                }
                known |= {frozenset(order): value for order, value in zip(joint[row], joint_values[row], strict=True)}
                self._keep_best(row, self.plans[row][step], grown[row], known)

    def _extend(self, row: int, size: int, tried: Sequence[tuple[_Path, int]], values: Sequence[float]) -> list[_Path]:
        """Larger sets: each path with its best words, and with the next best ones in their place; the first is greedy.

        Of several ways to the same set the one with the highest sum over the bins passed stays.
        """
        grown: dict[frozenset[int], _Path] = {}
        for path in self.paths[row]:
            gains = [(value, word) for (start, word), value in zip(tried, values, strict=True) if start is path]
            ranked = [word for _, word in sorted(gains, key=lambda pair: (-pair[0], pair[1]))]
            missing = size - len(path.order)
            for shift in range(self.widths[row] if missing == 1 else 1):
                chosen = ranked[shift : shift + missing]
                if len(chosen) == missing:
                    order = (*path.order, *chosen)
                    known = grown.get(frozenset(order))
                    if known is None or path.total > known.total:
                        grown[frozenset(order)] = _Path(order, path.total)
        return list(grown.values())

    def _keep_best(self, row: int, size: int, grown: Sequence[_Path], known: dict[frozenset[int], float]) -> None:
        times = list(self.bins[row]).count(size)
        paths = []
        for path in grown:
            value = known[frozenset(path.order)]
            paths.append(_Path(path.order, path.total + times * value, value))
        # The greedy path stays, so that a beam is never worse than no beam; of the others the sum over the bins passed
        # decides, together with where the path stands now.
        others = sorted(paths[1:], key=lambda path: (-(path.total + path.value), path.order))
        self.paths[row] = [*paths[:1], *others[: self.widths[row] - 1]]

    def _evaluate(self, orders: dict[int, list[tuple[int, ...]]]) -> dict[int, list[float]]:
        """The value of each set of words, higher is better: minus the output without them, or the output with them."""
        most = max(map(len, orders.values()), default=0)
        rows = [row for row, sets_of_row in orders.items() if sets_of_row]
        if not most or not rows:
            return {row: [] for row in orders}
        width = max(1, max(self.words))
        sets = torch.zeros(len(self.words), most, width, dtype=torch.bool)
        for row in rows:
            for sample, order in enumerate(orders[row]):
                sets[row, sample, list(order)] = True
        kept = (~sets if self.removes else sets).to(self.outputs.target.device)
        idle = torch.tensor([row not in rows for row in range(len(self.words))], device=kept.device)
        kept = kept | idle.reshape(-1, 1, 1)
        for row in rows:  # texts with fewer sets repeat their first one, which is read once
            kept[row, len(orders[row]) :] = kept[row, 0]
        values, decisions = (part.tolist() for part in self.outputs(kept))
        for row in rows:
            self.counts[row] += len(orders[row])
            for sample, order in enumerate(orders[row]):
                changed = decisions[row][sample] != self.decisions[row]
                if self.removes and changed and len(order) in self.bins[row]:
                    self.flips[row] = min(self.flips[row], len(order) / self.words[row])
        sign = -1.0 if self.removes else 1.0
        return {row: [sign * value for value in values[row][: len(tried)]] for row, tried in orders.items()}

    def best_means(self) -> Tensor:
        """The best mean value over bins of each text."""
        best = [
            max(path.total for path in paths) / len(bins) for paths, bins in zip(self.paths, self.bins, strict=True)
        ]
        return torch.tensor(best, dtype=torch.float64, device=self.outputs.target.device)

    def passes(self) -> Tensor:
        """Sets that were tried for each text."""
        return torch.tensor(self.counts)
