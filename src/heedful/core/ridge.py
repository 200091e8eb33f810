"""Linear surrogates of many instances at once: weighted ridge regression, and least squares whose sum is given.

Each instance has its own samples, weights and number of features; a feature that an instance lacks is a column of zeros
and gets coefficient 0. All systems are solved in one batched call.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_ridge(features: Tensor, values: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Coefficients `[batch feature]` that minimise sum_s w_s (y_s - c - x_s b)^2 + ridge |b|^2, the intercept c free.

    Args:
        features: `[batch sample feature]`, real numbers.
        values: `[batch sample]`.
        weights: `[batch sample]`, not normalised: they weigh against `ridge`.

    >>> features = torch.tensor([[[0.0], [1.0]]])
    >>> weighted_ridge(features, torch.tensor([[3.0, 5.0]]), torch.ones(1, 2), ridge=0.5)
    tensor([[1.]])
    """
    return ridge_solution(*centred_moments(features, values, weights), ridge)


def centred_moments(features: Tensor, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """X'WX `[batch feature feature]` and X'Wy `[batch feature]`, with X and y taken about their weighted means."""
    total = weights.sum(1, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1)
    away = features - torch.einsum("bs,bsf->bf", shares, features).unsqueeze(1)
    values = values - (shares * values).sum(1, keepdim=True)
    weighted = away * weights.unsqueeze(-1)
    return weighted.transpose(1, 2) @ away, torch.einsum("bsf,bs->bf", weighted, values)


def ridge_solution(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(gram + ridge I)^-1 cross for each instance; without a ridge the shortest solution where there are many."""
    if ridge == 0:
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=True)
        return (inverse @ cross.unsqueeze(-1)).squeeze(-1)
    damped = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    found: Tensor = torch.linalg.solve(damped, cross)
    return found


def summing_solution(gram: Tensor, cross: Tensor, total: Tensor, present: Tensor) -> Tensor:
    """The b `[batch feature]` that minimises b'Gb/2 - b'c among those whose sum is `total`.

    With P = I - 11'/n the projection on sums of zero, b = (total/n) 1 + (PGP + 11'/n)^-1 P (c - G 1 total/n).
    Features that are not `present` get 0.

    Args:
        gram: G, `[batch feature feature]`, positive on sums of zero.
        cross: c, `[batch feature]`.
        total: `[batch]`.
        present: which features an instance has, `[batch feature]`.
    """
    ones = present.to(gram)
    share = ones / ones.sum(1, keepdim=True).clamp(min=1)
    mean = ones.unsqueeze(2) * share.unsqueeze(1)
    project = torch.diag_embed(ones) - mean
    level = share * total.unsqueeze(1)
    rest = (project @ (cross.unsqueeze(-1) - gram @ level.unsqueeze(-1))).squeeze(-1)
    # The mean and the absent features, which rest has no part in, are given any positive value.
    scale = gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)[:, None, None]
    filled = project @ gram @ project + scale * (mean + torch.diag_embed(1 - ones))
    found: Tensor = torch.linalg.solve(filled, rest)
    return level + found * ones
