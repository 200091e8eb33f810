"""Scores of an explainer that was learned with students: that of the median student, as the paper judges it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heedful.core.types import Split, UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.recipes.attributed import Attributed
from heedful.recipes.scaffolded import Scaffolded
from heedful.recipes.subject import Subject
from heedful.recipes.visiting import Visiting


@dataclass(frozen=True)
class LearnedScores(Recipe):
    """What `Attributed` keeps, for the explainer of the student with the median simulability.

    Args:
        subject: the students' teacher, or the teacher visiting another corpus.
        students: the same but for their seeds; of an even number the lower of the two in the middle counts.
    """

    subject: Subject
    students: tuple[Scaffolded, ...]
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        home = self.subject.home if isinstance(self.subject, Visiting) else self.subject
        if not self.students or any(student.teacher != home for student in self.students):
            raise UserError("learned scores need at least one student, and all of them taught by this subject")

    def make(self, workspace: Workspace) -> Artefact:
        """The table of `Attributed`; the notes tell whose explainer it was."""
        median = self.median(workspace)
        made = Attributed(self.subject, median.explainer(workspace), self.split, self.limit).make(workspace)
        return replace(made, notes={**made.notes, "student": dict(median.about)})

    def median(self, workspace: Workspace) -> Scaffolded:
        """The student in the middle; ties go by seed."""
        reached = {each: workspace.get(each).notes["simulability"] for each in self.students}
        if None in reached.values():
            raise UserError("the simulability of a student is undefined, so that there is no median one")
        ranked = sorted(self.students, key=lambda each: (float(str(reached[each])), each.seed))
        return ranked[(len(ranked) - 1) // 2]
