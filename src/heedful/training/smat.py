"""SMaT: a student and the explainer of its teacher trained together (Fernandes et al. 2022), without a Hessian.

After each step of the student a pilot step on the same batch tries what one more step would do, and phi, the mix of the
teacher's maps, goes one AdamW step down the loss of the student after that step on held-out examples. The teacher is
frozen: its maps are looked up. What decides early stopping is not what phi is trained on, unless the class shares it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from heedful.attributions import head_mix
from heedful.attributions.head_mix import HeadMix
from heedful.attributions.layer_mix import LayerMix
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.hypergradient import BilevelProblem, Hypergradient, Parameters, hypergradient
from heedful.training.model_recipe import ModelRecipe
from heedful.training.student import (
    StudentModel,
    StudentRecipe,
    StudentTraining,
    TeacherLogits,
    build_explanation_loss,
    require_student,
    simulation_loss,
)
from heedful.training.teacher import HeadMaps, LayerMaps, LearnedExplanation
from heedful.training.trained_model import OnOtherData
from heedful.training.trainer import evaluation_mode, length_sorted_batches
from heedful.types import Batch, Model, Split, UserError

PILOT_AS_REQUESTED = "pilot_as_asked"


@dataclass(frozen=True)
class SMaT(StudentRecipe):
    """A student whose teacher learns to explain while the student learns."""

    explanation: LearnedExplanation = LearnedExplanation()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.reduction != "mean":
            raise UserError("the pilot step takes the mean loss of a batch, and so must the student: reduction='mean'")

    def make(self, workspace: Workspace) -> Artefact:
        """As of a student, and: phi at the best epoch, its coefficients, and phi after each epoch."""
        school = StudentTraining(self, workspace)
        scaffold = ExplainerOptimizer(self, school)
        loss = build_explanation_loss(
            school.teacher_train.logits, self.labels, scaffold.explainer, self.explanation_weight
        )
        state = school.train_student(loss, scaffold)
        made = school.artefact(state)
        phi = state.best_outer["phi"].cpu()
        weights = scaffold.explainer.coefficients(phi)
        learned = {"phi": phi, "coefficients": weights, "phi_history": scaffold.phi_history}
        exact = all(row[PILOT_AS_REQUESTED] == 1 for row in state.history)
        notes: dict[str, Json] = {
            "way": self.explanation.hypergradient_method
            if exact
            else "a central difference: this student has no forward mode",
            "support": int((weights != 0).sum()),
            "maps": len(weights),
            "layers": school.teacher_layers,
        }
        return replace(made, tensors={**made.tensors, **learned}, notes={**made.notes, **notes})

    def explainer(self, workspace: Workspace) -> HeadMix | LayerMix:
        """What was learned as an attribution method: to be saved, loaded and applied to the teacher elsewhere."""
        learned, bank = self.explanation, self.explanation.map_source
        model = self.teacher.restore(workspace).model
        artefact = workspace.get(self)
        phi = artefact.tensors["phi"]
        if isinstance(bank, LayerMaps):
            known = math.log(learned.temperature)
            parameters = torch.cat(
                (phi[:-1], phi[-1:] + known) if learned.learn_temperature else (phi, phi.new_tensor([known]))
            )
            return replace(bank.mix, normalizer=learned.normalizer).with_parameters(parameters, model)
        if bank != HeadMaps() or learned.learn_temperature or learned.temperature != 1:
            raise UserError("only a mix of all heads, or of layers, without a temperature can be taken along")
        layers = artefact.notes["layers"]
        assert isinstance(layers, int)
        return HeadMix.from_phi(
            phi.reshape(layers, -1), model, learned.normalizer, special_tokens=learned.special_tokens
        )


@dataclass(frozen=True)
class LearnedAttributionTable(Recipe):
    """What `Attributed` keeps, for the explainer of the student with the median simulability.

    Args:
        subject: the students' teacher, or the teacher visiting another corpus.
        students: the same but for their seeds; of an even number the lower of the two in the middle counts.
    """

    kind: ClassVar[str] = "attributions"

    subject: ModelRecipe
    students: tuple[SMaT, ...]
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        home = self.subject.model if isinstance(self.subject, OnOtherData) else self.subject
        if not self.students or any(student.teacher != home for student in self.students):
            raise UserError("learned scores need at least one student, and all of them taught by this subject")

    def describe(self) -> dict[str, Json]:
        """The facts of the model, the display name of the explanation, the split and the limit."""
        method = self.students[0].explanation.display_name
        return {**self.subject.describe(), "method": method, "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """The table of `Attributed`; the notes tell whose explainer it was."""
        median = self.median_student(workspace)
        made = AttributionTable(self.subject, median.explainer(workspace), self.split, self.limit).make(workspace)
        return replace(made, notes={**made.notes, "student": dict(median.about)})

    def median_student(self, workspace: Workspace) -> SMaT:
        """The student in the middle; ties go by seed."""
        reached = {each: workspace.get(each).notes["simulability"] for each in self.students}
        if None in reached.values():
            raise UserError("the simulability of a student is undefined, so that there is no median one")
        ranked = sorted(self.students, key=lambda each: (float(str(reached[each])), each.seed))
        return ranked[(len(ranked) - 1) // 2]


class ExplainerOptimizer:
    """phi and its optimiser, beside a training: one hypergradient step after each step of the student."""

    def __init__(self, recipe: SMaT, student_training: StudentTraining) -> None:
        assert student_training.explainer is not None
        self.recipe, self.explanation = recipe, recipe.explanation
        self.phi = nn.Parameter(student_training.explainer.phi.to(student_training.workspace.device))
        # What the student is taught follows phi: the same tensor, never copied.
        self.explainer = replace(student_training.explainer, phi=self.phi.detach())
        self.optimizer = torch.optim.AdamW([self.phi], lr=self.explanation.lr, weight_decay=0.0)
        self.held_out = _HeldOutBatches(student_training, recipe)
        self.steps = 0
        self.phi_history = torch.zeros(0, len(self.phi))
        self._epoch_steps: list[Hypergradient] = []

    def step(self, model: Model, batch: Batch, lr: float) -> None:
        """phi goes one step down the outer loss after a pilot step on this batch."""
        problem = self._bilevel_problem(require_student(model), batch, lr)
        theta = {
            name: value.detach()
            for name, value in _ExplainingStudent.wrap(model).named_parameters()
            if value.requires_grad
        }
        found = hypergradient(problem, theta, self.phi, self.explanation.hypergradient_method)
        self.phi.grad = found.gradient
        if self.explanation.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([self.phi], self.explanation.max_grad_norm)
        self.optimizer.step()
        self.steps += 1
        self._epoch_steps.append(found)

    def _bilevel_problem(self, model: StudentModel, batch: Batch, lr: float) -> BilevelProblem:
        student, held, said = (
            _ExplainingStudent.wrap(model),
            self.held_out.batch_at(self.steps),
            self.held_out.teacher_logits(batch),
        )
        support, task, labels = self.explainer.support(batch), model.task, self.recipe.labels
        expected = self.held_out.held_out_teacher_logits(held)

        def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
            logits, explained = torch.func.functional_call(student, dict(theta), (batch, support))
            return simulation_loss(task, logits, said, labels).mean(), explained

        def outer(theta: Parameters) -> Tensor:
            # Without dropout, as in the paper: the held-out loss is of the student as it would be used.
            with evaluation_mode(model):
                logits, _ = torch.func.functional_call(student, dict(theta), (held, held.content_mask))
            return simulation_loss(task, logits, expected, labels).mean()

        return BilevelProblem(
            inner=inner,
            outer=outer,
            teacher_explanation=lambda phi: self.explainer.distribution_at(phi, batch),
            divergence=lambda teacher, explained: head_mix.clamped_kl_divergence(teacher, explained, support).mean(),
            lr=lr if self.explanation.pilot_lr is None else self.explanation.pilot_lr,
            beta=self.recipe.explanation_weight,
            max_grad_norm=self.recipe.training.max_grad_norm,
        )

    def end_epoch(self) -> dict[str, float]:
        """Mean outer loss, shares of pilot steps clipped and gone the asked way, maps in use, the heaviest weight."""
        self.phi_history = torch.cat((self.phi_history, self.phi.detach().cpu().unsqueeze(0)))
        weights = self.explainer.coefficients(self.phi.detach())
        found = {
            "outer_loss": _mean_or_zero([step.outer_loss for step in self._epoch_steps]),
            "pilot_clipped": _mean_or_zero([step.clipped for step in self._epoch_steps]),
            PILOT_AS_REQUESTED: _mean_or_zero([not step.note for step in self._epoch_steps]),
            "support": float((weights != 0).sum()),
            "largest": float(weights.max()),
        }
        self._epoch_steps = []
        return found

    def tensors(self) -> dict[str, Tensor]:
        """phi, its way so far, the optimiser's moments and the number of steps."""
        state = self.optimizer.state_dict()["state"].get(0, {})
        moments = {f"optimiser/{name}": value for name, value in state.items()}
        return {"phi": self.phi.detach(), "trail": self.phi_history, "steps": torch.tensor(self.steps), **moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on where a training stopped."""
        with torch.no_grad():
            self.phi.copy_(tensors["phi"])
        self.phi_history, self.steps = tensors["trail"].clone(), int(tensors["steps"])
        prefix = "optimiser/"
        state = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})


class _ExplainingStudent(nn.Module):
    """A student whose one verb is to answer and explain, since other weights can be lent to a module only."""

    def __init__(self, student: StudentModel) -> None:
        super().__init__()
        self.student = student

    @staticmethod
    def wrap(model: Model) -> _ExplainingStudent:
        """The student so seen; nothing is copied."""
        return _ExplainingStudent(require_student(model))

    def forward(self, batch: Batch, support: Tensor) -> tuple[Tensor, Tensor]:
        return self.student.logits_and_explanation(batch, support)


class _HeldOutBatches:
    """The held-out batches, one after the other, reshuffled whenever all have been used; and what the teacher says."""

    def __init__(self, student_training: StudentTraining, recipe: SMaT) -> None:
        self.whole = student_training.batches["outer"].to(student_training.workspace.device)
        asked, self.seed = recipe.explanation.batch_size, recipe.seed
        self.size = recipe.training.batch_size if asked is None else asked
        self.teacher_logits: TeacherLogits = student_training.teacher_train.logits
        self.held_out_teacher_logits: TeacherLogits = student_training.teacher_dev.logits
        self._cycle = -1
        self._order: list[Tensor] = []

    def batch_at(self, step: int) -> Batch:
        """The batch of this step: it depends on seed and step alone, so that a training can be taken up anywhere."""
        count = -(-len(self.whole) // self.size)
        cycle, place = divmod(step, count)
        if cycle != self._cycle:
            generator = Generator().manual_seed(derive_seed("outer", self.seed, cycle))
            self._order = length_sorted_batches(self.whole.lengths.cpu(), self.size, 0.1, generator)
            self._cycle = cycle
        return self.whole.rows(self._order[place])


def _mean_or_zero(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
