"""The hypergradient against double backward and the optimiser's own step, on a small BERT, ViT and BiLSTM."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import entmax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch.func import functional_call

from benchmarks.hypergradient import double_backward
from heedful.attributions import head_mix
from heedful.capabilities import read_heads
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.tasks import MulticlassClassification
from heedful.training.hypergradient import (
    BilevelProblem,
    Hypergradient,
    Parameters,
    _central_difference,
    hypergradient,
)
from heedful.types import Batch, Model
from tests.networks import batch_of, texts, tiny


class Simulator(nn.Module):
    """A student and its explainer, read at once."""

    def __init__(self, model: Model, maps: int) -> None:
        super().__init__()
        self.model = model
        dtype = next(model.parameters()).dtype
        self.phi = nn.Parameter(torch.linspace(0.2, 0.4, maps, dtype=dtype))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and log e_S."""
        heads = read_heads(self.model, batch)
        return heads.logits, head_mix.masked_log_softmax(
            head_mix.mix_maps(heads.maps, self.phi, "sparsemax"), batch.content_mask
        )


@dataclass(frozen=True)
class Step:
    """A student, the maps that its teacher shows, and the step on them."""

    student: nn.Module
    batch: Batch
    maps: Tensor
    phi: Tensor
    problem: BilevelProblem

    @property
    def theta(self) -> Parameters:
        return dict(self.student.named_parameters())


def step_on(student: nn.Module, batch: Batch, maps: Tensor) -> Step:
    """Inner and outer data are the first two rows and the last row of one batch."""
    labels = torch.tensor([0, 2, 1])
    inside, outside = batch.rows(torch.tensor([0, 1])), batch.rows(torch.tensor([2]))
    shown = maps[:2]

    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        logits, explained = functional_call(student, dict(theta), (inside,))
        return nn.functional.cross_entropy(logits, labels[:2]), explained

    def outer(theta: Parameters) -> Tensor:
        return nn.functional.cross_entropy(functional_call(student, dict(theta), (outside,))[0], labels[2:])

    def teach(phi: Tensor) -> Tensor:
        return head_mix.masked_softmax(head_mix.mix_maps(shown, phi, "sparsemax"), inside.content_mask)

    def apart(teacher: Tensor, explained: Tensor) -> Tensor:
        return head_mix.clamped_kl_divergence(teacher, explained, inside.content_mask).mean()

    phi = torch.linspace(0.1, 0.3, maps.shape[1], dtype=maps.dtype)
    return Step(student, batch, maps, phi, BilevelProblem(inner, outer, teach, apart, lr=0.1, beta=5.0))


def attentive(family: str) -> Step:
    """A transformer as the student of another one."""
    batch = batch_of(family)
    with torch.no_grad():
        maps = read_heads(tiny(family, seed=2), batch).maps
    return step_on(Simulator(tiny(family), maps.shape[1]), batch, maps)


def recurrent(dtype: torch.dtype = torch.float64) -> Step:
    """A BiLSTM student with one head; the maps of its teacher are invented."""
    draw = Generator().manual_seed(5)
    table = torch.randn(50, 6, generator=draw)
    model = Attentive(BiLSTM(4), Additive()).build(MulticlassClassification(3), table, draw).to(dtype)
    batch = texts()
    maps = torch.randn(3, 4, batch.mask.shape[1], generator=draw).to(dtype)
    return step_on(Simulator(model, 1), batch, maps)


def pilot_loss(given: Step, phi: Tensor) -> float:
    """The outer loss after a step that torch's own optimiser and clipping make on a copy of the student."""
    student, problem = copy.deepcopy(given.student), given.problem
    simulation, explained = problem.inner(dict(student.named_parameters()))
    loss = simulation + problem.beta * problem.divergence(problem.teacher_explanation(phi), explained)
    loss.backward()  # type: ignore[no-untyped-call]
    if problem.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(student.parameters(), problem.max_grad_norm)
    torch.optim.SGD(student.parameters(), lr=problem.lr).step()
    with torch.no_grad():
        return float(problem.outer(dict(student.named_parameters())))


def by_trying(given: Step, step: float = 1e-4) -> Tensor:
    """The gradient by moving each entry of phi up and down."""
    found = torch.zeros_like(given.phi)
    for place in range(len(found)):
        moved = torch.zeros_like(given.phi)
        moved[place] = step
        found[place] = (pilot_loss(given, given.phi + moved) - pilot_loss(given, given.phi - moved)) / (2 * step)
    return found


