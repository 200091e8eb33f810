"""Transformers obey the model laws and agree with the library; inputs, checkpoints and head scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import huggingface_hub.constants
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from transformers import PreTrainedModel, ViTConfig
from transformers.utils import logging as transformers_logging

from heedful.capabilities import mean_over_queries, read_heads, requires_unfused_attention, unfused_attention
from heedful.models.attention_hooks import AttentionInputs, AttentionRecorder, HeadScoreRecorder
from heedful.models.input_forms import PairInput
from heedful.models.network_anatomy import fold_images
from heedful.models.small_transformers import SmallTransformer, build_network
from heedful.models.transformer import Transformer, TransformerModel
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.testing.checks import add_padding, check_model
from heedful.types import Batch, Model, Task, Trace, UserError
from tests.networks import (
    FAMILIES,
    TEXT_FAMILIES,
    TinyTransformer,
    assert_close,
    batch_of,
    eager,
    images,
    library_inputs,
    network,
    pixels,
    texts,
    tiny,
)
from tests.small_models import pooled, subject


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in ("bert", "vit") else pytest.mark.slow) for family in FAMILIES]
)
def test_the_model_laws_hold_for_every_family(family: str) -> None:
    report = check_model(lambda seed: tiny(family, seed), batch_of(family))
    assert report, str(report)


def real_units(batch: Batch) -> Tensor:
    return batch.mask[:, None, None, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_real_queries_are_distributions_on_real_units_and_rows_of_padding_are_zero(family: str) -> None:
    batch = batch_of(family)
    trace = tiny(family)(batch)
    sums = batch.mask[:, None, None, :].double().expand(trace.attention.shape[:-1])
    assert_close(trace.attention.sum(-1), sums)
    assert bool((trace.attention >= 0).all())
    off = ~(real_units(batch) & batch.mask[:, None, None, :, None]).expand_as(trace.attention)
    assert trace.scores is not None
    assert int(torch.count_nonzero(trace.attention[off])) == int(torch.count_nonzero(trace.scores[off])) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_of_every_family_can_be_wrapped(family: str) -> None:
    task, batch = MulticlassClassification(3), batch_of(family)
    plain = build_network(TinyTransformer(family).config(task), Generator().manual_seed(1))
    assert_close(TransformerModel.wrap(plain, task).double().eval()(batch).logits, tiny(family)(batch).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_states_and_attention_are_those_of_the_eager_library(family: str) -> None:
    batch, model = batch_of(family), tiny(family).eval()
    expected = eager(model)(**library_inputs(family, batch), output_attentions=True, output_hidden_states=True)
    trace = model(batch)
    # The library's ViT rounds its attention to float32.
    near = 1e-6 if family == "vit" else 1e-12
    torch.testing.assert_close(trace.logits, expected.logits, rtol=0, atol=near)
    attention = torch.stack(expected.attentions, 1) * batch.mask[:, None, None, :, None]
    torch.testing.assert_close(trace.attention, attention, rtol=0, atol=near)
    if family != "vit":
        torch.testing.assert_close(trace.hidden[batch.mask], expected.hidden_states[-1][batch.mask])


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_the_softmax_of_the_scores_over_real_units(family: str) -> None:
    batch = batch_of(family)
    trace = tiny(family)(batch)
    assert trace.scores is not None
    weights = trace.scores.exp() * real_units(batch)
    expected = weights / weights.sum(-1, keepdim=True) * batch.mask[:, None, None, :, None]
    assert_close(trace.attention, expected)
    spread = (trace.attention.amax(-1)[0] - trace.attention.amin(-1)[0]).detach()
    assert float(spread.mean()) > 0.02, "a uniform attention would prove nothing"


def test_scores_are_queries_times_keys_over_the_root_of_the_head_size() -> None:
    model, batch = tiny("bert").eval(), texts()
    trace = model(batch)
    layer = model.network.get_submodule("bert.encoder.layer.0.attention.self")
    states = trace.embeddings[0]
    query, key = (layer.get_submodule(name)(states)[:, :8] for name in ("query", "key"))
    assert trace.scores is not None
    assert_close(trace.scores[0, 0, 0], query @ key.T / 8**0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_training_dropout_falls_as_in_the_library(family: str) -> None:
    batch, model = batch_of(family), tiny(family).train()
    library = eager(model)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(11)
        ours = model(batch)
        torch.default_generator.manual_seed(11)
        expected = library(**library_inputs(family, batch)).logits
        torch.default_generator.manual_seed(12)
        other = model(batch).logits
    torch.testing.assert_close(ours.logits, expected)
    assert family == "vit" or not torch.allclose(ours.logits, other), "without dropout this proves nothing"
    sums = ours.attention.detach().sum(-1) - batch.mask[:, None, None, :].double()
    assert float(sums.abs().max()) < 1e-8, "attention must be shown before dropout"


def test_no_dropout_falls_on_a_given_attention() -> None:
    batch = texts()
    model = TransformerModel.wrap(network(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.9))
    given = model.eval()(batch).attention
    still = model(batch, attention=given).logits
    model.train()
    assert torch.equal(model(batch, attention=given).logits, still)
    assert not torch.allclose(model(batch).logits, still)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_gradients_exist_and_are_those_of_finite_differences(family: str) -> None:
    batch, model = batch_of(family), tiny(family).eval()
    start = model(batch).embeddings.detach()
    step = torch.randn(start.shape, generator=Generator().manual_seed(8), dtype=start.dtype)

    def gradient(embeddings: Tensor) -> Tensor:
        trace = model(batch, embeddings=embeddings)
        assert trace.scores is not None
        value = trace.logits.square().sum() + trace.scores.square().sum() + trace.attention.square().sum()
        return torch.autograd.grad(value, embeddings, create_graph=True)[0]

    point = start.requires_grad_()
    (curved,) = torch.autograd.grad((gradient(point) * step).sum(), point)
    ahead, behind = ((start + sign * 1e-5 * step).detach().requires_grad_() for sign in (1, -1))
    torch.testing.assert_close(curved, (gradient(ahead) - gradient(behind)).detach() / 2e-5, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_reach_the_weights_through_a_functional_call() -> None:
    model, batch = tiny("bert").eval(), texts()
    weights = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}
    name = "network.bert.encoder.layer.0.attention.self.query.weight"
    scores = functional_call(model, weights, (batch,)).scores
    (first,) = torch.autograd.grad(scores.square().sum(), weights[name], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weights[name])
    assert float(second.abs().max()) > 0


def test_embeddings_that_are_given_are_not_computed_again() -> None:
    model, batch = tiny("bert").eval(), texts()
    trace = model(batch)
    with torch.no_grad():
        model.get_parameter("network.bert.embeddings.word_embeddings.weight").fill_(torch.nan)
    assert bool(model(batch).logits.isnan().all())
    assert torch.equal(model(batch, embeddings=trace.embeddings).logits, trace.logits)


@pytest.mark.parametrize("family", [*FAMILIES, "albert"])
def test_embeddings_are_the_input_of_the_first_layer_behind_any_projection(family: str) -> None:
    if family == "albert":
        model = TransformerModel.wrap(network(family, num_labels=3, embedding_size=12))
    else:
        model = tiny(family)
    batch, seen = batch_of(family), list[Tensor]()
    plain = eager(model)
    first = plain.get_submodule(
        "albert.encoder.albert_layer_groups.0" if family == "albert" else f"{model.stack.name}.0"
    )

    def see(_: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
        seen.append(inputs[0] if inputs else named["hidden_states"])

    first.register_forward_pre_hook(see, with_kwargs=True)
    logits = plain(**library_inputs(family, batch)).logits
    trace = model(batch)
    assert trace.embeddings.shape[-1] == model.network.config.hidden_size
    assert_close(trace.embeddings[batch.mask], seen[0][batch.mask])
    # The gradient is that of the library at the same place.
    given = trace.embeddings.detach().requires_grad_()
    (ours,) = torch.autograd.grad(model(batch, embeddings=given).logits[:, 1].sum(), given)
    (theirs,) = torch.autograd.grad(logits[:, 1].sum(), seen[0])
    # The library's eager softmax is in float32.
    torch.testing.assert_close(ours[batch.mask], theirs[batch.mask], rtol=1e-4, atol=1e-6)


def test_one_layer_can_be_replaced_by_composing_the_whole() -> None:
    model, batch = tiny("bert").eval(), texts()
    own = model(batch)
    changed = own.attention.clone()
    changed[:, 1] = changed[:, 1].flip(1)
    trace = model(batch, attention=changed)
    assert not torch.allclose(trace.logits, own.logits)
    same = changed.clone()
    same[:, 1] = own.attention[:, 1]
    assert_close(model(batch, attention=same).logits, own.logits)


def test_attention_of_another_shape_is_refused() -> None:
    model, batch = tiny("bert"), texts()
    attention = model(batch).attention
    for wrong in (attention[:, :1], attention[:, :, :1], attention[..., :5], attention[:2]):
        with pytest.raises(ValueError, match="need \\(3, 2, 2, 7, 7\\)"):
            model(batch, attention=wrong)
    with pytest.raises(ValueError, match="embeddings are"):
        model(batch, embeddings=torch.zeros(3, 6, 16))


def test_a_row_without_a_real_unit_is_finite_and_attends_to_nothing() -> None:
    batch = texts()
    batch.mask[2] = False
    model = tiny("bert").eval()
    trace = model(batch)
    assert bool(trace.logits.isfinite().all())
    assert int(torch.count_nonzero(trace.attention[2])) == 0
    assert_close(trace.logits[:2], model(texts()).logits[:2])


def test_candidates_that_are_not_admitted_get_minus_infinity() -> None:
    admitted = torch.tensor([[True, False, True]] * 3)
    model = tiny("bert").eval()
    logits = model(replace(texts(), candidates=admitted)).logits
    assert torch.equal(logits.isinf(), ~admitted)
    assert torch.equal(logits[admitted], model(texts()).logits[admitted])


def test_a_small_transformer_starts_at_the_word_vectors_and_does_not_depend_on_the_batch() -> None:
    table = torch.randn(50, 6, generator=Generator().manual_seed(1))
    model = SmallTransformer(1, 2, 8, max_positions=16).build(
        MulticlassClassification(3), table, Generator().manual_seed(2)
    )
    words = model.network.get_input_embeddings().get_parameter("weight")
    assert torch.equal(words[1:], table[1:])
    assert not words[0].any()
    batch = texts()
    alone = model(batch.rows(torch.tensor([2])))
    torch.testing.assert_close(model(batch).logits[2:], alone.logits)
    assert alone.attention.shape[1:3] == (1, 2)
    again = SmallTransformer(1, 2, 8, max_positions=16).build(
        MulticlassClassification(3), table, Generator().manual_seed(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_a_small_transformer_needs_vectors_and_heads_that_divide_its_width() -> None:
    with pytest.raises(UserError, match="word vectors"):
        SmallTransformer().build(MulticlassClassification(2), None, Generator())
    with pytest.raises(UserError, match="not divisible"):
        SmallTransformer(heads=3, width=64)


def test_segments_reach_bert_and_are_clipped_where_there_is_one_type() -> None:
    batch = texts()
    other = replace(batch, segments=torch.zeros_like(batch.segments))
    bert = tiny("bert").eval()
    assert not torch.allclose(bert(batch).logits, bert(other).logits)
    one = TransformerModel.wrap(network(type_vocab_size=1)).eval()
    assert torch.equal(one(batch).logits, one(other).logits)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_a_real_unit_with_the_padding_id_keeps_its_position(family: str) -> None:
    model, batch = tiny(family).eval(), texts()
    batch.inputs[:, 1] = 1
    block = model.network.base_model.get_submodule("embeddings")
    row = batch.rows(torch.tensor([0]))
    expected = type(block).forward(
        block,
        input_ids=row.inputs,
        position_ids=torch.arange(2, 9)[None],
        token_type_ids=row.segments,
    )
    assert_close(model(batch).embeddings[:1], expected)


def test_bare_library_roberta_agrees_where_no_real_unit_has_the_padding_id() -> None:
    plain, batch = network("roberta"), texts()
    inputs = batch.inputs.masked_fill(~batch.mask, 1)
    expected = plain(input_ids=inputs, attention_mask=batch.mask, token_type_ids=batch.segments).logits
    found = TransformerModel.wrap(plain)(batch).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_images_are_folded_back_pixel_for_pixel() -> None:
    batch = images(channels=3, size=(8, 12))
    config = ViTConfig(num_channels=3, image_size=(8, 12), patch_size=4)
    original = pixels(channels=3, size=(8, 12))
    assert torch.equal(fold_images(batch, config), original)
    patch = batch.inputs[1, 1 + 4].reshape(3, 4, 4)
    assert torch.equal(patch, original[1, :, 4:8, 4:8]), "patch 4 is the second of the second row of three"


def test_a_blanked_patch_is_a_black_square() -> None:
    plain, batch = network("vit", image_size=8, patch_size=4, num_channels=1), images()
    blanked = pixels().float()
    blanked[:, :, 4:, :4] = 0
    kept = torch.ones(3, 5, dtype=torch.bool)
    kept[:, 3] = False
    found = TransformerModel.wrap(plain)(batch.keep_units(kept)).logits
    torch.testing.assert_close(found, plain(pixel_values=blanked).logits, rtol=0, atol=1e-5)


def test_wrong_inputs_are_named() -> None:
    bert, vit = tiny("bert"), tiny("vit")
    with pytest.raises(UserError, match="reads text, but the batch holds image patches"):
        bert(images())
    with pytest.raises(UserError, match="reads images, but the batch holds ids"):
        vit(texts())
    with pytest.raises(UserError, match="5 units of 48 numbers, but the model reads 5 of 16"):
        vit(images(channels=3))
    with pytest.raises(UserError, match=r"id 70 is outside the vocabulary .* which ends at 49"):
        bert(replace(texts(), inputs=torch.full((3, 7), 70)))


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_text_fills_all_positions_but_not_one_more(family: str) -> None:
    plan = replace(TinyTransformer(family), max_positions=7)
    model = plan.build(MulticlassClassification(2), None, Generator().manual_seed(1))
    assert model(add_padding(texts(), 3)).logits.shape == (3, 2), "padding beyond the positions does no harm"
    long = replace(add_padding(texts(), 1), mask=torch.ones(3, 8, dtype=torch.bool))
    with pytest.raises(UserError, match=r"a text has 8 tokens, but .* at most 7"):
        model(long)


TASKS: list[tuple[int, str | None, Task]] = [
    (1, None, Regression()),
    (1, "regression", Regression()),
    (2, None, MulticlassClassification(2)),
    (5, "single_label_classification", MulticlassClassification(5)),
]


@pytest.mark.parametrize(("labels", "kind", "task"), TASKS)
def test_the_task_is_what_the_configuration_says(labels: int, kind: str | None, task: Task) -> None:
    assert TransformerModel.wrap(network(num_labels=labels, problem_type=kind)).task == task


@pytest.mark.parametrize(("labels", "kind"), [(1, "multi_label_classification"), (3, "multi_label_classification")])
def test_an_unclear_task_must_be_passed(labels: int, kind: str) -> None:
    with pytest.raises(UserError, match="pass task="):
        TransformerModel.wrap(network(num_labels=labels, problem_type=kind))


def test_one_sigmoid_logit_is_binary_on_request_and_a_wrong_size_is_refused() -> None:
    plain = network(num_labels=1)
    assert TransformerModel.wrap(plain, BinaryClassification()).task == BinaryClassification()
    with pytest.raises(UserError, match="has 1 outputs, but the task MulticlassClassification needs 3"):
        TransformerModel.wrap(plain, MulticlassClassification(3))


def saved(folder: Path, labels: int = 2) -> PreTrainedModel:
    plain = network(num_labels=labels)
    plain.save_pretrained(folder)
    return plain


def test_a_saved_classifier_comes_back_with_its_own_head(tmp_path: Path) -> None:
    plain = saved(tmp_path, labels=3)
    model = Transformer(str(tmp_path)).build(MulticlassClassification(3), None, Generator())
    batch = texts()
    expected = plain(input_ids=batch.inputs, attention_mask=batch.mask, token_type_ids=batch.segments).logits
    torch.testing.assert_close(model(batch).logits, expected, rtol=0, atol=1e-5)
    assert not model.training
    assert model.notes == (f"all weights are those of {tmp_path.name}, head included",)


def test_a_head_of_another_size_is_drawn_from_the_generator_and_said(tmp_path: Path) -> None:
    plain = saved(tmp_path, labels=3)
    before = torch.get_rng_state()
    first, second, third = (
        Transformer(str(tmp_path)).build(BinaryClassification(), None, Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    head = "network.classifier.weight"
    assert first.get_parameter(head).shape == (1, 16)
    assert torch.equal(first.get_parameter(head), second.get_parameter(head))
    assert not torch.equal(first.get_parameter(head), third.get_parameter(head))
    assert "classifier.bias, classifier.weight" in first.notes[0]
    layer = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(first.get_parameter(f"network.{layer}"), plain.get_parameter(layer))


def test_a_checkpoint_without_a_head_gets_one(tmp_path: Path) -> None:
    cast("PreTrainedModel", network().base_model).save_pretrained(tmp_path)
    model = Transformer(str(tmp_path)).build(MulticlassClassification(4), None, Generator().manual_seed(1))
    assert model(texts()).logits.shape == (3, 4)
    assert "classifier.weight" in model.notes[0]


def test_pickled_weights_are_refused_with_the_remedy(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin are pickled.*save_pretrained"):
        Transformer(str(tmp_path)).build(MulticlassClassification(2), None, Generator())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="lacks 16 weights of BertForSequenceClassification"):
        Transformer(str(tmp_path)).build(MulticlassClassification(2), None, Generator())


def test_damaged_empty_and_unreachable_sources_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    empty, damaged, adapter = tmp_path / "empty", tmp_path / "damaged", tmp_path / "adapter"
    empty.mkdir()
    saved(damaged)
    (damaged / "model.safetensors").write_bytes(b"not a tensor in sight")
    saved(adapter)
    (adapter / "adapter_config.json").write_text("{}")
    for source in (str(empty), str(damaged), "missing/model", "a bad/name/of a model"):
        with pytest.raises(UserError, match=r"no model could be loaded from .*give a folder") as caught:
            Transformer(source).build(MulticlassClassification(2), None, Generator())
        assert source in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="names no model that the adapter belongs to"):
        Transformer(str(adapter)).build(MulticlassClassification(2), None, Generator())


def test_word_vectors_are_refused() -> None:
    with pytest.raises(UserError, match="its own word vectors"):
        Transformer("a-checkpoint").build(MulticlassClassification(2), torch.zeros(50, 16), Generator())


def test_the_digest_follows_the_content_of_a_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plain = saved(first)
    plain.save_pretrained(second)
    before = Transformer(str(first)).digest(tmp_path)
    assert Transformer(str(second)).digest(tmp_path) == before
    with torch.no_grad():
        plain.get_parameter("classifier.bias").add_(1)
    plain.save_pretrained(second)
    assert Transformer(str(second)).digest(tmp_path) != before
    assert Transformer("some/hub-id").digest(tmp_path) == "some/hub-id"


def test_loading_prints_nothing_and_restores_the_settings_of_transformers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, labels=3)
    before = (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())
    transformers_logging.set_verbosity(logging.WARNING)
    transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    capfd.readouterr()
    try:
        Transformer(str(tmp_path)).build(BinaryClassification(), None, Generator().manual_seed(1))
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "")
        assert transformers_logging.get_verbosity() == logging.WARNING
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before[0])
        if not before[1]:
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def literal(scores: Tensor, mask: Tensor) -> Tensor:
    """The mean over real query rows of `[batch layer head query unit]`, one text after the other."""
    means = torch.zeros(*scores.shape[:3], scores.shape[4], dtype=scores.dtype)
    for row, real in enumerate(mask):
        for unit in real.nonzero().flatten().tolist():
            means[row, :, :, unit] = scores[row][:, :, real, unit].mean(-1)
    return means


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fast_way_gives_the_mean_of_the_real_query_rows_and_the_same_logits(
    family: str, dtype: torch.dtype
) -> None:
    model, batch = tiny(family).to(dtype), batch_of(family)
    with torch.no_grad():
        trace, heads = model(batch), read_heads(model, batch)
    assert trace.scores is not None
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(heads.scores, literal(trace.scores, batch.mask), rtol=0, atol=tolerance)
    torch.testing.assert_close(heads.logits, trace.logits, rtol=0, atol=tolerance)
    assert (heads.scores.masked_select(~batch.mask[:, None, None]) == 0).all()
    assert heads.scores.abs().max() > 0.01
    assert torch.equal(heads.maps[:, 3], heads.scores[:, 1, 1])


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_gradients_reach_the_weights_as_through_the_scores_of_all_pairs(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    weights = tuple(model.parameters())
    heads, trace = read_heads(model, batch), model(batch)
    assert trace.scores is not None
    both = ((heads.scores, heads.logits), (mean_over_queries(trace.scores, batch.mask), trace.logits))
    fast, slow = (
        torch.autograd.grad(scores.pow(2).sum() + logits.pow(2).sum(), weights, allow_unused=True)
        for scores, logits in both
    )
    reached = 0
    for one, other in zip(fast, slow, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
            reached += int(one.abs().max() > 0)
    assert reached > 20


class Reader(nn.Module):
    """What a caller wraps a model in to differentiate by its weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        heads = read_heads(self.model, batch)
        return heads.scores, heads.logits


