"""Mixing maps: projections against a quadratic programme and bisection, derivatives of all orders, edge cases."""

from __future__ import annotations

import math
from typing import get_args

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import rel_entr
from torch import Tensor

from heedful.attributions.head_mix import (
    MixNormalizer,
    clamped_kl_divergence,
    masked_log_softmax,
    masked_softmax,
    mean_peak_ratio,
    mix_maps,
    mixing_weights,
    temperature_for_peak,
    uniform_phi,
)
from heedful.types import UserError

NORMALISERS: tuple[MixNormalizer, ...] = get_args(MixNormalizer)
SIMPLEX: tuple[MixNormalizer, ...] = ("sparsemax", "softmax", "entmax15")
PHI = torch.tensor([0.9, 0.4, -0.3, 0.75, 0.0], dtype=torch.float64)
SUPPORT = torch.tensor([[True, True, True, False], [False, True, True, False], [False] * 4])
LOGITS = torch.tensor([[0.5, -1.0, 2.0, 9.0], [7.0, 0.1, 0.2, -3.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)


def bisected(phi: list[float], alpha: float) -> list[float]:
    """max(0, (alpha - 1) z - tau)^(1 / (alpha - 1)), with tau found by halving an interval until the sum is 1."""
    scaled = [(alpha - 1) * value for value in phi]
    low, high = max(scaled) - 1, max(scaled)
    for _ in range(100):
        tau = (low + high) / 2
        total = sum(max(0.0, value - tau) ** (1 / (alpha - 1)) for value in scaled)
        low, high = (tau, high) if total > 1 else (low, tau)
    return [max(0.0, value - tau) ** (1 / (alpha - 1)) for value in scaled]


numbers = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_sparse_coefficients_are_those_found_by_bisection_and_by_the_entmax_library(phi: list[float]) -> None:
    given_phi = torch.tensor(phi, dtype=torch.float64)
    sparse, between = mixing_weights(given_phi, "sparsemax"), mixing_weights(given_phi, "entmax15")
    assert sparse.tolist() == pytest.approx(bisected(phi, 2.0), abs=1e-9)
    assert between.tolist() == pytest.approx(bisected(phi, 1.5), abs=1e-7)
    assert sparse.tolist() == pytest.approx(entmax.sparsemax(given_phi, dim=-1).tolist(), abs=1e-12)
    assert between.tolist() == pytest.approx(entmax.entmax15(given_phi, dim=-1).tolist(), abs=1e-7)
    assert float(sparse.sum()) == pytest.approx(1)
    assert float(between.sum()) == pytest.approx(1)
    assert (sparse >= 0).all()
    assert (between >= 0).all()


def test_sparsemax_is_the_nearest_point_of_the_simplex_by_a_quadratic_programme() -> None:
    phi = PHI.numpy()
    found = minimize(
        lambda point: float(((point - phi) ** 2).sum()),
        np.full(5, 0.2),
        jac=lambda point: 2 * (point - phi),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda point: point.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    # By hand: entries 0.9, 0.75 and 0.4 stay, tau = (2.05 - 1) / 3 = 0.35.
    assert mixing_weights(PHI, "sparsemax").tolist() == pytest.approx([0.55, 0.05, 0, 0.4, 0])
    assert mixing_weights(PHI, "sparsemax").tolist() == pytest.approx(found.x.tolist(), abs=1e-6)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_the_jacobian_is_that_of_finite_differences_forwards_and_backwards(normaliser: MixNormalizer) -> None:
    backward = torch.func.jacrev(lambda phi: mixing_weights(phi, normaliser))(PHI)
    forward = torch.func.jacfwd(lambda phi: mixing_weights(phi, normaliser))(PHI)
    step = 1e-6
    for column, unit in enumerate(torch.eye(5, dtype=torch.float64)):
        ahead, behind = (mixing_weights(PHI + sign * step * unit, normaliser) for sign in (1, -1))
        slope = (ahead - behind) / (2 * step)
        assert backward[:, column].tolist() == pytest.approx(slope.tolist(), abs=1e-7)
        assert forward[:, column].tolist() == pytest.approx(slope.tolist(), abs=1e-7)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_derivatives_of_derivatives_are_those_of_finite_differences(normaliser: MixNormalizer) -> None:
    def weighed(phi: Tensor) -> Tensor:
        return mixing_weights(phi, normaliser) ** 3

    assert torch.autograd.gradgradcheck(weighed, (PHI.clone().requires_grad_(),))


@pytest.mark.parametrize("normaliser", SIMPLEX)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_phi_give_exactly_equal_shares_bit_for_bit(normaliser: MixNormalizer, dtype: torch.dtype) -> None:
    for count in range(1, 200):
        shares = mixing_weights(uniform_phi(count).to(dtype), normaliser)
        assert torch.equal(shares, torch.full((count,), 1 / count, dtype=dtype)), count


def test_an_equal_mix_is_the_plain_mean() -> None:
    maps = torch.randn(3, 144, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(mix_maps(maps, uniform_phi(144).double(), "sparsemax"), maps.mean(1))


def test_a_map_that_is_left_out_has_no_part_whatever_it_says() -> None:
    phi = torch.tensor([0.3, -1e10, 0.3])
    for normaliser in SIMPLEX:
        assert mixing_weights(phi, normaliser).tolist() == [0.5, 0.0, 0.5]


def test_a_mix_is_the_weighted_sum_of_maps() -> None:
    maps = torch.tensor([[[1.0, 2.0], [10.0, 20.0]], [[0.0, -1.0], [5.0, 5.0]]])
    phi = torch.tensor([2.0, -0.5])
    assert mix_maps(maps, phi, "none").tolist() == [[-3.0, -6.0], [-2.5, -4.5]]


def test_a_distribution_lives_on_its_support_only() -> None:
    found = masked_softmax(LOGITS, SUPPORT)
    assert found[0].tolist() == pytest.approx([*LOGITS[0, :3].softmax(0).tolist(), 0])
    assert found[1].tolist() == pytest.approx([0, *LOGITS[1, 1:3].softmax(0).tolist(), 0])
    assert found[2].tolist() == [0, 0, 0, 0]
    assert masked_log_softmax(LOGITS, SUPPORT)[~SUPPORT].tolist() == [0] * 7
    torch.testing.assert_close(masked_log_softmax(LOGITS, SUPPORT)[SUPPORT].exp(), found[SUPPORT])


def test_a_temperature_is_found_that_makes_a_distribution_as_peaked_as_wanted() -> None:
    logits = torch.tensor([[0.0, 1.0, 99.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    support = torch.tensor([[True, True, False], [False, False, False]])
    # Largest share 3/4 of two units, so 1.5 even shares: e^(1/t) = 3.
    assert temperature_for_peak(logits, support, 1.5) == pytest.approx(1 / math.log(3))
    assert mean_peak_ratio(logits / temperature_for_peak(logits, support, 1.5), support) >= 1.5
    even = torch.zeros(1, 2)
    assert mean_peak_ratio(even, support[:1, :2]) == 1.0
    assert temperature_for_peak(even, support[:1, :2], 1.5) == 1.0


def test_what_stands_off_the_support_reaches_neither_values_nor_gradients() -> None:
    wild = LOGITS.masked_fill(~SUPPORT, torch.inf)
    wild[1, 0] = torch.nan
    for logits in (LOGITS, wild):
        at = logits.clone().requires_grad_()
        found = masked_log_softmax(at, SUPPORT)
        (slope,) = torch.autograd.grad((found * torch.arange(12.0).reshape(3, 4)).sum(), at)
        assert torch.equal(found, masked_log_softmax(LOGITS, SUPPORT))
        assert torch.isfinite(slope).all()
        assert (slope[~SUPPORT] == 0).all()
        assert slope[0, :3].abs().min() > 0


def test_forward_mode_passes_through_log_distributions() -> None:
    tangent = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.func.jvp(lambda at: masked_log_softmax(at, SUPPORT), (LOGITS,), (tangent,))[1]
    ahead, behind = (masked_log_softmax(LOGITS + sign * 1e-6 * tangent, SUPPORT) for sign in (1, -1))
    torch.testing.assert_close(found, (ahead - behind) / 2e-6, rtol=0, atol=1e-8)


def test_the_divergence_is_the_relative_entropy_and_zero_between_equals() -> None:
    teacher, student = masked_softmax(LOGITS, SUPPORT), masked_softmax(-LOGITS, SUPPORT)
    found = clamped_kl_divergence(teacher, masked_log_softmax(-LOGITS, SUPPORT), SUPPORT)
    expected = rel_entr(teacher.numpy(), student.numpy()).sum(1)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert found[2] == 0
    assert clamped_kl_divergence(teacher, masked_log_softmax(LOGITS, SUPPORT), SUPPORT).tolist() == pytest.approx(
        [0, 0, 0]
    )


def test_certainty_is_clamped_as_in_the_paper() -> None:
    logits = torch.tensor([[40.0, 0.0]], dtype=torch.float64)
    support = torch.ones(1, 2, dtype=torch.bool)
    sure, unsure = 1 - 1e-7, 1e-7
    found = clamped_kl_divergence(masked_softmax(logits, support), masked_log_softmax(-logits, support), support)
    assert float(found) == pytest.approx((sure - unsure) * math.log(sure / unsure))


def test_the_gradient_of_the_divergence_is_one_plus_the_log_ratio_for_the_teacher() -> None:
    teacher = masked_softmax(LOGITS, SUPPORT).requires_grad_()
    student = masked_log_softmax(-LOGITS, SUPPORT).requires_grad_()
    total = clamped_kl_divergence(teacher, student, SUPPORT).sum()
    to_teacher, to_student = torch.autograd.grad(total, (teacher, student))
    inside = SUPPORT
    torch.testing.assert_close(to_teacher[inside], 1 + teacher[inside].log() - student[inside])
    torch.testing.assert_close(to_student[inside], -teacher[inside])
    assert (to_teacher[~inside] == 0).all()


def test_unknown_normalisers_and_empty_banks_are_refused() -> None:
    with pytest.raises(UserError, match="hardmax"):
        mixing_weights(PHI, "hardmax")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="0 maps"):
        uniform_phi(0)