def solve(given: Step, *, forward_mode: bool = True) -> Hypergradient:
    return hypergradient(given.problem, given.theta, given.phi, forward_mode=forward_mode)


def by_double_backward(given: Step) -> Tensor:
    return double_backward(given.problem, given.theta, given.phi)[0]


def switches() -> list[bool]:
    """Whether fused libraries are on."""
    return [bool(torch.backends.mkldnn.enabled), bool(torch.backends.cudnn.enabled)]


def close(found: Tensor, expected: Tensor, relative: float) -> bool:
    """Whether the difference is small against the expected vector, which is not zero."""
    return bool(expected.norm() > 0) and bool((found - expected).norm() <= relative * expected.norm())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", pytest.param("vit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_it_is_the_derivative_of_the_optimisers_own_step(family: str, clip: float | None) -> None:
    given = attentive(family)
    given = replace(given, problem=replace(given.problem, max_grad_norm=clip))
    exact, difference, slow = solve(given), solve(given, forward_mode=False), by_double_backward(given)
    assert (exact.exact, difference.exact) == (True, False)
    assert close(exact.gradient, slow, 1e-10)
    assert close(difference.gradient, slow, 1e-6)
    tried = by_trying(given)
    for result in (exact, difference):
        assert result.clipped == (clip is not None)
        assert close(result.gradient, tried, 1e-5)
        assert result.outer_loss == pytest.approx(pilot_loss(given, given.phi), rel=1e-12)


def test_a_clipped_step_differs_from_a_step_shortened_by_a_constant() -> None:
    """The factor of clipping depends on phi: leaving that out would be wrong by far more than our tolerance."""
    given = attentive("bert")
    free = solve(given)
    clipped = solve(replace(given, problem=replace(given.problem, max_grad_norm=0.3)))
    constant = replace(given.problem, lr=given.problem.lr * 0.3 / (free.gradient_norm + 1e-6))
    shortened = hypergradient(constant, given.theta, given.phi)
    assert clipped.gradient_norm == free.gradient_norm > 0.3
    assert shortened.outer_loss == pytest.approx(clipped.outer_loss, rel=1e-12)
    assert not close(shortened.gradient, clipped.gradient, 1e-2)


def test_a_clip_that_is_not_reached_changes_nothing() -> None:
    given = attentive("bert")
    loose = solve(replace(given, problem=replace(given.problem, max_grad_norm=1e3)))
    assert not loose.clipped
    assert torch.equal(loose.gradient, solve(given).gradient)


@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_without_weight_on_the_explanation_the_gradient_is_exactly_zero(
    *, forward_mode: bool, clip: float | None
) -> None:
    given = attentive("vit")
    given = replace(given, problem=replace(given.problem, beta=0.0, max_grad_norm=clip))
    found = solve(given, forward_mode=forward_mode)
    assert torch.equal(found.gradient, torch.zeros_like(given.phi))
    assert found.outer_loss == pytest.approx(pilot_loss(given, given.phi), rel=1e-12)


@pytest.mark.parametrize("forward_mode", [True, False])
def test_the_arguments_are_not_changed(*, forward_mode: bool) -> None:
    given = attentive("bert")
    given.student.train()
    modules = {name: module.training for name, module in given.student.named_modules()}
    before = copy.deepcopy((given.student.state_dict(), given.phi, given.maps))
    chance, kernels = torch.get_rng_state(), switches()
    with torch.no_grad():
        found = solve(given, forward_mode=forward_mode)
    state, phi, maps = before
    assert all(torch.equal(tensor, state[name]) for name, tensor in given.student.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in given.student.parameters())
    assert {name: module.training for name, module in given.student.named_modules()} == modules
    assert torch.equal(given.phi, phi)
    assert not given.phi.requires_grad
    assert torch.equal(given.maps, maps)
    assert torch.equal(torch.get_rng_state(), chance)
    assert switches() == kernels == [True, True]
    assert found.gradient.any()
    assert not found.gradient.requires_grad


def test_dropout_is_the_same_in_every_pass() -> None:
    given = attentive("bert")
    given.student.train()
    calm = solve(replace(given, student=given.student.eval())).gradient
    given.student.train()
    found, slow = solve(given).gradient, by_double_backward(given)
    assert not close(found, calm, 1e-2)
    assert close(found, slow, 1e-10)
    assert close(solve(given, forward_mode=False).gradient, slow, 1e-6)


