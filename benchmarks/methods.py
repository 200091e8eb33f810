"""The ten methods of Neely et al. on a BiLSTM, from recipe to stored table, against the bare passes they need.

A first run records every forward pass, with or without a backward pass, in which identical inputs of one method count
once. The peer then runs the recorded passes and nothing else, with the same batch sizes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from benchmarks.sst_batches import VOCABULARY, WIDTH
from benchmarks.timing import Row, compared
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.papers.disagreement import ATTENTIVE_METHODS
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.types import Batch, Corpus, Example, Method, Model, Splits

TEXTS = 100


@dataclass(frozen=True)
class Invented(Corpus):
    """Random words in texts of SST's lengths, with a vocabulary of SST's size."""

    name: ClassVar[str] = "invented"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        """Sixty-four texts to train on, a hundred to explain."""
        words = tuple(f"word{number}" for number in range(VOCABULARY - 4))
        train, dev, test = (_texts(split, count, words) for split, count in (("a", 64), ("b", 16), ("c", TEXTS)))
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, extra_vocabulary=words)

    def digest(self, data: Path) -> str:
        """A constant: the texts depend on this file only."""
        return "invented"


def _texts(split: str, count: int, words: tuple[str, ...]) -> tuple[Example, ...]:
    generator = Generator().manual_seed(ord(split))
    lengths = (6 + torch.rand(count, generator=generator).pow(1.8) * 38).long().tolist()
    drawn = [torch.randint(len(words), (length,), generator=generator).tolist() for length in lengths]
    texts = [" ".join(words[index] for index in row) for row in drawn]
    return tuple(Example(f"{split}-{number}", (text,), number % 2) for number, text in enumerate(texts))


def rows() -> Iterator[Row]:
    """One row: the ratio is the share of time spent in the passes themselves."""
    subject = TrainedModel(
        Invented(),
        Words(),
        Attentive(BiLSTM(128), Additive()),
        Training(1, 32, Adam(), EpochSelection(first_epoch=1)),
        embeddings=RandomEmbeddings(WIDTH),
    )
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        trained = subject.restore(workspace)
        recipes = [AttributionTable(subject, method) for method in ATTENTIVE_METHODS]
        passes = _distinct(trained.model, trained.batch("test"), ATTENTIVE_METHODS)
        forward, back = (sum(len(p.batch) for p in passes if p.backward is kind) for kind in (False, True))

        def ours() -> None:
            for recipe in recipes:
                shutil.rmtree(workspace.root / workspace.artefact_name(recipe), ignore_errors=True)
                workspace.get(recipe)

        def bare() -> None:
            for each in passes:
                each.run(trained.model)

        name = f"{len(ATTENTIVE_METHODS)} methods, {TEXTS} texts, BiLSTM(128), from recipe to stored table"
        peer = f"{forward} distinct forward passes and {back} with a backward one, bare"
        yield compared(name, ours, bare, peer, runs=1)


@dataclass(frozen=True)
class Pass:
    """One batch of texts, and whether gradients at their embeddings are computed."""

    batch: Batch
    embeddings: Tensor | None
    attention: Tensor | None
    backward: bool

    def run(self, model: Model) -> None:
        """Run the pass and nothing else."""
        if not self.backward:
            with torch.no_grad():
                model(self.batch, embeddings=self.embeddings, attention=self.attention)
            return
        assert self.embeddings is not None
        at = self.embeddings.detach().requires_grad_()
        logits = model(self.batch, embeddings=at, attention=self.attention).logits
        torch.autograd.grad(model.task.probabilities(logits)[:, 1].sum(), at)

    def rows(self, index: Tensor) -> Pass:
        """The same pass for some of the texts."""
        batch = self.batch.rows(index)
        width = batch.mask.shape[1]
        vectors = None if self.embeddings is None else self.embeddings[index][:, :width]
        weights = None if self.attention is None else self.attention[index][..., :width]
        return Pass(batch, vectors, weights, self.backward)

    @property
    def keys(self) -> list[tuple[object, ...]]:
        """A key for each row: equal keys are the same forward pass."""
        rows = zip(self.batch.inputs.tolist(), self.batch.lengths.tolist(), strict=True)
        names = [(uid, tuple(row[:length])) for uid, (row, length) in zip(self.batch.uids, rows, strict=True)]
        kinds = (self.embeddings is not None and self.backward, self.attention is not None)
        if self.embeddings is None:
            return [(*name, *kinds) for name in names]
        sums = self.embeddings.double().sum((1, 2)).tolist()
        return [(*name, *kinds, value) for name, value in zip(names, sums, strict=True)]


def _distinct(model: Model, batch: Batch, methods: tuple[Method, ...]) -> list[Pass]:
    """The passes of all methods in their order; equal rows of one method are kept once."""
    found: list[Pass] = []
    seen: set[tuple[object, ...]] = set()
    for number, each in _recorded(model, batch, methods):
        keys = [(number, *key) for key in each.keys]
        first = {key: row for row, key in reversed([*enumerate(keys)]) if key not in seen}
        seen |= first.keys()
        if first:
            found.append(each.rows(torch.tensor(sorted(first.values()))))
    return found


def _recorded(model: Model, batch: Batch, methods: tuple[Method, ...]) -> Iterator[tuple[int, Pass]]:
    """Every pass with the number of its method; leave-one-out is counted as one pass per shortened text."""
    batch = batch.rows(torch.argsort(batch.lengths, stable=True))
    target = torch.ones(len(batch), dtype=torch.int64)
    for number, method in enumerate(methods):
        if isinstance(method, LeaveOneOut):
            yield from ((number, each) for each in _shortened(batch))
            continue
        taken: list[Pass] = []
        hook = model.register_forward_pre_hook(_noting(taken), with_kwargs=True)
        method(model, batch, target)
        hook.remove()
        yield from ((number, each) for each in taken)


def _noting(taken: list[Pass]) -> Callable[[nn.Module, tuple[Batch, ...], dict[str, Tensor | None]], None]:
    def note(module: nn.Module, given: tuple[Batch, ...], named: dict[str, Tensor | None]) -> None:
        vectors, weights = named.get("embeddings"), named.get("attention")
        backward = vectors is not None and vectors.requires_grad
        taken.append(Pass(given[0], None if vectors is None else vectors.detach(), weights, backward))

    return note


def _shortened(batch: Batch) -> Iterator[Pass]:
    row, unit = batch.deletable_mask.nonzero(as_tuple=True)
    size = Model.tokens_per_pass // int(batch.lengths.max())
    for some in torch.split(torch.arange(len(row)), size):
        copies = batch.rows(row[some])
        kept = torch.ones_like(copies.mask).scatter(1, unit[some].unsqueeze(1), value=False)
        yield Pass(copies.keep_units(kept), None, None, backward=False)
