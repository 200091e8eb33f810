"""AtteFa: one number for the faithfulness of attention, on eight planted and six real corpora, and beyond them.

`attefa` is the paper. `encoders`, `temperatures`, `positions`, `strengths` and `fillers` ask what the number depends
on, which the paper leaves to others.

AtteFa of a user's own texts: one number for a chosen encoder, with its noise floor and the value of a collapse.

The paper counts epochs, which on a few hundred texts are no training at all; here no training has fewer steps than on
the paper's smallest corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful import catalogue
from heedful.data.embeddings import RandomEmbeddings, WordEmbeddings
from heedful.data.synthetic import MOCK_CORPORA, Mock, Position
from heedful.data.table import SavedDataset, Table, TableColumns, corpus_from_source
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive, Softmax
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution
from heedful.models.input_forms import PairInput, SingleInput
from heedful.models.transformer import SmallTransformer
from heedful.papers._options import PaperOptions, embeddings_by_name, extend_seeds, resolve_names
from heedful.papers.wiegreffe_pinter import BASE_ENCODERS, quick_subset, training_settings
from heedful.store.recipe import Recipe
from heedful.tasks import Regression
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_training import ATTEFA_TRAINING, PAPER_SEEDS, AtteFa
from heedful.trials.performance import Performance
from heedful.types import Architecture, Corpus, Splits, Tokenization, UserError

ATTEFA_CORPORA = (*MOCK_CORPORA, "diabetes", "anemia", "imdb", "sst", "agnews", "20news")
N_BASES = 3
"""Honest bases that give the noise floor, the attacked one among them."""
BASE_TRAINING = Training(8, selection=EpochSelection())
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS: tuple[Position, ...] = ("uniform", "start", "middle", "end", "clustered")
WORD_STRENGTHS = (0.0, 1.0, 2.0, 3.0)
FILLER_COUNTS = (1, 10, 100, 1000)


def attefa_recipes(options: PaperOptions) -> list[Recipe]:
    """The base's scores and AtteFa on every chosen corpus, with BiLSTM and Perceptron unless others are chosen."""
    corpora = resolve_names("corpus", options.corpora, ATTEFA_CORPORA)
    encoders = resolve_names("encoder", options.encoders or ("bilstm", "perceptron"), BASE_ENCODERS)
    pace = training_settings(options, 80)
    seeds = extend_seeds(PAPER_SEEDS, options.n_seeds or (2 if options.quick else len(PAPER_SEEDS)))
    # The mean over a batch, where Wiegreffe & Pinter take the sum.
    fit = replace(pace.adversary, reduction="mean")
    found: list[Recipe] = []
    for corpus in corpora:
        for encoder in encoders:
            base = attefa_model(corpus, encoder, options, pace.base)
            bases = PAPER_SEEDS[1 : min(len(seeds), N_BASES)]
            found += [Performance(base), AtteFa(base, seeds, bases, adversary_training=fit, start=options.start)]
    return found


def attefa_model(corpus: str, encoder: str, options: PaperOptions, training: Training) -> TrainedModel:
    """The base of a corpus; texts of all lengths, as the sizes that the paper prints are those before any filter."""
    described = quick_subset(catalogue.CORPORA[corpus]) if options.quick else catalogue.CORPORA[corpus]
    return TrainedModel(
        corpus=described,
        tokenization=without_length_limits(described.tokenization),
        architecture=Attentive(catalogue.ENCODERS[encoder](), Additive()),
        training=training,
        seed=PAPER_SEEDS[0],
        embeddings=embeddings_by_name(options.embeddings_for(corpus), described.embedding_dim),
    )


def without_length_limits(tokenization: Tokenization) -> Tokenization:
    """The same preprocessing for texts of every length."""
    return (
        replace(tokenization, longer_than=None, shorter_than=None) if isinstance(tokenization, Words) else tokenization
    )


ARCHITECTURES: tuple[Architecture, ...] = (
    *(Attentive(encoder, Additive()) for encoder in (BiLSTM(), GRU(), Convolution(), Average())),
    SmallTransformer(),
)
"""Models whose AtteFa can be compared: recurrent, convolutional, token-wise, and a small transformer."""


