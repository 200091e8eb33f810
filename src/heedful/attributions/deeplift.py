"""DeepLIFT and DeepSHAP: differences from a baseline, propagated back through every operation.

Both are complete on every model whose attention is a softmax and whose operations have a rule. One without a rule keeps
its gradient; `convergence_delta` of the result then says how far the scores are from the difference of the outputs. A
transformer is refused where that is more than 2 % of the difference.

Multipliers come from a torch function mode that replaces gradients by secants. Input and reference pass through the
network in one batch: the first half of the rows of every tensor belongs to the input, the second half to the reference.
Linear operations keep their gradient. For every other known operation the mode replaces the derivative by a linear map
that takes the difference of its inputs exactly to the difference of its outputs (summation to delta, Shrikumar et al.
2017); values are unchanged. An unknown operation keeps its derivative, and the differences then do not add up: callers
report the error.

A secant is (f(x1) - f(x0)) / (x1 - x0), the same for both halves, and the derivative where x1 = x0. Closed forms avoid
dividing by a small difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from heedful.attributions.method import (
    MAX_SAMPLES,
    Background,
    CheckedOptions,
    CompleteAttribution,
    FixedLengthBaseline,
    MethodTags,
    Output,
    baseline_vectors,
    complete_attribution,
    in_evaluation_mode,
    register,
    run_copies,
    scored_units,
    target_output,
)
from heedful.capabilities import ExposesLayers
from heedful.option_bounds import Bounds
from heedful.seeding import sample_uniform
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, NotApplicable, Trace

ScalarFunction = Callable[[Tensor], Tensor]
Secant = Callable[[ScalarFunction, Tensor], Tensor]
"""Maps a scalar function and both halves of its argument to the secant, for both halves."""


def input_and_reference(values: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the input and the rows of the reference."""
    rows = len(values) // 2
    return values[:rows], values[rows:]


def repeat_for_both(values: Tensor) -> Tensor:
    """The same rows for input and reference."""
    return torch.cat([values, values])


def difference_from_reference(values: Tensor) -> Tensor:
    """Input minus reference."""
    inputs, reference = input_and_reference(values)
    return inputs - reference


def midpoint(values: Tensor) -> Tensor:
    """(x1 + x0) / 2 for both halves, detached."""
    inputs, reference = input_and_reference(values.detach())
    return repeat_for_both((inputs + reference) / 2)


def secant(curve: ScalarFunction, values: Tensor, *, smooth: bool) -> Tensor:
    """The secant; for equal halves, and for small differences of a smooth function, the derivative at the midpoint.

    Below eps^(1/3) its error, of third order, is smaller than the rounding error of the quotient. On a linear piece the
    quotient is exact.
    """
    step = difference_from_reference(values)
    near = step.abs() <= (torch.finfo(values.dtype).eps ** (1 / 3) if smooth else 0.0)
    quotient = difference_from_reference(curve(values)) / torch.where(near, 1.0, step)
    with torch.enable_grad():
        at = midpoint(values).requires_grad_()
        derivative = torch.autograd.grad(curve(at).sum(), at)[0]
    return torch.where(repeat_for_both(near), derivative, repeat_for_both(quotient))


def logarithmic_mean(first: Tensor, second: Tensor, values: Tensor) -> Tensor:
    """(e^a - e^b) / (a - b) = max(e^a, e^b) (1 - e^-|a - b|) / |a - b|, and e^a where a = b; 0 where both are -inf.

    Args:
        values: e^a and e^b, one half after the other.
    """
    apart = (first - second).abs().nan_to_num(nan=0.0)
    largest = torch.maximum(*input_and_reference(values))
    return largest * torch.where(apart == 0, 1.0, -torch.expm1(-apart) / torch.where(apart == 0, 1.0, apart))


def _closed_form(secant: Callable[[Tensor, Tensor], Tensor]) -> Secant:
    """A secant computed from the input and the reference rows of the argument."""
    return lambda curve, values: repeat_for_both(secant(*input_and_reference(values)))


