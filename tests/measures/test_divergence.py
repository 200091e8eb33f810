"""Divergences against hand values, SciPy, a literal loop, and their own laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, kullback_leibler, total_variation

PEAKED = torch.tensor([0.7, 0.2, 0.05, 0.05], dtype=torch.float64)
UNIFORM = torch.full((4,), 0.25, dtype=torch.float64)
weights = st.lists(st.sampled_from([0.0, 1e-12, 0.01, 0.3, 1.0, 7.0]), min_size=6, max_size=6).filter(any)


def distribution(raw: list[float]) -> Tensor:
    tensor = torch.tensor(raw, dtype=torch.float64)
    return tensor / tensor.sum()


def one_hot(units: int, at: int) -> Tensor:
    return torch.eye(units, dtype=torch.float64)[at]


def test_two_disjoint_distributions_are_ln_2_apart() -> None:
    assert jensen_shannon(one_hot(2, 0), one_hot(2, 1)).item() == pytest.approx(0.693147, abs=5e-7)


@pytest.mark.parametrize(
    ("units", "expected"), [(2, 0.215762), (5, 0.422810), (10, 0.525597), (19, 0.588665), (50, 0.643928)]
)
def test_a_single_unit_is_as_far_from_uniform_as_the_specification_says(units: int, expected: float) -> None:
    uniform = torch.full((units,), 1 / units, dtype=torch.float64)
    assert jensen_shannon(uniform, one_hot(units, 0)).item() == pytest.approx(expected, abs=5e-7)
    assert jensen_shannon_bound(uniform).item() == pytest.approx(expected, abs=5e-7)


def test_a_peaked_distribution_has_the_divergences_of_the_specification() -> None:
    assert jensen_shannon(PEAKED, PEAKED.flip(0)).item() == pytest.approx(0.384349, abs=5e-7)
    assert jensen_shannon(PEAKED, UNIFORM).item() == pytest.approx(0.129654, abs=5e-7)
    assert kullback_leibler(PEAKED, UNIFORM).item() == pytest.approx(0.515161, abs=5e-7)
    assert kullback_leibler(UNIFORM, PEAKED).item() == pytest.approx(0.603100, abs=5e-7)


def test_total_variation_is_half_the_sum_over_classes() -> None:
    first, second = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.6, 0.3])
    assert total_variation(first, second).item() == pytest.approx(0.6, abs=1e-6)


def test_a_sigmoid_pair_has_the_scale_of_jain_and_wallace_when_written_as_two_classes() -> None:
    first, second = torch.tensor([0.1, 0.9]), torch.tensor([0.4, 0.6])
    assert total_variation(first, second).item() == pytest.approx(0.30, abs=1e-6)
    only_the_positive_class = total_variation(first[1:], second[1:]).item()
    assert only_the_positive_class == pytest.approx(0.15, abs=1e-6), "the scale of Wiegreffe and Pinter"


def test_attefa_is_scaled_variation_over_scaled_divergence() -> None:
    first, second = torch.tensor([0.1, 0.9]).double(), torch.tensor([0.4, 0.6]).double()
    divergence = jensen_shannon(PEAKED, PEAKED.flip(0))
    halved = total_variation(first[1:], second[1:])
    expected = pytest.approx(0.541029, abs=5e-7)
    assert ((halved / 0.5) / (divergence / math.log(2))).item() == expected
    assert (total_variation(first, second) / (divergence / math.log(2))).item() == expected


@settings(max_examples=60, deadline=None)
@given(weights, weights)
def test_divergences_equal_scipy(first: list[float], second: list[float]) -> None:
    p, q = distribution(first), distribution(second)
    assert jensen_shannon(p, q).item() == pytest.approx(jensenshannon(p.numpy(), q.numpy()) ** 2, abs=1e-12)
    assert kullback_leibler(p, q).item() == pytest.approx(
        float(special.rel_entr(p.numpy(), q.numpy()).sum()), rel=1e-12, abs=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(weights, weights)
def test_jensen_shannon_is_symmetric_and_stays_under_the_bound_of_either_side(
    first: list[float], second: list[float]
) -> None:
    p, q = distribution(first), distribution(second)
    there, back = jensen_shannon(p, q).item(), jensen_shannon(q, p).item()
    assert there == pytest.approx(back, abs=1e-15)
    assert -1e-15 <= there <= min(jensen_shannon_bound(p).item(), jensen_shannon_bound(q).item()) + 1e-12


@settings(max_examples=60, deadline=None)
@given(weights)
def test_a_distribution_is_at_distance_exactly_zero_from_itself_even_in_single_precision(
    raw: list[float],
) -> None:
    p = distribution(raw).float()
    assert jensen_shannon(p, p).item() == 0.0
    assert kullback_leibler(p, p).item() == 0.0


def test_mass_where_the_other_has_none_makes_kullback_leibler_infinite_only_one_way() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    assert kullback_leibler(p, q).item() == math.inf
    assert kullback_leibler(q, p).item() == pytest.approx(math.log(2))


def test_subnormal_weights_neither_blow_up_nor_vanish_into_nan() -> None:
    p, q = torch.tensor([1.0, 1e-45]), torch.tensor([1.0, 0.0])
    assert jensen_shannon(p, q).item() == 0.0
    assert jensen_shannon(p, q.flip(0)).item() == pytest.approx(math.log(2), abs=1e-6)
    assert math.isfinite(kullback_leibler(p, p.flip(0)).item())


def test_gradients_are_finite_where_either_side_is_zero() -> None:
    p = torch.tensor([0.0, 0.6, 0.4, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    for loss in (jensen_shannon(p, q), kullback_leibler(p, q), jensen_shannon_bound(p)):
        for gradient in torch.autograd.grad(loss, (p, q), allow_unused=True):
            assert gradient is None or bool(gradient.isfinite().all())


def test_an_empty_unit_of_p_or_an_infinite_term_sends_no_gradient() -> None:
    p = torch.tensor([0.0, 0.6, 0.4], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    by_p, by_q = torch.autograd.grad(kullback_leibler(p, q), (p, q))
    assert by_p.tolist() == pytest.approx([0.0, math.log(0.6 / 0.5) + 1, 0.0])
    assert by_q.tolist() == pytest.approx([0.0, -0.6 / 0.5, 0.0])
    (by_p,) = torch.autograd.grad(jensen_shannon(p, q), p)
    assert by_p[0].item() == pytest.approx(-0.5), "through the middle only: -½ q / (p + q)"


def test_gradients_equal_the_hand_derivatives_inside_the_simplex() -> None:
    p = PEAKED.clone().requires_grad_()
    q = PEAKED.flip(0).clone().requires_grad_()
    middle = (PEAKED + PEAKED.flip(0)) / 2
    (along_p,) = torch.autograd.grad(jensen_shannon(p, q), p)
    assert torch.allclose(along_p, 0.5 * torch.log(PEAKED / middle))
    by_p, by_q = torch.autograd.grad(kullback_leibler(p, q), (p, q))
    assert torch.allclose(by_p, torch.log(PEAKED / PEAKED.flip(0)) + 1)
    assert torch.allclose(by_q, -PEAKED / PEAKED.flip(0))


def test_values_off_the_mask_change_neither_value_nor_gradient() -> None:
    mask = torch.tensor([True, True, True, True, False, False])
    rubbish = torch.tensor([math.nan, 3.0], dtype=torch.float64)
    p = torch.cat((PEAKED, rubbish)).requires_grad_()
    q = torch.cat((UNIFORM, rubbish.flip(0))).requires_grad_()
    for measure in (jensen_shannon, kullback_leibler):
        value = measure(p, q, mask)
        assert value.item() == measure(PEAKED, UNIFORM).item()
        for gradient in torch.autograd.grad(value, (p, q)):
            assert bool(gradient[:4].abs().sum() > 0)
            assert bool((gradient[4:] == 0).all())
    assert jensen_shannon_bound(p, mask).item() == jensen_shannon_bound(PEAKED).item()


def test_nan_on_a_real_unit_is_not_hidden() -> None:
    broken = torch.tensor([math.nan, 1.0])
    whole = torch.tensor([0.0, 1.0])
    for value in (
        jensen_shannon(broken, whole),
        jensen_shannon(whole, broken),
        kullback_leibler(broken, whole),
        kullback_leibler(whole, broken),
    ):
        assert math.isnan(value.item())


def test_batched_rows_equal_the_rows_one_by_one_and_leading_axes_broadcast() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.softmax(3 * torch.randn(4, 1, 7, generator=generator), -1)
    q = torch.softmax(3 * torch.randn(4, 3, 7, generator=generator), -1)
    mask = torch.arange(7) < torch.tensor([7, 5, 2, 1])[:, None, None]
    for measure in (jensen_shannon, kullback_leibler):
        together = measure(p, q, mask)
        assert together.shape == (4, 3)
        for row in range(4):
            real = mask[row, 0]
            for column in range(3):
                alone = measure(p[row, 0][real], q[row, column][real])
                assert together[row, column].item() == pytest.approx(alone.item(), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(weights)
def test_the_bound_is_the_largest_divergence_to_any_single_unit(raw: list[float]) -> None:
    p = distribution(raw)
    to_units = jensen_shannon(p, torch.eye(6, dtype=torch.float64))
    assert jensen_shannon_bound(p).item() == pytest.approx(to_units.max().item(), abs=1e-12)


def test_the_bound_of_one_unit_and_of_no_unit_is_zero() -> None:
    assert jensen_shannon_bound(torch.tensor([1.0, 0.3]), torch.tensor([True, False])).item() == pytest.approx(0)
    assert jensen_shannon_bound(torch.tensor([0.4, 0.3]), torch.tensor([False, False])).item() == pytest.approx(0)
    assert jensen_shannon_bound(torch.zeros(2, 0)).tolist() == [0.0, 0.0]


def test_the_bounds_printed_for_uniform_attention_are_met() -> None:
    for units, expected in ((5, 0.4228), (10, 0.5256), (19, 0.5887), (50, 0.6439), (179, 0.6759)):
        assert jensen_shannon_bound(torch.full((units,), 1 / units)).item() == pytest.approx(expected, abs=5e-5)
