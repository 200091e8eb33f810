"""Sequential linear programs: from many starts to attention that is far from the model's own and keeps the output.

At a point, the output is nearly linear in the weights, and the set of weights that keep it is nearly a polytope. A
linear program finds the vertex of it with the largest divergence, by its slope at the point. The step there is tried at
several lengths, and the reach of the next one grows or shrinks with its success. As the divergence is convex, the ends
are on few units; which end is reached depends on the start, so what is found is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.measures.divergence import jensen_shannon
from heedful.seeding import sample_uniform
from heedful.trials.adversary_search import AdversaryProblem

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROUNDS, POLISHING_ROUNDS = 8, 4
"""Of long steps, then of short ones."""
MOST_UNITS = 3
"""Units with weight in a row of a random start, at most."""
_STEPS = (1.0, 0.7, 0.4, 0.2, 0.05)
_PENALTY = 50.0
"""What a change of the output beyond epsilon counts against divergence."""
_MARGINS = (1e-3, 1e-6)
"""Share of epsilon that is left to the curvature of the output, for long and for short steps."""
_SHORT_REACH = 0.1
_TANGENT_FLOOR = 1e-4
"""Weights below have the slope of this one; at 0 it is infinite."""
_LEAST_REACH = 1e-3
_LEAST_GAIN = 1e-9


def sparse_starts(support: Tensor, seeds: Tensor, count: int) -> Tensor:
    """Random weights on one to three units of each row of one text, `[count row unit]`.

    Args:
        support: `[1 row unit]`.
        seeds: `[1]`.
    """
    rows, units = support.shape[1:]
    drawn = sample_uniform(seeds, 2 * count * rows, units + 1).reshape(2, count, rows, units + 1)
    most = 1 + (drawn[0, :, :, -1:] * MOST_UNITS).long()
    order = drawn[0, :, :, :-1].masked_fill(~support[0], torch.inf).argsort(-1).argsort(-1)
    weights = (drawn[1, :, :, :-1] + torch.finfo(drawn.dtype).tiny) * ((order < most) & support[0])
    return weights / weights.sum(-1, keepdim=True)


@torch.no_grad()
def climb_from(problem: AdversaryProblem, starts: Tensor, epsilon: float) -> Tensor:
    """For each start `[count row unit]` of a problem of one text the farthest weights on its way that keep the output.

    Where there are none, attention itself.
    """
    attention, support = problem.attention[0], problem.support[0]
    before = problem.original_probabilities[0]
    points, reach = starts.clone(), torch.ones(len(starts), dtype=starts.dtype, device=starts.device)
    best, farthest = attention.expand_as(points).clone(), torch.zeros_like(reach)
    value, change = _judge(problem, points)
    for number in range(ROUNDS + POLISHING_ROUNDS):
        better = (change <= epsilon) & (value > farthest)
        best[better], farthest[better] = points[better], value[better]
        is_polishing = number >= ROUNDS
        if number == ROUNDS:
            has_gain = farthest > 0
            points[has_gain], value[has_gain], change[has_gain] = best[has_gain], farthest[has_gain], 0.0
            reach = torch.where(has_gain, _SHORT_REACH, 0.0).to(reach)
        active = (reach > _LEAST_REACH).nonzero()[:, 0]
        if not len(active):
            continue
        outputs, slopes = _output_slopes(problem, points[active])
        program = _LinearProgram(points[active], support, reach[active], epsilon * (1 - _MARGINS[is_polishing]))
        targets = program.solve(_divergence_slopes(points[active], attention), outputs - before, slopes)
        lengths = points.new_tensor(_STEPS)[:, None, None]
        tried = points[active].unsqueeze(1) + lengths * (targets - points[active]).unsqueeze(1)
        values, changes = (numbers.view(len(active), -1) for numbers in _judge(problem, tried.flatten(0, 1)))
        row = torch.arange(len(active), device=points.device)
        kept = values.masked_fill(changes > epsilon, -1.0)
        top = kept.argmax(1)
        better = kept[row, top] > farthest[active]
        best[active[better]] = tried[row, top][better]
        farthest[active] = torch.maximum(farthest[active], kept[row, top])
        merit = _merit(values, changes, epsilon)
        step = merit.argmax(1)
        moves = merit[row, step] > _merit(value[active], change[active], epsilon) + _LEAST_GAIN
        moved = active[moves]
        points[moved] = tried[row, step][moves]
        value[moved], change[moved] = values[row, step][moves], changes[row, step][moves]
        factor = torch.where(moves, torch.where(step == 0, 1.5, 1.0), 1 / 3)
        reach[active] = (reach[active] * factor).clamp(max=1.0)
    return best


def _merit(value: Tensor, change: Tensor, epsilon: float) -> Tensor:
    return value - _PENALTY * (change - epsilon).clamp(min=0.0)


def _judge(problem: AdversaryProblem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Divergence and change of the output of points `[count row unit]`."""
    return jensen_shannon(points, problem.attention[0]).mean(-1), problem.output_change(points.unsqueeze(0))[0]


