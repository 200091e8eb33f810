"""A model that somebody else trained, as a subject: nothing is trained, and its weights stay where they are.

Everything that examines a subject examines a given one; only what would train it anew (other seeds, imposed or
deceiving attention) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Generator

from heedful.core.tasks import Regression
from heedful.core.types import Batching, Corpus, Task, UserError
from heedful.core.workspace import Artefact, Workspace
from heedful.data.batching import Words
from heedful.data.recast import Recast
from heedful.data.subwords import Subwords
from heedful.models.outputs import Outputs, outputs_of
from heedful.models.transformer import Transformer
from heedful.recipes.fit import Fit
from heedful.recipes.objectives import Supervised
from heedful.recipes.subject import Making, Subject, Trained
from heedful.recipes.training import State


def given(source: str, corpus: Corpus, batching: Batching | None = None, names: tuple[str, ...] = ()) -> Given:
    """A fine-tuned checkpoint with its own head as a subject on this corpus.

    Args:
        source: a folder or a hub name, of model and tokenizer.
        batching: by default the checkpoint's own tokenizer; a vision model needs its `Patches`.
        names: the corpus's classes in the order of the model's outputs, where the checkpoint names them otherwise.
    """
    outputs = outputs_of(source).names
    if names and len(names) != len(outputs):
        raise UserError(f"{source} has {len(outputs)} outputs ({', '.join(outputs)}), but {len(names)} names are given")
    # One output is a number, or the one logit that a corpus of two classes is read for anyway.
    recast = corpus if len(outputs) == 1 else Recast(corpus, names or outputs)
    return Given(recast, batching or Subwords(source), Transformer(source))


@dataclass(frozen=True)
class Given(Subject):
    """A checkpoint with its own head, examined on a corpus; made by `given`, which reads the corpus in its order."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, Transformer):
            raise UserError(f"{type(self.model).__name__} brings no trained weights: train it as a Subject")
        if isinstance(self.batching, Words):
            raise UserError(f"{self.model.source} reads ids of its own tokenizer: batch with Subwords, not Words")
        if (self.fit, self.seed, self.objective) != (Fit(), 0, Supervised()):
            raise UserError(
                f"{self.model.source} is given and not trained here, so that it cannot be trained anew (with other "
                "seeds, imposed or adversarial attention): train a Subject from a checkpoint for that"
            )

    def make(self, workspace: Workspace) -> Artefact:
        """Scores and counts as of a subject, and the digest of the weights in place of the weights."""
        assert isinstance(self.model, Transformer)
        source = self.model.source
        _check(source, self.corpus.name, outputs_of(source), self.corpus.read(workspace.data).task)
        making = Making(self, workspace)
        _check_head(source, making.model.notes)
        digest = self.model.digest(workspace.data)
        return Artefact(notes={**making.notes(State()), "weights": {"source": source, "digest": digest}})

    def restore(self, workspace: Workspace) -> Trained:
        """The model as its checkpoint has it, with its batcher; scored first where it has not been yet."""
        saved = workspace.get(self).notes["batcher"]
        assert isinstance(saved, Mapping)
        splits = self.corpus.read(workspace.data)
        # Nothing is drawn: a checkpoint without a head of its own was refused.
        model = self.model.build(splits.task, None, Generator().manual_seed(0))
        return Trained(model.to(workspace.device).eval(), self.batching.restore(saved), splits, self.batching)


def _check(source: str, corpus: str, outputs: Outputs, task: Task) -> None:
    wanted = "a number" if isinstance(task, Regression) else f"{task.outputs} outputs for its classes"
    found = "gives a number" if outputs.number else f"has {len(outputs.names)} outputs ({', '.join(outputs.names)})"
    if task.outputs != len(outputs.names) or isinstance(task, Regression) != outputs.number:
        raise UserError(
            f"{corpus} needs a model with {wanted}, but {source} {found}; heedful.given(...) reads a corpus for a "
            "model with an output for each class"
        )


def _check_head(source: str, notes: tuple[str, ...]) -> None:
    if not any(note.endswith("head included") for note in notes):
        raise UserError(f"{source} has no head that was trained ({'; '.join(notes)}): fine-tune it first, as a Subject")
