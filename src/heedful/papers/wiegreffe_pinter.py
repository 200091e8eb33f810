"""Attention is not not Explanation (Wiegreffe & Pinter 2019): is attention needed, does it guide, can it be deceived?

The models and trainings are Jain & Wallace's, except that every epoch may be kept. The paper chose epochs on the test
split; the dev split chooses here unless `Choice.select` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.data.splitting import SubsampledCorpus
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.papers import published
from heedful.papers._options import PaperOptions, SelectionRule, embeddings_by_name, extend_seeds, resolve_names
from heedful.store.recipe import Recipe
from heedful.training.attention_sources import FromModel, RandomAttention, ShuffledAttention
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_training import LAMBDAS, PAPER_SEEDS, AdversarialTradeoff
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.seed_variance import SeedVariance
from heedful.types import Corpus

WIEGREFFE_PINTER_CORPORA = ("diabetes", "anemia", "imdb", "sst", "agnews", "20news")
BASE_ENCODERS = ("bilstm", "gru", "convolution", "perceptron")
GUIDING_LAMBDA = 1e-3
"""The lambda of the adversary that guides in table 3."""
N_GUIDED_SEEDS = 3
QUICK_TRAIN_SIZE = 1500
QUICK_EVAL_SIZE = 300
QUICK_EPOCHS = (4, 12)
"""Epochs of a base and of an adversary in the quick version."""


@dataclass(frozen=True)
class TrainingSettings:
    """How long bases and adversaries are trained, and which epoch of them is kept."""

    base: Training
    adversary: Training


def wiegreffe_pinter_recipes(options: PaperOptions) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus; base models are BiLSTMs unless other encoders are chosen."""
    corpora = resolve_names("corpus", options.corpora, WIEGREFFE_PINTER_CORPORA)
    encoders = resolve_names("encoder", options.encoders or ("bilstm",), BASE_ENCODERS)
    return [trial for corpus in corpora for encoder in encoders for trial in _corpus_trials(corpus, encoder, options)]


def _corpus_trials(corpus: str, encoder: str, options: PaperOptions) -> list[Recipe]:
    # The released code trains 80 epochs throughout, the text 40 on all corpora but SST.
    pace = training_settings(options, 80 if corpus == "sst" else 40)
    base = wiegreffe_pinter_model(corpus, encoder, options, pace.base)
    seeds = extend_seeds(PAPER_SEEDS, options.n_seeds or (2 if options.quick else len(PAPER_SEEDS)))
    strengths = options.lambdas or ((0.0, 1e-3, 1e-2) if options.quick else _lambda_grid(corpus))
    curve = AdversarialTradeoff(
        base, strengths, seeds[1:], PAPER_SEEDS[0], pace.adversary, start=options.start, rescale_class_weights=True
    )
    return [
        Performance(base),
        UniformBaseline(base, seeds),
        *([SeedVariance(base, seeds[1:])] if len(seeds) > 1 else []),
        curve,
        guided_trial(base, curve.adversary(GUIDING_LAMBDA), seeds[:N_GUIDED_SEEDS]),
        # The words themselves, for heat-maps.
        AttributionTable(base, RawAttention()),
    ]


def guided_trial(base: TrainedModel, adversary: TrainedModel, seeds: tuple[int, ...]) -> GuidedModel:
    """The token-wise learner under the guides of table 3, and two nulls that the paper lacks."""
    learner = replace(base, architecture=Attentive(Average(), Additive()))
    guides = (
        ("base", FromModel(base)),
        ("adversary", FromModel(adversary)),
        ("shuffled base", ShuffledAttention(FromModel(base))),
        ("random", RandomAttention()),
    )
    return GuidedModel(learner, guides, seeds)


def wiegreffe_pinter_model(corpus: str, encoder: str, options: PaperOptions, training: Training) -> TrainedModel:
    """The base of a corpus: the paper's seed 10."""
    described = quick_subset(catalogue.CORPORA[corpus]) if options.quick else catalogue.CORPORA[corpus]
    return TrainedModel(
        corpus=described,
        tokenization=described.tokenization,
        architecture=Attentive(catalogue.ENCODERS[encoder](), Additive()),
        training=training,
        seed=PAPER_SEEDS[0],
        embeddings=embeddings_by_name(options.embeddings_for(corpus), described.embedding_dim),
    )


def quick_subset(corpus: Corpus) -> Corpus:
    """So much of a corpus as the quick version looks at."""
    return SubsampledCorpus(corpus, QUICK_TRAIN_SIZE, QUICK_EVAL_SIZE, QUICK_EVAL_SIZE)


def training_settings(options: PaperOptions, epochs: int, patience: int = 10) -> TrainingSettings:
    """The trainings of bases and adversaries under the chosen rule; adversaries have at most so many epochs."""
    short, long = QUICK_EPOCHS if options.quick else (8, epochs)
    split = "dev" if options.select == "dev" else "test"
    adversary = Training(long, selection=_selection(options.select), patience=patience)
    return TrainingSettings(
        Training(short, selection=EpochSelection(split="dev" if split == "dev" else "test")), adversary
    )


def _selection(rule: SelectionRule) -> EpochSelection:
    if rule == "code":
        return EpochSelection(metric="training_loss")
    return EpochSelection(split="dev" if rule == "dev" else "test", metric="deception")


def _lambda_grid(corpus: str) -> tuple[float, ...]:
    """The lambdas of table 5, with that of table 3; the usual ones for a corpus that is not in it."""
    return tuple(sorted({*(published.published_lambdas(corpus) or LAMBDAS), GUIDING_LAMBDA}))
