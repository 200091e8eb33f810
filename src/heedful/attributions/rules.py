"""DeepLIFT's multipliers for any network, by a torch function mode that replaces slopes by secants.

Input and reference go through the network side by side in one batch: the first half of every tensor belongs to the
input, the second to the reference. What is linear keeps its slope. For every other operation that is known here the
mode puts a map in the place of the derivative that carries the difference of its inputs exactly to the difference of
its outputs (summation to delta, Shrikumar et al. 2017); values stay as they are. An operation that is not known keeps
its derivative: the differences then do not add up, which whoever asks must check and tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

from heedful.attributions import curves
from heedful.attributions.curves import halves, midpoint, twice

Function = Callable[..., object]
Arguments = Sequence[object]
Options = Mapping[str, object]


def multipliers(read: Callable[[Tensor], Tensor], given: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes m `[batch ...]` with sum m (given - reference) = difference, and that difference `[batch]`.

    Args:
        read: values `[2 batch]` of the given and the reference rows, one behind the other; nothing in it but its
            argument may require a gradient, and rows may not mix.
    """
    rows = len(given)
    with torch.enable_grad():
        both = torch.cat([given, reference]).detach().requires_grad_()
        with _Secants():
            values = read(both)
        (slopes,) = torch.autograd.grad(values[:rows].sum(), both)
    difference = (values[:rows] - values[rows:]).detach()
    return slopes[:rows], difference


class _Secants(TorchFunctionMode):
    """Gives each operation that depends on the input its rule; depending is what requires a gradient."""

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        options = dict(kwargs or {})
        if torch.is_grad_enabled():
            rule = RULES.get(str(getattr(func, "__name__", "")).strip("_"))
            found = None if rule is None else rule(self, func, args, options)
            if found is not None:
                return cast(Tensor, args[0]).copy_(cast(Tensor, found)) if _in_place(func) else found
        return func(*args, **options)


Rule = Callable[[_Secants, Function, Arguments, dict[str, object]], object]
"""What an operation gives under the mode; None where it is linear in what depends on the input, or not understood."""


