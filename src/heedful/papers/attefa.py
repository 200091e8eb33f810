"""AtteFa: one number for the faithfulness of attention, on eight planted and six real corpora, and beyond them.

`attefa` is the paper. `encoders`, `temperatures`, `positions`, `strengths` and `fillers` ask what the number depends
on, which the paper leaves to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heedful import catalogue
from heedful.core.types import Batching, Corpus, Plan
from heedful.core.workspace import Recipe
from heedful.data.batching import Words
from heedful.data.planted import MOCKS, Mock, Position
from heedful.data.vectors import RandomVectors, WordVectors
from heedful.models.attention import Additive, Softmax
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution
from heedful.models.pooled import Pooled
from heedful.models.transformer import SmallTransformer
from heedful.papers.choosing import Choice, chosen, seeded, vectors_named
from heedful.papers.wiegreffe import ENCODERS, paced, quick_part
from heedful.recipes.fit import Fit, Select
from heedful.recipes.subject import Subject
from heedful.trials.attefa import ONE_SHOT, PAPER_SEEDS, AtteFa
from heedful.trials.performance import Performance

CORPORA = (*MOCKS, "diabetes", "anemia", "imdb", "sst", "agnews", "20news")
FLOOR_BASES = 3
"""Honest bases that give the noise floor, the attacked one among them."""
BASE = Fit(8, select=Select())
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS: tuple[Position, ...] = ("uniform", "start", "middle", "end", "clustered")
VALENCES = (0.0, 1.0, 2.0, 3.0)
FILLERS = (1, 10, 100, 1000)


def attefa(choice: Choice) -> list[Recipe]:
    """The base's scores and AtteFa on every chosen corpus, with BiLSTM and Perceptron unless others are chosen."""
    corpora = chosen("corpus", choice.corpora, CORPORA)
    encoders = chosen("encoder", choice.encoders or ("bilstm", "perceptron"), ENCODERS)
    pace = paced(choice, 80)
    seeds = seeded(PAPER_SEEDS, choice.seeds or (2 if choice.quick else len(PAPER_SEEDS)))
    # The mean over a batch, where Wiegreffe & Pinter take the sum.
    fit = replace(pace.adversary, reduction="mean")
    found: list[Recipe] = []
    for corpus in corpora:
        for encoder in encoders:
            base = attefa_subject(corpus, encoder, choice, pace.base)
            bases = PAPER_SEEDS[1 : min(len(seeds), FLOOR_BASES)]
            found += [Performance(base), AtteFa(base, seeds, bases, fit=fit, start=choice.start)]
    return found


def attefa_subject(corpus: str, encoder: str, choice: Choice, fit: Fit) -> Subject:
    """The base of a corpus; texts of all lengths, as the sizes that the paper prints are those before any filter."""
    described = quick_part(catalogue.CORPORA[corpus]) if choice.quick else catalogue.CORPORA[corpus]
    return Subject(
        corpus=described,
        batching=unfiltered(described.batching),
        model=Pooled(catalogue.ENCODERS[encoder](), Additive()),
        fit=fit,
        seed=PAPER_SEEDS[0],
        vectors=vectors_named(choice.vectors_for(corpus), described.width),
    )


def unfiltered(batching: Batching) -> Batching:
    """The same preprocessing for texts of every length."""
    return replace(batching, longer_than=None, shorter_than=None) if isinstance(batching, Words) else batching


PLANS: tuple[Plan, ...] = (
    *(Pooled(encoder, Additive()) for encoder in (BiLSTM(), GRU(), Convolution(), Average())),
    SmallTransformer(),
)
"""Models whose AtteFa can be compared: recurrent, convolutional, token-wise, and a small transformer."""


def encoders(corpus: Corpus, plans: Sequence[Plan] = PLANS, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa of one corpus for several models."""
    return [_trial(corpus, plan, seeds) for plan in plans]


def temperatures(
    corpus: Corpus, values: Sequence[float] = TEMPERATURES, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa where base and adversary have a sharper or flatter softmax."""
    return [_trial(corpus, Pooled(BiLSTM(), Additive(), Softmax(value)), seeds) for value in values]


def positions(values: Sequence[Position] = POSITIONS, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa by where the informative words stand."""
    return _planted([Mock(informative=5, position=value) for value in values], seeds)


def strengths(values: Sequence[float] = VALENCES, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa by how strong the informative words are at least."""
    return _planted([Mock(informative=5, strength=value) for value in values], seeds)


def fillers(values: Sequence[int] = FILLERS, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa by how many different words say nothing."""
    return _planted([Mock(informative=5, fillers=value) for value in values], seeds)


def _planted(corpora: Sequence[Corpus], seeds: Sequence[int]) -> list[AtteFa]:
    plans = (Pooled(BiLSTM(), Additive()), Pooled(Average(), Additive()))
    return [_trial(corpus, plan, seeds) for corpus in corpora for plan in plans]


def _trial(corpus: Corpus, plan: Plan, seeds: Sequence[int], vectors: WordVectors | None = None) -> AtteFa:
    vectors = RandomVectors(100) if vectors is None else vectors
    batching = unfiltered(corpus.batching)
    base = Subject(corpus, batching, plan, BASE, PAPER_SEEDS[0], vectors=vectors)
    return AtteFa(base, tuple(seeds), PAPER_SEEDS[1:2], fit=ONE_SHOT)
