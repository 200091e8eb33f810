"""Secants of functions of one number: what DeepLIFT takes in the place of slopes.

The first half of a tensor's rows belongs to the input, the second to the reference. A secant is
(f(x1) - f(x0)) / (x1 - x0), the same for both halves, and where x1 and x0 meet its limit, the slope. A closed form
never divides by a small difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]
Secant = Callable[[Curve, Tensor], Tensor]
"""From a curve and both halves of its argument to the secant, for both halves."""


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the input and those of the reference."""
    rows = len(values) // 2
    return values[:rows], values[rows:]


def twice(values: Tensor) -> Tensor:
    """The same rows for the input and for the reference."""
    return torch.cat([values, values])


def difference(values: Tensor) -> Tensor:
    """Input minus reference."""
    given, reference = halves(values)
    return given - reference


def midpoint(values: Tensor) -> Tensor:
    """(x1 + x0) / 2 for both halves, as a constant."""
    given, reference = halves(values.detach())
    return twice((given + reference) / 2)


def smooth(curve: Curve, values: Tensor) -> Tensor:
    """The secant; within a small difference the slope in the middle, whose error is of third order.

    With a limit of eps^(1/3) that error is below what rounding does to the quotient.
    """
    moved = difference(values)
    near = moved.abs() <= torch.finfo(values.dtype).eps ** (1 / 3)
    secant = difference(curve(values)) / torch.where(near, 1.0, moved)
    return twice(torch.where(near, _slope(curve, (values[: len(moved)] + values[len(moved) :]) / 2), secant))


def kinked(curve: Curve, values: Tensor) -> Tensor:
    """The secant wherever the halves differ, however little: on a straight piece it is exact, and slopes jump."""
    moved = difference(values)
    equal = moved == 0
    secant = difference(curve(values)) / torch.where(equal, 1.0, moved)
    return twice(torch.where(equal, _slope(curve, halves(values)[0]), secant))


def _slope(curve: Curve, values: Tensor) -> Tensor:
    with torch.enable_grad():
        at = values.detach().requires_grad_()
        return torch.autograd.grad(curve(at).sum(), at)[0]


def logarithmic_mean(first: Tensor, second: Tensor, values: Tensor) -> Tensor:
    """(e^a - e^b) / (a - b) = max(e^a, e^b) (1 - e^-|a - b|) / |a - b|, and e^a where a = b; 0 where both are -inf.

    Args:
        values: e^a and e^b, one half behind the other.
    """
    apart = (first - second).abs().nan_to_num(nan=0.0)
    largest = torch.maximum(*halves(values))
    return largest * torch.where(apart == 0, 1.0, -torch.expm1(-apart) / torch.where(apart == 0, 1.0, apart))


def _exponential(curve: Curve, values: Tensor) -> Tensor:
    return twice(logarithmic_mean(*halves(values), curve(values)))


def _logarithm(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values)
    growth = (given - reference) / reference
    return twice(torch.where(growth == 0, 1.0, growth.log1p() / torch.where(growth == 0, 1.0, growth)) / reference)


def _reciprocal(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values)
    return twice(-1 / (given * reference))


def _root(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values.sqrt())
    return twice(1 / (given + reference))


def _turned_root(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values.sqrt())
    return twice(-1 / (given * reference * (given + reference)))


def _square(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values)
    return twice(given + reference)


def _cube(curve: Curve, values: Tensor) -> Tensor:
    given, reference = halves(values)
    return twice(given.square() + given * reference + reference.square())


SMOOTH = ("tanh", "sigmoid", "gelu", "silu", "mish", "softplus", "log_sigmoid", "erf", "sin", "cos")
KINKED = ("relu", "abs", "leaky_relu", "relu6", "elu", "selu", "hardtanh", "clamp", "clamp_min", "clamp_max")
CLOSED: Mapping[str, Secant] = {
    "exp": _exponential,
    "log": _logarithm,
    "reciprocal": _reciprocal,
    "sqrt": _root,
    "rsqrt": _turned_root,
    "square": _square,
}
POWERS: Mapping[float, Secant] = {2.0: _square, 3.0: _cube, 0.5: _root, -0.5: _turned_root, -1.0: _reciprocal}
