"""Mixes of heads and of layers: static attention by hand, completeness of every layer, files, and the ridge rival."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import Ridge
from torch import Generator, Tensor

from heedful.attributions.head_mix import (
    HeadMix,
    MixNormalizer,
    StaticAttention,
    check_explainer_folder,
    fit_ridge_mix,
    mixing_weights,
)
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.models.small_transformers import ScalarMix
from heedful.models.transformer import FAMILIES, TinyTransformer
from heedful.tasks import MulticlassClassification
from heedful.types import Batch, LayerInput, Method, Model, UserError, read_heads, read_layers
from tests.attention_laws import MODELS, check_laws, pooled, subject
from tests.networks import batch_of, texts, tiny

TARGET = torch.tensor([0, 1, 2])
PHI = torch.tensor([[0.6, -0.2], [0.5, 0.4]])
EXCLUDED = -1e10


def literal_maps(model: Model, batch: Batch) -> Tensor:
    """Mean scores over real rows of every head, `[batch map unit]`, from the scores of all pairs."""
    scores = model(batch).scores
    assert scores is not None
    rows = batch.mask.double() / batch.lengths[:, None]
    return torch.einsum("blhqu,bq->blhu", scores, rows).flatten(1, 2).detach()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "method", [StaticAttention(), StaticAttention(layer=-1), LayerMix(n_steps=2)], ids=lambda m: type(m).__name__
)
def test_mixes_obey_the_laws_of_attributions(method: Method, name: str) -> None:
    check_laws(method, name)


@pytest.mark.parametrize("name", ["SingleInput", "bert", "vit"])
def test_a_head_mix_obeys_the_laws_of_attributions(name: str) -> None:
    check_laws(HeadMix.from_phi(torch.ones(1, 1) if name == "SingleInput" else PHI, subject(name)[0]), name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_uniform_mix_is_static_attention_bit_for_bit(family: str) -> None:
    batch = batch_of(family)
    for model in (tiny(family), tiny(family).float()):
        static = StaticAttention()(model, batch, TARGET).scores
        assert torch.equal(HeadMix.uniform(2, 2)(model, batch, TARGET).scores, static)
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
        HeadMix.uniform(0, 2)
    with pytest.raises(UserError, match="not finite"):
        HeadMix((0.1, float("nan")), 1, 2)
    with pytest.raises(UserError, match="ranks"):
        StaticAttention(score_type="ranks")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no layer 2"):
        StaticAttention(layer=2)(tiny("bert"), texts(), TARGET)


def test_a_saved_mix_comes_back_whole_from_safetensors_and_json(tmp_path: Path) -> None:
    mix = replace(HeadMix.from_phi(PHI / 3, tiny("bert"), "entmax15", special_tokens=True), score_type="logits")
    mix.save(tmp_path / "new" / "explainer")
    assert HeadMix.load(tmp_path / "new" / "explainer") == mix
    assert sorted(path.name for path in (tmp_path / "new" / "explainer").iterdir()) == [
        "explainer.json",
        "explainer.safetensors",
    ]
    phi = load_file(tmp_path / "new" / "explainer" / "explainer.safetensors")["phi"]
    assert torch.equal(phi, (PHI / 3).double())
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
    mix.check_model(tiny("bert", seed=9))
    plan = replace(TinyTransformer("bert"), **change)  # type: ignore[arg-type]
    other = plan.build(MulticlassClassification(3), None, Generator().manual_seed(0))
    with pytest.raises(UserError, match="learned for bert, 2 layers, 2 heads, width 16, but the model is") as refused:
        mix(other, texts(), TARGET)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="but the model has 1 of 1"):
        replace(mix, architecture="")(pooled(), texts(), TARGET)
    with pytest.raises(UserError, match="LayerMix was learned for"):
        LayerMix().with_parameters(torch.zeros(3), tiny("bert"))(other, texts(), TARGET)


def _without_numbers(folder: Path) -> None:
    (folder / "explainer.safetensors").unlink()


def _cut(folder: Path) -> None:
    file = folder / "explainer.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def _half_settings(folder: Path) -> None:
    (folder / "explainer.json").write_text('{"kind": "HeadMix", ')


def _other_normaliser(folder: Path) -> None:
    settings = json.loads((folder / "explainer.json").read_text())
    (folder / "explainer.json").write_text(json.dumps(settings | {"normalizer": "hardmax"}))


def _layer_mix(folder: Path) -> None:
    LayerMix((0.1, 0.2)).save(folder)


def _other_shape(folder: Path) -> None:
    save_file({"phi": torch.zeros(4, 3)}, folder / "explainer.safetensors")


def _not_finite(folder: Path) -> None:
    save_file({"phi": torch.full((2, 2), torch.nan)}, folder / "explainer.safetensors")


def _another_name(folder: Path) -> None:
    save_file({"weights": torch.zeros(2, 2)}, folder / "explainer.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_numbers, "explainer.safetensors is missing"),
        (_cut, "cannot be read"),
        (_half_settings, "cannot be read"),
        (_other_normaliser, "normalizer: "),
        (_layer_mix, "not a HeadMix"),
        (_other_shape, "12 numbers in phi for 2 layers of 2 heads"),
        (_not_finite, "cannot be read"),
        (_another_name, "phi"),
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
    with pytest.raises(UserError, match=r"there is no explainer in .*nowhere"):
        HeadMix.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write an explainer to .*file"):
        HeadMix.from_phi(PHI).save(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs a file that nobody can read")
def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    HeadMix.from_phi(PHI).save(tmp_path)
    (tmp_path / "explainer.json").unlink()
    (tmp_path / "explainer.json").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match="Input/output error"):
        HeadMix.load(tmp_path)


def test_an_explainer_that_cannot_be_written_leaves_the_old_one_whole_and_nothing_aside(tmp_path: Path) -> None:
    HeadMix.from_phi(PHI).save(tmp_path)
    before = (tmp_path / "explainer.safetensors").read_bytes()
    (tmp_path / "explainer.json").unlink()
    (tmp_path / "explainer.json").mkdir()
    for write in (HeadMix.from_phi(PHI + 1).save, check_explainer_folder):
        with pytest.raises(UserError, match=r"explainer\.json is a folder"):
            write(tmp_path)
    assert (tmp_path / "explainer.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"explainer.json", "explainer.safetensors"}
    (tmp_path / "other" / "explainer.safetensors").mkdir(parents=True)
    with pytest.raises(UserError, match=r"explainer\.safetensors is a folder"):
        HeadMix.from_phi(PHI).save(tmp_path / "other")
    check_explainer_folder(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


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
    with pytest.raises(UserError, match="strength=-1"):
        fit_ridge_mix(maps, effects, support, -1)


@pytest.mark.parametrize("family", ["bert", "electra", "vit"])
def test_the_shares_of_every_layer_add_up_to_the_change_of_the_output(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    method = LayerMix(n_steps=60, special_tokens=True)
    maps, missing = method.maps(model, batch, TARGET)
    blank = replace(batch, inputs=torch.zeros_like(batch.inputs))
    with torch.no_grad():
        change = (model(batch).logits - model(blank).logits).gather(1, TARGET[:, None])
    torch.testing.assert_close(maps.sum(2), change.expand(3, 2), rtol=0, atol=1e-9)
    assert missing.abs().max() < 1e-9
    assert LayerMix(n_steps=1).maps(model, batch, TARGET)[1].abs().max() > 1e-6


def test_at_the_first_layer_shares_are_integrated_gradients_of_the_embeddings() -> None:
    target = torch.tensor([0, 1, 1])
    for model, method in ((tiny("bert"), LayerMix((1.0, 0.0), "none", n_steps=7)), (pooled(), LayerMix(n_steps=7))):
        expected = IntegratedGradients(n_steps=7, output="logit")(model, texts(), target)
        torch.testing.assert_close(method(model, texts(), target).scores, expected.scores)


def test_in_a_layer_shares_are_the_mean_slope_times_the_way_step_by_step() -> None:
    model, batch = tiny("bert"), texts().rows(torch.tensor([1]))
    blank = replace(batch, inputs=batch.inputs.masked_fill(batch.content_mask, 0))
    with torch.no_grad():
        embeddings, others = model(batch).embeddings, model(blank).embeddings
        text, reference = (read_layers(model, batch, start).inputs[1] for start in (embeddings, others))
    total = torch.zeros_like(text)
    steps = 60
    for step in range(steps):
        at = (reference + (step + 0.5) / steps * (text - reference)).requires_grad_()
        logit = read_layers(model, batch, embeddings, LayerInput(1, at)).logits[0, 2]
        total += torch.autograd.grad(logit, at)[0] / steps
    literal = (total * (text - reference)).sum(-1).masked_fill(~batch.content_mask, 0)
    found = LayerMix(n_steps=30).maps(model, batch, TARGET[2:])[0][:, 1]
    torch.testing.assert_close(found, literal, rtol=0, atol=1e-5)


def test_the_input_of_a_layer_can_be_put_back_and_decides_all_above_it() -> None:
    for family in FAMILIES:
        model, batch = tiny(family), batch_of(family)
        with torch.no_grad():
            trace = model(batch)
            own = read_layers(model, batch, trace.embeddings)
            assert len(own.inputs) == 2
            torch.testing.assert_close(own.logits, trace.logits)
            for layer in (0, 1):
                same = read_layers(model, batch, trace.embeddings, LayerInput(layer, own.inputs[layer].clone()))
                torch.testing.assert_close(same.logits, trace.logits)
            flipped = read_layers(model, batch, trace.embeddings.flip(0)).inputs[1].clone()
            found = read_layers(model, batch, trace.embeddings, LayerInput(1, flipped)).logits
        assert not torch.allclose(found, trace.logits, atol=1e-3)
        assert torch.equal(model(batch).embeddings, trace.embeddings)


def test_a_head_over_all_layers_sees_the_replaced_input_too() -> None:
    plan = ScalarMix(TinyTransformer("bert"))
    model = plan.build(MulticlassClassification(3), None, Generator().manual_seed(1)).double()
    maps, missing = LayerMix(n_steps=40).maps(model, texts(), TARGET)
    assert missing.abs().max() < 1e-9
    assert maps[:, 1].abs().max() > 1e-3
    heads = read_heads(model, texts())
    torch.testing.assert_close(heads.logits, model(texts()).logits)


def test_a_layer_mix_weighs_layers_and_divides_by_its_temperature() -> None:
    model, batch = tiny("bert"), texts()
    start = LayerMix(n_steps=3, internal_batch_size=4)
    maps, _ = start.maps(model, batch, TARGET)
    torch.testing.assert_close(start(model, batch, TARGET).scores, maps.mean(1))
    learned = start.with_parameters(torch.tensor([1.0, 0.0, np.log(0.5)]), model)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(0)
    expected = 2 * torch.einsum("l,blu->bu", weights, maps)
    torch.testing.assert_close(learned(model, batch, TARGET).scores, expected)
    torch.testing.assert_close(learned.coefficients, weights)
    shown = replace(learned, score_type="distribution")(model, batch, TARGET).scores
    for row in range(3):
        scored = batch.content_mask[row]
        torch.testing.assert_close(shown[row, scored], expected[row, scored].softmax(0))


def test_settings_that_make_no_layer_mix_are_refused() -> None:
    with pytest.raises(UserError, match="temperature=0"):
        LayerMix(temperature=0)
    with pytest.raises(UserError, match="n_steps=0"):
        LayerMix(n_steps=0)
    with pytest.raises(UserError, match="not finite"):
        LayerMix((float("inf"),))
    with pytest.raises(UserError, match="weights for 3 layers, but the model has 2"):
        LayerMix((1.0, 1.0, 1.0), n_steps=1)(tiny("bert"), texts(), TARGET)
