"""SMaT: a student and the explainer of its teacher trained together (Fernandes et al. 2022), without a Hessian.

After each step of the student a pilot step on the same batch tries one more step, and phi, the mix of the teacher's
maps, takes one AdamW step down the held-out loss of the student after the pilot step. The teacher is frozen: its maps
are looked up. Early stopping is decided on other examples than those that train phi, unless `share_dev` is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from heedful.attributions import head_mix
from heedful.attributions.head_mix import HeadMix
from heedful.attributions.layer_mix import LayerMix
from heedful.capabilities import read_heads
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.hypergradient import BilevelProblem, Hypergradient, Parameters, hypergradient
from heedful.training.model_recipe import ModelRecipe
from heedful.training.student import (
    SIMULABILITY,
    StudentModel,
    StudentRecipe,
    StudentTraining,
    build_student_loss,
    simulation_loss,
)
from heedful.training.teacher import HeadMaps, LayerMaps, LearnedExplanation
from heedful.training.trained_model import OnOtherData
from heedful.training.trainer import LENGTH_JITTER, length_sorted_batches, tensors_with_prefix
from heedful.types import Batch, Model, Split, UserError, evaluation_mode

MAX_HYPERGRADIENT_NORM = 5.0
_EXACT_STEPS = "exact_hypergradient"
"""In the history: the share of steps whose hypergradient was exact."""


@dataclass(frozen=True)
class SMaT(StudentRecipe):
    """A student whose teacher learns to explain while the student learns."""

    explanation: LearnedExplanation = LearnedExplanation()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.reduction != "mean":
            raise UserError("the pilot step uses the mean loss of a batch: train the student with reduction='mean'")

    def make(self, workspace: Workspace) -> Artefact:
        """The artefact of a student, with phi at the best epoch, its coefficients, and phi after each epoch."""
        training = StudentTraining(self, workspace)
        optimizer = ExplainerOptimizer(self, training)
        loss = build_student_loss(training.teacher_train.logits, optimizer.explainer, self.explanation_weight)
        state = training.train_student(loss, optimizer)
        artefact = training.artefact(state)
        phi = state.best_tensors["outer/phi"].cpu()
        weights = optimizer.explainer.coefficients(phi)
        tensors = {"phi": phi, "coefficients": weights, "phi_history": optimizer.phi_history}
        probe = training.batches["train"].rows(torch.arange(1)).to(workspace.device)
        with torch.no_grad():
            layers = read_heads(training.teacher.model, probe).scores.shape[1]
        exact = all(row[_EXACT_STEPS] == 1 for row in state.history)
        notes: dict[str, Json] = {
            "hypergradient": "exact" if exact else "central difference: this student has no forward mode",
            "support": int((weights != 0).sum()),
            "maps": len(weights),
            "layers": layers,
        }
        return replace(artefact, tensors={**artefact.tensors, **tensors}, notes={**artefact.notes, **notes})

    def explainer(self, workspace: Workspace) -> HeadMix | LayerMix:
        """The learned mix as an attribution method, which can be saved and applied to the teacher on other data."""
        learned, source = self.explanation, self.explanation.map_source
        model = self.teacher.restore(workspace).model
        artefact = workspace.get(self)
        phi = artefact.tensors["phi"]
        if isinstance(source, LayerMaps):
            fixed = math.log(learned.temperature)
            parameters = (phi[:-1], phi[-1:] + fixed) if learned.learn_temperature else (phi, phi.new_tensor([fixed]))
            return replace(source.mix, normalizer=learned.normalizer).with_parameters(torch.cat(parameters), model)
        if source != HeadMaps() or learned.learn_temperature or learned.temperature != 1:
            raise UserError("only a mix of all heads without a temperature, or of layers, can be used as a method")
        layers = artefact.notes["layers"]
        assert isinstance(layers, int)
        return HeadMix.from_phi(phi.reshape(layers, -1), model, learned.normalizer)


@dataclass(frozen=True)
class LearnedAttributionTable(Recipe):
    """The attribution table of the explainer of the student with the median simulability, as the paper reports it.

    Args:
        subject: the students' teacher, or the teacher on other data.
        students: equal but for their seeds; of an even number the lower of the two in the middle counts.
    """

    kind: ClassVar[str] = "attributions"

    subject: ModelRecipe
    students: tuple[SMaT, ...]
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        teacher = self.subject.model if isinstance(self.subject, OnOtherData) else self.subject
        if not self.students or any(student.teacher != teacher for student in self.students):
            raise UserError("learned attributions need at least one student, and all of them with this teacher")

    def describe(self) -> dict[str, Json]:
        method = self.students[0].explanation.display_name
        return {**self.subject.describe(), "method": method, "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """The artefact of `AttributionTable`; the notes name the student."""
        student = self.median_student(workspace)
        artefact = AttributionTable(self.subject, student.explainer(workspace), self.split, self.limit).make(workspace)
        return replace(artefact, notes={**artefact.notes, "student": dict(student.about)})

    def median_student(self, workspace: Workspace) -> SMaT:
        """The student in the middle; ties go by seed."""
        reached = {student: workspace.get(student).notes[SIMULABILITY] for student in self.students}
        if None in reached.values():
            raise UserError("the simulability of a student is undefined, so there is no median student")
        ranked = sorted(self.students, key=lambda student: (float(str(reached[student])), student.seed))
        return ranked[(len(ranked) - 1) // 2]


class ExplainerOptimizer:
    """phi and its optimizer: one hypergradient step after each step of the student."""

    def __init__(self, recipe: SMaT, training: StudentTraining) -> None:
        assert training.explainer is not None
        device = training.workspace.device
        self.recipe, self.explanation, self.training = recipe, recipe.explanation, training
        self.phi = nn.Parameter(training.explainer.phi.to(device))
        # The explainer shares the tensor of phi, so that it always uses the current one.
        self.explainer = replace(training.explainer, phi=self.phi.detach())
        self.optimizer = torch.optim.AdamW([self.phi], lr=self.explanation.lr, weight_decay=0.0)
        self.batch_size = self.explanation.batch_size or recipe.training.batch_size
        self.held_out = training.batches["outer"].to(device)
        self.steps = 0
        self.phi_history = torch.zeros(0, len(self.phi))
        self._epoch_steps: list[Hypergradient] = []

    def step(self, model: Model, batch: Batch, lr: float) -> None:
        """One step of phi down the outer loss after a pilot step on this batch."""
        theta = {f"student.{name}": value.detach() for name, value in model.named_parameters() if value.requires_grad}
        result = hypergradient(self.bilevel_problem(self.training.model, batch, lr), theta, self.phi)
        self.phi.grad = result.gradient
        torch.nn.utils.clip_grad_norm_([self.phi], MAX_HYPERGRADIENT_NORM)
        self.optimizer.step()
        self.steps += 1
        self._epoch_steps.append(result)

    def bilevel_problem(self, model: StudentModel, batch: Batch, lr: float) -> BilevelProblem:
        """The pilot step of the student on this batch, and its loss on the next held-out batch."""
        student, held_out = _ExplainingStudent(model), self.held_out_batch(self.steps)
        task, words = model.task, batch.content_mask
        teacher_logits = self.training.teacher_train.logits(batch)
        held_out_logits = self.training.teacher_dev.logits(held_out)

        def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
            logits, log_student = torch.func.functional_call(student, dict(theta), (batch,))
            return simulation_loss(task, logits, teacher_logits).mean(), log_student

        def outer(theta: Parameters) -> Tensor:
            # Without dropout, as in the paper: the held-out loss is of the student as it would be used.
            with evaluation_mode(model):
                logits, _ = torch.func.functional_call(student, dict(theta), (held_out,))
            return simulation_loss(task, logits, held_out_logits).mean()

        return BilevelProblem(
            inner=inner,
            outer=outer,
            teacher_explanation=lambda phi: self.explainer.distribution_at(phi, batch),
            divergence=lambda teacher, student: head_mix.clamped_kl_divergence(teacher, student, words).mean(),
            lr=lr if self.explanation.pilot_lr is None else self.explanation.pilot_lr,
            beta=self.recipe.explanation_weight,
            max_grad_norm=self.recipe.training.max_grad_norm,
        )

    def held_out_batch(self, step: int) -> Batch:
        """The held-out batch of this step, reshuffled whenever all have been used.

        It depends on seed and step alone, so that training can be resumed anywhere.
        """
        cycle, index = divmod(step, math.ceil(len(self.held_out) / self.batch_size))
        generator = Generator().manual_seed(derive_seed("outer", self.recipe.seed, cycle))
        lengths = self.held_out.lengths.cpu()
        return self.held_out.rows(length_sorted_batches(lengths, self.batch_size, LENGTH_JITTER, generator)[index])

    def end_epoch(self) -> dict[str, float]:
        """Mean outer loss, shares of pilot steps clipped and of exact steps, maps in use, the largest weight."""
        self.phi_history = torch.cat((self.phi_history, self.phi.detach().cpu().unsqueeze(0)))
        weights = self.explainer.coefficients(self.phi.detach())
        steps, self._epoch_steps = self._epoch_steps, []
        return {
            "outer_loss": sum(step.outer_loss for step in steps) / len(steps),
            "pilot_clipped": sum(step.clipped for step in steps) / len(steps),
            _EXACT_STEPS: sum(step.exact for step in steps) / len(steps),
            "support": float((weights != 0).sum()),
            "largest": float(weights.max()),
        }

    def tensors(self) -> dict[str, Tensor]:
        state = self.optimizer.state_dict()["state"].get(0, {})
        moments = {f"optimiser/{name}": value for name, value in state.items()}
        return {"phi": self.phi.detach(), "trail": self.phi_history, "steps": torch.tensor(self.steps), **moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self.phi.copy_(tensors["phi"])
        self.phi_history, self.steps = tensors["trail"].clone(), int(tensors["steps"])
        state = tensors_with_prefix("optimiser/", tensors)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})


class _ExplainingStudent(nn.Module):
    """A student whose forward pass gives logits and log e_S, for `functional_call`."""

    def __init__(self, student: StudentModel) -> None:
        super().__init__()
        self.student = student

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.student.logits_and_explanation(batch)
