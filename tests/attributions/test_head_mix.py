"""Mixes of heads: projections against oracles, derivatives of all orders, static attention by hand, files, ridge."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import rel_entr
from sklearn.linear_model import Ridge
from torch import Generator, Tensor

from heedful.attributions.head_mix import (
    HeadMix,
    MixNormalizer,
    StaticAttention,
    check_explainer_folder,
    clamped_kl_divergence,
    fit_ridge_mix,
    masked_log_softmax,
    masked_softmax,
    mean_peak_ratio,
    mix_maps,
    mixing_weights,
    temperature_for_peak,
    uniform_phi,
)
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.method import method_name
from heedful.tasks import MulticlassClassification
from heedful.types import Batch, Model, UserError
from tests.networks import FAMILIES, TinyTransformer, batch_of, texts, tiny
from tests.small_models import pooled

NORMALISERS: tuple[MixNormalizer, ...] = get_args(MixNormalizer)


SIMPLEX: tuple[MixNormalizer, ...] = ("sparsemax", "softmax", "entmax15")


VECTOR_PHI = torch.tensor([0.9, 0.4, -0.3, 0.75, 0.0], dtype=torch.float64)


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
    phi = VECTOR_PHI.numpy()
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
    assert mixing_weights(VECTOR_PHI, "sparsemax").tolist() == pytest.approx([0.55, 0.05, 0, 0.4, 0])
    assert mixing_weights(VECTOR_PHI, "sparsemax").tolist() == pytest.approx(found.x.tolist(), abs=1e-6)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_the_jacobian_is_that_of_finite_differences_forwards_and_backwards(normaliser: MixNormalizer) -> None:
    backward = torch.func.jacrev(lambda phi: mixing_weights(phi, normaliser))(VECTOR_PHI)
    forward = torch.func.jacfwd(lambda phi: mixing_weights(phi, normaliser))(VECTOR_PHI)
    step = 1e-6
    for column, unit in enumerate(torch.eye(5, dtype=torch.float64)):
        ahead, behind = (mixing_weights(VECTOR_PHI + sign * step * unit, normaliser) for sign in (1, -1))
        slope = (ahead - behind) / (2 * step)
        assert backward[:, column].tolist() == pytest.approx(slope.tolist(), abs=1e-7)
        assert forward[:, column].tolist() == pytest.approx(slope.tolist(), abs=1e-7)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_derivatives_of_derivatives_are_those_of_finite_differences(normaliser: MixNormalizer) -> None:
    def weighed(phi: Tensor) -> Tensor:
        return mixing_weights(phi, normaliser) ** 3

    assert torch.autograd.gradgradcheck(weighed, (VECTOR_PHI.clone().requires_grad_(),))


@pytest.mark.parametrize("normaliser", SIMPLEX)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_phi_give_exactly_equal_shares_bit_for_bit(normaliser: MixNormalizer, dtype: torch.dtype) -> None:
    for count in range(1, 200):
        shares = mixing_weights(uniform_phi(count).to(dtype), normaliser)
        assert torch.equal(shares, torch.full((count,), 1 / count, dtype=dtype)), count


def test_an_equal_mix_is_the_plain_mean() -> None:
    maps = torch.randn(3, 144, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(mix_maps(maps, uniform_phi(144).double(), "sparsemax"), maps.mean(1))


def test_a_map_that_is_left_out_has_no_influence() -> None:
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


def test_what_is_off_the_support_reaches_neither_values_nor_gradients() -> None:
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
        mixing_weights(VECTOR_PHI, "hardmax")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="0 maps"):
        uniform_phi(0)


TARGET = torch.tensor([0, 1, 2])


PHI = torch.tensor([[0.6, -0.2], [0.5, 0.4]])


EXCLUDED = -1e10


def literal_maps(model: Model, batch: Batch) -> Tensor:
    """Mean scores over real rows of every head, `[batch map unit]`, from the scores of all pairs."""
    scores = model(batch).scores
    assert scores is not None
    rows = batch.mask.double() / batch.lengths[:, None]
    return torch.einsum("blhqu,bq->blhu", scores, rows).flatten(1, 2).detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_uniform_mix_is_static_attention_bit_for_bit(family: str) -> None:
    batch = batch_of(family)
    for model in (tiny(family), tiny(family).float()):
        static = StaticAttention()(model, batch, TARGET).scores
        assert torch.equal(HeadMix.from_phi(torch.full((2, 2), 0.25))(model, batch, TARGET).scores, static)
        last = StaticAttention(layer=-1)(model, batch, TARGET).scores
        only_last = HeadMix.from_phi(torch.tensor([[EXCLUDED, EXCLUDED], [0.5, 0.5]]))
        torch.testing.assert_close(only_last(model, batch, TARGET).scores, last)
        assert not torch.allclose(static, last, atol=1e-3)


def test_static_attention_is_the_softmax_over_words_of_the_mean_of_all_heads() -> None:
    model, batch = tiny("bert"), texts()
    maps = literal_maps(model, batch)
    found = StaticAttention()(model, batch, TARGET).scores
    with_specials = StaticAttention(special_tokens=True)(model, batch, TARGET)
    logits = StaticAttention(score_type="logits")(model, batch, TARGET).scores
    for row in range(3):
        scored, real = batch.content_mask[row], batch.mask[row]
        torch.testing.assert_close(found[row, scored], maps[row].mean(0)[scored].softmax(0))
        torch.testing.assert_close(with_specials.scores[row, real], maps[row].mean(0)[real].softmax(0))
        torch.testing.assert_close(logits[row, scored], maps[row].mean(0)[scored])
    assert torch.equal(with_specials.mask, batch.mask)
    assert (logits[~batch.content_mask] == 0).all()


@pytest.mark.parametrize("normaliser", ["sparsemax", "softmax", "entmax15", "none"])
def test_a_head_mix_weighs_heads_layer_by_layer(normaliser: MixNormalizer) -> None:
    model, batch = tiny("distilbert"), texts()
    weights = mixing_weights(PHI.double().flatten(), normaliser)
    mixture = torch.einsum("m,bmu->bu", weights, literal_maps(model, batch))
    mix = HeadMix.from_phi(PHI, model, normaliser)
    found = mix(model, batch, TARGET).scores
    for row in range(3):
        scored = batch.content_mask[row]
        torch.testing.assert_close(found[row, scored], mixture[row, scored].softmax(0))
    assert torch.equal(mix.coefficients.flatten(), weights)
    assert mix.architecture == "distilbert, 2 layers, 2 heads, width 16"


def test_one_head_alone_is_its_map() -> None:
    model, batch = tiny("bert"), texts()
    mix = replace(HeadMix.from_phi(torch.tensor([[EXCLUDED, EXCLUDED], [1.0, EXCLUDED]])), score_type="logits")
    assert mix.coefficients.tolist() == [[0, 0], [1, 0]]
    found = mix(model, batch, TARGET).scores
    torch.testing.assert_close(found, literal_maps(model, batch)[:, 2].masked_fill(~batch.content_mask, 0))


def test_numbers_that_make_no_mix_are_refused() -> None:
    with pytest.raises(UserError, match="3 numbers in phi for 2 layers of 2 heads"):
        HeadMix((0.1, 0.2, 0.3), 2, 2)
    with pytest.raises(UserError, match="0 layers"):
        HeadMix((), 0, 2)
    with pytest.raises(UserError, match="0 heads"):
        HeadMix((), 2, 0)
    assert HeadMix((1.0,), 1, 1).coefficients.tolist() == [[1.0]]
    with pytest.raises(UserError, match="not finite"):
        HeadMix((0.1, float("nan")), 1, 2)
    with pytest.raises(UserError, match="ranks"):
        StaticAttention(score_type="ranks")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="layer 2"):
        StaticAttention(layer=2)(tiny("bert"), texts(), TARGET)


def test_a_saved_mix_comes_back_whole(tmp_path: Path) -> None:
    mix = HeadMix.from_phi(PHI / 3, tiny("bert"), "entmax15")
    mix = replace(mix, score_type="logits", special_tokens=True)
    mix.save(tmp_path / "new" / "explainer")
    assert HeadMix.load(tmp_path / "new" / "explainer") == mix
    assert [path.name for path in (tmp_path / "new" / "explainer").iterdir()] == ["explainer.json"]
    other = LayerMix((0.5, 0.25), temperature=0.5, architecture="bert").with_parameters(
        torch.tensor([1.0, 2, 0]), tiny("bert")
    )
    other.save(str(tmp_path / "layers"))
    assert LayerMix.load(tmp_path / "layers") == other


@pytest.mark.parametrize(
    "change",
    [{"layers": 3}, {"heads": 4}, {"width": 32}, {"family": "electra"}],
    ids=lambda change: "-".join(change),
)
def test_a_mix_is_refused_by_a_model_of_another_architecture(change: dict[str, int | str]) -> None:
    mix = HeadMix.from_phi(PHI, tiny("bert"))
    mix(tiny("bert", seed=9), texts(), TARGET)
    plan = replace(TinyTransformer("bert"), **change)  # type: ignore[arg-type]
    other = plan.build(MulticlassClassification(3), None, Generator().manual_seed(0))
    with pytest.raises(UserError, match="learned for bert, 2 layers, 2 heads, width 16, but the model is") as refused:
        mix(other, texts(), TARGET)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="but the model has 1 of 1"):
        replace(mix, architecture="")(pooled(), texts(), TARGET)
    with pytest.raises(UserError, match="LayerMix was learned for"):
        LayerMix().with_parameters(torch.zeros(3), tiny("bert"))(other, texts(), TARGET)


def _without_file(folder: Path) -> None:
    (folder / "explainer.json").unlink()


def _half_settings(folder: Path) -> None:
    (folder / "explainer.json").write_text('{"kind": "HeadMix", ')


def _change(folder: Path, **fields: str | list[float] | None) -> None:
    settings = json.loads((folder / "explainer.json").read_text())
    (folder / "explainer.json").write_text(json.dumps(settings | fields))


def _other_normaliser(folder: Path) -> None:
    _change(folder, normalizer="hardmax")


def _layer_mix(folder: Path) -> None:
    LayerMix((0.1, 0.2)).save(folder)


def _other_shape(folder: Path) -> None:
    _change(folder, phi=[0.0] * 12)


def _not_finite(folder: Path) -> None:
    _change(folder, phi=[float("nan")] * 4)


def _no_numbers(folder: Path) -> None:
    _change(folder, phi=None)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_file, "explainer.json is missing"),
        (_half_settings, "cannot be read"),
        (_other_normaliser, "normalizer: "),
        (_layer_mix, "not a HeadMix"),
        (_other_shape, "12 numbers in phi for 2 layers of 2 heads"),
        (_not_finite, "cannot be read"),
        (_no_numbers, "phi"),
    ],
)
def test_a_file_that_is_no_head_mix_is_refused_in_one_line(tmp_path: Path, damage: object, words: str) -> None:
    HeadMix.from_phi(PHI).save(tmp_path)
    assert callable(damage)
    damage(tmp_path)
    with pytest.raises(UserError, match=words) as refused:
        HeadMix.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_folder_that_does_not_exist_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no explainer in .*nowhere"):
        HeadMix.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write an explainer to .*file"):
        HeadMix.from_phi(PHI).save(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs an unreadable file")
def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    HeadMix.from_phi(PHI).save(tmp_path)
    (tmp_path / "explainer.json").unlink()
    (tmp_path / "explainer.json").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match="Input/output error"):
        HeadMix.load(tmp_path)


def test_an_explainer_that_cannot_be_written_leaves_the_old_one_whole_and_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HeadMix.from_phi(PHI).save(tmp_path)

    def fail(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="not permitted"):
        HeadMix.from_phi(PHI + 1).save(tmp_path)
    monkeypatch.undo()
    assert HeadMix.load(tmp_path) == HeadMix.from_phi(PHI)
    assert [path.name for path in tmp_path.iterdir()] == ["explainer.json"]
    (tmp_path / "explainer.json").unlink()
    (tmp_path / "explainer.json").mkdir()
    for write in (HeadMix.from_phi(PHI + 1).save, check_explainer_folder):
        with pytest.raises(UserError, match=r"explainer\.json is a folder"):
            write(tmp_path)
    check_explainer_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_ridge_mix_is_that_of_scikit_learn_with_a_constant_for_each_text() -> None:
    draw = Generator().manual_seed(4)
    maps = torch.randn(4, 3, 6, generator=draw, dtype=torch.float64)
    effects = torch.randn(4, 6, generator=draw, dtype=torch.float64)
    support = torch.arange(6) < torch.tensor([[6], [3], [5], [1]])
    features, values = [], []
    for text, effect, units in zip(maps.numpy(), effects.numpy(), support.numpy(), strict=True):
        features.append((text[:, units] - text[:, units].mean(1, keepdims=True)).T)
        values.append(effect[units] - effect[units].mean())
    for strength in (0.3, 10.0):
        oracle = Ridge(alpha=strength, fit_intercept=False).fit(np.concatenate(features), np.concatenate(values))
        found = fit_ridge_mix(maps, effects.masked_fill(~support, torch.nan), support, strength)
        assert found.tolist() == pytest.approx(oracle.coef_.tolist(), abs=1e-10)
    planted = torch.einsum("m,bmu->bu", torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64), maps) + 3
    assert fit_ridge_mix(maps, planted, support, 0.0).tolist() == pytest.approx([0.5, -2.0, 0.0])


def test_a_learned_mix_has_a_short_name_of_its_own() -> None:
    phi = tuple(1 / 72 + place / 1e4 for place in range(72))
    mix = HeadMix(phi, 6, 12, architecture="BertForSequenceClassification with 6 layers")
    name = method_name(mix)
    assert name.startswith("learned-head-mix(72-of-72-heads,")
    assert len(name) < 50
    others = (
        replace(mix, phi=(*phi[1:], phi[0])),
        replace(mix, layers=12, heads=6),
        replace(mix, normalizer="softmax"),
        replace(mix, score_type="logits"),
    )
    assert len({name, *map(method_name, others)}) == 5
    learned = LayerMix((0.1, 0.2), temperature=0.123456789)
    assert method_name(learned).startswith("learned-layer-mix(2-of-2-layers,")
    assert method_name(learned) != method_name(replace(learned, temperature=0.12345678))
    assert "0.123" not in method_name(learned)
    assert method_name(LayerMix(n_steps=20)) == "layer-mix(n_steps-20)", "nothing is learned"