def _log_secant(x1: Tensor, x0: Tensor) -> Tensor:
    growth = (x1 - x0) / x0
    return torch.where(growth == 0, 1.0, growth.log1p() / torch.where(growth == 0, 1.0, growth)) / x0


SMOOTH_FUNCTIONS = ("tanh", "sigmoid", "gelu", "silu", "mish", "softplus", "log_sigmoid", "erf", "expm1", "sin", "cos")
PIECEWISE_FUNCTIONS = (
    "relu", "abs", "leaky_relu", "relu6", "elu", "selu", "hardtanh", "clamp", "clamp_min", "clamp_max"
)  # fmt: skip
CLOSED_FORM_SECANTS: Mapping[str, Secant] = {
    "exp": lambda curve, values: repeat_for_both(logarithmic_mean(*input_and_reference(values), curve(values))),
    "log": _closed_form(_log_secant),
    "reciprocal": _closed_form(lambda x1, x0: -1 / (x1 * x0)),
    "sqrt": _closed_form(lambda x1, x0: 1 / (x1.sqrt() + x0.sqrt())),
    "rsqrt": _closed_form(lambda x1, x0: -1 / (x1.sqrt() * x0.sqrt() * (x1.sqrt() + x0.sqrt()))),
    "square": _closed_form(lambda x1, x0: x1 + x0),
}
POWER_SECANTS: Mapping[float, Secant] = {
    2.0: CLOSED_FORM_SECANTS["square"],
    3.0: _closed_form(lambda x1, x0: x1.square() + x1 * x0 + x0.square()),
    0.5: CLOSED_FORM_SECANTS["sqrt"],
}
RECIPROCAL_POWERS: Mapping[float, str] = {-0.5: "rsqrt", -1.0: "reciprocal"}


MAX_GAP_SHARE = 0.02
"""Scores of a transformer may miss the difference of its outputs by this share of the difference."""
ROUNDINGS = 100
"""Roundings by which scores may miss a difference that is nearly 0, where a share of it says nothing.

One rounding is that of float32, in which transformers computes norms whatever the precision of the network, of scores
whose absolute values sum to 1 at most: larger scores that cancel are an error of their own and excuse none.
"""
OUTPUT_ROUNDING = 1e-15
"""Of the difference of two probabilities in float64."""
ROWS_MIX = "an operation has no rule, or mixes the rows of a batch as experts do"
OTHER_METHOD = "choose IntegratedGradients"
FACTORS = ("beta", "alpha")
Function = Callable[..., object]
Arguments = Sequence[object]
Options = Mapping[str, object]