def direction(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    draw = Generator().manual_seed(7)
    return {name: 0.1 * torch.randn(w.shape, generator=draw, dtype=w.dtype) for name, w in weights.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_mode_derivatives_are_those_of_finite_differences(family: str) -> None:
    reader, batch = Reader(tiny(family)), batch_of(family)
    weights = {name: weight.detach() for name, weight in reader.named_parameters()}
    along = direction(weights)

    def read(at: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = torch.func.functional_call(reader, at, (batch,))
        return found

    found = torch.func.jvp(read, (weights,), (along,))[1]
    ahead, behind = (read({name: w + sign * 1e-5 * along[name] for name, w in weights.items()}) for sign in (1, -1))
    for slope, over, under in zip(found, ahead, behind, strict=True):
        assert slope.abs().max() > 0.01
        torch.testing.assert_close(slope, (over - under) / 2e-5, rtol=1e-6, atol=1e-7)
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(w, along[name]) for name, w in weights.items()}  # type: ignore[no-untyped-call]
        dual = read(duals)
        for slope, value in zip(found, dual, strict=True):
            torch.testing.assert_close(forward_ad.unpack_dual(value).tangent, slope)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_second_derivatives_exist_inside_unfused_attention_and_only_there(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    weights = [weight for name, weight in model.named_parameters() if name.endswith("query.weight")]
    weights = weights or [weight for name, weight in model.named_parameters() if "q_proj.weight" in name]

    def slope() -> Tensor:
        (found,) = torch.autograd.grad(read_heads(model, batch).logits.pow(2).sum(), weights[:1], create_graph=True)
        return found

    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(slope().pow(2).sum(), weights[:1])
    with unfused_attention():
        (second,) = torch.autograd.grad(slope().pow(2).sum(), weights[:1])
    along = torch.randn(second.shape, generator=Generator().manual_seed(2), dtype=second.dtype)
    sums = []
    for sign in (1, -1):
        with torch.no_grad():
            weights[0].add_(sign * 1e-5 * along)
        sums.append(float(slope().pow(2).sum().detach()))
        with torch.no_grad():
            weights[0].sub_(sign * 1e-5 * along)
    assert float((second * along).sum()) == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-5)


def test_unfused_attention_ends_with_its_context_and_stays_in_its_thread() -> None:
    with unfused_attention():
        assert requires_unfused_attention()
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(requires_unfused_attention).result()
    assert not requires_unfused_attention()
    with pytest.raises(ZeroDivisionError), unfused_attention():
        raise ZeroDivisionError
    assert not requires_unfused_attention()


def test_fused_and_unfused_attention_agree() -> None:
    model, batch = tiny("bert"), texts()
    fused = read_heads(model, batch)
    with unfused_attention():
        plain = read_heads(model, batch)
    torch.testing.assert_close(plain.scores, fused.scores)
    torch.testing.assert_close(plain.logits, fused.logits)


def kept(call: Reader | Model, batch: Batch) -> int:
    """The size of the largest tensor that a reading keeps for its backward pass."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call(batch)
    return max(sizes)


def test_no_score_of_a_pair_of_units_is_kept() -> None:
    model = TinyTransformer(width=8, heads=4, max_positions=64).build(
        MulticlassClassification(2), None, Generator().manual_seed(1)
    )
    inputs = torch.randint(1, 50, (2, 64), generator=Generator().manual_seed(1))
    batch = Batch(
        ("a", "b"), inputs, torch.ones_like(inputs).bool(), torch.zeros_like(inputs), torch.zeros_like(inputs)
    )
    pairs = 2 * 4 * 64 * 64
    assert kept(model, batch) == pairs
    assert kept(Reader(model), batch) < pairs / 4 + 1


def test_a_window_of_attention_gives_the_same_maps_as_all_pairs() -> None:
    draw = Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 3, 6, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    real = torch.arange(6) < torch.tensor([[6], [4]])
    near = (torch.arange(6)[:, None] - torch.arange(6)).abs() < 3
    seen = (near & real[:, None, :])[:, None]
    lowest = torch.finfo(torch.float64).min
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.float64).masked_fill(~seen, lowest)
    reading = AttentionInputs(query, key, value, mask, 0.5, 0.0)
    tap, fast = AttentionRecorder(), HeadScoreRecorder(real)
    taken, _ = tap.attend(reading)
    same, _ = fast.attend(reading)
    torch.testing.assert_close(same[real[:, None].expand(2, 3, 6)], taken[real[:, None].expand(2, 3, 6)])
    torch.testing.assert_close(torch.stack(fast.scores, 1), literal(tap.stack_layers(real)[0], real))


def test_dropout_falls_on_attention_in_training_but_not_on_the_maps_of_the_first_layer() -> None:
    model, batch = tiny("electra"), texts()
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and ".attention.self." not in name:
            module.p = 0.0
    expected = read_heads(model, batch)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        found = read_heads(model, batch)
    assert not torch.equal(found.logits, expected.logits)
    torch.testing.assert_close(found.scores[:, 0], expected.scores[:, 0])


def test_a_pooled_model_has_one_map_its_scores() -> None:
    model, batch = subject("SingleInput")
    scores = model(batch).scores
    assert scores is not None
    heads = read_heads(model, batch)
    assert heads.scores.shape == (3, 1, 1, 7)
    assert torch.equal(heads.scores[:, 0, 0], scores[:, 0, 0, 0])
    assert torch.equal(heads.logits, model(batch).logits)


def test_each_text_of_a_pair_gets_half_of_its_own_row() -> None:
    _, batch = subject("PairInput")
    model = pooled(PairInput())
    scores = model(batch).scores
    assert scores is not None
    heads = read_heads(model, batch)
    own = torch.where(batch.segments == 0, scores[:, 0, 0, 0], scores[:, 0, 0, 1])
    torch.testing.assert_close(heads.scores[:, 0, 0], own.masked_fill(~batch.mask, 0) / 2)


class Silent(Model):
    """A model that shows no scores."""

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        nothing = torch.zeros(len(batch), 1, 1, 1, 1)
        return Trace(nothing, nothing, nothing, nothing)


def test_a_model_without_scores_is_refused() -> None:
    with pytest.raises(UserError, match="Silent exposes no attention scores"):
        read_heads(Silent(), texts())


def test_a_row_without_a_real_unit_has_maps_of_zero() -> None:
    model, batch = tiny("bert"), texts()
    mask = batch.mask.clone()
    mask[1] = False
    heads = read_heads(model, replace(batch, mask=mask))
    assert (heads.scores[1] == 0).all()
    assert torch.isfinite(heads.scores).all()
    assert torch.isfinite(heads.logits).all()


def test_a_model_describes_its_architecture() -> None:
    assert tiny("bert").architecture_summary == "bert, 2 layers, 2 heads, width 16"
    assert tiny("distilbert").architecture_summary == "distilbert, 2 layers, 2 heads, width 16"
    assert tiny("vit").architecture_summary == "vit, 2 layers, 2 heads, width 16"
    assert pooled().architecture_summary == "AttentiveModel"
