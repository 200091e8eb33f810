"""Options that papers share, and the user's own data in place of a paper's corpora."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from heedful import catalogue
from heedful.data.columns import TableColumns
from heedful.data.embeddings import FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings, WordEmbeddings
from heedful.data.hub_datasets import SavedDataset
from heedful.data.io import is_present
from heedful.data.splitting import SubsampledCorpus
from heedful.data.table import COLUMNS, Table
from heedful.names import choose_name
from heedful.store.recipe import Recipe
from heedful.tasks import Regression
from heedful.training.trainer import Training
from heedful.types import Corpus, Splits, UserError

QUICK_TRAIN_SIZE, QUICK_EVAL_SIZE = 1500, 300
"""Sizes of the splits in quick versions."""
NOWHERE = Path("/dev/null")
"""A data folder in which nothing can be."""
MIN_EPOCH_STEPS = 39
"""Steps of an epoch on the smallest corpus of AtteFa, two groups of 20 Newsgroups."""


@dataclass(frozen=True)
class UserData:
    """A table of the user: one file, or one for each split.

    Args:
        path: a CSV, TSV, JSONL or Parquet file, or a folder of the `datasets` library.
        dev_path: file of the dev split; split off from `path` if None.
        test_path: file of the test split; split off from `path` if None.
    """

    path: str
    columns: TableColumns = TableColumns()
    dev_path: str | None = None
    test_path: str | None = None

    @property
    def corpus(self) -> Corpus:
        """The texts as a corpus; a folder of the `datasets` library has its own splits."""
        is_folder = is_present(Path(self.path), "folder") and self.dev_path is None and self.test_path is None
        corpus = (
            SavedDataset(self.path, self.columns)
            if is_folder
            else Table(self.path, self.columns, self.dev_path, self.test_path)
        )
        if corpus.name in catalogue.CORPORA:
            raise UserError(
                f"{self.path} has the name of the published corpus {corpus.name!r}, whose numbers would be shown "
                "beside yours; rename it"
            )
        return corpus


@dataclass(frozen=True)
class PaperOptions(ABC):
    """Which part of a paper to run; empty tuples and None stand for what the paper has.

    Args:
        corpora: names of corpora, of the paper or others in the catalogue; empty runs all but the `optional_corpora`.
        user_data: a table of the user in place of the paper's corpora.
        data_dir: the folder of corpora and word embeddings.

    Class attributes:
        paper_defaults: what empty options stand for, as far as the paper has one value for all corpora.
    """

    known_corpora: ClassVar[Mapping[str, Corpus]]
    optional_corpora: ClassVar[tuple[str, ...]] = ()
    paper_defaults: ClassVar[Mapping[str, object]] = {}

    corpora: tuple[str, ...] = ()
    n_seeds: int | None = None
    quick: bool = False
    user_data: UserData | None = None
    data_dir: Path | None = None

    @abstractmethod
    def recipes(self) -> list[Recipe]:
        """Every trial of the paper on the chosen corpora and models."""

    @property
    def has_pairs(self) -> bool:
        """Whether the user's data has two texts per example."""
        return self.user_data is not None and len(self._user_splits().train[0].parts) == 2

    def _user_splits(self) -> Splits:
        assert self.user_data is not None
        return self.user_data.corpus.read(self.data_dir or Path())

    def chosen_corpora(self) -> list[Corpus]:
        """The user's data, the named corpora, or those that the paper runs by default."""
        if self.user_data is not None:
            return [self.user_data.corpus]
        names = self.corpora or self.default_corpora()
        names = resolve_names("corpus", names, list({**self.known_corpora, **catalogue.CORPORA}))
        return [self.known_corpora[name] if name in self.known_corpora else self._other_corpus(name) for name in names]

    def _other_corpus(self, name: str) -> Corpus:
        """A corpus of the catalogue that the paper lacks; UserError unless it has single texts and classes."""
        splits = catalogue.CORPORA[name].read(self.data_dir or Path())
        if isinstance(splits.task, Regression) or [type(part) for part in splits.train[0].parts] != [str]:
            raise UserError(f"this paper has no corpus {name!r}; other corpora need one text per example and classes")
        return catalogue.CORPORA[name]

    @classmethod
    def default_corpora(cls) -> tuple[str, ...]:
        """Names of the corpora that the paper runs by default."""
        return tuple(name for name in cls.known_corpora if name not in cls.optional_corpora)

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """What every option is if the user does not set it, by its field; empty or None where that depends on more."""
        values = {field.name: field.default for field in fields(cls)}
        return {**values, "corpora": cls.default_corpora(), **cls.paper_defaults}

    def available_corpora(self) -> list[str]:
        """The paper's default corpora that are in the data folder, or need none."""
        corpora = self.known_corpora
        return [name for name in self.default_corpora() if _is_available(corpora[name], self.data_dir or Path())]

    def generated_corpora(self) -> list[str]:
        """The paper's default corpora that need no data folder."""
        return replace(self, data_dir=NOWHERE).available_corpora()

    def missing_corpora(self) -> list[str]:
        """The paper's default corpora that are left out because they are not in the data folder."""
        if self.corpora or self.user_data is not None or self.data_dir is None:
            return []
        available = self.available_corpora()
        return [name for name in self.default_corpora() if name not in available]

    def training_corpus(self, corpus: Corpus) -> Corpus:
        """The corpus; in a quick version, a random part of it."""
        if not self.quick:
            return corpus
        return SubsampledCorpus(corpus, QUICK_TRAIN_SIZE, QUICK_EVAL_SIZE, QUICK_EVAL_SIZE)

    def adapt_training(self, training: Training, corpus: Corpus) -> Training:
        """The training as the paper has it; on the user's data with enough steps, see `scale_epochs`."""
        if self.user_data is None:
            return training
        return scale_epochs(training, len(corpus.read(self.data_dir or Path()).train))

    def require_classes(self) -> None:
        """UserError if the user's labels are real numbers."""
        if self.user_data is None:
            return
        splits = self._user_splits()
        if isinstance(splits.task, Regression):
            raise UserError(
                f"{self.user_data.path}: the labels are real numbers ({splits.notes[COLUMNS]}), but this paper needs "
                "classes; name a column of classes with --label-column"
            )


