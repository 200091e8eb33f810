"""How the outer loss of a bilevel step changes with the teacher's explainer, without a Hessian of the student.

Inner loss I(theta, phi) = S(theta) + beta D(p(phi), q(theta)), with p = e_T and q = log e_S. The pilot step goes to
theta' = theta - rate c g, with g = dI/dtheta and c <= 1 the factor of clipping; v is the gradient of
the outer loss at theta'. Only g and c depend on phi: d outer / d phi = - rate <w, dg/dphi> with w = v where nothing is
clipped, else w = c (v - g <g, v> / (|g| (|g| + 1e-6))), since c = clip / (|g| + 1e-6). And phi enters g only through D:
<w, dg/dphi> = beta d/dphi <dD/dq, q'>, where q' is the derivative of q along w, one forward-mode pass of the student.
For D = KL, dD/dq = -p, hence the result rate beta (dp/dphi) . q' (Fernandes et al. 2022 differentiate the whole step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.types import UserError, unfused_attention

Parameters = Mapping[str, Tensor]
"""The student's trainable tensors by name: theta, with the parameters of its own explainer among them."""

HypergradientMethod = Literal["jvp", "difference", "double-backward"]

CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm that it divides by."""


@dataclass(frozen=True)
class BilevelProblem:
    """One pilot step as functions of the student's weights and of the explainer's phi.

    Each function must be pure: no tensor of a module in the place of the weights it is given (`functional_call`),
    nothing detached on the way.

    Args:
        inner: the simulation loss (a scalar) and log e_S `[batch unit]`, from one reading of the inner batch.
        outer: the loss of the student on held-out data, a scalar.
        teach: e_T `[batch unit]` at phi, on the inner batch.
        divergence: how far log e_S (second) is from e_T (first), a scalar; twice differentiable.
        clip: largest norm of the step's gradient over all weights; None leaves it.
    """

    inner: Callable[[Parameters], tuple[Tensor, Tensor]]
    outer: Callable[[Parameters], Tensor]
    teacher_explanation: Callable[[Tensor], Tensor]
    divergence: Callable[[Tensor, Tensor], Tensor]
    lr: float
    beta: float
    max_grad_norm: float | None = None


@dataclass(frozen=True)
class Hypergradient:
    """What one pilot step says about phi.

    Args:
        gradient: of the outer loss after the step, in the shape of phi.
        outer: that loss.
        norm: of the step's gradient before clipping.
        way: the way that was gone, and `note` why it was not the one asked for, else "".
    """

    gradient: Tensor
    outer_loss: float
    gradient_norm: float
    clipped: bool
    method: HypergradientMethod
    note: str = ""


@dataclass(frozen=True)
class _PilotStep:
    """The step: the weights after it, g, q before it, |g| and c."""

    parameters: Parameters
    gradient: Parameters
    log_student: Tensor
    norm: Tensor
    clip_factor: Tensor


def hypergradient(
    problem: BilevelProblem, theta: Parameters, phi: Tensor, method: HypergradientMethod = "jvp"
) -> Hypergradient:
    """The gradient of the outer loss after one pilot step with respect to phi; nothing that is given is changed.

    All passes start from the same random state, which is left as it was found: dropout is the same in each.

    Args:
        way: "jvp" is exact; "difference" takes two plain passes in the place of the forward-mode one, as "jvp" does
            too, with a note, where a student has no forward mode; "double-backward" differentiates the whole step.
    """
    check_hypergradient_method(method)
    if method == "double-backward":
        return _differentiate_whole_step(problem, theta, phi)
    start = {name: tensor.detach() for name, tensor in theta.items()}
    # Forward mode reads in plain products, and must find the explanation that the pilot found.
    with _unfused_attention() if method == "jvp" and _on_gpu(start) else nullcontext():
        done, direction, log_student = _compute_direction(problem, start, phi)
    if problem.beta == 0 or not any(bool(tensor.any()) for tensor in direction.values()):
        return replace(done, method=method)
    explain = _StudentExplanation(problem, start, log_student)
    moved, went, note = _directional_derivative(explain, direction, method)
    return replace(done, gradient=_gradient_through_teacher(problem, phi, log_student, moved), method=went, note=note)


def check_hypergradient_method(method: str) -> None:
    """Refuses a way that there is not."""
    if method not in get_args(HypergradientMethod):
        raise UserError(
            f"there is no way {method!r} to a hypergradient; choose one of {', '.join(get_args(HypergradientMethod))}"
        )


def _compute_direction(
    problem: BilevelProblem, theta: Parameters, phi: Tensor
) -> tuple[Hypergradient, Parameters, Tensor]:
    """All but the gradient, which is still 0; the direction w; and log e_S at theta. The step itself is forgotten."""
    with torch.enable_grad():
        pilot = _take_pilot_step(problem, theta, problem.teacher_explanation(phi.detach()).detach(), create_graph=False)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in pilot.parameters.items()}
        with _same_random_state(leaves):
            loss = problem.outer(leaves)
    direction = _differentiate_clipping(pilot, _gradient(loss, leaves, create_graph=False))
    found = Hypergradient(
        torch.zeros_like(phi.detach()), float(loss.detach()), float(pilot.norm), bool(pilot.clip_factor < 1), "jvp"
    )
    return found, direction, pilot.log_student


def _take_pilot_step(problem: BilevelProblem, theta: Parameters, teacher: Tensor, *, create_graph: bool) -> _PilotStep:
    """The pilot step; with `keep` it can itself be differentiated."""
    before = {name: tensor.detach().requires_grad_() for name, tensor in theta.items()}
    with _same_random_state(theta):
        loss, log_student = problem.inner(before)
    loss = loss + problem.beta * problem.divergence(teacher, log_student)
    gradient = _gradient(loss, before, create_graph=create_graph)
    with torch.set_grad_enabled(create_graph):
        norm = _global_norm(gradient)
        factor = torch.ones_like(norm)
        if problem.max_grad_norm is not None and bool(norm + CLIP_EPSILON > problem.max_grad_norm):
            factor = problem.max_grad_norm / (norm + CLIP_EPSILON)
        after = {name: before[name] - problem.lr * factor * gradient[name] for name in before}
    return _PilotStep(after, gradient, log_student.detach(), norm, factor)


def _differentiate_clipping(pilot: _PilotStep, outer_gradient: Parameters) -> Parameters:
    """w: the outer gradient as it arrives at the step's gradient before clipping."""
    if bool(pilot.clip_factor == 1):
        return outer_gradient
    along = torch.stack([(pilot.gradient[name] * outer_gradient[name]).sum() for name in outer_gradient]).sum()
    share = along / (pilot.norm * (pilot.norm + CLIP_EPSILON))
    return {name: pilot.clip_factor * (outer_gradient[name] - share * pilot.gradient[name]) for name in outer_gradient}