def _output_slopes(problem: AdversaryProblem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities `[count class]` and their gradients `[count class row unit]`."""
    with torch.enable_grad():
        leaf = points.detach().requires_grad_()
        outputs = problem.outputs(leaf.unsqueeze(0))[0]
        sums = outputs.sum(0).unbind()
        slopes = [torch.autograd.grad(total, leaf, retain_graph=True)[0] for total in sums]
    return outputs.detach(), torch.stack(slopes, 1)


def _divergence_slopes(points: Tensor, attention: Tensor) -> Tensor:
    """The slope of the mean divergence of the rows in each weight."""
    weights = points.clamp(min=_TANGENT_FLOOR)
    return 0.5 * (weights.log() - (weights + attention).log()) / len(attention)


@dataclass(frozen=True)
class _LinearProgram:
    """For each point the best weights near it whose linearized output is within epsilon: one program of many blocks.

    Args:
        points: `[count row unit]`.
        support: `[row unit]`.
        reach: largest change of a weight `[count]`.
    """

    points: Tensor
    support: Tensor
    reach: Tensor
    epsilon: float

    def solve(self, value: Tensor, offset: Tensor, slopes: Tensor) -> Tensor:
        """The weights `[count row unit]` of largest `Σ value · weight`; the points themselves if none are found.

        Variables of a block: weights, the size of each class's change, and what is beyond epsilon in spite of all.

        Args:
            value: `[count row unit]`.
            offset: probabilities at the points minus those of the model `[count class]`.
            slopes: of the probabilities in the weights `[count class row unit]`.
        """
        from scipy.optimize import linprog

        count, classes = offset.shape
        rows = self.support.nonzero()[:, 0].cpu().numpy()
        at, gain, jacobian = (self._array(tensor[..., self.support]) for tensor in (self.points, value, slopes))
        constant, reach = self._array(offset) - (jacobian @ at[..., None])[..., 0], self._array(self.reach)[:, None]
        sizes = np.broadcast_to(-np.eye(classes), (count, classes, classes))
        changes = np.zeros((count, 2 * classes + 1, len(rows) + classes + 1))
        changes[:, : 2 * classes, : len(rows)] = np.concatenate([jacobian, -jacobian], 1)
        changes[:, : 2 * classes, len(rows) : -1] = np.concatenate([sizes] * 2, 1)
        changes[:, -1, len(rows) :] = [1.0] * classes + [-2.0]
        sums = np.zeros((count, len(self.support), len(rows) + classes + 1))
        sums[:, rows, np.arange(len(rows))] = 1.0
        free = np.zeros((count, classes + 1))
        low = np.hstack([np.maximum(at - reach, 0.0), free])
        high = np.hstack([np.minimum(at + reach, 1.0), free + np.inf])
        cost = np.hstack([-gain, free])
        cost[:, -1] = _PENALTY
        optimum = linprog(
            cost.ravel(),
            A_ub=_block_diagonal(changes),
            b_ub=np.hstack([-constant, constant, np.full((count, 1), 2 * self.epsilon)]).ravel(),
            A_eq=_block_diagonal(sums),
            b_eq=np.ones(count * len(self.support)),
            bounds=np.stack([low.ravel(), high.ravel()], 1),
            method="highs",
        )
        if optimum.x is None:
            return self.points
        weights = torch.zeros_like(self.points)
        solution = optimum.x.reshape(count, -1)[:, : len(rows)]
        weights[:, self.support] = torch.from_numpy(solution).to(weights).clamp(min=0.0)
        return weights / weights.sum(-1, keepdim=True)

    @staticmethod
    def _array(values: Tensor) -> NDArray[np.float64]:
        array: NDArray[np.float64] = values.double().cpu().numpy()
        return array


def _block_diagonal(blocks: NDArray[np.float64]) -> csr_array:
    """Blocks `[count row column]` along the diagonal of a sparse matrix."""
    from scipy.sparse import csr_array

    count, rows, columns = blocks.shape
    block, row, column = blocks.nonzero()
    places = (block * rows + row, block * columns + column)
    return csr_array((blocks[block, row, column], places), shape=(count * rows, count * columns))
