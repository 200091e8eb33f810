"""Which part of a paper is wanted, and on what word vectors: shared by all papers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heedful.core.types import UserError
from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors, WordVectors
from heedful.recipes.deceiving import Start

Selecting = Literal["dev", "paper", "code"]


@dataclass(frozen=True)
class Choice:
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
    seeds: int | None = None
    limit: int | None = None
    vectors: str = "auto"
    quick: bool = False
    found: str = "random"
    strengths: tuple[float, ...] = ()
    select: Selecting = "dev"
    sizes: tuple[int, ...] = ()
    start: Start = "fresh"
    data: Path | None = None

    def vectors_for(self, corpus: str) -> str:
        """The vectors of a corpus: "auto" is random for bAbI, as in the paper, and else what the data folder has."""
        if self.vectors != "auto":
            return self.vectors
        return "random" if corpus.startswith("babi") else self.found


def seeded(paper: Sequence[int], count: int) -> tuple[int, ...]:
    """So many seeds: the paper's, and beyond them 100, 101 and so on, none twice.

    >>> seeded((10, 101), 4)
    (10, 101, 100, 102)
    """
    further = (seed for seed in itertools.count(100) if seed not in paper)
    return tuple(itertools.islice(itertools.chain(paper, further), count))


def vectors_named(name: str, width: int) -> WordVectors:
    """Word vectors by the name that a user gives: random, packaged, a name in the data folder, or a file."""
    if name == "random":
        return RandomVectors(width)
    return PackagedGlove() if name == "packaged" else FileVectors(name)


def chosen(kind: str, wanted: Sequence[str], all_of_them: Sequence[str]) -> tuple[str, ...]:
    for name in wanted:
        if name not in all_of_them:
            raise UserError(f"there is no {kind} {name!r} in this paper; choose from {', '.join(all_of_them)}")
    return tuple(wanted) or tuple(all_of_them)
