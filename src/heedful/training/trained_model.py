"""Models trained here, and models examined on another corpus than their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import pandas as pd
import torch
from torch import Generator

from heedful.data.embeddings import EmbeddingTable, RandomEmbeddings, WordEmbeddings
from heedful.data.tokenization import check_labels
from heedful.store.recipe import Artefact, Json, derive_seed, to_json
from heedful.store.shard import BLOCK_ROWS
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model
from heedful.training.objectives import Objective, Supervised
from heedful.training.trainer import Training, TrainingRun, evaluate, predict, train
from heedful.types import SPLITS, Architecture, Batch, Corpus, Example, Model, Split, Splits, Tokenization, UserError


@dataclass(frozen=True)
class TrainedModel(ModelRecipe):
    """A model of this architecture, trained on this corpus."""

    corpus: Corpus
    tokenization: Tokenization
    architecture: Architecture
    training: Training = Training()
    seed: int = 0
    objective: Objective = Supervised()
    embeddings: WordEmbeddings | None = RandomEmbeddings()

    def __post_init__(self) -> None:
        self.objective.check(self)

    def describe(self) -> dict[str, Json]:
        return {**super().describe(), "objective": self.objective.display_name}

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, the history of all epochs, scores and counts."""
        corpus = PreparedCorpus(self, workspace)
        generator = Generator().manual_seed(derive_seed("weights", self.seed))
        task, vocabulary = corpus.splits.task, corpus.tokenizer.vocabulary
        model, table = build_model(self.architecture, task, vocabulary, self.embeddings, workspace, generator)
        self.objective.prepare_model(model, workspace)
        train_batch, selection_split = corpus.batches["train"].to(workspace.device), self.training.selection.split
        run = TrainingRun(
            model=model,
            loss=self.objective.loss(train_batch, model.task, workspace),
            train_batch=train_batch,
            evaluation_batch=corpus.batches[selection_split],
            training=self.training,
            seed=self.seed,
            name=f"{self.title} {self.objective.display_name}",
            evaluator=self.objective.evaluator(selection_split, workspace),
        )
        state = train(run, workspace.partial_folder(self), workspace.progress, workspace.batch_size)
        scores = {
            split: (self.objective.evaluator(split, workspace) or evaluate)(
                model, corpus.batches[split], workspace.batch_size
            )
            for split in EVALUATED_SPLITS
        }
        notes = corpus.notes(model, scores, table)
        notes |= {"best_epoch": state.best_epoch, "selected_on": selection_split}
        return Artefact(model.state_dict(), pd.DataFrame(state.history), notes)

    def load_model(self, workspace: Workspace) -> LoadedModel:
        artefact = workspace.get(self)
        splits = self.corpus.read(workspace.data_dir)
        state, width = artefact.notes["tokenizer"], artefact.notes["width"]
        assert isinstance(state, Mapping)
        tokenizer = self.tokenization.restore(state)
        table = torch.zeros(len(tokenizer.vocabulary), width) if isinstance(width, int) else None
        generator = Generator().manual_seed(derive_seed("weights", self.seed))
        model = self.architecture.build(splits.task, table, generator)
        self.objective.prepare_model(model, workspace)
        model.load_state_dict(dict(artefact.tensors))
        return LoadedModel(model.to(workspace.device).eval(), tokenizer, splits, self.tokenization)


def check_trained_here(subject: ModelRecipe) -> None:
    """Raises `UserError` for a model without trainable variants (other seeds, other attention)."""
    if not isinstance(subject, TrainedModel):
        raise UserError(f"{subject.title}: not trained here, so no variants of it can be trained; give a TrainedModel")


EVALUATED_SPLITS: tuple[Split, ...] = ("dev", "test")


