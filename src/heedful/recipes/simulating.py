"""A student at work: its network with an explainer of its own, and what agreeing with a teacher costs it.

The student's explainer is a mix of its own heads with a phi of its own, trained with its weights. The loss of an
example is the simulation loss (cross-entropy with the teacher's answer or distribution, squared error for a number)
plus beta KL(e_T || e_S); simulability is agreement with the teacher on examples that nobody has learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.core import measures, mixing
from heedful.core.headscores import read_heads
from heedful.core.mixing import Normaliser
from heedful.core.types import Batch, Model, Task, Trace, UserError
from heedful.recipes.banks import HeadBank
from heedful.recipes.explanations import Teaching
from heedful.recipes.teaching import answers
from heedful.recipes.training import Judge, Loss, evaluating, inference_batches

Labels = Literal["hard", "soft"]
Answering = Callable[[Batch], Tensor]
"""A teacher's logits for a batch."""

SIMULABILITY = "simulability"


class Simulator(Model):
    """A student: a network that answers, and phi, which mixes its heads into its explanation.

    Args:
        sample: a few examples, to see that the network can read them and how many heads it has.
    """

    def __init__(self, network: Model, bank: HeadBank, normaliser: Normaliser, sample: Batch) -> None:
        super().__init__()
        self.network, self.task, self.notes = network, network.task, network.notes
        self.bank, self.normaliser = bank, normaliser
        device = next(network.parameters()).device
        try:
            with evaluating(network):
                heads = bank.read(network, sample.to(device)).maps.shape[1]
        except (IndexError, ValueError, RuntimeError, UserError) as error:
            raise UserError(
                f"the student cannot read the units of its teacher ({error}); students read with the teacher's "
                "batching: give the student a plan for the same tokenizer, words or patches"
            ) from error
        self.phi = nn.Parameter(mixing.uniform(heads).to(device))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """As the network."""
        return self.network(batch, embeddings=embeddings, attention=attention)

    def answered(self, batch: Batch) -> Tensor:
        """Logits `[batch output]`."""
        return read_heads(self.network, batch).logits

    def explained(self, batch: Batch, support: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and log e_S `[batch unit]` on the support, from one reading."""
        heads = read_heads(self.network, batch)
        mix = mixing.mixed(self.bank.chosen(heads), self.phi, self.normaliser)
        return heads.logits, mixing.log_distribution(mix, support)


def simulation(task: Task, logits: Tensor, said: Tensor, labels: Labels) -> Tensor:
    """What each example costs a student that says `logits` where its teacher said `said`, `[batch]`.

    Hard: the task's loss with the teacher's answer as the label. Soft: - sum_c p_T(c) log p_S(c). For a number both
    are the squared error.
    """
    if labels == "hard" or task.classes == 1:
        return task.losses(logits, answers(task, said))
    # One logit stands for two classes: that of the other class is 0.
    whole = torch.cat((torch.zeros_like(logits), logits), -1) if task.outputs == 1 else logits
    teacher = task.probabilities(said).to(logits.dtype)
    # An excluded class has no probability and a logarithm of minus infinity: it costs nothing.
    return -(teacher * whole.log_softmax(-1).masked_fill(teacher == 0, 0.0)).sum(-1)


def unexplained_loss(said: Answering, labels: Labels) -> Loss:
    """The simulation loss alone; no explanation is read on either side."""

    def losses(model: Model, batch: Batch) -> Tensor:
        return simulation(model.task, simulating(model).answered(batch), said(batch), labels)

    return losses


def explained_loss(said: Answering, labels: Labels, teaching: Teaching, beta: float) -> Loss:
    """Simulation loss + beta KL(e_T || e_S)."""

    def losses(model: Model, batch: Batch) -> Tensor:
        support = teaching.support(batch)
        logits, explained = simulating(model).explained(batch, support)
        apart = mixing.divergence(teaching(batch).to(explained.dtype), explained, support)
        return simulation(model.task, logits, said(batch), labels) + beta * apart

    return losses


def simulating(model: Model) -> Simulator:
    """The student, known as one."""
    assert isinstance(model, Simulator)
    return model


@torch.no_grad()
def answers_of(model: Simulator, batch: Batch, inference: int) -> Tensor:
    """A student's logits on a whole batch `[batch output]`, row by row, on the CPU."""
    device = model.phi.device
    found = torch.zeros(len(batch), model.task.outputs)
    with evaluating(model):
        for rows, part in inference_batches(batch, inference):
            found[rows] = model.answered(part.to(device)).cpu().float()
    return found


def agreement(task: Task, teacher: Tensor, student: Tensor) -> float:
    """Simulability from answers: the share of equal classes, or Pearson's correlation (NaN where one is constant)."""
    if task.classes == 1:
        return measures.pearson(student, teacher).value.item()
    return measures.accuracy(student, teacher)


def measure_of(task: Task) -> str:
    """What simulability is called for this task."""
    return "pearson" if task.classes == 1 else "accuracy"


def judge(said: Answering, labels: Labels) -> Judge:
    """Simulability and the mean simulation loss on a batch."""

    def judged(model: Model, batch: Batch, inference: int) -> dict[str, float]:
        student, teacher = answers_of(simulating(model), batch, inference), said(batch).cpu()
        task = model.task
        loss = float(simulation(task, student, teacher, labels).mean())
        return {SIMULABILITY: agreement(task, answers(task, teacher), answers(task, student)), "simulation_loss": loss}

    return judged


def silenced(batch: Batch) -> Batch:
    """The batch without gold labels: a student knows its teacher's answers only."""
    return replace(batch, labels=None)
