"""Small models of every input format and family, each with a batch that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import InputFormat, PairInput, QuestionAnswering, SingleInput
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Model
from tests.networks import TinyTransformer, batch_of, tiny

SHAPES: tuple[InputFormat, ...] = (SingleInput(), PairInput(), QuestionAnswering())
MODELS = (*(type(shape).__name__ for shape in SHAPES), "bert", "distilbert", "vit")


def pooled(shape: InputFormat | None = None) -> AttentiveModel:
    """A BiLSTM in float64 with two classes on one logit."""
    draw = Generator().manual_seed(0)
    plan = Attentive(BiLSTM(3), Additive(), input_format=shape or SingleInput())
    return plan.build(BinaryClassification(), torch.randn(50, 5, generator=draw), draw).double().eval()


def subject(name: str) -> tuple[Model, Batch]:
    """A model and a batch that it reads."""
    if name in ("bert", "distilbert", "vit"):
        return tiny(name), batch_of(name)
    batch = batch_of("bert")
    # The shortest text gets a second part, which pairs need.
    segments = batch.segments.clone()
    segments[2, 2] = 1
    return pooled(next(shape for shape in SHAPES if type(shape).__name__ == name)), replace(batch, segments=segments)


def targets(batch: Batch) -> Tensor:
    return torch.arange(len(batch)) % 2


def some_batch(lengths: Sequence[int], *, parts: int = 1) -> Batch:
    """Rows `<sos> words <eos>`, once or twice, of these many words."""
    width = parts * (max(lengths) + 2)
    inputs, segments = torch.zeros(2, len(lengths), width, dtype=torch.int64)
    words = torch.full((len(lengths), width), -1)
    for row, length in enumerate(lengths):
        for part in range(parts):
            start = part * (length + 2)
            inputs[row, start : start + length + 2] = torch.tensor([2, *range(4 + part, 4 + part + length), 3])
            words[row, start + 1 : start + length + 1] = torch.arange(length) + part * length
            segments[row, start : start + length + 2] = part
    uids = tuple(f"row-{row}-{length}" for row, length in enumerate(lengths))
    return Batch(uids, inputs, inputs > 0, segments, words)


def small_models() -> dict[str, Model]:
    """A BiLSTM and a transformer of two classes in float32."""
    generator = Generator().manual_seed(0)
    table = torch.randn(30, 5, generator=generator)
    return {
        "pooled": Attentive(BiLSTM(3), Additive()).build(BinaryClassification(), table, generator).eval(),
        "transformer": TinyTransformer("bert", vocab_size=30).build(BinaryClassification(), None, generator).eval(),
    }
