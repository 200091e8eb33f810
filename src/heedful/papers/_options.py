"""Which part of a paper is wanted, and on what word vectors: shared by all papers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heedful.data.embeddings import FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings, WordEmbeddings
from heedful.training.objectives import Initialization
from heedful.types import UserError

SelectionRule = Literal["dev", "paper", "code"]


@dataclass(frozen=True)
class PaperOptions:
    """Which part of a paper to run; empty tuples and None mean what the paper has.

    Args:
        strengths: the lambdas of trained adversaries.
        select: which split chooses the epoch that is kept: "dev"; "paper" follows the paper, which chose on the test
            split; "code" follows its released code, which kept an adversary's epoch of lowest training loss.
        vectors: "auto", "random", "packaged", a name in the data folder, or a file.
        found: the vectors that "auto" stands for, as far as the data folder has some.
        sizes: how many examples students learn from, where a paper has students.
        start: where trained adversaries start: "fresh", as in the papers, or from the "base".
        data: the data folder, for papers that take as much as there is; None trusts the numbers of the paper.
    """

    corpora: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    n_seeds: int | None = None
    limit: int | None = None
    embeddings: str = "auto"
    quick: bool = False
    available_embeddings: str = "random"
    lambdas: tuple[float, ...] = ()
    select: SelectionRule = "dev"
    student_sizes: tuple[int, ...] = ()
    start: Initialization = "fresh"
    data: Path | None = None

    def embeddings_for(self, corpus: str) -> str:
        """The vectors of a corpus: "auto" is random for bAbI, as in the paper, and else what the data folder has."""
        if self.embeddings != "auto":
            return self.embeddings
        return "random" if corpus.startswith("babi") else self.available_embeddings


def extend_seeds(paper_seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """So many seeds: the paper's, and beyond them 100, 101 and so on, none twice.

    >>> extend_seeds((10, 101), 4)
    (10, 101, 100, 102)
    """
    further = (seed for seed in itertools.count(100) if seed not in paper_seeds)
    return tuple(itertools.islice(itertools.chain(paper_seeds, further), count))


def embeddings_by_name(name: str, width: int) -> WordEmbeddings:
    """Word vectors by the name that a user gives: random, packaged, a name in the data folder, or a file."""
    if name == "random":
        return RandomEmbeddings(width)
    return PackagedGloveEmbeddings() if name == "packaged" else FileEmbeddings(name)


def resolve_names(kind: str, requested: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    for name in requested:
        if name not in available:
            raise UserError(f"there is no {kind} {name!r} in this paper; choose from {', '.join(available)}")
    return tuple(requested) or tuple(available)
