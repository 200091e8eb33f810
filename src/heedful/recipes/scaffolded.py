"""SMaT: a student and the explainer of its teacher trained together (Fernandes et al. 2022), without a Hessian.

After each step of the student a pilot step on the same batch tries what one more step would do, and phi, the mix of the
teacher's maps, goes one AdamW step down the loss of the student after that step on held-out examples. The teacher is
frozen: its maps are looked up. What decides early stopping is not what phi is trained on, unless the class shares it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from heedful.attributions.layermix import LayerMix
from heedful.attributions.learned import HeadMix
from heedful.core import mixing
from heedful.core.types import Batch, Model, UserError
from heedful.core.workspace import Artefact, Json, Workspace, derived_seed
from heedful.recipes.banks import HeadBank, LayerBank
from heedful.recipes.explanations import Learned
from heedful.recipes.hypergradient import Bilevel, Hypergradient, Weights, hypergradient
from heedful.recipes.schooling import School, Schooling
from heedful.recipes.simulating import Answering, Simulator, explained_loss, simulating, simulation
from heedful.recipes.training import batches, evaluating

AS_ASKED = "pilot_as_asked"


@dataclass(frozen=True)
class Scaffolded(Schooling):
    """A student whose teacher learns to explain while the student learns."""

    explanation: Learned = Learned()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fit.reduction != "mean":
            raise UserError("the pilot step takes the mean loss of a batch, and so must the student: reduction='mean'")

    def make(self, workspace: Workspace) -> Artefact:
        """As of a student, and: phi at the best epoch, its coefficients, and phi after each epoch."""
        school = School(self, workspace)
        scaffold = Scaffold(self, school)
        loss = explained_loss(school.train.logits, self.labels, scaffold.teaching, self.strength)
        state = school.taught(loss, scaffold)
        made = school.artefact(state)
        phi = state.best_outer["phi"].cpu()
        weights = scaffold.teaching.coefficients(phi)
        learned = {"phi": phi, "coefficients": weights, "phi_history": scaffold.trail}
        exact = all(row[AS_ASKED] == 1 for row in state.history)
        notes: dict[str, Json] = {
            "way": self.explanation.way if exact else "a central difference: this student has no forward mode",
            "support": int((weights != 0).sum()),
            "maps": len(weights),
            "layers": school.layers,
        }
        return replace(made, tensors={**made.tensors, **learned}, notes={**made.notes, **notes})

    def explainer(self, workspace: Workspace) -> HeadMix | LayerMix:
        """What was learned as an attribution method: to be saved, loaded and applied to the teacher elsewhere."""
        learned, bank = self.explanation, self.explanation.bank
        model = self.teacher.restore(workspace).model
        artefact = workspace.get(self)
        phi = artefact.tensors["phi"]
        if isinstance(bank, LayerBank):
            known = math.log(learned.temperature)
            parameters = torch.cat((phi[:-1], phi[-1:] + known) if learned.tempered else (phi, phi.new_tensor([known])))
            return replace(bank.mix, normaliser=learned.normaliser).learned(parameters, model)
        if bank != HeadBank() or learned.tempered or learned.temperature != 1:
            raise UserError("only a mix of all heads, or of layers, without a temperature can be taken along")
        layers = artefact.notes["layers"]
        assert isinstance(layers, int)
        return HeadMix.of(phi.reshape(layers, -1), model, learned.normaliser, specials=learned.specials)


class Scaffold:
    """phi and its optimiser, beside a training: one hypergradient step after each step of the student."""

    def __init__(self, recipe: Scaffolded, school: School) -> None:
        assert school.teaching is not None
        self.recipe, self.learned = recipe, recipe.explanation
        self.phi = nn.Parameter(school.teaching.phi.to(school.workspace.device))
        # What the student is taught follows phi: the same tensor, never copied.
        self.teaching = replace(school.teaching, phi=self.phi.detach())
        self.optimiser = torch.optim.AdamW([self.phi], lr=self.learned.rate, weight_decay=0.0)
        self.lessons = _Held(school, recipe)
        self.steps = 0
        self.trail = torch.zeros(0, len(self.phi))
        self._steps: list[Hypergradient] = []

    def step(self, model: Model, batch: Batch, rate: float) -> None:
        """phi goes one step down the outer loss after a pilot step on this batch."""
        problem = self._problem(simulating(model), batch, rate)
        theta = {
            name: value.detach() for name, value in _Explaining.of(model).named_parameters() if value.requires_grad
        }
        found = hypergradient(problem, theta, self.phi, self.learned.way)
        self.phi.grad = found.gradient
        if self.learned.clip is not None:
            torch.nn.utils.clip_grad_norm_([self.phi], self.learned.clip)
        self.optimiser.step()
        self.steps += 1
        self._steps.append(found)

    def _problem(self, model: Simulator, batch: Batch, rate: float) -> Bilevel:
        student, held, said = _Explaining.of(model), self.lessons.at(self.steps), self.lessons.said(batch)
        support, task, labels = self.teaching.support(batch), model.task, self.recipe.labels
        expected = self.lessons.expected(held)

        def inner(theta: Weights) -> tuple[Tensor, Tensor]:
            logits, explained = torch.func.functional_call(student, dict(theta), (batch, support))
            return simulation(task, logits, said, labels).mean(), explained

        def outer(theta: Weights) -> Tensor:
            # Without dropout, as in the paper: the held-out loss is of the student as it would be used.
            with evaluating(model):
                logits, _ = torch.func.functional_call(student, dict(theta), (held, held.scored))
            return simulation(task, logits, expected, labels).mean()

        return Bilevel(
            inner=inner,
            outer=outer,
            teach=lambda phi: self.teaching.at(phi, batch),
            divergence=lambda teacher, explained: mixing.divergence(teacher, explained, support).mean(),
            rate=rate if self.learned.pilot is None else self.learned.pilot,
            beta=self.recipe.strength,
            clip=self.recipe.fit.clip,
        )

    def close_epoch(self) -> dict[str, float]:
        """Mean outer loss, shares of pilot steps clipped and gone the asked way, maps in use, the heaviest weight."""
        self.trail = torch.cat((self.trail, self.phi.detach().cpu().unsqueeze(0)))
        weights = self.teaching.coefficients(self.phi.detach())
        found = {
            "outer_loss": _mean([step.outer for step in self._steps]),
            "pilot_clipped": _mean([step.clipped for step in self._steps]),
            AS_ASKED: _mean([not step.note for step in self._steps]),
            "support": float((weights != 0).sum()),
            "largest": float(weights.max()),
        }
        self._steps = []
        return found

    def tensors(self) -> dict[str, Tensor]:
        """phi, its way so far, the optimiser's moments and the number of steps."""
        state = self.optimiser.state_dict()["state"].get(0, {})
        moments = {f"optimiser/{name}": value for name, value in state.items()}
        return {"phi": self.phi.detach(), "trail": self.trail, "steps": torch.tensor(self.steps), **moments}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on where a training stopped."""
        with torch.no_grad():
            self.phi.copy_(tensors["phi"])
        self.trail, self.steps = tensors["trail"].clone(), int(tensors["steps"])
        prefix = "optimiser/"
        state = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})


class _Explaining(nn.Module):
    """A student whose one verb is to answer and explain, since other weights can be lent to a module only."""

    def __init__(self, student: Simulator) -> None:
        super().__init__()
        self.student = student

    @staticmethod
    def of(model: Model) -> _Explaining:
        """The student so seen; nothing is copied."""
        return _Explaining(simulating(model))

    def forward(self, batch: Batch, support: Tensor) -> tuple[Tensor, Tensor]:
        return self.student.explained(batch, support)


class _Held:
    """The held-out batches, one after the other, reshuffled whenever all have been used; and what the teacher says."""

    def __init__(self, school: School, recipe: Scaffolded) -> None:
        self.whole = school.batches["outer"].to(school.workspace.device)
        asked, self.seed = recipe.explanation.batch, recipe.seed
        self.size = recipe.fit.batch if asked is None else asked
        self.said: Answering = school.train.logits
        self.expected: Answering = school.dev.logits
        self._cycle = -1
        self._order: list[Tensor] = []

    def at(self, step: int) -> Batch:
        """The batch of this step: it depends on seed and step alone, so that a training can be taken up anywhere."""
        count = -(-len(self.whole) // self.size)
        cycle, place = divmod(step, count)
        if cycle != self._cycle:
            generator = Generator().manual_seed(derived_seed("outer", self.seed, cycle))
            self._order = batches(self.whole.lengths.cpu(), self.size, 0.1, generator)
            self._cycle = cycle
        return self.whole.rows(self._order[place])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
