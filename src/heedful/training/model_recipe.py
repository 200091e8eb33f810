"""`ModelRecipe`: what a trial examines, whether the model was trained here, given, or moved to other data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Generator

from heedful.data.embeddings import EmbeddingTable, WordEmbeddings
from heedful.data.splitting import SubsampledCorpus
from heedful.data.tokenization import check_labels
from heedful.data.words import Words
from heedful.store.file_digest import count_file_changes
from heedful.store.recipe import Json, Recipe
from heedful.store.workspace import Workspace
from heedful.types import (
    OWN_MODELS_PAGE,
    Architecture,
    Batch,
    Corpus,
    Example,
    Model,
    Split,
    Splits,
    Task,
    Tokenization,
    Tokenizer,
    UserError,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for inference, its tokenizer and its corpus."""

    model: Model
    tokenizer: Tokenizer
    splits: Splits
    tokenization: Tokenization

    def examples(self, split: Split) -> Sequence[Example]:
        """The examples of a split that the tokenization keeps, in the corpus's order."""
        if split not in self._selected:
            self._selected[split] = self.tokenization.select(self.splits[split]).examples
        return self._selected[split]

    def batch(self, split: Split) -> Batch:
        """A whole split as one batch; either all of its examples have labels, or none."""
        examples = self.examples(split)
        check_labels(examples)
        return self.tokenizer(examples)

    @cached_property
    def _selected(self) -> dict[Split, Sequence[Example]]:
        """The kept examples of the splits that were asked for."""
        return {}


MAX_CACHED_MODELS = 3


@dataclass(frozen=True)
class _CachedModel:
    loaded: LoadedModel
    state: tuple[object, ...]


def _model_state(model: Model) -> tuple[object, ...]:
    """Changes when a weight is modified, replaced or frozen, when a hook is added, or when training mode is set."""
    tensors = (*model.parameters(), *model.buffers())
    return (
        *((id(tensor), tensor._version, tensor.requires_grad) for tensor in tensors),
        *(
            (id(part), part.training, len(part._forward_pre_hooks), len(part._forward_hooks))
            for part in model.modules()
        ),
    )


@dataclass(frozen=True, eq=False)
class _Same:
    """Examples that are equal to no others: they are not compared one by one."""

    examples: Sequence[Example]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.examples is other.examples

    def __hash__(self) -> int:
        return id(self.examples)


@lru_cache(maxsize=8)
def _count_kept(tokenization: Tokenization, same: _Same) -> int:
    """The number of examples that a tokenization keeps; the million texts of a large corpus are read once for it."""
    return len(tokenization.select(same.examples).examples)


class ModelRecipe(Recipe):
    """A model on a corpus: `TrainedModel`, `Checkpoint` or `OnOtherData`."""

    kind: ClassVar[str] = "model"

    if TYPE_CHECKING:  # a field in one recipe, a property in another

        @property
        def corpus(self) -> Corpus: ...
        @property
        def tokenization(self) -> Tokenization: ...
        @property
        def architecture(self) -> Architecture: ...
        @property
        def embeddings(self) -> WordEmbeddings | None: ...
        @property
        def seed(self) -> int | None: ...

    @abstractmethod
    def load_model(self, workspace: Workspace) -> LoadedModel:
        """The model in evaluation mode, read from its artefact; made first where that is missing."""

    def restore(self, workspace: Workspace) -> LoadedModel:
        """The model in evaluation mode; during a `run` it is loaded once, as long as nothing changes it."""
        cache = workspace.model_cache
        if cache is None:
            return self.load_model(workspace)
        name = workspace.artefact_name(self)
        cached = cache.pop(name, None)
        if not isinstance(cached, _CachedModel) or cached.state != _model_state(cached.loaded.model):
            changes = count_file_changes()
            loaded = self.load_model(workspace)
            if workspace.artefact_name(self) != name or count_file_changes() != changes:
                return loaded  # perhaps with the rows of other data, which must not be kept under this name
            cached = _CachedModel(loaded, _model_state(loaded.model))
        cache[name] = cached
        while len(cache) > MAX_CACHED_MODELS:
            del cache[next(iter(cache))]
        return cached.loaded

    def count_examples(self, workspace: Workspace, split: Split) -> int:
        """The number of examples of a split that the tokenization keeps; no model is loaded."""
        return _count_kept(self.tokenization, _Same(self.read_splits(workspace.data_dir)[split]))

    def read_splits(self, data: Path) -> Splits:
        """The corpus as the loaded model has it."""
        return self.corpus.read(data)

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, encoder, attention and, if it was trained here, seed, for tables and file names."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {"corpus": self.corpus.name, **self.architecture.describe(), **seed}

    @property
    def title(self) -> str:
        """The same in one line, for progress bars."""
        return " ".join(str(value) for value in self.about.values())

    def describe(self) -> dict[str, Json]:
        """`about`, word vectors, and whether the corpus is a subsample (`quick`), for the index of the workspace.

        Only models that read word ids are given word vectors: subwords and patches have those of their network.
        """
        embeddings = self.embeddings if isinstance(self.tokenization, Words) else None
        vectors = None if embeddings is None else embeddings.display_name
        return {**self.about, "embeddings": vectors, "quick": isinstance(self.corpus, SubsampledCorpus)}


def build_model(
    architecture: Architecture,
    task: Task,
    vocabulary: tuple[str, ...],
    embeddings: WordEmbeddings | None,
    workspace: Workspace,
    generator: Generator,
) -> tuple[Model, EmbeddingTable | None]:
    """A fresh model on the workspace's device, and its word vectors where the tokenizer has a word vocabulary."""
    table = None
    if embeddings is not None and vocabulary:
        table = embeddings.look_up(vocabulary, workspace.data_dir, generator)
    model = architecture.build(task, None if table is None else table.matrix, generator)
    check_task(model, task)
    return model.to(workspace.device), table


def check_task(model: Model, task: Task) -> None:
    """UserError unless a model has the classes of a corpus; two classes may have one logit or two."""
    if model.task.num_classes != task.num_classes:
        raise UserError(
            f"{type(model).__name__} is for {model.task}, but its corpus for {task}: build the model for the task that "
            f"it is given (see {OWN_MODELS_PAGE})"
        )