def test_the_pilot_step_is_unfused_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a card, whose fused attention has random numbers of its own."""
    given = attentive("bert")
    given.student.train()
    expected = solve(given).gradient
    fused = nn.functional.scaled_dot_product_attention

    def drawing(*inputs: Tensor, **settings: Tensor | float | None) -> Tensor:
        torch.rand(1)
        return fused(*inputs, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", drawing)
    with pytest.raises(ValueError, match="two explanations"):
        solve(given)
    monkeypatch.setattr("heedful.training.hypergradient._on_gpu", lambda weights: True)
    found = solve(given)
    assert found.exact
    assert close(found.gradient, expected, 1e-10)


def test_forward_mode_of_a_recurrent_student_disables_fused_cells() -> None:
    given = recurrent()
    assert close(solve(given).gradient, by_trying(given), 1e-5)
    single = recurrent(torch.float32)
    found, slow = solve(single), by_double_backward(single)
    assert found.exact
    assert close(found.gradient, slow, 1e-4)
    assert close(solve(single, forward_mode=False).gradient, slow, 1e-2)


class Foreign(nn.Module):
    """A student whose explainer is mixed by the sparsemax of another library, which has no forward mode."""

    def __init__(self, model: Model, maps: int) -> None:
        super().__init__()
        self.model = model
        self.phi = nn.Parameter(torch.linspace(0.2, 0.4, maps, dtype=torch.float64))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and log e_S."""
        heads = read_heads(self.model, batch)
        logits = head_mix.mix_maps(heads.maps, entmax.sparsemax(self.phi, 0), "none")
        return heads.logits, head_mix.masked_log_softmax(logits, batch.content_mask)


def test_a_central_difference_replaces_a_missing_forward_mode() -> None:
    own = attentive("bert")
    given = step_on(Foreign(tiny("bert"), own.maps.shape[1]), own.batch, own.maps)
    found = solve(given)
    assert not found.exact
    assert close(found.gradient, solve(own).gradient, 1e-6)


@pytest.mark.parametrize("length", [1e-4, 1.0, 1e4])
def test_the_step_of_a_central_difference_does_not_depend_on_the_length_of_the_direction(length: float) -> None:
    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        return theta["x"].sum(), theta["x"].sin()

    problem = BilevelProblem(inner, lambda theta: theta["x"].sum(), lambda phi: phi, _cross_entropy, 0.1, 1.0)
    theta = {"x": torch.tensor([0.3, 1.0], dtype=torch.float64)}
    direction = {"x": length * torch.tensor([0.6, -0.8], dtype=torch.float64)}
    found = _central_difference(problem, theta, direction, torch.float64)
    torch.testing.assert_close(found, theta["x"].cos() * direction["x"], rtol=1e-8, atol=0)


class Fused(nn.Module):
    """One layer of fused attention over vectors, explained by the product with their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(8, 8, generator=Generator().manual_seed(0)))

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """One number per row, and log e_S."""
        query = vectors @ self.query
        read = nn.functional.scaled_dot_product_attention(query[:, None], vectors[:, None], vectors[:, None])
        return read.sum((1, 2, 3)), (query.mean(1, keepdim=True) @ vectors.mT)[:, 0].log_softmax(-1)


def test_fused_attention_need_not_be_switched_off_by_the_caller() -> None:
    student = Fused()
    vectors = torch.randn(3, 5, 8, generator=Generator().manual_seed(1))

    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        numbers, explained = functional_call(student, dict(theta), (vectors,))
        return numbers.square().mean(), explained

    problem = BilevelProblem(
        inner, lambda theta: inner(theta)[0].sqrt(), lambda phi: phi.softmax(-1), _cross_entropy, lr=0.01, beta=1.0
    )
    phi = torch.randn(3, 5, generator=Generator().manual_seed(2))
    theta = dict(student.named_parameters())
    found = hypergradient(problem, theta, phi)
    assert found.exact
    assert close(found.gradient, hypergradient(problem, theta, phi, forward_mode=False).gradient, 0.02)
    assert close(found.gradient, double_backward(problem, theta, phi)[0], 1e-4)


def _cross_entropy(teacher: Tensor, explained: Tensor) -> Tensor:
    return -(teacher * explained).sum(-1).mean()


def scalar_problem(divergence: Callable[[Tensor, Tensor], Tensor]) -> BilevelProblem:
    """A student of one weight: S = 0, log e_S = weight * (1, 2), e_T = phi, outer loss = weight^2 / 2."""
    slopes = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    return BilevelProblem(
        inner=lambda theta: (theta["weight"].new_zeros(()), theta["weight"] * slopes),
        outer=lambda theta: theta["weight"].square() / 2,
        teacher_explanation=lambda phi: phi[None],
        divergence=divergence,
        lr=0.1,
        beta=2.0,
    )


def scalar(problem: BilevelProblem, *, forward_mode: bool = True) -> Hypergradient:
    """At weight 3 and phi (.25, .75), beside a weight that plays no part."""
    theta = {"weight": torch.tensor(3.0, dtype=torch.float64), "idle": torch.ones(2, dtype=torch.float64)}
    return hypergradient(problem, theta, torch.tensor([0.25, 0.75], dtype=torch.float64), forward_mode=forward_mode)


@pytest.mark.parametrize("forward_mode", [True, False])
def test_the_value_by_hand(*, forward_mode: bool) -> None:
    """weight' = 3 + .1 * 2 * (.25 + 2 * .75) = 3.35, outer = 3.35^2 / 2, gradient = 3.35 * .1 * 2 * (1, 2)."""
    found = scalar(scalar_problem(_cross_entropy), forward_mode=forward_mode)
    assert found.outer_loss == pytest.approx(3.35**2 / 2, rel=1e-12)
    assert found.gradient_norm == pytest.approx(2 * 1.75, rel=1e-12)
    assert found.gradient.tolist() == pytest.approx([0.67, 1.34], rel=1e-6)


