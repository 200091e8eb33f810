"""A Gaussian process over coalitions: outputs of texts that were not read are predicted from those that were.

The output of a text is a function of the features that it keeps, v(S). Its prior covariance is sigma² (a + product over
features i of 1 + r_i s_i t_i), with s_i = 1 where S keeps feature i and -1 where it does not: effects of single
features, of pairs and of more weigh less and less, and those of unimportant features (small r_i) less than others. The
posterior mean goes through every output that was read, and what is linear in the outputs, such as Shapley values and
coefficients of a regression, has a mean and a standard error (Rasmussen & Williams 2006; O'Hagan 1991).

The scale of all r_i is the one of `SCALES` with the largest leave-one-out likelihood, and sigma² makes the
leave-one-out errors as large as expected on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SCALES = (0.1, 0.3, 0.7, 1.2, 2.0, 4.0)
"""Sums of r over the features."""
MAX_RELEVANCE = 0.95
CONSTANT = 10.0
"""The a of the prior."""
JITTER = 1e-9
"""Outputs in single precision are not exact."""
ROUNDING = 1e-7
"""Errors of outputs in single precision."""
NODES = 24
"""Of the quadrature of Shapley values, whose integrands are nearly exp(scale * x)."""
MIN_SAMPLES = 5
"""Outputs per feature from which on standard errors can be relied on."""
GROWTH = 1.3
"""Factor from one number of outputs to the next, between which the errors are looked at."""


@dataclass(frozen=True)
class CoalitionProcess:
    """The posterior given the outputs of some coalitions.

    Args:
        coalitions: whose outputs are known `[sample feature]`.
        relevance: r `[feature]`.
        inverse: of their prior covariance, but for sigma² `[sample sample]`.
        coefficients: inverse times outputs `[sample]`.
        variance: sigma².
        likelihood: log-likelihood of the outputs, each given all others.
    """

    coalitions: Tensor
    relevance: Tensor
    inverse: Tensor
    coefficients: Tensor
    variance: Tensor
    likelihood: float

    def shapley_values(self) -> tuple[Tensor, Tensor]:
        """Means and standard errors of the Shapley values `[feature]`.

        They are linear in v: phi_i = integral over p from 0 to 1 of E[v(S and i) - v(S without i)], where S keeps each
        other feature with probability p (Owen 1972), and of a product each factor has its own expectation.
        """
        numbers, weights = np.polynomial.legendre.leggauss(NODES)
        # x = 2 p - 1, the expectation of a sign.
        x = torch.from_numpy(numbers).to(self.relevance)
        w = torch.from_numpy(weights / 2).to(self.relevance)
        kept, r = self.coalitions.to(self.relevance), self.relevance.unsqueeze(1)
        inside, outside = torch.log1p(r * x), torch.log1p(-r * x)
        total = kept @ inside + (1 - kept) @ outside
        covariance = torch.empty_like(kept)
        for i in range(kept.shape[1]):
            others = total - torch.where(self.coalitions[:, i : i + 1], inside[i], outside[i])
            covariance[:, i] = 2 * self.relevance[i] * (2 * kept[:, i] - 1) * (others.exp() @ w)
        logs = torch.log1p(self.relevance[:, None, None] * x.unsqueeze(1) * x)
        prior = 4 * self.relevance * torch.einsum("p,ipq,q->i", w, (logs.sum(0) - logs).exp(), w)
        return self._summarize(covariance, prior)

    def combine_outputs(self, coalitions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard errors of weighted sums `[sum]` of outputs.

        Args:
            coalitions: whose outputs are summed `[sample feature]`.
            weights: `[sum sample]`.
        """
        covariance = (weights @ prior_covariance(coalitions, self.coalitions, self.relevance)).t()
        prior = prior_covariance(coalitions, coalitions, self.relevance)
        return self._summarize(covariance, ((weights @ prior) * weights).sum(1))

    def _summarize(self, covariance: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Of quantities with this covariance with the known outputs `[sample quantity]` and prior variances."""
        explained = (covariance * (self.inverse @ covariance)).sum(0)
        return covariance.t() @ self.coefficients, ((prior - explained).clamp(min=0) * self.variance).sqrt()


def prior_covariance(one: Tensor, other: Tensor, relevance: Tensor) -> Tensor:
    """a + product over i of 1 + r_i s_i t_i, `[sample sample]`, from the logarithms of both values of a factor."""
    same, different = torch.log1p(relevance), torch.log1p(-relevance)
    signs, others = (2 * each.to(relevance) - 1 for each in (one, other))
    return CONSTANT + ((same + different).sum() / 2 + (signs * ((same - different) / 2)) @ others.t()).exp()


def fit_process(coalitions: Tensor, outputs: Tensor, effects: Tensor) -> CoalitionProcess:
    """The posterior given outputs `[sample]` of coalitions `[sample feature]`, all different.

    Args:
        effects: roughly the sizes of the effects of the features `[feature]`, which share out the relevance.
    """
    sizes = effects.abs().double()
    mean = sizes.square().mean()
    shares = (sizes.square() + 0.2 * mean).sqrt() if mean > 0 else torch.ones_like(sizes)
    shares = shares / shares.sum()
    fits = [_fit(coalitions, outputs.double(), (scale * shares).clamp(max=MAX_RELEVANCE)) for scale in SCALES]
    return max(fits, key=lambda fit: fit.likelihood)


def _fit(coalitions: Tensor, outputs: Tensor, relevance: Tensor) -> CoalitionProcess:
    covariance = prior_covariance(coalitions, coalitions, relevance)
    covariance.diagonal().mul_(1 + JITTER)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    coefficients, precision = inverse @ outputs, inverse.diagonal()
    # Each output minus its mean given all others, and the variance of that.
    squares = (coefficients / precision).square() * precision
    variance = squares.mean().clamp(min=torch.finfo(squares.dtype).tiny)
    likelihood = -0.5 * ((variance / precision).log() + squares / variance).sum()
    return CoalitionProcess(coalitions, relevance, inverse, coefficients, variance, float(likelihood))


def is_reached(scores: Tensor, errors: Tensor, error: float) -> bool:
    """Whether every standard error is at most `error` times the largest absolute score, or rounding."""
    return bool(errors.amax() <= (error * scores.abs().amax()).clamp(min=ROUNDING))


def next_count(count: int, most: int) -> int:
    """How many outputs to know next, an even number of at most `most`."""
    return min(most, 2 * -(-int(count * GROWTH) // 2))
