"""Attention is not not Explanation (Wiegreffe & Pinter 2019): uniform baseline, guided models, trained adversaries.

Models and trainings are those of Jain & Wallace, except that every epoch may be kept. The paper chose epochs on the
test split; here the dev split chooses, unless the option `select` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.models.input_forms import InputFormat, PairInput, SingleInput
from heedful.papers import published
from heedful.papers._options import EmbeddingOptions, extend_seeds, resolve_names
from heedful.store.recipe import Recipe
from heedful.training.attention_sources import FromModel, RandomAttention, ShuffledAttention
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import Initialization
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_training import LAMBDAS, PAPER_SEEDS, AdversarialTradeoff
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.seed_variance import SeedVariance
from heedful.types import Corpus, Tokenization, check_choice

SelectionRule = Literal["dev", "paper", "code"]
CORPORA = ("diabetes", "anemia", "imdb", "sst", "agnews", "20news")
BASE_ENCODERS = ("bilstm", "gru", "convolution", "perceptron")
GUIDING_LAMBDA = 1e-3
"""The lambda of the adversary that guides in table 3."""
N_GUIDED_SEEDS = 3
QUICK_LAMBDAS = (0.0, 1e-3, 1e-2)
QUICK_EPOCHS = (4, 12)
"""Epochs of a base model and of an adversary in the quick version."""


@dataclass(frozen=True)
class AdversaryOptions(EmbeddingOptions):
    """Options of both papers with trained adversaries.

    Args:
        select: which split chooses the epoch that is kept: "dev"; "paper" follows the paper, which chose on the test
            split; "code" follows its released code, which kept an adversary's epoch of lowest training loss.
        start: initialization of the adversaries: "fresh", as in the papers, or from the "base".
    """

    encoders: tuple[str, ...] = ()
    select: SelectionRule = "dev"
    start: Initialization = "fresh"

    def __post_init__(self) -> None:
        check_choice("select", self.select, SelectionRule)
        check_choice("start", self.start, Initialization)

    @property
    def input_format(self) -> InputFormat:
        """One text, or two of equal rank."""
        return PairInput() if self.has_pairs else SingleInput()

    def base_training(self, corpus: Corpus) -> Training:
        """The training of base models."""
        selection = EpochSelection(split="dev" if self.select == "dev" else "test")
        training = Training(QUICK_EPOCHS[0] if self.quick else 8, selection=selection)
        return self.adapt_training(training, self.training_corpus(corpus))

    def adversary_training(self, corpus: Corpus, epochs: int) -> Training:
        """The training of adversaries, with at most so many epochs."""
        selection = (
            EpochSelection(metric="training_loss")
            if self.select == "code"
            else EpochSelection(split="dev" if self.select == "dev" else "test", metric="deception")
        )
        training = Training(QUICK_EPOCHS[1] if self.quick else epochs, selection=selection, patience=10)
        return self.adapt_training(training, self.training_corpus(corpus))

    def seeds(self) -> tuple[int, ...]:
        """Seeds of the adversaries and of further base models."""
        return extend_seeds(PAPER_SEEDS, self.n_seeds or (2 if self.quick else len(PAPER_SEEDS)))


@dataclass(frozen=True)
class WiegreffePinterOptions(AdversaryOptions):
    """The options of adversaries, and their lambdas; base models are BiLSTMs unless other encoders are named."""

    known_corpora: ClassVar = {name: catalogue.CORPORA[name] for name in CORPORA}

    lambdas: tuple[float, ...] = ()

    def recipes(self) -> list[Recipe]:
        """Every trial of the paper on every chosen corpus and encoder."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders or ("bilstm",), BASE_ENCODERS)
        return [
            trial
            for corpus in self.chosen_corpora()
            for encoder in encoders
            for trial in _model_trials(corpus, encoder, self)
        ]


def _model_trials(corpus: Corpus, encoder: str, options: WiegreffePinterOptions) -> list[Recipe]:
    # The released code trains 80 epochs throughout, the text says 40 on all corpora but SST.
    adversary_training = options.adversary_training(corpus, 80 if corpus.name == "sst" else 40)
    base = base_model(corpus, encoder, options, corpus.tokenization)
    seeds = options.seeds()
    lambdas = options.lambdas or (QUICK_LAMBDAS if options.quick else _lambda_grid(corpus.name))
    tradeoff = AdversarialTradeoff(
        base, lambdas, seeds[1:], PAPER_SEEDS[0], adversary_training, start=options.start, rescale_class_weights=True
    )
    return [
        Performance(base),
        UniformBaseline(base, seeds),
        *([SeedVariance(base, seeds[1:])] if len(seeds) > 1 else []),
        tradeoff,
        guided_trial(base, tradeoff.adversary(GUIDING_LAMBDA), seeds[:N_GUIDED_SEEDS], options.input_format),
        # The tokens themselves, for heat-maps.
        AttributionTable(base, RawAttention()),
    ]


def guided_trial(
    base: TrainedModel, adversary: TrainedModel, seeds: tuple[int, ...], input_format: InputFormat
) -> GuidedModel:
    """The token-wise model under the guides of table 3, and two controls that the paper lacks."""
    learner = replace(base, architecture=Attentive(Average(), Additive(), input_format=input_format))
    guides = (
        ("base", FromModel(base)),
        ("adversary", FromModel(adversary)),
        ("shuffled base", ShuffledAttention(FromModel(base))),
        ("random", RandomAttention()),
    )
    return GuidedModel(learner, guides, seeds)


def base_model(corpus: Corpus, encoder: str, options: AdversaryOptions, tokenization: Tokenization) -> TrainedModel:
    """The model that adversaries are trained against: the first seed of the paper."""
    return TrainedModel(
        corpus=options.training_corpus(corpus),
        tokenization=tokenization,
        architecture=Attentive(catalogue.ENCODERS[encoder](), Additive(), input_format=options.input_format),
        training=options.base_training(corpus),
        seed=PAPER_SEEDS[0],
        embeddings=options.word_embeddings(corpus),
    )


def _lambda_grid(corpus: str) -> tuple[float, ...]:
    """The lambdas of table 5 and that of table 3; the default grid for a corpus that is not in it."""
    return tuple(sorted({*(published.published_lambdas(corpus) or LAMBDAS), GUIDING_LAMBDA}))