@pytest.mark.parametrize("forward_mode", [True, False])
def test_a_squared_distance_works_like_a_divergence(*, forward_mode: bool) -> None:
    """D = sum (q - p)^2: dD/dweight = 2 ((3 - .25) + 2 (6 - .75)) = 26.5, weight' = 3 - .2 * 26.5 = -2.3.

    d weight' / d phi = .2 * 2 * (1, 2), gradient = -2.3 * (.4, .8).
    """
    found = scalar(
        scalar_problem(lambda teacher, explained: (explained - teacher).square().sum()), forward_mode=forward_mode
    )
    assert found.gradient.tolist() == pytest.approx([-0.92, -1.84], rel=1e-6)


def test_a_clipped_step_of_one_weight_has_almost_no_hypergradient() -> None:
    """With one weight only the sign of a clipped gradient is left, up to the 1e-6 of torch's formula."""
    for forward_mode in (True, False):
        problem = replace(scalar_problem(_cross_entropy), max_grad_norm=0.5)
        found = scalar(problem, forward_mode=forward_mode)
        assert found.clipped
        assert found.gradient.abs().max() < 1e-6
        assert found.outer_loss == pytest.approx(3.05**2 / 2, rel=1e-6)


def test_an_impure_inner_function_is_refused() -> None:
    calls: list[int] = []

    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return theta["weight"].new_zeros(()), theta["weight"] * len(calls) * torch.ones(1, 2, dtype=torch.float64)

    with pytest.raises(ValueError, match="pure function"):
        scalar(replace(scalar_problem(_cross_entropy), inner=inner))


@settings(max_examples=40, deadline=None)
@given(phi=st.lists(st.floats(-2, 2), min_size=2, max_size=8), seed=st.integers(0, 1000))
def test_heads_outside_the_sparse_mix_get_no_gradient_and_the_others_balance(phi: list[float], seed: int) -> None:
    draw = Generator().manual_seed(seed)
    maps = torch.randn(3, len(phi), 5, generator=draw, dtype=torch.float64)
    support = torch.ones(3, 5, dtype=torch.bool)
    weight = torch.randn(5, 5, generator=draw, dtype=torch.float64)
    states = torch.randn(3, 5, generator=draw, dtype=torch.float64)

    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        scores = states @ theta["weight"]
        return scores.square().mean(), head_mix.masked_log_softmax(scores, support)

    problem = BilevelProblem(
        inner=inner,
        outer=lambda theta: (states @ theta["weight"]).tanh().mean(),
        teacher_explanation=lambda given: head_mix.masked_softmax(head_mix.mix_maps(maps, given, "sparsemax"), support),
        divergence=lambda teacher, explained: head_mix.clamped_kl_divergence(teacher, explained, support).mean(),
        lr=0.1,
        beta=5.0,
    )
    given_phi = torch.tensor(phi, dtype=torch.float64)
    found = hypergradient(problem, {"weight": weight}, given_phi).gradient
    inside = head_mix.mixing_weights(given_phi, "sparsemax") > 0
    assert not found[~inside].any()
    assert found.sum().abs() <= 1e-12
    if inside.sum() > 1:
        assert found[inside].any()
