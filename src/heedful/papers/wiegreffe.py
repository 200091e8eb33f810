"""Attention is not not Explanation (Wiegreffe & Pinter 2019): is attention needed, does it guide, can it be deceived?

The models and trainings are Jain & Wallace's, except that every epoch may be kept. The paper chose epochs on the test
split; the dev split chooses here unless `Choice.select` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heedful import catalogue, printed
from heedful.attributions.attention import RawAttention
from heedful.core.types import Corpus
from heedful.core.workspace import Recipe
from heedful.data.sampling import Sampled
from heedful.models.attention import Additive
from heedful.models.encoders import Average
from heedful.models.pooled import Pooled
from heedful.papers.choosing import Choice, Selecting, chosen, seeded, vectors_named
from heedful.recipes.attributed import Attributed
from heedful.recipes.fit import Fit, Select
from heedful.recipes.guides import Borrowed, Scattered, Shuffled
from heedful.recipes.subject import Subject
from heedful.trials.attefa import PAPER_SEEDS
from heedful.trials.dispersal import Dispersal
from heedful.trials.guided import Guided
from heedful.trials.necessity import Necessity
from heedful.trials.performance import Performance
from heedful.trials.seeds import Seeds
from heedful.trials.tradeoff import STRENGTHS, Tradeoff

WIEGREFFE_PINTER = ("diabetes", "anemia", "imdb", "sst", "agnews", "20news")
ENCODERS = ("bilstm", "gru", "convolution", "perceptron")
GUIDING = 1e-3
"""The lambda of the adversary that guides in table 3."""
GUIDED_SEEDS = 3
QUICK_TRAIN = 1500
QUICK_OTHERS = 300
QUICK_EPOCHS = (4, 12)
"""Epochs of a base and of an adversary in the quick version."""


@dataclass(frozen=True)
class Pace:
    """How long bases and adversaries are trained, and which epoch of them is kept."""

    base: Fit
    adversary: Fit


def wiegreffe_pinter(choice: Choice) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus; base models are BiLSTMs unless other encoders are chosen."""
    corpora = chosen("corpus", choice.corpora, WIEGREFFE_PINTER)
    encoders = chosen("encoder", choice.encoders or ("bilstm",), ENCODERS)
    return [trial for corpus in corpora for encoder in encoders for trial in _of_corpus(corpus, encoder, choice)]


def _of_corpus(corpus: str, encoder: str, choice: Choice) -> list[Recipe]:
    # The released code trains 80 epochs throughout, the text 40 on all corpora but SST.
    pace = paced(choice, 80 if corpus == "sst" else 40)
    base = wiegreffe_subject(corpus, encoder, choice, pace.base)
    seeds = seeded(PAPER_SEEDS, choice.seeds or (2 if choice.quick else len(PAPER_SEEDS)))
    strengths = choice.strengths or ((0.0, 1e-3, 1e-2) if choice.quick else _grid(corpus))
    curve = Tradeoff(base, strengths, seeds[1:], PAPER_SEEDS[0], pace.adversary, start=choice.start, rescaled=True)
    return [
        Performance(base),
        Necessity(base, seeds),
        *([Seeds(base, seeds[1:])] if len(seeds) > 1 else []),
        curve,
        # The paper's future work: three adversaries at once, in the scaled form of AtteFa.
        Dispersal(base, adversary_seed=PAPER_SEEDS[0], fit=replace(pace.adversary, reduction="mean")),
        guided(base, curve.adversary(GUIDING), seeds[:GUIDED_SEEDS]),
        # The words themselves, for heat-maps.
        Attributed(base, RawAttention()),
    ]


def guided(base: Subject, adversary: Subject, seeds: tuple[int, ...]) -> Guided:
    """The token-wise learner under the guides of table 3, and two nulls that the paper lacks."""
    learner = replace(base, model=Pooled(Average(), Additive()))
    guides = (
        ("base", Borrowed(base)),
        ("adversary", Borrowed(adversary)),
        ("shuffled base", Shuffled(Borrowed(base))),
        ("random", Scattered()),
    )
    return Guided(learner, guides, seeds)


def wiegreffe_subject(corpus: str, encoder: str, choice: Choice, fit: Fit) -> Subject:
    """The base of a corpus: the paper's seed 10."""
    described = quick_part(catalogue.CORPORA[corpus]) if choice.quick else catalogue.CORPORA[corpus]
    return Subject(
        corpus=described,
        batching=described.batching,
        model=Pooled(catalogue.ENCODERS[encoder](), Additive()),
        fit=fit,
        seed=PAPER_SEEDS[0],
        vectors=vectors_named(choice.vectors_for(corpus), described.width),
    )


def quick_part(corpus: Corpus) -> Corpus:
    """So much of a corpus as the quick version looks at."""
    return Sampled(corpus, QUICK_TRAIN, QUICK_OTHERS, QUICK_OTHERS)


def paced(choice: Choice, epochs: int, patience: int = 10) -> Pace:
    """The trainings of bases and adversaries under the chosen rule; adversaries have at most so many epochs."""
    short, long = QUICK_EPOCHS if choice.quick else (8, epochs)
    split = "dev" if choice.select == "dev" else "test"
    adversary = Fit(long, select=_select(choice.select), patience=patience)
    return Pace(Fit(short, select=Select(on="dev" if split == "dev" else "test")), adversary)


def _select(rule: Selecting) -> Select:
    if rule == "code":
        return Select(by="training_loss")
    return Select(on="dev" if rule == "dev" else "test", by="deception")


def _grid(corpus: str) -> tuple[float, ...]:
    """The lambdas of table 5, with that of table 3; the usual ones for a corpus that is not in it."""
    return tuple(sorted({*(printed.lambdas(corpus) or STRENGTHS), GUIDING}))
