"""Distances between distributions along the last axis: total variation, Kullback-Leibler, Jensen-Shannon.

Logarithms are natural (nats) and zeros are exact (J&W, W&P and AtteFa add 1e-10 inside their logarithms,
which moves a Jensen-Shannon divergence by about 1e-10 per unit). A mask says which units are real: whatever
stands off it, even NaN, neither counts nor receives a gradient. Leading axes are batch axes and broadcast.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance of two full class distributions, in [0, 1]: `½ Σ|p - q|` over the last axis.

    For a two-class distribution `[1 - p, p]` this is `|Δp|`, the scale that J&W print for one sigmoid output;
    W&P and AtteFa print half of it for the same pair.

    >>> total_variation(torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.6, 0.3]))
    tensor(0.6000)
    """
    return 0.5 * (p - q).abs().sum(-1)


def entropy(p: Tensor, mask: Tensor | None = None) -> Tensor:
    """Shannon entropy in nats, `-Σ p ln p` with `0 ln 0 = 0`.

    >>> entropy(torch.tensor([0.5, 0.5, 0.0]))
    tensor(0.6931)
    """
    p = _zero_off_mask(p, mask)
    return -(p * torch.log(_replace_zeros(p))).sum(-1)


def kullback_leibler(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kullback-Leibler divergence in nats, `Σ p ln(p / q)`: `+inf` where `q = 0 < p`.

    A unit with `p = 0` adds nothing and sends no gradient (the true slope there is infinite), nor does a unit
    with `q = 0 < p`: every gradient is finite.

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

    It is the divergence, not its square root. A unit with `p = 0` sends no gradient to p through its own
    logarithm, so that gradients are finite.

    >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    p, q = _zero_off_mask(p, mask), _zero_off_mask(q, mask)
    both = _replace_zeros(p + q)
    return 0.5 * (_terms_against_mixture(p, both) + _terms_against_mixture(q, both)).sum(-1)


def jensen_shannon_bound(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest Jensen-Shannon divergence that any distribution on the same real units has to this one.

    The divergence is convex in the other distribution, hence largest at a single unit, namely the lightest:
    with its weight `a` the bound is `ln 2 + a/2 ln a - (1 + a)/2 ln(1 + a)`; 0 for one unit and for none.

    >>> jensen_shannon_bound(torch.full((5,), 0.2))
    tensor(0.4228)
    """
    if mask is not None:
        attention = torch.where(mask, attention, torch.ones_like(attention))
    if not attention.shape[-1]:
        return attention.sum(-1)
    lightest = attention.amin(-1)
    logarithm = torch.log(_replace_zeros(lightest))
    return math.log(2) + 0.5 * (lightest * logarithm - (1 + lightest) * torch.log1p(lightest))


def _zero_off_mask(p: Tensor, mask: Tensor | None) -> Tensor:
    return p if mask is None else torch.where(mask, p, torch.zeros_like(p))


def _replace_zeros(p: Tensor) -> Tensor:
    # Where p is 0 its logarithm is never wanted: 1 instead gives 0 and cuts the gradient. NaN stays NaN.
    return torch.where(p == 0, torch.ones_like(p), p)


def _terms_against_mixture(p: Tensor, both: Tensor) -> Tensor:
    # The quotient, not a difference of logarithms: exactly ½ where p = q, and no middle that underflows to 0.
    terms = p * torch.log(2 * (_replace_zeros(p) / both))
    return torch.where(p == 0, torch.zeros_like(p), terms)