class _AsIf(torch.autograd.Function):
    """One tensor's values with another's slopes."""

    @staticmethod
    def forward(context: FunctionCtx, value: Tensor, slopes_of: Tensor) -> Tensor:
        # A copy: the library overwrites scores in place, which autograd allows for no alias of an input.
        return value.clone()

    @staticmethod
    def backward(context: FunctionCtx, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def _as_if(value: object, slopes_of: Tensor) -> Tensor:
    return cast(Tensor, _AsIf.apply(cast(Tensor, value).detach(), slopes_of))  # type: ignore[no-untyped-call]


def _depends(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _only_first(args: Arguments, options: Options) -> bool:
    """True where the first argument depends on the input and no other does."""
    return bool(args) and _depends(args[0]) and not any(map(_depends, (*args[1:], *options.values())))


def _curve(secant: curves.Secant) -> Rule:
    """y = f(x) for each number by itself: dy = secant dx."""

    def rule(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
        if not _only_first(args, options):
            return None
        options.pop("inplace", None)

        def curve(at: Tensor) -> Tensor:
            return _function(func)(at, *args[1:], **options)

        values = cast(Tensor, args[0])
        with torch.no_grad():
            slope = secant(curve, values)
            result = curve(values)
        return _as_if(result, values * slope)

    return rule


def _function(func: Function) -> Callable[..., Tensor]:
    """The same function, which leaves its argument alone even if it is an in-place form."""

    def on_a_copy(first: Tensor, *others: object, **options: object) -> Tensor:
        return cast(Tensor, func(first.clone(), *others, **options))

    return on_a_copy if _in_place(func) else cast("Callable[..., Tensor]", func)


def _in_place(func: Function) -> bool:
    name = str(getattr(func, "__name__", ""))
    return name.endswith("_") and not name.endswith("__")


def _power(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """y = x^n, by the closed form of its secant where there is one."""
    exponent = args[1] if len(args) > 1 else options.get("exponent")
    if not isinstance(exponent, int | float):
        return None
    return _curve(curves.POWERS.get(float(exponent), curves.kinked))(mode, func, args, options)


def _product(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """d(a b) = da (b1 + b0)/2 + (a1 + a0)/2 db, for products and matrix products."""
    if len(args) != 2 or not (_depends(args[0]) and _depends(args[1])):
        return None
    first, second = cast("tuple[Tensor, Tensor]", tuple(args))
    product = _function(func)
    slopes_of = product(first, midpoint(second)) + product(midpoint(first), second)
    return _as_if(product(first.detach(), second.detach()), slopes_of)


def _einsum(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """A product of two tensors in the notation of Einstein."""
    equation, operands = str(args[0]), [*_flat(args[1:])]
    if len(operands) != 2:
        return None

    def einsum(first: Tensor, second: Tensor) -> Tensor:
        return cast(Tensor, func(equation, first, second))

    return _product(mode, einsum, operands, {})


def _flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _quotient(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """For y = a / b, dy = (da - (y1 + y0)/2 db) / ((b1 + b0)/2), which is the product rule of a = y b.

    Unlike a times 1 / b it stays in bounds where b is nearly 0 in one half, as the spread of an empty reference is.
    A constant over b is a multiple of 1 / b.
    """
    if len(args) != 2 or options.get("rounding_mode") is not None or not _depends(args[1]):
        return None
    above, below = cast("tuple[Tensor, Tensor]", tuple(args))
    if not _depends(above):
        with mode:
            return torch.reciprocal(below) * above
    result = _function(func)(above.detach(), below.detach())
    return _as_if(result, (above - midpoint(result) * below) / midpoint(below))


def _turned_quotient(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """`number / tensor`, which comes as (tensor, number)."""
    with mode:
        return torch.reciprocal(cast(Tensor, args[0])) * cast(Tensor, args[1]) if _depends(args[0]) else None


def _softmax(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """dp_i = l_i (dz_i - sum_j l_j dz_j / sum_j l_j), l_i the logarithmic mean of the two p_i.

    The secant of exp on dz - dL, where dL is the one shift that lets both halves sum to one. For two classes it is
    the secant of the sigmoid; for equal halves the softmax's own derivative; and nothing in it can overflow.
    """
    dim = args[1] if len(args) > 1 else options.get("dim")
    if not _only_first(args, options) or not isinstance(dim, int):
        return None
    scores = cast(Tensor, args[0])
    result = cast(Tensor, func(scores.detach(), *args[1:], **options))
    with torch.no_grad():
        means = twice(curves.logarithmic_mean(*halves(torch.log_softmax(scores.to(result), dim)), result))
        shares = means / means.sum(dim, keepdim=True)
    # Masked scores of -inf have no share, but 0 * -inf is no number.
    finite = scores.masked_fill(means == 0, 0.0).to(result)
    return _as_if(result, means * (finite - (shares * finite).sum(dim, keepdim=True)))


def _layer_norm(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """d = x - mean(x), y = d / sqrt(mean(d^2) + eps) * weight + bias, composed of the rules for its parts."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    values: dict[str, object] = {"weight": None, "bias": None, "eps": 1e-5}
    values |= dict(zip(names, args, strict=False)) | options
    inputs = values["input"]
    if not isinstance(inputs, Tensor) or not _depends(inputs):
        return None
    dims = tuple(range(-len(cast("Sequence[int]", values["normalized_shape"])), 0))
    with mode:
        centred = inputs - inputs.mean(dims, keepdim=True)
        spread = (centred.square().mean(dims, keepdim=True) + cast(float, values["eps"])).sqrt()
        normal = centred / spread
        normal = normal if values["weight"] is None else normal * cast(Tensor, values["weight"])
    with torch.no_grad():
        result = func(*args, **options)
    return _as_if(result, normal)


def _maximum(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """The largest along one axis: the whole difference goes to the winner of the half whose maximum is larger.

    That one moves at least as far as the maximum does, so its multiplier lies between 0 and 1.
    """
    dim = args[1] if len(args) > 1 else options.get("dim")
    if not _only_first(args, options) or not isinstance(dim, int):
        return None
    values = cast(Tensor, args[0])
    with torch.no_grad():
        tops, places = values.max(dim, keepdim=True)
        (high, low), (here, there) = halves(tops), halves(places)
        winner = twice(torch.where(high >= low, here, there))
        moved = curves.difference(values.gather(dim, winner))
        share = twice(torch.where(moved == 0, 1.0, (high - low) / torch.where(moved == 0, 1.0, moved)))
    slopes_of = values.gather(dim, winner) * share
    kept = bool(args[2] if len(args) > 2 else options.get("keepdim", False))
    return _as_if(tops if kept else tops.squeeze(dim), slopes_of if kept else slopes_of.squeeze(dim))


def _lstm(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """The fused kernel, written out: i, f, o = sigmoid, g = tanh; c' = f c + i g; h' = o tanh(c')."""
    if not _one_layer(args):
        return None
    states, cell = cast("tuple[Tensor, Tensor]", tuple(cast("Sequence[Tensor]", args[1])))
    hidden, cell = states[0], cell[0]
    found = []
    with mode:
        inputs, weight, bias = _projected(args)
        for step in inputs.unbind(1):
            gates = step + torch.nn.functional.linear(hidden, weight, bias)
            enter, forget, new, leave = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            found.append(hidden)
        return torch.stack(found, 1), hidden.unsqueeze(0), cell.unsqueeze(0)


def _gru(mode: _Secants, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """The fused kernel, written out: r, z = sigmoid; n = tanh(x + r h); h' = n + z (h - n)."""
    if not _one_layer(args):
        return None
    hidden = cast(Tensor, args[1])[0]
    found = []
    with mode:
        inputs, weight, bias = _projected(args)
        for step in inputs.unbind(1):
            own = torch.nn.functional.linear(hidden, weight, bias)
            (reset, keep, new), (old_reset, old_keep, old_new) = step.chunk(3, -1), own.chunk(3, -1)
            new = torch.tanh(new + (reset + old_reset).sigmoid() * old_new)
            hidden = new + (keep + old_keep).sigmoid() * (hidden - new)
            found.append(hidden)
        return torch.stack(found, 1), hidden.unsqueeze(0)


def _one_layer(args: Arguments) -> bool:
    """True for one layer in one direction on rows of units, the only kind that this house builds."""
    return len(args) == 9 and _depends(args[0]) and args[4] == 1 and not args[7] and bool(args[8])


def _projected(args: Arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inputs of all steps to the gates, and the weight and bias of the state."""
    weights = cast("Sequence[Tensor]", args[2])
    own, other = (weights[2], weights[3]) if args[3] else (None, None)
    return torch.nn.functional.linear(cast(Tensor, args[0]), weights[0], own), weights[1], other


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(curves.SMOOTH, _curve(curves.smooth)),
    **dict.fromkeys(curves.KINKED, _curve(curves.kinked)),
    **{name: _curve(secant) for name, secant in curves.CLOSED.items()},
    **dict.fromkeys(("mul", "multiply", "matmul", "bmm", "mm"), _product),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient),
    "rdiv": _turned_quotient,
    "einsum": _einsum,
    "pow": _power,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "amax": _maximum,
    "lstm": _lstm,
    "gru": _gru,
}
"""The rule of each operation by the name of its function, without the underscores of operators and in-place forms."""
