"""Students: models that simulate a teacher from few examples, with or without explanations of a fixed kind."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Workspace
from heedful.recipes.explanations import Learned
from heedful.recipes.schooling import SCHOOLING, School, Schooling
from heedful.recipes.simulating import Labels, Simulator, explained_loss, unexplained_loss

__all__ = ["SCHOOLING", "Labels", "Schooling", "Simulator", "Student"]


@dataclass(frozen=True)
class Student(Schooling):
    """A student whose teacher explains in a fixed way, or not at all; `Scaffolded` learns how to explain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.explanation, Learned):
            raise UserError("an explanation that is learned is trained with its student: use Scaffolded")

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, teacher's and student's answers to each test example, history and scores."""
        school = School(self, workspace)
        said, teaching = school.train.logits, school.teaching
        if teaching is None or not self.strength:
            loss = unexplained_loss(said, self.labels)
        else:
            loss = explained_loss(said, self.labels, teaching, self.strength)
        return school.artefact(school.taught(loss))