@dataclass(frozen=True)
class EmbeddingOptions(PaperOptions):
    """Options of papers whose models read word embeddings.

    Args:
        embeddings: "auto", "random", "packaged", a name in the data folder, or a file. "auto" is random for bAbI, as in
            the papers, and otherwise the largest file in the data folder.
    """

    embeddings: str = "auto"

    def embeddings_name(self, corpus: Corpus) -> str:
        """The embeddings of a corpus, with "auto" resolved."""
        if self.embeddings != "auto":
            return self.embeddings
        is_random = corpus.name.startswith("babi") or self.data_dir is None
        return "random" if is_random else find_embeddings(self.data_dir or Path())

    def word_embeddings(self, corpus: Corpus) -> WordEmbeddings:
        """The embeddings of a corpus, in the width of the paper where they are random."""
        name = self.embeddings_name(corpus)
        if name == "random":
            return RandomEmbeddings(corpus.embedding_dim)
        return PackagedGloveEmbeddings() if name == "packaged" else FileEmbeddings(name)


def scale_epochs(training: Training, n_texts: int) -> Training:
    """The training with epochs and patience multiplied until an epoch's steps are those of the smallest corpus.

    The papers count epochs, which are hardly any training on a few hundred texts.

    >>> scaled = scale_epochs(Training(epochs=80, patience=10), n_texts=320)
    >>> scaled.epochs, scaled.patience
    (320, 40)
    """
    times = max(1, math.ceil(MIN_EPOCH_STEPS / math.ceil(n_texts / training.batch_size)))
    patience = None if training.patience is None else times * training.patience
    return replace(training, epochs=times * training.epochs, patience=patience)


def extend_seeds(paper_seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` different seeds: the paper's, then 100, 101 and so on.

    >>> extend_seeds((10, 101), 4)
    (10, 101, 100, 102)
    """
    further = (seed for seed in itertools.count(100) if seed not in paper_seeds)
    return tuple(itertools.islice(itertools.chain(paper_seeds, further), count))


def resolve_names(kind: str, requested: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    """The requested names, or all available ones; UserError for a name that the paper does not have.

    >>> resolve_names("encoder", ("Perceptron", "average"), ("bilstm", "average"))
    ('average',)
    """
    aliases = catalogue.ENCODER_ALIASES if kind == "encoder" else None
    names = (choose_name(f"{kind} of this paper", name, available, aliases=aliases) for name in requested)
    return tuple(dict.fromkeys(names)) or tuple(available)


def find_embeddings(data_dir: Path) -> str:
    """The largest file of word embeddings in the data folder; "random" if there is none."""
    files = sorted((data_dir / "vectors").glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
    return files[-1].stem if files else "random"


def _is_available(corpus: Corpus, data_dir: Path) -> bool:
    try:
        corpus.digest(data_dir)
    except UserError:
        return False
    return True
