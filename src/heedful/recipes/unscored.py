"""A given model on texts without labels: it answers and explains, and nobody can say how often it is right."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.types import Split
from heedful.core.workspace import Artefact, Workspace
from heedful.models.transformer import Transformer
from heedful.recipes.given import Given, _check_head
from heedful.recipes.subject import Making
from heedful.recipes.training import State


@dataclass(frozen=True)
class Unscored(Given):
    """A checkpoint with its own head that is asked about unlabelled texts."""

    def make(self, workspace: Workspace) -> Artefact:
        """The notes of a given model without scores."""
        assert isinstance(self.model, Transformer)
        making = _Unjudged(self, workspace)
        _check_head(self.model.source, making.model.notes)
        digest = self.model.digest(workspace.data)
        return Artefact(notes={**making.notes(State()), "weights": {"source": self.model.source, "digest": digest}})


class _Unjudged(Making):
    def _scores(self, split: Split) -> dict[str, float]:
        return {}