def multipliers(function: Callable[[Tensor], Tensor], inputs: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers m `[batch ...]` with sum m (input - reference) = f(input) - f(reference), and the latter `[batch]`.

    Args:
        function: values `[2 batch]` of the input rows and then the reference rows; only its argument may require a
            gradient, and rows may not mix.
    """
    rows = len(inputs)
    with torch.enable_grad():
        both = torch.cat([inputs, reference]).detach().requires_grad_()
        with _SecantMode():
            values = function(both)
        (slopes,) = torch.autograd.grad(values[:rows].sum(), both)
    difference = (values[:rows] - values[rows:]).detach()
    return slopes[:rows], difference


class _SecantMode(TorchFunctionMode):
    """Applies its rule to each operation on tensors that depend on the input, that is, require a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self._reciprocals: dict[int, tuple[Tensor, Tensor]] = {}

    def remember_reciprocal(self, result: Tensor, below: Tensor) -> None:
        """Keep that `result` is 1 / below, so that a product with it is treated as a quotient."""
        self._reciprocals[id(result)] = result, below  # the result is kept alive, so that its id stays its own

    def find_divisor(self, factor: object) -> Tensor | None:
        """The tensor b of a factor that was computed as 1 / b, or None."""
        return self._reciprocals[id(factor)][1] if id(factor) in self._reciprocals else None

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        options = dict(kwargs or {})
        if torch.is_grad_enabled():
            rule = RULES.get(str(getattr(func, "__name__", "")).strip("_"))
            result = None if rule is None else rule(self, func, args, options)
            if result is not None:
                return cast(Tensor, args[0]).copy_(cast(Tensor, result)) if _is_in_place(func) else result
        return func(*args, **options)


_Rule = Callable[[_SecantMode, Function, Arguments, dict[str, object]], object]
"""The result of an operation under the mode; None where it is linear in the input, or unknown."""


class _ReplaceGradient(torch.autograd.Function):
    """The values of one tensor with the gradient of another."""

    @staticmethod
    def forward(context: FunctionCtx, value: Tensor, gradient_source: Tensor) -> Tensor:
        # A copy: models overwrite scores in place, which autograd forbids for an alias of an input.
        return value.clone()

    @staticmethod
    def backward(context: FunctionCtx, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def _replace_gradient(value: object, gradient_source: Tensor) -> Tensor:
    return cast(Tensor, _ReplaceGradient.apply(cast(Tensor, value).detach(), gradient_source))  # type: ignore[no-untyped-call]


def _depends_on_input(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _only_first_depends(args: Arguments, options: Options) -> bool:
    """True where the first argument depends on the input and no other does."""
    return bool(args) and _depends_on_input(args[0]) and not any(map(_depends_on_input, (*args[1:], *options.values())))


def _elementwise_rule(secant: Secant) -> _Rule:
    """Elementwise y = f(x): dy = secant dx."""

    def rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
        if not _only_first_depends(args, options):
            return None
        options.pop("inplace", None)

        def curve(at: Tensor) -> Tensor:
            return _out_of_place(func)(at, *args[1:], **options)

        values = cast(Tensor, args[0])
        with torch.no_grad():
            slope, result = secant(curve, values), curve(values)
        return _replace_gradient(result, values * slope)

    return rule


def _out_of_place(func: Function) -> Callable[..., Tensor]:
    """The function, without changing its argument even if it is an in-place form."""

    def on_a_copy(first: Tensor, *others: object, **options: object) -> Tensor:
        return cast(Tensor, func(first.clone(), *others, **options))

    return on_a_copy if _is_in_place(func) else cast("Callable[..., Tensor]", func)


def _is_in_place(func: Function) -> bool:
    name = str(getattr(func, "__name__", ""))
    return name.endswith("_") and not name.endswith("__")


def _reciprocal_rule(reciprocal_secant: Secant, invert: Callable[[Tensor], Tensor]) -> _Rule:
    """Elementwise y = 1 / b(x) by its secant; products with y are quotients by b.

    Args:
        invert: b.
    """

    def rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
        result = _elementwise_rule(reciprocal_secant)(mode, func, args, options)
        if isinstance(result, Tensor):
            with mode:
                mode.remember_reciprocal(result, invert(cast(Tensor, args[0])))
        return result

    return rule


def _power_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """y = x^n, by a closed-form secant where there is one."""
    exponent = args[1] if len(args) > 1 else options.get("exponent")
    if not isinstance(exponent, int | float):
        return None
    if (name := RECIPROCAL_POWERS.get(float(exponent))) is not None:
        return RECIPROCAL_RULES[name](mode, func, args, options)
    power_secant = POWER_SECANTS.get(float(exponent), partial(secant, smooth=False))
    return _elementwise_rule(power_secant)(mode, func, args, options)


def _product_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """d(a b) = da (b1 + b0)/2 + (a1 + a0)/2 db, for products and matrix products."""
    if len(args) != 2 or not (_depends_on_input(args[0]) and _depends_on_input(args[1])):
        return None
    first, second = cast("tuple[Tensor, Tensor]", tuple(args))
    product = _out_of_place(func)
    slopes_of = product(first, midpoint(second)) + product(midpoint(first), second)
    return _replace_gradient(product(first.detach(), second.detach()), slopes_of)


def _multiplication_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """The product rule, or the quotient rule where one factor was computed as 1 / b, as RMSNorm computes x rsqrt(m).

    The product rule takes the mean of both 1 / b. Where b is nearly 0 in one half, as in an RMSNorm of a zero vector,
    that is 1 / (2 sqrt(eps)), about 500; a few layers multiply it to 1e12.
    """
    if len(args) == 2 and _depends_on_input(args[0]) and _depends_on_input(args[1]):
        for above, factor in (args, args[::-1]):
            if (below := mode.find_divisor(factor)) is not None:
                value = _out_of_place(func)(*(cast(Tensor, operand).detach() for operand in args))
                return _share_quotient(value, cast(Tensor, above), below)
    return _product_rule(mode, func, args, options)


def _added_product_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """beta c + alpha a b, as BLOOM adds biases by distance to its scores."""
    named = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | options
    product = _product_rule(mode, torch.bmm, (named["batch1"], named["batch2"]), {})
    if product is None:
        return None
    added, (beta, alpha) = cast("Tensor", named["input"]), (cast("float", named.get(name, 1.0)) for name in FACTORS)
    return beta * added + alpha * cast("Tensor", product)


def _einsum_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """An einsum of two tensors is a product."""
    equation, *rest = args
    operands = rest[0] if isinstance(rest[0], list | tuple) else rest
    if len(operands) != 2:
        return None

    def einsum(first: Tensor, second: Tensor) -> Tensor:
        return cast(Tensor, func(equation, first, second))

    return _product_rule(mode, einsum, operands, {})


def _quotient_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """For y = a / b, dy = (da - (y1 + y0)/2 db) / ((b1 + b0)/2), which is the product rule of a = y b.

    Unlike a times 1 / b it stays bounded where b is nearly 0 in one half, as the variance of an empty reference.
    """
    if len(args) != 2 or options.get("rounding_mode") is not None or not _depends_on_input(args[1]):
        return None
    above, below = cast("tuple[Tensor, Tensor]", tuple(args))
    if not _depends_on_input(above):
        with mode:
            result = torch.reciprocal(below) * above
            if isinstance(above, int | float) and above != 0:
                mode.remember_reciprocal(result, below / above)
            return result
    return _share_quotient(_out_of_place(func)(above.detach(), below.detach()), above, below)


def _share_quotient(value: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """The value y = a / b with the multipliers of `_quotient_rule`, at most 2 / max(b1, b0) for positive b."""
    return _replace_gradient(value, (above - midpoint(value) * below) / midpoint(below))


def _softmax_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """dp_i = l_i (dz_i - sum_j l_j dz_j / sum_j l_j), l_i the logarithmic mean of the two p_i.

    The secant of exp on dz - dL, where the shift dL lets both halves sum to one. For two classes it is the secant of
    the sigmoid, for equal halves the derivative of softmax; it cannot overflow.
    """
    dim = args[1] if len(args) > 1 else options.get("dim")
    if not _only_first_depends(args, options) or not isinstance(dim, int):
        return None
    scores = cast(Tensor, args[0])
    result = cast(Tensor, func(scores.detach(), *args[1:], **options))
    means, shifted = _shifted_scores(scores.to(result), dim)
    return _replace_gradient(result, means * shifted)


def _log_softmax_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """d log p_i = dz_i - sum_j l_j dz_j / sum_j l_j, with the same means as softmax: exact, since both sum to one."""
    dim = args[1] if len(args) > 1 else options.get("dim")
    if not _only_first_depends(args, options) or not isinstance(dim, int):
        return None
    scores = cast(Tensor, args[0])
    result = cast(Tensor, func(scores.detach(), *args[1:], **options))
    return _replace_gradient(result, _shifted_scores(scores.to(result), dim)[1])


def _shifted_scores(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The logarithmic means l of the two softmaxes, and z - sum_j l_j z_j / sum_j l_j."""
    with torch.no_grad():
        logs = torch.log_softmax(scores, dim)
        means = repeat_for_both(logarithmic_mean(*input_and_reference(logs), logs.exp()))
        shares = means / means.sum(dim, keepdim=True)
    # Masked scores of -inf have weight 0, but 0 * -inf is NaN.
    finite = scores.masked_fill(means == 0, 0.0)
    return means, finite - (shares * finite).sum(dim, keepdim=True)


def _layer_norm_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """d = x - mean(x), y = d / sqrt(mean(d^2) + eps) * weight + bias, composed of the rules of its parts."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    values: dict[str, object] = {"weight": None, "bias": None, "eps": 1e-5}
    values |= dict(zip(names, args, strict=False)) | options
    inputs = values["input"]
    if not isinstance(inputs, Tensor) or not _depends_on_input(inputs):
        return None
    dims = tuple(range(-len(cast("Sequence[int]", values["normalized_shape"])), 0))
    with mode:
        centered = inputs - inputs.mean(dims, keepdim=True)
        spread = (centered.square().mean(dims, keepdim=True) + cast(float, values["eps"])).sqrt()
        normal = centered / spread
        normal = normal if values["weight"] is None else normal * cast(Tensor, values["weight"])
    with torch.no_grad():
        result = func(*args, **options)
    return _replace_gradient(result, normal)


def _maximum_rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
    """Maximum along one axis: the whole difference goes to the argmax of the half with the larger maximum.

    That entry changes at least as much as the maximum, so its multiplier lies between 0 and 1.
    """
    dim = args[1] if len(args) > 1 else options.get("dim")
    if not _only_first_depends(args, options) or not isinstance(dim, int):
        return None
    values = cast(Tensor, args[0])
    with torch.no_grad():
        tops, places = values.max(dim, keepdim=True)
        (high, low), (here, there) = input_and_reference(tops), input_and_reference(places)
        winner = repeat_for_both(torch.where(high >= low, here, there))
        moved = difference_from_reference(values.gather(dim, winner))
        share = repeat_for_both(torch.where(moved == 0, 1.0, (high - low) / torch.where(moved == 0, 1.0, moved)))
    slopes_of = values.gather(dim, winner) * share
    kept = bool(args[2] if len(args) > 2 else options.get("keepdim", False))
    return _replace_gradient(tops if kept else tops.squeeze(dim), slopes_of if kept else slopes_of.squeeze(dim))


def _recurrent_rule(cell: Callable[[Tensor, Tensor, Sequence[Tensor]], Sequence[Tensor]]) -> _Rule:
    """A fused kernel, unrolled.

    Args:
        cell: the next states, the output first, from the projected input, the projected output and the states.
    """

    def rule(mode: _SecantMode, func: Function, args: Arguments, options: dict[str, object]) -> object:
        # One batch-first layer in one direction, the only kind that our encoders use.
        if not (len(args) == 9 and _depends_on_input(args[0]) and args[4] == 1 and not args[7] and args[8]):
            return None
        weights = cast("Sequence[Tensor]", args[2])
        input_bias, bias = (weights[2], weights[3]) if args[3] else (None, None)
        initial = [args[1]] if isinstance(args[1], Tensor) else cast("Sequence[Tensor]", args[1])
        states: Sequence[Tensor] = [state[0] for state in initial]
        outputs = []
        with mode:
            for step in torch.nn.functional.linear(cast(Tensor, args[0]), weights[0], input_bias).unbind(1):
                states = cell(step, torch.nn.functional.linear(states[0], weights[1], bias), states)
                outputs.append(states[0])
            return torch.stack(outputs, 1), *(state.unsqueeze(0) for state in states)

    return rule


def _lstm_cell(step: Tensor, recurrent: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
    """i, f, o = sigmoid, g = tanh; c' = f c + i g; h' = o tanh(c')."""
    enter, forget, new, leave = (step + recurrent).chunk(4, -1)
    cell = forget.sigmoid() * states[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_cell(step: Tensor, recurrent: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
    """r, z = sigmoid; n = tanh(x + r h); h' = n + z (h - n)."""
    (reset, keep, new), (old_reset, old_keep, old_new) = step.chunk(3, -1), recurrent.chunk(3, -1)
    new = torch.tanh(new + (reset + old_reset).sigmoid() * old_new)
    return (new + (keep + old_keep).sigmoid() * (states[0] - new),)


RECIPROCAL_RULES: Mapping[str, _Rule] = {
    "rsqrt": _reciprocal_rule(CLOSED_FORM_SECANTS["rsqrt"], torch.sqrt),
    "reciprocal": _reciprocal_rule(CLOSED_FORM_SECANTS["reciprocal"], lambda below: below),
}
RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(SMOOTH_FUNCTIONS, _elementwise_rule(partial(secant, smooth=True))),
    **dict.fromkeys(PIECEWISE_FUNCTIONS, _elementwise_rule(partial(secant, smooth=False))),
    **{name: _elementwise_rule(secant) for name, secant in CLOSED_FORM_SECANTS.items()},
    **RECIPROCAL_RULES,
    **dict.fromkeys(("mul", "multiply"), _multiplication_rule),
    **dict.fromkeys(("matmul", "bmm", "mm"), _product_rule),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient_rule),
    # `number / tensor` has the arguments (tensor, number).
    "rdiv": lambda mode, func, args, options: _quotient_rule(mode, func, args[::-1], options),
    "baddbmm": _added_product_rule,
    "einsum": _einsum_rule,
    "pow": _power_rule,
    "softmax": _softmax_rule,
    "log_softmax": _log_softmax_rule,
    "layer_norm": _layer_norm_rule,
    "amax": _maximum_rule,
    "lstm": _recurrent_rule(_lstm_cell),
    "gru": _recurrent_rule(_gru_cell),
}
"""The rule of each operation by function name, without the underscores of operators and in-place forms."""


def largest_gap(difference: Tensor, scores: Tensor) -> Tensor:
    """How far scores `[batch unit]` may miss their difference `[batch]` before DeepLIFT is refused `[batch]`."""
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps * scores.abs().sum(1).clamp(max=1) + OUTPUT_ROUNDING
    return torch.maximum(MAX_GAP_SHARE * difference.abs(), rounding)


def _check_complete(total: CompleteAttribution, kind: torch.dtype) -> None:
    """Raise a `UserError` for scores of a transformer that miss the difference of the outputs by more than rounding.

    Args:
        kind: of the states; in half precision rounding itself is too large.
    """
    missed, allowed = total.convergence_delta.abs(), largest_gap(total.difference, total.scores)
    if not bool((missed <= allowed).all()):  # NaN is refused too
        worst = int((missed / allowed).nan_to_num(nan=torch.inf).argmax())
        is_half = kind in (torch.bfloat16, torch.float16)
        reason = "that may be the rounding of half precision, which can be left out" if is_half else ROWS_MIX
        raise NotApplicable(
            f"its scores miss the difference of the outputs, {float(total.difference[worst]):.2g}, by "
            f"{float(missed[worst]):.2g}: {reason}",
            OTHER_METHOD,
        )


Noise = Callable[[Batch, Tensor, int], Tensor]
"""Noise `[row unit width]` on the baselines with these numbers `[row]`."""


@register("deep-lift")
@dataclass(frozen=True)
class DeepLift(CheckedOptions):
    """The difference from a baseline, attributed by secants in place of gradients (Shrikumar et al. 2017).

    Args:
        special_tokens: replace and score special tokens too, as in Neely et al. (2022).
    """

    background: ClassVar[Background] = Background(
        formula="s_t = Σ_d m_td (x_td − x'_td),  m the product of secants Δout / Δin along the layers",
        avoid="on mixtures of experts and networks with operations that have no rule: it refuses "
        "where its scores do not add up",
        references=("shrikumar-2017",),
    )

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient", completeness_tolerance=1e-4)

    revision: ClassVar[int] = 2

    baselines: FixedLengthBaseline = "pad"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        return self.mean_over_baselines(model, batch, target)

    def mean_over_baselines(
        self, model: Model, batch: Batch, target: Tensor, n_baselines: int = 1, noise: Noise | None = None
    ) -> CompleteAttribution:
        """The mean over several baselines that differ by noise on the replaced tokens."""
        if not model.has_rows_first:
            raise NotApplicable("its layers read states in the order [unit batch width]", OTHER_METHOD)
        units = scored_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            text = model.read_embeddings(batch)
            baseline = baseline_vectors(model, batch, self.baselines, units)
        # Detached copies of the weights, so that only the embeddings require a gradient.
        weights = {name: value.detach() for name, value in model.named_parameters()}
        scores = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
        differences = scores.new_zeros(len(units))

        def work(row: Tensor, number: Tensor) -> None:
            both = row.repeat(2)
            pair = batch.rows(both)
            width = pair.mask.shape[1]

            def read(embeddings: Tensor) -> Tensor:
                trace: Trace = functional_call(model, weights, (pair,), {"embeddings": embeddings})
                return target_output(model.task, trace.logits, target[both], self.output)

            real, other = text[row, :width], baseline[row, :width]
            if noise is not None:
                lift = noise(batch.rows(row), number, text.shape[2]) * units[row, :width, None]
                other = (other + lift).to(text)
            try:
                slopes, difference = multipliers(read, real, other)
            except RuntimeError as error:
                if "memory" in str(error):
                    raise
                raise NotApplicable(ROWS_MIX, OTHER_METHOD) from error
            share = (slopes.double() * (real.double() - other.double())).sum(-1)
            scores[:, :width].index_add_(0, row, share / n_baselines)
            differences.index_add_(0, row, difference / n_baselines)

        run_copies(work, batch, n_baselines)
        attribution = complete_attribution(scores, units, differences)
        if isinstance(model, ExposesLayers):
            _check_complete(attribution, text.dtype)
        return attribution


@register("deep-shap")
@dataclass(frozen=True)
class DeepShap(CheckedOptions):
    """The mean of DeepLIFT over several baselines (Lundberg & Lee 2017).

    Without noise all baselines are equal, and DeepSHAP is DeepLIFT.

    Args:
        stdevs: standard deviation of the Gaussian noise on the replaced tokens of each baseline, drawn from
            (seed, uid, baseline); 0 as in Neely et al. (2022).
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over baselines x' of the DeepLIFT score from x' to x",
        avoid="without noise (`stdevs=0`): all baselines are then equal and it is DeepLIFT",
        references=("lundberg-2017", "shrikumar-2017"),
    )

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient", completeness_tolerance=1e-4)

    revision: ClassVar[int] = 2

    n_baselines: Annotated[int, Bounds(1, MAX_SAMPLES)] = 2
    stdevs: Annotated[float, Bounds(at_least=0)] = 0.0
    seed: int = 0
    baselines: FixedLengthBaseline = "pad"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        deeplift = DeepLift(self.baselines, self.output, self.special_tokens)
        if not self.stdevs:
            return deeplift(model, batch, target)
        return deeplift.mean_over_baselines(model, batch, target, self.n_baselines, self._noise)

    def _noise(self, batch: Batch, number: Tensor, width: int) -> Tensor:
        keys = zip(batch.uids, number.tolist(), strict=True)
        seeds = torch.tensor([derive_seed("deep-shap", self.seed, uid, copy) for uid, copy in keys])
        uniform = sample_uniform(seeds, 1, batch.mask.shape[1] * width) + 2.0**-54
        noise: Tensor = self.stdevs * torch.special.ndtri(uniform).reshape(*batch.mask.shape, width)
        return noise.to(batch.mask.device)
