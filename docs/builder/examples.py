"""The example models of the site, trained when it is built, and the sentence that every method explains."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from heedful import Explainer, Workspace, load
from heedful.attributions.registry import method_for_words
from heedful.data import RandomEmbeddings, Table, Words
from heedful.models import Additive, Attentive, BiLSTM, SmallTransformer
from heedful.training import Adam, TrainedModel, Training
from heedful.types import Example

SENTENCE = "the plot is dull but the music is wonderful"
CLASSES = ("bad", "good")
THINGS = ("plot", "music", "acting", "film", "ending", "scenery")
GOOD, BAD = ("wonderful", "moving", "brilliant", "fine"), ("dull", "clumsy", "awful", "tired")
NEUTRAL = ("long", "short", "french", "old")
REVIEWS = 2400


def say_nothing(line: str) -> None:
    """Take a message of an audit and drop it."""


def write_reviews(path: Path) -> Path:
    """Generated reviews: the last clause counts more than the first, and labels are drawn, so that nothing is certain.

    Words of judgement add 1 (first clause) or 3 (last clause) to the log-odds of the label, and neutral words nothing.
    """
    draw = Random(0)
    rows = [("text", "label")]
    while len(rows) <= REVIEWS:
        things = draw.sample(THINGS, 2)
        words = [draw.choice(draw.choice((GOOD, BAD, NEUTRAL))) for _ in things]
        signs = [(word in GOOD) - (word in BAD) for word in words]
        joint = "but" if signs[0] * signs[1] < 0 else "and"
        first, last = (f"the {thing} is {word}" for thing, word in zip(things, words, strict=True))
        text, odds = (
            (first, 3 * signs[0]) if draw.random() < 0.25 else (f"{first} {joint} {last}", signs[0] + 3 * signs[1])
        )
        # Some words are left out, so that a text without one of them is not unlike all that the models have read.
        text = " ".join(word for word in text.split() if word in {*words, joint} or draw.random() > 0.2)
        label = CLASSES[draw.random() < 1 / (1 + math.exp(-odds))]
        if text != SENTENCE:
            rows.append((text, label))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def transformer(reviews: Path) -> TrainedModel:
    """A transformer of two layers, trained on the reviews."""
    return TrainedModel(
        Table(reviews),
        Words(),
        SmallTransformer(layers=2, heads=2, width=32, max_positions=64, dropout=0.0, initializer_range=0.2),
        Training(epochs=16, batch_size=16, optimizer=Adam(lr=0.003)),
        embeddings=RandomEmbeddings(32),
    )


def bilstm(reviews: Path) -> TrainedModel:
    """A BiLSTM with additive attention, trained on the reviews."""
    return TrainedModel(
        Table(reviews),
        Words(),
        Attentive(BiLSTM(24), Additive()),
        Training(epochs=6, batch_size=16, optimizer=Adam(lr=0.005)),
        embeddings=RandomEmbeddings(32),
    )


@cache
def example_explainer(folder: Path) -> Explainer:
    """The transformer, trained in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    reviews = write_reviews(folder / "reviews.csv")
    return load((transformer(reviews), Workspace(folder / "workspace")))


@dataclass(frozen=True)
class Passes:
    """Texts that a model read, and gradients that were taken of its outputs, for one text."""

    forward: int
    backward: int


def count_passes(explainer: Explainer, name: str) -> Passes:
    """What a method of the catalogue, with its options for words, asks of the model for the sentence."""
    batch = explainer.tokenizer((Example("sentence", (SENTENCE,), 0),))
    forward, backward = 0, 0

    def count_gradient(gradient: Tensor) -> None:
        nonlocal backward
        backward += len(gradient)

    def count_texts(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal forward
        forward += len(output)
        if output.requires_grad:
            output.register_hook(count_gradient)  # type: ignore[no-untyped-call]

    head = explainer.model.get_submodule("network.classifier")
    handle = head.register_forward_hook(count_texts)
    try:
        method_for_words(name)(explainer.model, batch, torch.ones(1, dtype=torch.int64))
    finally:
        handle.remove()
    return Passes(forward, backward)