@dataclass(frozen=True)
class _StudentExplanation:
    """log e_S as a function of a way along a direction from theta, where its value is known."""

    problem: BilevelProblem
    theta: Parameters
    value: Tensor

    def forward_derivative(self, direction: Parameters) -> Tensor:
        """The derivative along the direction, exactly."""
        with torch.no_grad(), forward_ad.dual_level(), _same_random_state(self.theta), _unfused_kernels():
            weights = {name: _make_dual(self.theta[name], along) for name, along in direction.items()}
            found = forward_ad.unpack_dual(self.problem.inner(weights)[1])  # type: ignore[no-untyped-call]
            value, tangent = cast("tuple[Tensor, Tensor | None]", found)
        if not torch.allclose(value, self.value, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ValueError(
                "the inner function gave two explanations for the same weights: it must be a pure function"
            )
        return torch.zeros_like(value) if tangent is None else tangent

    def central_difference(self, direction: Parameters) -> Tensor:
        """(q(theta + h w) - q(theta - h w)) / 2h with |h w| = 2 eps^(1/3), .01 in single precision."""
        step = 2 * math.cbrt(torch.finfo(self.value.dtype).eps) / float(_global_norm(direction))
        return (self._value_at(step, direction) - self._value_at(-step, direction)) / (2 * step)

    def _value_at(self, step: float, direction: Parameters) -> Tensor:
        with torch.no_grad(), _same_random_state(self.theta):
            return self.problem.inner({name: self.theta[name] + step * along for name, along in direction.items()})[1]


def _directional_derivative(
    explain: _StudentExplanation, direction: Parameters, method: HypergradientMethod
) -> tuple[Tensor, HypergradientMethod, str]:
    """q', the derivative of log e_S along the direction; the way gone and a note."""
    note = ""
    if method == "jvp":
        try:
            return explain.forward_derivative(direction), method, note
        except NotImplementedError as error:
            reason = str(error).strip().splitlines()[0]
            note = f"a central difference took the place of forward mode: {reason}"
    return explain.central_difference(direction), "difference", note


def _gradient_through_teacher(problem: BilevelProblem, phi: Tensor, log_student: Tensor, derivative: Tensor) -> Tensor:
    """- rate beta d/dphi <dD/dq, q'>: only the divergence and the explainer are differentiated, not the student."""
    with torch.enable_grad():
        leaf, explained = phi.detach().requires_grad_(), log_student.requires_grad_()
        apart = problem.divergence(problem.teacher_explanation(leaf), explained)
        pull = _gradient(apart, {"explained": explained}, create_graph=True)["explained"]
        change = -problem.lr * problem.beta * (pull * derivative).sum()
        return _gradient(change, {"phi": leaf}, create_graph=False)["phi"]


def _differentiate_whole_step(problem: BilevelProblem, theta: Parameters, phi: Tensor) -> Hypergradient:
    """The same by differentiating the step as it stands: the inner graph is kept and passed backward twice."""
    with torch.enable_grad(), _unfused_kernels():
        leaf = phi.detach().requires_grad_()
        pilot = _take_pilot_step(problem, theta, problem.teacher_explanation(leaf), create_graph=True)
        with _same_random_state(theta):
            loss = problem.outer(pilot.parameters)
        gradient = _gradient(loss, {"phi": leaf}, create_graph=False)["phi"]
    norm, clipped = float(pilot.norm.detach()), bool(pilot.clip_factor < 1)
    return Hypergradient(gradient, float(loss.detach()), norm, clipped, "double-backward")


def _make_dual(value: Tensor, tangent: Tensor) -> Tensor:
    return cast(Tensor, forward_ad.make_dual(value, tangent))  # type: ignore[no-untyped-call]


def _global_norm(weights: Parameters) -> Tensor:
    """The length of all tensors as one vector."""
    return torch.stack([tensor.square().sum() for tensor in weights.values()]).sum().sqrt()


def _gradient(loss: Tensor, leaves: Parameters, *, create_graph: bool) -> Parameters:
    """Gradients by name; zero for what the loss does not depend on."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(loss, list(leaves.values()), create_graph=create_graph, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@contextmanager
def _same_random_state(weights: Parameters) -> Iterator[None]:
    """Gives the random state back, on the processor and on the devices of the weights."""
    devices = {tensor.device.index for tensor in weights.values() if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(index for index in devices if index is not None)):
        yield


def _on_gpu(weights: Parameters) -> bool:
    """Whether fused attention draws its dropout in a way of its own, as it does on CUDA and not on the processor."""
    return any(tensor.is_cuda for tensor in weights.values())


@contextmanager
def _unfused_attention() -> Iterator[None]:
    with unfused_attention(), _unfused_kernels():
        yield


@contextmanager
def _unfused_kernels() -> Iterator[None]:
    """Fused attention and fused recurrent cells have no forward mode and no second derivative: their plain forms do."""
    # The switches one by one: the libraries' own context managers also set precisions, with a warning.
    with sdpa_kernel(SDPBackend.MATH), _disable_backend(torch.backends.mkldnn), _disable_backend(torch.backends.cudnn):
        yield


@contextmanager
def _disable_backend(library: ModuleType) -> Iterator[None]:
    before = library.enabled
    library.__setattr__("enabled", False)
    try:
        yield
    finally:
        library.__setattr__("enabled", before)