class PreparedCorpus:
    """A recipe's corpus as batches, with everything the artefact's notes say about it.

    Args:
        required: splits that must have examples; a model that is not trained needs the test split alone.
    """

    def __init__(self, recipe: ModelRecipe, workspace: Workspace, required: Sequence[Split] = SPLITS) -> None:
        self.recipe = recipe
        self.splits = recipe.corpus.read(workspace.data_dir)
        selections = {split: recipe.tokenization.select(self.splits[split]) for split in SPLITS}
        self.examples = {split: selection.examples for split, selection in selections.items()}
        self.dropped = {split: dict(selection.num_dropped) for split, selection in selections.items()}
        extra = " ".join(self.splits.extra_vocabulary)
        training = self.splits.train or self.splits.test
        self.tokenizer = recipe.tokenization.fit((*training, Example("lexicon", (extra,))) if extra else training)
        for split in required:
            if not self.examples[split]:
                dropped = self.dropped[split].items()
                reasons = ", ".join(f"{count} {reason}" for reason, count in dropped) or "it is empty"
                raise UserError(f"{recipe.corpus.name}: no example of the {split} split is left ({reasons})")

    @cached_property
    def batches(self) -> dict[Split, Batch]:
        """Each split as one batch, for training."""
        for examples in self.examples.values():
            check_labels(examples)
        return {split: self.tokenizer(examples) for split, examples in self.examples.items() if examples}

    def evaluate(self, model: Model, workspace: Workspace) -> dict[Split, dict[str, float]]:
        """The scores of a model on the labeled examples of the evaluated splits; a block at a time becomes a batch."""
        scores: dict[Split, dict[str, float]] = {}
        for split in EVALUATED_SPLITS:
            probabilities, labels = [], []
            examples = self.examples[split]
            for start in range(0, len(examples), BLOCK_ROWS):
                block = examples[start : start + BLOCK_ROWS]
                labeled = [example for example in block if example.label is not None]
                if not labeled:
                    continue
                batch = self.tokenizer(labeled)
                if batch.labels is not None:
                    probabilities.append(predict(model, batch, workspace.batch_size))
                    labels.append(batch.labels)
            if labels:
                scores[split] = model.task.compute_metrics(torch.cat(probabilities), torch.cat(labels))
        return scores

    def notes(
        self, model: Model, scores: Mapping[Split, Mapping[str, float]], embeddings: EmbeddingTable | None
    ) -> dict[str, Json]:
        """What the report says about this model and its data."""
        return {
            "about": dict(self.recipe.about),
            "tokenizer": to_json(self.tokenizer.state()),
            "classes": list(self.splits.class_names),
            "scores": to_json(scores),
            "sizes": to_json({split: self._class_counts(split) for split in SPLITS}),
            "dropped": to_json(self.dropped),
            "remarks": to_json({split: self.tokenizer.preprocessing_notes(self.examples[split]) for split in SPLITS}),
            "corpus": to_json(dict(self.splits.notes)),
            # A subword tokenizer brings its own vocabulary, which says nothing about the corpus.
            "vocabulary": len(self.tokenizer.vocabulary) or None,
            "width": None if embeddings is None else embeddings.matrix.shape[1],
            "vectors_found": None if embeddings is None else embeddings.coverage,
            "model": to_json(model.notes),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }

    def _class_counts(self, split: Split) -> dict[str, int]:
        classes = self.splits.class_names
        counts = Counter(example.label for example in self.examples[split]) if classes else Counter()
        if not counts.total() - counts[None]:
            return {"examples": len(self.examples[split])}
        return {name: counts[index] for index, name in enumerate(classes) if counts[index] or len(classes) <= 10}


@dataclass(frozen=True)
class OnOtherData(ModelRecipe):
    """Another recipe's model, examined on another corpus with the same classes.

    The model has seen no split of the other corpus, so that all of them may be pooled for testing.

    Args:
        merge_splits: the test split is the whole corpus.
    """

    model: ModelRecipe
    corpus: Corpus
    merge_splits: bool = False

    @property
    def tokenization(self) -> Tokenization:
        return self.model.tokenization

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture

    @property
    def embeddings(self) -> WordEmbeddings | None:
        return self.model.embeddings

    @property
    def seed(self) -> int | None:
        return self.model.seed

    def describe(self) -> dict[str, Json]:
        """The facts of the model on this corpus; a quick model stays one on other data."""
        facts, model = super().describe(), self.model.describe()
        return {**model, **facts, "quick": bool(facts["quick"] or model["quick"])}

    def make(self, workspace: Workspace) -> Artefact:
        """The model's notes and history, with the sizes and notes of the other corpus."""
        loaded, artefact = self.restore(workspace), workspace.get(self.model)
        # Scores, remarks and dropped examples are about the corpus that the model was trained on.
        notes: dict[str, Json] = {
            "about": dict(self.about),
            "trained_on": dict(self.model.about),
            "sizes": {split: {"examples": len(loaded.splits[split])} for split in SPLITS},
            "corpus": to_json(loaded.splits.notes),
            "scores": {},
            "remarks": {},
            "dropped": {},
        }
        return Artefact({}, artefact.table, {**artefact.notes, **notes})

    def load_model(self, workspace: Workspace) -> LoadedModel:
        loaded = self.model.restore(workspace)
        splits = self.read_splits(workspace.data_dir)
        here, there = self.corpus.name, self.model.corpus.name
        if splits.task != loaded.splits.task:
            raise UserError(
                f"{here} is for {splits.task}, but the model was trained on {there} for {loaded.splits.task}: choose a "
                "corpus with the same task"
            )
        names, trained_names = splits.class_names, loaded.splits.class_names
        if [name.casefold() for name in names] != [name.casefold() for name in trained_names]:
            raise UserError(
                f"{here} has the classes {', '.join(names)}, but the model was trained on {there} with "
                f"{', '.join(trained_names)}: give both the same names in the same order"
            )
        return replace(loaded, splits=splits)

    def read_splits(self, data: Path) -> Splits:
        splits = self.corpus.read(data)
        if not self.merge_splits:
            return splits
        filled = [splits[split] for split in SPLITS if splits[split]]
        return replace(splits, train=(), dev=(), test=filled[0] if len(filled) == 1 else tuple(chain(*filled)))
