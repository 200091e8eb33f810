"""The laws of attributions, over every method of the catalogue and over options that take another path."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from heedful import catalogue
from heedful.attributions.attention import HeadAttention, RawAttention
from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.gradient import Gradient, GradientNorm, InputXGradient
from heedful.attributions.head_mix import HeadMix, StaticAttention
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.method import with_special_tokens
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.testing import check_method
from heedful.types import Batch, Method, Model, UserError
from tests.small_models import MODELS, subject

SMALLER: dict[str, Method] = {
    "lime": Lime(60),
    "kernel-shap": KernelShap(60),
    "integrated-gradients": IntegratedGradients(6),
    "layer-mix": LayerMix(n_steps=2),
}
OPTIONS: tuple[Method, ...] = (
    RawAttention(0, 1),
    HeadAttention(row="mean"),
    StaticAttention(layer=-1, score_type="logits"),
    HeadMix((1.0,), 1, 1),
    HeadMix((0.6, -0.2, 0.5, 0.4), 2, 2),
    Gradient("logit"),
    GradientNorm(1, special_tokens=True),
    InputXGradient("logit", special_tokens=True),
    GradientShap(output="logit", special_tokens=True),
    DeepLift("zero", special_tokens=True),
    DeepShap(stdevs=0.1),
    LeaveOneOut("logit"),
    Lime(60, "delete"),
    Lime(60, "unk", feature="word"),
    KernelShap(24, "delete"),
    KernelShap(60, "zero", special_tokens=True),
    Shapley("zero", output="logit"),
    Occlusion(1, "delete"),
)

EXEMPT = {
    # A sum of partial derivatives has a sign, but not that of the token's contribution.
    "gradient-sum": {"positive scores support the target"},
    # Without noise (stdevs=0) all baselines are the same; `OPTIONS` has noise.
    "deep-shap": {"another seed gives other scores"},
}
"""Laws that do not hold for the default options of a method."""


@cache
def cases() -> dict[str, tuple[Model, Batch]]:
    """Single texts, pairs, questions and transformers, in float64."""
    return {name: subject(name) for name in MODELS}


def method_of(name: str) -> Method:
    return SMALLER[name] if name in SMALLER else catalogue.METHODS[name]()


@pytest.mark.parametrize("name", sorted(catalogue.METHODS))
def test_every_method_obeys_the_laws(name: str) -> None:
    report = check_method(method_of(name))
    assert {result.law for result in report.results if not result.passed} == EXEMPT.get(name, set()), report


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(catalogue.METHODS))
def test_every_method_obeys_the_laws_on_every_input_format_and_family(name: str) -> None:
    models = cases()
    if name == "gradient-sum":
        # Behind the normalisation of a ViT gradients sum to zero, up to rounding.
        models = {each: case for each, case in models.items() if each != "vit"}
    report = check_method(method_of(name), models)
    exempt = EXEMPT["deep-shap"] if name == "deep-shap" else set()
    assert {result.law for result in report.results if not result.passed} == exempt, report
    assert "refuses" not in report.results[0].reason
    for model, batch in models.values():
        targets = (torch.full((len(batch),), label) for label in (0, 1))
        assert any(bool((method_of(name)(model, batch, target).scores != 0).any()) for target in targets)


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS, ids=repr)
def test_options_obey_the_laws(method: Method) -> None:
    report = check_method(method)
    assert report, report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw-attention", "relevance", "flow", "lime", "occlusion", "permuted-attention"])
def test_the_laws_hold_with_special_tokens(name: str) -> None:
    method = with_special_tokens(method_of(name))
    assert method != method_of(name)
    models = {each: cases()[each] for each in ("PairInput", "bert")}
    report = check_method(method, models)
    assert report, report
    model, batch = models["bert"]
    assert torch.equal(method(model, batch, torch.arange(len(batch)) % 2).mask, batch.mask)


def test_frozen_weights_and_disabled_gradients_change_no_score() -> None:
    model, batch = subject("bert")
    target = torch.arange(len(batch)) % 2
    for name in ("gradient", "integrated-gradients", "deep-lift", "attention-x-gradient"):
        expected = method_of(name)(model, batch, target).scores
        with torch.no_grad():
            assert torch.equal(method_of(name)(model, batch, target).scores, expected)
        frozen = subject("bert")[0].requires_grad_(requires_grad=False)
        assert torch.allclose(method_of(name)(frozen, batch, target).scores, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", sorted(catalogue.METHODS))
def test_a_model_in_training_mode_is_explained_without_dropout_and_stays_in_its_mode(name: str) -> None:
    model, batch = subject("bert")
    target = torch.arange(len(batch)) % 2
    expected = method_of(name)(model, batch, target).scores
    model.train().get_submodule("network.classifier").eval()
    modes = [part.training for part in model.modules()]
    assert torch.equal(method_of(name)(model, batch, target).scores, expected)
    assert [part.training for part in model.modules()] == modes
    assert True in modes
    assert False in modes


def test_the_mode_comes_back_after_an_error() -> None:
    model, batch = subject("bert")
    with pytest.raises(UserError, match="layer 7"):
        RawAttention(layer=7)(model.train(), batch, torch.zeros(len(batch), dtype=torch.long))
    assert all(part.training for part in model.modules())


DEFAULTS = {
    "raw-attention": "RawAttention(layer=None, head=None, special_tokens=False)",
    "gradient": "Gradient(output='probability')",
    "gradient-norm": "GradientNorm(order=2, output='probability', special_tokens=False)",
    "gradient-sum": "GradientSum(output='probability', special_tokens=False)",
    "input-x-gradient": "InputXGradient(output='probability', special_tokens=False)",
    "integrated-gradients": "IntegratedGradients(n_steps=50, baselines='pad', output='probability', special_tokens=False, error=None)",  # noqa: E501
    "gradient-shap": "GradientShap(n_samples=5, seed=0, baselines='pad', output='probability', special_tokens=False)",
    "deep-lift": "DeepLift(baselines='pad', output='probability', special_tokens=False)",
    "deep-shap": "DeepShap(n_baselines=2, stdevs=0.0, seed=0, baselines='pad', output='probability', special_tokens=False)",  # noqa: E501
    "leave-one-out": "LeaveOneOut(output='probability', feature='unit')",
    "occlusion": "Occlusion(window=1, baselines='pad', feature='unit', output='probability', special_tokens=False)",
    "lime": "Lime(n_samples=1000, baselines='pad', kernel_width=1.0, ridge=1.0, seed=0, feature='unit', output='probability', special_tokens=False, error=None, paired=False)",  # noqa: E501
    "kernel-shap": "KernelShap(n_samples=1000, baselines='pad', seed=0, feature='unit', output='probability', special_tokens=False, error=None)",  # noqa: E501
    "shapley": "Shapley(baselines='pad', feature='unit', output='probability', special_tokens=False)",
    "head-attention": "HeadAttention(layer=-1, head=None, row='class', special_tokens=False)",
    "static-attention": "StaticAttention(layer=None, special_tokens=False, score_type='distribution')",
    "layer-mix": "LayerMix(phi=(), normalizer='softmax', temperature=1.0, n_steps=10, baselines='pad', output='logit', score_type='logits', special_tokens=False, architecture='')",  # noqa: E501
    "rollout": "Rollout(special_tokens=False)",
    "flow": "Flow(special_tokens=False)",
    "value-norm": "ValueNorm(layer=None, row='mean', special_tokens=False)",
    "kobayashi-norm": "KobayashiNorm(layer=None, row='mean', special_tokens=False)",
    "attention-x-gradient": "AttentionXGradient(output='logit', positive=True, layer=None, row='mean', special_tokens=False)",  # noqa: E501
    "relevance": "Relevance(output='logit', special_tokens=False)",
    "random": "Random(seed=0, special_tokens=False)",
    "permuted-attention": "PermutedAttention(seed=0, special_tokens=False)",
    "randomized": "RandomizedModel(method=RawAttention(layer=None, head=None, special_tokens=False), seed=0)",
}
"""Every method where the user says nothing: as in its paper, and part of the name of what is stored."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_method_has_the_settings_of_its_paper_by_default(name: str) -> None:
    assert repr(catalogue.METHODS[name]()) == DEFAULTS[name]
