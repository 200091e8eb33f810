"""Attention is not Explanation (Jain & Wallace 2019): 72 combinations of corpus, encoder and attention.

Where the paper's text and its released code differ, the recipes follow the code, which made the published tables; a
comment names the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.embeddings import RandomEmbeddings
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average, BiLSTM, Convolution, Encoder
from heedful.models.input_forms import QuestionAnswering, SingleInput
from heedful.papers._options import EmbeddingOptions, resolve_names
from heedful.store.recipe import Recipe
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_attention import AdversarialAttention, Solver
from heedful.trials.agreement import Agreement
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import Corpus

TEXT_CORPORA = ("sst", "imdb", "adr", "20news", "agnews", "diabetes", "anemia")
QUESTION_CORPORA = ("babi-1", "babi-2", "babi-3", "cnn", "snli")
"""Corpora with a second text: a question, or SNLI's hypothesis."""
EPSILONS = (0.05, 0.01)
"""The text says .01; the code that drew figures 4 and 5 has .05."""
SOLVERS: tuple[Solver, ...] = ("exact", "search")
QUICK_EPOCHS = 3
QUICK_LIMIT = 200


@dataclass(frozen=True)
class JainWallaceOptions(EmbeddingOptions):
    """Corpora, encoders, attentions and seeds of the paper, and the number of test examples."""

    known_corpora: ClassVar = {name: catalogue.CORPORA[name] for name in TEXT_CORPORA + QUESTION_CORPORA}

    encoders: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    limit: int | None = None

    def recipes(self) -> list[Recipe]:
        """Every trial on every chosen corpus, encoder, attention and seed."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders, ("bilstm", "convolution", "average"))
        attentions = resolve_names("attention", self.attentions, ("additive", "dot"))
        n_seeds = 1 if self.quick else self.n_seeds or 1
        limit = min(self.limit or QUICK_LIMIT, QUICK_LIMIT) if self.quick else self.limit
        models = [
            jain_wallace_model(corpus, encoder, attention, self)
            for corpus in self.chosen_corpora()
            for encoder in encoders
            for attention in attentions
        ]
        # With one seed, a second training is the other seed; with several, each is compared with its successor.
        pairs = [(seed, (seed + 1) % max(2, n_seeds)) for seed in range(n_seeds)]
        return [
            trial
            for model in models
            for seed, other_seed in pairs
            for trial in jain_wallace_trials(replace(model, seed=seed), replace(model, seed=other_seed), limit)
        ]


def jain_wallace_model(corpus: Corpus, encoder: str, attention: str, options: JainWallaceOptions) -> TrainedModel:
    """One of the paper's models, with the sizes and training of the released code."""
    has_question = corpus.name in QUESTION_CORPORA or options.has_pairs
    is_babi = corpus.name.startswith("babi")
    training = options.adapt_training(_training(corpus, has_question=has_question), corpus)
    # Only bAbI has random embeddings in the paper, drawn as PyTorch does; the other corpora have fastText.
    random_babi = is_babi and options.embeddings_name(corpus) == "random"
    return TrainedModel(
        corpus=corpus,
        tokenization=corpus.tokenization,
        architecture=Attentive(
            _encoder(encoder, small=is_babi),
            catalogue.ATTENTIONS[attention](),
            input_format=QuestionAnswering() if has_question else SingleInput(),
        ),
        training=replace(training, epochs=min(training.epochs, QUICK_EPOCHS)) if options.quick else training,
        objective=Supervised(balance_classes=not has_question),
        embeddings=RandomEmbeddings(corpus.embedding_dim, std=1.0) if random_babi else options.word_embeddings(corpus),
    )


def _encoder(name: str, *, small: bool) -> Encoder:
    # The text says 64 filters and a ReLU projection to 256; the code that made table 2 has 32 filters and tanh to 128.
    encoders: dict[str, Encoder] = {
        "bilstm": BiLSTM(32 if small else 128),
        "convolution": Convolution(8 if small else 32),
        "average": Average(32 if small else 128),
    }
    return encoders[name]


def _training(corpus: Corpus, *, has_question: bool) -> Training:
    if not has_question:
        return Training()
    is_babi = corpus.name.startswith("babi")
    batch_size = 50 if is_babi else 90 if corpus.name == "cnn" else 128
    selection = EpochSelection(metric="accuracy", first_epoch=2)
    return Training(100 if is_babi else 25, batch_size, Adam(no_decay=()), selection, reduction="mean")


def single_model_trials(subject: ModelRecipe, limit: int | None = None) -> list[Recipe]:
    """The trials of the paper that need one model only."""
    return [
        Performance(subject),
        Permutation(subject, limit=limit),
        Agreement(subject, (RawAttention(), Gradient(), LeaveOneOut()), limit=limit),
        AdversarialAttention(subject, limit=limit),
        AttributionTable(subject, RawAttention(), limit=limit),
    ]


def jain_wallace_trials(subject: ModelRecipe, other_seed_model: ModelRecipe, limit: int | None = None) -> list[Recipe]:
    """All trials of the paper on one model.

    Attention of another seed (`other_seed_model`) is a control that the paper lacks.
    """
    methods = (RawAttention(), Gradient(), LeaveOneOut())
    return [
        Performance(subject),
        Permutation(subject, limit=limit),
        Agreement(subject, methods, other_seed_model=other_seed_model, limit=limit),
        *(
            AdversarialAttention(subject, epsilon, solver=solver, limit=limit)
            for solver in SOLVERS
            for epsilon in EPSILONS
        ),
        AttributionTable(subject, RawAttention(), limit=limit),
    ]
