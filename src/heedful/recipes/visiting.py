"""A trained subject among texts of another corpus: a film model asked about reviews in which people marked evidence.

Nothing is trained again, so that all splits of the visited corpus are unseen and may be pooled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heedful.core.types import SPLITS, Corpus, Splits, UserError
from heedful.core.workspace import Artefact, Json, Workspace
from heedful.recipes.subject import Subject, Trained, plain


@dataclass(frozen=True, kw_only=True)
class Visiting(Subject):
    """A subject whose weights come from another one; its corpus is where it is examined. Made by `visiting`.

    Args:
        home: the subject that was trained.
        pooled: the test split is the whole corpus.
    """

    home: Subject
    pooled: bool = False

    def __post_init__(self) -> None:
        if _trained(self) != _trained(self.home):
            raise UserError("a visiting subject is its home's in all but the corpus: make it with visiting(home, ...)")

    def make(self, workspace: Workspace) -> Artefact:
        """The notes and history of the home; its weights stay where they are."""
        trained, artefact = self.restore(workspace), workspace.get(self.home)
        sizes: dict[str, Json] = {split: {"examples": len(trained.splits[split])} for split in SPLITS}
        # Scores, remarks and what was left out are about the texts at home.
        told: dict[str, Json] = {"scores": {}, "remarks": {}, "left_out": {}, "corpus": plain(trained.splits.notes)}
        about: dict[str, Json] = {"about": dict(self.about), "home": dict(self.home.about), "sizes": sizes}
        return Artefact({}, artefact.table, {**artefact.notes, **told, **about})

    def restore(self, workspace: Workspace) -> Trained:
        """The trained model, with the texts of the visited corpus."""
        trained = self.home.restore(workspace)
        splits = self.corpus.read(workspace.data)
        if splits.task != trained.splits.task:
            raise UserError(
                f"{self.corpus.name} asks for {splits.task}, but the model was trained on {self.home.corpus.name} "
                f"for {trained.splits.task}: visit a corpus with the same question"
            )
        ours, theirs = ([name.casefold() for name in each.classes] for each in (splits, trained.splits))
        if ours != theirs:
            raise UserError(
                f"{self.corpus.name} has the classes {', '.join(splits.classes)}, but the model was trained on "
                f"{self.home.corpus.name} with {', '.join(trained.splits.classes)}: name them alike, in the same order"
            )
        return replace(trained, splits=_together(splits) if self.pooled else splits)


def visiting(home: Subject, corpus: Corpus, *, pooled: bool = False) -> Visiting:
    """The subject, examined on another corpus."""
    return Visiting(
        corpus=corpus,
        batching=home.batching,
        model=home.model,
        fit=home.fit,
        seed=home.seed,
        objective=home.objective,
        vectors=home.vectors,
        home=home,
        pooled=pooled,
    )


def _trained(subject: Subject) -> tuple[object, ...]:
    """What decides the weights, apart from the corpus."""
    return subject.batching, subject.model, subject.fit, subject.seed, subject.objective, subject.vectors


def _together(splits: Splits) -> Splits:
    return replace(splits, train=(), dev=(), test=(*splits.train, *splits.dev, *splits.test))
