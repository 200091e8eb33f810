"""Kendall's tau of all pairs of ten methods, against a loop over SciPy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from scipy import stats
from torch import Generator, Tensor

from benchmarks.timing import Row, compared
from heedful.measures.rank_correlation import kendall_matrix

METHODS = 10
TEXTS = {32: 64, 64: 32, 180: 16}
"""Texts in a batch, by their units: about equal work for the peer."""


def rows() -> Iterator[Row]:
    """One row per length of text."""
    for units, texts in TEXTS.items():
        scores = torch.rand(texts, METHODS, units, generator=Generator().manual_seed(units)).double()
        yield _row(scores)


def _row(scores: Tensor) -> Row:
    mask = torch.ones(scores.shape[0], scores.shape[2], dtype=torch.bool)
    numbers = scores.numpy()

    def ours() -> object:
        return kendall_matrix(scores, mask)

    def peer() -> list[float]:
        return [
            float(stats.kendalltau(text[one], text[other]).statistic)
            for text in numbers
            for one in range(METHODS)
            for other in range(one)
        ]

    name = f"kendall tau with p-values, {METHODS} methods, {scores.shape[2]} units"
    return compared(name, ours, peer, "scipy.stats.kendalltau in a loop over pairs")
