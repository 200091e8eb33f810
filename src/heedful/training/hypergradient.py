"""The gradient of the outer loss of a bilevel step with respect to the teacher's explainer, without a Hessian.

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
from typing import cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.capabilities import unfused_attention
from heedful.seeding import fork_generators

Parameters = Mapping[str, Tensor]
"""The student's trainable tensors by name: theta, with the parameters of its own explainer among them."""

CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm that it divides by."""


@dataclass(frozen=True)
class BilevelProblem:
    """One pilot step as functions of the student's weights and of the explainer's phi.

    Each function must be pure: it uses the weights it is given (`functional_call`) and detaches nothing.

    Args:
        inner: the simulation loss (a scalar) and log e_S `[batch unit]`, from one pass over the inner batch.
        outer: the loss of the student on held-out data, a scalar.
        teacher_explanation: e_T `[batch unit]` at phi, on the inner batch.
        divergence: how far log e_S (second) is from e_T (first), a scalar; twice differentiable.
        max_grad_norm: largest norm of the step's gradient over all weights; None does not clip.
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
    """The result of one pilot step.

    Args:
        gradient: of the outer loss after the step, in the shape of phi.
        gradient_norm: of the step's gradient before clipping.
        exact: False where a central difference took the place of forward mode.
    """

    gradient: Tensor
    outer_loss: float
    gradient_norm: float
    clipped: bool
    exact: bool = True


def hypergradient(
    problem: BilevelProblem, theta: Parameters, phi: Tensor, *, forward_mode: bool = True
) -> Hypergradient:
    """The gradient of the outer loss after one pilot step with respect to phi; the arguments are not changed.

    All passes start from the same random state, which is restored at the end: dropout is the same in each.

    Args:
        forward_mode: False takes a central difference of two plain passes in place of the forward-mode pass, which is
            also the fallback for students with operations that have no forward mode.
    """
    start = {name: tensor.detach() for name, tensor in theta.items()}
    # Fused attention draws its dropout in its own way on CUDA: forward mode is unfused and must see the same masks.
    on_gpu = forward_mode and _on_gpu(start)
    with unfused_attention() if on_gpu else nullcontext(), unfused_kernels() if on_gpu else nullcontext():
        result, direction, log_student = _pilot_and_outer_gradient(problem, start, phi)
    if problem.beta == 0 or not any(bool(tensor.any()) for tensor in direction.values()):
        return result
    derivative = _forward_derivative(problem, start, direction, log_student) if forward_mode else None
    exact = derivative is not None
    if derivative is None:
        derivative = _central_difference(problem, start, direction, log_student.dtype)
    # - rate beta d/dphi <dD/dq, q'>: only the divergence and the explainer are differentiated, not the student.
    with torch.enable_grad():
        leaf, explained = phi.detach().requires_grad_(), log_student.requires_grad_()
        divergence = problem.divergence(problem.teacher_explanation(leaf), explained)
        pull = _gradient(divergence, {"explained": explained}, create_graph=True)["explained"]
        change = -problem.lr * problem.beta * (pull * derivative).sum()
        return replace(result, gradient=_gradient(change, {"phi": leaf})["phi"], exact=exact)


def _pilot_and_outer_gradient(
    problem: BilevelProblem, theta: Parameters, phi: Tensor
) -> tuple[Hypergradient, Parameters, Tensor]:
    """All but the gradient, which is still 0; the direction w; and log e_S at theta."""
    with torch.enable_grad():
        teacher = problem.teacher_explanation(phi.detach()).detach()
        before = {name: tensor.detach().requires_grad_() for name, tensor in theta.items()}
        with fork_generators():
            loss, log_student = problem.inner(before)
        step = _gradient(loss + problem.beta * problem.divergence(teacher, log_student), before)
    norm = _global_norm(step)
    clipped = problem.max_grad_norm is not None and bool(norm + CLIP_EPSILON > problem.max_grad_norm)
    factor = torch.ones_like(norm)
    if clipped:
        factor = cast(float, problem.max_grad_norm) / (norm + CLIP_EPSILON)
    with torch.enable_grad():
        after = {name: (theta[name] - problem.lr * factor * step[name]).requires_grad_() for name in theta}
        with fork_generators():
            outer_loss = problem.outer(after)
        direction = _gradient(outer_loss, after)
    if clipped:
        # The clipping factor depends on the gradient too.
        along = torch.stack([(step[name] * direction[name]).sum() for name in direction]).sum()
        share = along / (norm * (norm + CLIP_EPSILON))
        direction = {name: factor * (direction[name] - share * step[name]) for name in direction}
    result = Hypergradient(torch.zeros_like(phi.detach()), float(outer_loss.detach()), float(norm), clipped)
    return result, direction, log_student.detach()


def _forward_derivative(
    problem: BilevelProblem, theta: Parameters, direction: Parameters, log_student: Tensor
) -> Tensor | None:
    """The derivative of log e_S along the direction by one forward-mode pass; None where an operation has none."""
    with torch.no_grad(), forward_ad.dual_level(), fork_generators(), unfused_kernels():
        weights = {
            name: cast(Tensor, forward_ad.make_dual(theta[name], along))  # type: ignore[no-untyped-call]
            for name, along in direction.items()
        }
        try:
            dual = problem.inner(weights)[1]
        except NotImplementedError:
            return None
        unpacked = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
        value, tangent = cast("tuple[Tensor, Tensor | None]", unpacked)
    if not torch.allclose(value, log_student, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError("the inner function gave two explanations for the same weights: it must be a pure function")
    return torch.zeros_like(value) if tangent is None else tangent


def _central_difference(
    problem: BilevelProblem, theta: Parameters, direction: Parameters, dtype: torch.dtype
) -> Tensor:
    """(q(theta + h w) - q(theta - h w)) / 2h with |h w| = 2 eps^(1/3), .01 in single precision."""
    step = 2 * math.cbrt(torch.finfo(dtype).eps) / float(_global_norm(direction))
    values = []
    for signed in (step, -step):
        with torch.no_grad(), fork_generators():
            values.append(problem.inner({name: theta[name] + signed * along for name, along in direction.items()})[1])
    return (values[0] - values[1]) / (2 * step)


def _global_norm(weights: Parameters) -> Tensor:
    """The length of all tensors as one vector."""
    return torch.stack([tensor.square().sum() for tensor in weights.values()]).sum().sqrt()


def _gradient(loss: Tensor, leaves: Parameters, *, create_graph: bool = False) -> Parameters:
    """Gradients by name; zero for what the loss does not depend on."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=create_graph, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


def _on_gpu(weights: Parameters) -> bool:
    return any(tensor.is_cuda for tensor in weights.values())


@contextmanager
def unfused_kernels() -> Iterator[None]:
    """Disables fused attention and fused recurrent cells, which have no forward mode and no second derivative."""
    # The switches one by one: the libraries' own context managers also set precisions, with a warning.
    with sdpa_kernel(SDPBackend.MATH), _disabled(torch.backends.mkldnn), _disabled(torch.backends.cudnn):
        yield


@contextmanager
def _disabled(library: ModuleType) -> Iterator[None]:
    before = library.enabled
    library.__setattr__("enabled", False)
    try:
        yield
    finally:
        library.__setattr__("enabled", before)
