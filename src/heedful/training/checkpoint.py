"""Fine-tuned checkpoints as model recipes: nothing is trained, and the weights stay where they are.

Trials that examine a model accept a checkpoint; trials that train variants of a model (other seeds, imposed or
adversarial attention) need a `TrainedModel`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Generator

from heedful.data.splitting import DerivedCorpus
from heedful.data.tokenization import Subwords, Words
from heedful.models.transformer import Transformer, read_output_labels
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model
from heedful.training.trained_model import EVALUATED_SPLITS, PreparedCorpus
from heedful.training.trainer import evaluate
from heedful.types import SPLITS, Corpus, Example, Splits, Tokenization, UserError

NOT_TRAINED_HERE = "given, not trained here"


@dataclass(frozen=True)
class Checkpoint(ModelRecipe):
    """A fine-tuned transformer with its own head on a corpus, with or without labels.

    `checkpoint(...)` makes one and brings the corpus's classes into the order of the model's outputs.
    """

    corpus: Corpus
    tokenization: Tokenization
    architecture: Transformer
    seed: ClassVar[None] = None
    embeddings: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, Transformer):
            name = type(self.architecture).__name__
            raise UserError(f"{name} has no trained weights: train it as a TrainedModel")
        if isinstance(self.tokenization, Words):
            raise UserError(f"{self.architecture.source} has its own tokenizer: use Subwords, not Words")

    def describe(self) -> dict[str, Json]:
        return {**super().describe(), "training": NOT_TRAINED_HERE}

    def make(self, workspace: Workspace) -> Artefact:
        """Scores and counts, and the digest of the weights in place of the weights."""
        source = self.architecture.source
        outputs, splits = read_output_labels(source), self.corpus.read(workspace.data_dir)
        task, classes = splits.task, [_normalize_name(name) for name in splits.class_names]
        if task.num_outputs != len(outputs.names) or isinstance(task, Regression) != outputs.is_regression:
            if outputs.is_regression and task.num_outputs == 1:
                raise UserError(
                    f"{source} has one output, which its config.json takes for a number, but {self.corpus.name} has "
                    "classes: if the output is the logit of the second class, set problem_type to "
                    "'multi_label_classification' there"
                )
            expected = "a number" if isinstance(task, Regression) else f"{task.num_outputs} outputs for its classes"
            names = f"has {len(outputs.names)} outputs ({', '.join(outputs.names)})"
            raise UserError(
                f"{self.corpus.name} needs a model with {expected}, but {source} "
                f"{'gives a number' if outputs.is_regression else names}; heedful.checkpoint(...) adapts a corpus to a "
                "model with one output per class"
            )
        if len(outputs.names) == 1 and len(classes) == 2 and _normalize_name(outputs.names[0]) == classes[0]:
            raise UserError(
                f"the one output of {source} is the logit of {outputs.names[0]}, but {self.corpus.name} has the "
                f"classes {', '.join(splits.class_names)}, and one logit stands for the second: give them in the other "
                "order"
            )
        corpus = PreparedCorpus(self, workspace)
        # Nothing is drawn: a checkpoint without a head of its own is refused.
        model, _ = build_model(self.architecture, corpus.splits.task, (), None, workspace, Generator().manual_seed(0))
        if not any(note.endswith("head included") for note in model.notes):
            raise UserError(f"{source} has no trained head ({'; '.join(model.notes)}): fine-tune it as a TrainedModel")
        labelled = [split for split in EVALUATED_SPLITS if corpus.batches[split].labels is not None]
        scores = {split: evaluate(model, corpus.batches[split], workspace.batch_size) for split in labelled}
        weights = {"source": source, "digest": self.architecture.digest(workspace.data_dir)}
        return Artefact(notes=corpus.notes(model, scores, None) | {"weights": {**weights}})

    def load_model(self, workspace: Workspace) -> LoadedModel:
        state = workspace.get(self).notes["tokenizer"]
        assert isinstance(state, Mapping)
        splits = self.corpus.read(workspace.data_dir)
        model, _ = build_model(self.architecture, splits.task, (), None, workspace, Generator().manual_seed(0))
        return LoadedModel(model.eval(), self.tokenization.restore(state), splits, self.tokenization)


def checkpoint(
    source: str, corpus: Corpus, tokenization: Tokenization | None = None, class_names: tuple[str, ...] = ()
) -> Checkpoint:
    """A fine-tuned checkpoint on this corpus, whose classes are brought into the order of the model's outputs.

    Args:
        source: a folder or a hub name, of model and tokenizer.
        tokenization: by default the checkpoint's own tokenizer; a vision model needs its `Patches`.
        class_names: the corpus's classes in the order of the model's outputs, where the checkpoint has other names.
    """
    outputs = read_output_labels(source).names
    if class_names and len(class_names) != len(outputs):
        raise UserError(
            f"{source} has {len(outputs)} outputs ({', '.join(outputs)}), but {len(class_names)} class names are given"
        )
    # One output is a number, or the one logit of a binary task.
    aligned = corpus if len(outputs) == 1 else LabelAlignedCorpus(corpus, class_names or outputs)
    return Checkpoint(aligned, tokenization or Subwords(source), Transformer(source))


@dataclass(frozen=True)
class LabelAlignedCorpus(DerivedCorpus):
    """Another corpus with its classes in the order of a model's outputs, one logit per class.

    Args:
        output_names: the model's names of its outputs. Names are matched without regard to case; where they only count
            (LABEL_0, LABEL_1 ... or 0, 1 ...) the corpus's own order is taken, and the notes say so.
    """

    output_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.output_names) < 2:
            raise UserError("a label-aligned corpus needs a model with one output per class: give at least two names")

    def read(self, data: Path) -> Splits:
        """The corpus's splits with labels, candidates and class names in the model's order."""
        splits = self.corpus.read(data)
        output_index, note = self._output_index(splits.class_names)
        train, dev, test = (
            tuple(_reorder_classes(example, output_index) for example in splits[split]) for split in SPLITS
        )
        classes = tuple(splits.class_names[output_index.index(output)] for output in range(len(output_index)))
        task, notes = MulticlassClassification(len(classes)), {**splits.notes, "outputs of the model": note}
        return replace(splits, task=task, class_names=classes, train=train, dev=dev, test=test, notes=notes)

    def _output_index(self, classes: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
        """The model's output for each class of the corpus, and a note on how they were matched."""
        in_corpus, in_model = ", ".join(classes), ", ".join(self.output_names)
        if len(classes) != len(self.output_names):
            has = f"{len(classes)} classes ({in_corpus})" if classes else "a number for each example and no classes"
            raise UserError(
                f"{self.corpus.name} has {has}, but the model has {len(self.output_names)} outputs ({in_model})"
            )
        outputs = [_normalize_name(name) for name in self.output_names]
        labels = [_normalize_name(name) for name in classes]
        if sorted(outputs) == sorted(labels) and len(set(outputs)) == len(outputs):
            return tuple(outputs.index(name) for name in labels), f"{in_model}, matched with the classes by name"
        if _are_placeholders(outputs) or _are_placeholders(labels):
            return tuple(range(len(classes))), f"{in_model}, taken to be {in_corpus} in this order"
        raise UserError(
            f"{self.corpus.name} has the classes {in_corpus}, but the model's outputs are {in_model}: give the class "
            "names in the order of the model's outputs"
        )


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _are_placeholders(names: list[str]) -> bool:
    """Whether the names only count: LABEL_0, LABEL_1 ... or 0, 1 ..."""
    return all(name in (f"label {index}", str(index)) for index, name in enumerate(names))


def _reorder_classes(example: Example, output_index: tuple[int, ...]) -> Example:
    if output_index == tuple(range(len(output_index))):
        return example
    candidates, truth = example.candidates, example.ground_truth
    if truth is not None and output_index[1] != 1:
        # What each word adds to class 1: of two classes that changed places the opposite, else unknown.
        truth = tuple(-value for value in truth) if len(output_index) == 2 else None
    return replace(
        example,
        label=None if example.label is None else output_index[int(example.label)],
        candidates=None if candidates is None else tuple(sorted(output_index[each] for each in candidates)),
        ground_truth=truth,
    )
