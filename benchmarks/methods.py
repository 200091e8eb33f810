"""All ten methods of the Song on a BiLSTM, from recipe to stored table, against the bare passes that they ask for.

A first run takes down every forward pass, with or without a backward one. What is read twice, by whichever method,
counts once. The peer then does these distinct passes and nothing else, with as many texts at once as we had.
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

from benchmarks.sentences import VOCABULARY, WIDTH
from benchmarks.timing import Row, compared
from heedful.attributions.perturbation import CHUNK_CELLS, LeaveOneOut
from heedful.core.remembering import keys_of, remembering
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.tokenization import Words
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
    """Random words in texts of SST's lengths; little to train on, and a vocabulary as large as SST's."""

    name: ClassVar[str] = "invented"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        """Sixty-four texts to train on, a hundred to explain."""
        words = tuple(f"word{number}" for number in range(VOCABULARY - 4))
        train, dev, test = (_texts(split, count, words) for split, count in (("a", 64), ("b", 16), ("c", TEXTS)))
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, extra_vocabulary=words)

    def digest(self, data: Path) -> str:
        """Nothing outside of this file decides."""
        return "invented"


def _texts(split: str, count: int, words: tuple[str, ...]) -> tuple[Example, ...]:
    generator = Generator().manual_seed(ord(split))
    lengths = (6 + torch.rand(count, generator=generator).pow(1.8) * 38).long().tolist()
    drawn = [torch.randint(len(words), (length,), generator=generator).tolist() for length in lengths]
    texts = [" ".join(words[place] for place in row) for row in drawn]
    return tuple(Example(f"{split}-{number}", (text,), number % 2) for number, text in enumerate(texts))


def rows() -> Iterator[Row]:
    """One row: the ratio is the share of the time that the passes themselves take."""
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
    """Texts that a model reads at once, and whether it is asked for the slopes at their embeddings."""

    batch: Batch
    embeddings: Tensor | None
    attention: Tensor | None
    backward: bool

    def run(self, model: Model) -> None:
        """The pass, bare."""
        if not self.backward:
            with torch.no_grad():
                model(self.batch, embeddings=self.embeddings, attention=self.attention)
            return
        assert self.embeddings is not None
        at = self.embeddings.detach().requires_grad_()
        logits = model(self.batch, embeddings=at, attention=self.attention).logits
        torch.autograd.grad(model.task.probabilities(logits)[:, 1].sum(), at)

    def rows(self, index: Tensor) -> Pass:
        """The same for some of the texts."""
        batch = self.batch.rows(index)
        width = batch.mask.shape[1]
        vectors = None if self.embeddings is None else self.embeddings[index][:, :width]
        weights = None if self.attention is None else self.attention[index][..., :width]
        return Pass(batch, vectors, weights, self.backward)

    @property
    def keys(self) -> list[tuple[object, ...]]:
        """What tells the rows of all passes apart."""
        names = [*map(tuple, keys_of(self.batch).tolist())]
        kinds = (self.embeddings is not None and self.backward, self.attention is not None)
        if self.embeddings is None:
            return [(*name, *kinds) for name in names]
        sums = self.embeddings.double().sum((1, 2)).tolist()
        return [(*name, *kinds, value) for name, value in zip(names, sums, strict=True)]


def _distinct(model: Model, batch: Batch, methods: tuple[Method, ...]) -> list[Pass]:
    """The passes of all methods in their order, each row but once."""
    seen: set[tuple[object, ...]] = set()
    found: list[Pass] = []
    for each in _taken_down(model, batch, methods):
        first = {key: row for row, key in reversed([*enumerate(each.keys)]) if key not in seen}
        seen |= first.keys()
        if first:
            found.append(each.rows(torch.tensor(sorted(first.values()))))
    return found


def _taken_down(model: Model, batch: Batch, methods: tuple[Method, ...]) -> Iterator[Pass]:
    """Every pass of the methods; leaving words out is taken as readings of the shortened texts."""
    batch = batch.rows(torch.argsort(batch.lengths, stable=True))
    target = torch.ones(len(batch), dtype=torch.int64)
    for method in methods:
        if isinstance(method, LeaveOneOut):
            yield from _shortened(batch)
            continue
        taken: list[Pass] = []
        hook = model.register_forward_pre_hook(_noting(taken), with_kwargs=True)
        with remembering(model):
            method(model, batch, target)
        hook.remove()
        yield from taken


def _noting(taken: list[Pass]) -> Callable[[nn.Module, tuple[Batch, ...], dict[str, Tensor | None]], None]:
    def note(module: nn.Module, given: tuple[Batch, ...], named: dict[str, Tensor | None]) -> None:
        vectors, weights = named.get("embeddings"), named.get("attention")
        backward = vectors is not None and vectors.requires_grad
        taken.append(Pass(given[0], None if vectors is None else vectors.detach(), weights, backward))

    return note


def _shortened(batch: Batch) -> Iterator[Pass]:
    row, unit = batch.deletable_mask.nonzero(as_tuple=True)
    size = CHUNK_CELLS // int(batch.lengths.max()) ** 2
    for some in torch.split(torch.arange(len(row)), size):
        copies = batch.rows(row[some])
        kept = torch.ones_like(copies.mask).scatter(1, unit[some].unsqueeze(1), value=False)
        yield Pass(copies.keep_units(kept), None, None, backward=False)
