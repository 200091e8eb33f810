"""AtteFa: one number for the faithfulness of attention, on eight synthetic and six real corpora, and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heedful import catalogue
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import MOCK_CORPORA, Mock, Position
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive, Softmax
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution
from heedful.models.transformer import SmallTransformer
from heedful.papers._options import resolve_names
from heedful.papers.wiegreffe_pinter import BASE_ENCODERS, CORPORA, AdversaryOptions, base_model
from heedful.store.recipe import Recipe
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_training import ATTEFA_TRAINING, PAPER_SEEDS, AtteFa
from heedful.trials.performance import Performance
from heedful.types import Architecture, Corpus, Splits, Tokenization

N_BASES = 3
"""Base models that give the noise floor, the attacked one among them."""
BASE_TRAINING = Training(8, selection=EpochSelection())
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS: tuple[Position, ...] = ("uniform", "start", "middle", "end", "clustered")
WORD_STRENGTHS = (0.0, 1.0, 2.0, 3.0)
FILLER_COUNTS = (1, 10, 100, 1000)
SMALL_TEST_SET = 200
"""With fewer test texts the number is called rough."""


@dataclass(frozen=True)
class AttefaOptions(AdversaryOptions):
    """The options of adversaries; models are BiLSTM and Perceptron unless others are named.

    Args:
        n_bases: base models, the attacked one among them; with two or more there is a noise floor.
    """

    known_corpora: ClassVar = {name: catalogue.CORPORA[name] for name in (*MOCK_CORPORA, *CORPORA)}

    n_bases: int | None = None

    def recipes(self) -> list[Recipe]:
        """The scores of the base model and its AtteFa on every chosen corpus and encoder."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders or ("bilstm", "perceptron"), BASE_ENCODERS)
        seeds = self.seeds()
        other_bases = PAPER_SEEDS[1 : self.n_bases or min(len(seeds), N_BASES)]
        found: list[Recipe] = []
        for corpus in self.chosen_corpora():
            # The mean over a batch, where Wiegreffe & Pinter take the sum.
            training = replace(self.adversary_training(corpus, 80), reduction="mean")
            for encoder in encoders:
                base = base_model(corpus, encoder, self, without_length_limits(corpus.tokenization))
                trial = AtteFa(base, seeds, other_bases, adversary_training=training, start=self.start)
                found += [Performance(base), trial]
        return found


def without_length_limits(tokenization: Tokenization) -> Tokenization:
    """The same preprocessing for texts of every length: the sizes in the paper are those before any filter."""
    if not isinstance(tokenization, Words):
        return tokenization
    return replace(tokenization, longer_than=None, shorter_than=None)


def data_warnings(splits: Splits, accuracy: float) -> tuple[str, ...]:
    """What a reader of AtteFa on own data must know about the data, one sentence each.

    Args:
        accuracy: the accuracy of the base model on the test split.
    """
    labels = [example.label for example in splits.test]
    majority = max(labels.count(label) for label in set(labels)) / len(labels)
    found = []
    if len(labels) < SMALL_TEST_SET:
        found.append(f"Only {len(labels)} texts were tested, so the number is rough: another split may give another.")
    if accuracy <= majority:
        found.append(
            f"The base model has an accuracy of {accuracy:.0%}, no more than always predicting the majority class "
            f"({majority:.0%}): it has learned nothing that its attention could explain."
        )
    return tuple(found)


ARCHITECTURES: tuple[Architecture, ...] = (
    *(Attentive(encoder, Additive()) for encoder in (BiLSTM(), GRU(), Convolution(), Average())),
    SmallTransformer(),
)
"""Models whose AtteFa can be compared: recurrent, convolutional, token-wise, and a small transformer."""


def attefa_by_architecture(
    corpus: Corpus, architectures: Sequence[Architecture] = ARCHITECTURES, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa of one corpus for several models."""
    return [_attefa_trial(corpus, architecture, seeds) for architecture in architectures]


def attefa_by_temperature(
    corpus: Corpus, values: Sequence[float] = TEMPERATURES, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa by the temperature of the attention softmax, in base model and adversary."""
    return [_attefa_trial(corpus, Attentive(BiLSTM(), Additive(), Softmax(value)), seeds) for value in values]


def attefa_by_position(values: Sequence[Position] = POSITIONS, seeds: Sequence[int] = PAPER_SEEDS[:3]) -> list[AtteFa]:
    """AtteFa by the position of the informative words."""
    return _synthetic_trials([Mock(informative=5, position=value) for value in values], seeds)


def attefa_by_strength(
    values: Sequence[float] = WORD_STRENGTHS, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa by the minimum strength of the informative words."""
    return _synthetic_trials([Mock(informative=5, strength=value) for value in values], seeds)


def attefa_by_filler_count(
    values: Sequence[int] = FILLER_COUNTS, seeds: Sequence[int] = PAPER_SEEDS[:3]
) -> list[AtteFa]:
    """AtteFa by the number of different uninformative words."""
    return _synthetic_trials([Mock(informative=5, fillers=value) for value in values], seeds)


def _synthetic_trials(corpora: Sequence[Corpus], seeds: Sequence[int]) -> list[AtteFa]:
    architectures = (Attentive(BiLSTM(), Additive()), Attentive(Average(), Additive()))
    return [_attefa_trial(corpus, architecture, seeds) for corpus in corpora for architecture in architectures]


def _attefa_trial(corpus: Corpus, architecture: Architecture, seeds: Sequence[int]) -> AtteFa:
    tokenization = without_length_limits(corpus.tokenization)
    embeddings = RandomEmbeddings(100)
    base = TrainedModel(corpus, tokenization, architecture, BASE_TRAINING, PAPER_SEEDS[0], embeddings=embeddings)
    return AtteFa(base, tuple(seeds), PAPER_SEEDS[1:2], adversary_training=ATTEFA_TRAINING)