def attefa_by_architecture(
    corpus: Corpus, architectures: Sequence[Architecture] = ARCHITECTURES, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa of one corpus for several models."""
    return [_attefa_trial(corpus, plan, seeds) for plan in architectures]


def attefa_by_temperature(
    corpus: Corpus, values: Sequence[float] = TEMPERATURES, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa where base and adversary have a sharper or flatter softmax."""
    return [_attefa_trial(corpus, Attentive(BiLSTM(), Additive(), Softmax(value)), seeds) for value in values]


def attefa_by_position(values: Sequence[Position] = POSITIONS, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa by where the informative words stand."""
    return _synthetic_trials([Mock(informative=5, position=value) for value in values], seeds)


def attefa_by_strength(
    values: Sequence[float] = WORD_STRENGTHS, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa by how strong the informative words are at least."""
    return _synthetic_trials([Mock(informative=5, strength=value) for value in values], seeds)


def attefa_by_filler_count(
    values: Sequence[int] = FILLER_COUNTS, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa by how many different words say nothing."""
    return _synthetic_trials([Mock(informative=5, fillers=value) for value in values], seeds)


def _synthetic_trials(corpora: Sequence[Corpus], seeds: Sequence[int]) -> list[AtteFa]:
    plans = (Attentive(BiLSTM(), Additive()), Attentive(Average(), Additive()))
    return [_attefa_trial(corpus, plan, seeds) for corpus in corpora for plan in plans]


def _attefa_trial(
    corpus: Corpus, architecture: Architecture, seeds: Sequence[int], embeddings: WordEmbeddings | None = None
) -> AtteFa:
    embeddings = RandomEmbeddings(100) if embeddings is None else embeddings
    batching = without_length_limits(corpus.tokenization)
    base = TrainedModel(corpus, batching, architecture, BASE_TRAINING, PAPER_SEEDS[0], embeddings=embeddings)
    return AtteFa(base, tuple(seeds), PAPER_SEEDS[1:2], adversary_training=ATTEFA_TRAINING)


MIN_EPOCH_STEPS = 39
"""Steps of an epoch on the paper's smallest corpus, the two groups of 20 Newsgroups."""
SMALL_TEST_SET = 200
"""With fewer test texts the number is said to be rough."""


@dataclass(frozen=True)
class UserData:
    """Where a user's texts are: files for each split or one that is carved, and the columns that matter."""

    path: str
    columns: TableColumns
    dev_path: str | None = None
    test_path: str | None = None

    @property
    def corpus(self) -> Table | SavedDataset:
        """The texts as a corpus; a saved `datasets` folder brings its own splits."""
        if Path(self.path).is_dir() and self.dev_path is None and self.test_path is None:
            found = corpus_from_source(self.path, self.columns)
            assert isinstance(found, SavedDataset)
            return found
        return Table(self.path, self.columns, self.dev_path, self.test_path)

    def read(self, data: Path) -> Splits:
        """The splits; complains where AtteFa is not defined for them."""
        splits = self.corpus.read(data)
        if isinstance(splits.task, Regression):
            raise UserError(
                f"{self.path}: the labels in column '{self.columns.label}' are real numbers, but adversaries need "
                "classes; name a column of classes"
            )
        return splits


def user_data_attefa(
    user_data: UserData, options: PaperOptions, data: Path, n_bases: int = 2
) -> tuple[Performance, AtteFa]:
    """The base's scores and its AtteFa against `choice.seeds` adversaries.

    Args:
        bases: honest trainings, the attacked one among them; with two or more there is a noise floor.
    """
    (encoder,) = resolve_names("encoder", options.encoders or ("bilstm",), BASE_ENCODERS)
    user_data.read(data)
    corpus: Corpus = quick_subset(user_data.corpus) if options.quick else user_data.corpus
    texts = len(corpus.read(data).train)
    pace = training_settings(options, 80)
    named = find_embeddings(data) if options.embeddings == "auto" else options.embeddings
    shape = SingleInput() if user_data.columns.second_text is None else PairInput()
    base = TrainedModel(
        corpus=corpus,
        tokenization=corpus.tokenization,
        architecture=Attentive(catalogue.ENCODERS[encoder](), Additive(), input_format=shape),
        training=scale_epochs(pace.base, texts),
        seed=PAPER_SEEDS[0],
        embeddings=embeddings_by_name(named, corpus.embedding_dim),
    )
    seeds = PAPER_SEEDS[: options.n_seeds or 3]
    fit = scale_epochs(replace(pace.adversary, reduction="mean"), texts)
    return Performance(base), AtteFa(base, seeds, PAPER_SEEDS[1:n_bases], adversary_training=fit, start=options.start)


def scale_epochs(training: Training, n_texts: int) -> Training:
    """The same training with so many times more epochs, and patience, that an epoch's steps make up for it.

    >>> fit = scale_epochs(Training(epochs=80, patience=10), texts=320)
    >>> fit.epochs, fit.patience
    (320, 40)
    """
    times = max(1, math.ceil(MIN_EPOCH_STEPS / math.ceil(n_texts / training.batch_size)))
    return replace(
        training,
        epochs=times * training.epochs,
        patience=None if training.patience is None else times * training.patience,
    )


def data_warnings(splits: Splits, accuracy: float) -> tuple[str, ...]:
    """What a reader of the number must know about the data it is from: one sentence each, none if all is well.

    Args:
        accuracy: the base's, on the test split.
    """
    labels = [example.label for example in splits.test]
    commonest = max(labels.count(label) for label in set(labels)) / len(labels)
    found = []
    if len(labels) < SMALL_TEST_SET:
        found.append(
            f"Only {len(labels)} texts were tested, so the number is rough: another split may give another one."
        )
    if accuracy <= commonest:
        found.append(
            f"The base is right on {accuracy:.0%} of them, no more often than the commonest class would be "
            f"({commonest:.0%}): it has learned nothing that its attention could explain."
        )
    return tuple(found)


def find_embeddings(data: Path) -> str:
    """The largest file of vectors in the data folder, else random ones."""
    found = sorted((data / "vectors").glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
    return found[-1].stem if found else "random"
