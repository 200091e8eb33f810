"""Distances between distributions along the last axis: total variation, Kullback-Leibler, Jensen-Shannon.

Logarithms are natural (nats) and zeros are exact (J&W, W&P and AtteFa add 1e-10 inside their logarithms, which moves a
Jensen-Shannon divergence by about 1e-10 per token). Values off the mask, even NaN, neither count nor get a gradient.
Leading axes are batch axes and broadcast.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance `½ Σ|p - q|` of two class distributions, in [0, 1].

    For a two-class distribution `[1 - p, p]` this is `|Δp|`, the scale of J&W for one sigmoid output; W&P and AtteFa
    print half of it for the same pair.

    >>> total_variation(torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.6, 0.3]))
    tensor(0.6000)
    """
    return 0.5 * (p - q).abs().sum(-1)


def kullback_leibler(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kullback-Leibler divergence in nats, `Σ p ln(p / q)`: `+inf` where `q = 0 < p`.

    Entries with `p = 0` (where the true gradient is infinite) or `q = 0 < p` get no gradient: all gradients are finite.

    >>> kullback_leibler(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5]))
    tensor(0.6931)
    >>> kullback_leibler(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(inf)
    """
    p, q = _zero_off_mask(p, mask), _zero_off_mask(q, mask)
    terms = p * (torch.log(_replace_zeros(p)) - torch.log(_replace_zeros(q)))
    terms = terms.masked_fill((p == 0) & (q >= 0), 0.0)
    return terms.masked_fill((q == 0) & (p > 0), math.inf).sum(-1)


def jensen_shannon(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence in nats, `½ KL(p‖m) + ½ KL(q‖m)` with `m = (p + q) / 2`, in [0, ln 2].

    This is the divergence, not its square root. An entry with `p = 0` sends no gradient to p through its own logarithm,
    so gradients are finite.

    >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    p, q = _zero_off_mask(p, mask), _zero_off_mask(q, mask)
    both = _replace_zeros(p + q)
    return 0.5 * (_terms_against_mixture(p, both) + _terms_against_mixture(q, both)).sum(-1)


def jensen_shannon_bound(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest Jensen-Shannon divergence of any distribution on the same tokens from this one.

    The divergence is convex in the other distribution, so it is largest at a single token, the one with the lowest
    weight `a`: `ln 2 + a/2 ln a - (1 + a)/2 ln(1 + a)`; 0 for one token and for none.

    >>> jensen_shannon_bound(torch.full((5,), 0.2))
    tensor(0.4228)
    """
    if mask is not None:
        attention = torch.where(mask, attention, torch.ones_like(attention))
    if not attention.shape[-1]:
        return attention.sum(-1)
    lowest = attention.amin(-1)
    logarithm = torch.log(_replace_zeros(lowest))
    return math.log(2) + 0.5 * (lowest * logarithm - (1 + lowest) * torch.log1p(lowest))


def _zero_off_mask(p: Tensor, mask: Tensor | None) -> Tensor:
    return p if mask is None else torch.where(mask, p, torch.zeros_like(p))


def _replace_zeros(p: Tensor) -> Tensor:
    # The logarithm of a zero is never used: 1 in its place gives 0 and cuts the gradient. NaN stays NaN.
    return torch.where(p == 0, torch.ones_like(p), p)


def _terms_against_mixture(p: Tensor, both: Tensor) -> Tensor:
    # A quotient, not a difference of logarithms: exactly ½ where p = q, and no mean that underflows to 0.
    terms = p * torch.log(2 * (_replace_zeros(p) / both))
    return torch.where(p == 0, torch.zeros_like(p), terms)
