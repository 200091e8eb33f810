"""A network is opened without a trace: it and its model share weights only; what cannot be opened is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad
from transformers import AutoConfig, BertForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from heedful.capabilities import unfused_attention
from heedful.models.attention_hooks import (
    AttentionInputs,
    AttentionRecorder,
    ForwardPass,
    FusedAttention,
    copy_sharing_weights,
    hooked_attention,
    running,
    set_attention_implementation,
)
from heedful.models.label_words import LabelWords
from heedful.models.tiny_networks import build_tiny_network, tiny_network_class
from heedful.models.transformer import TransformerModel
from heedful.types import UserError
from tests.networks import network, texts, tiny


def fingerprint_of(plain: nn.Module) -> dict[str, object]:
    """All that a user could find changed, but for the values of weights."""
    return {
        name: (module.training, len(module._forward_hooks), len(module._forward_pre_hooks), sorted(vars(module)))
        for name, module in plain.named_modules()
    } | {name: (weight.requires_grad, weight.grad, id(weight)) for name, weight in plain.named_parameters()}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_wrapped_network_is_left_as_found_also_after_an_exception(implementation: str) -> None:
    plain, batch = network(attn_implementation=implementation), texts()
    plain.get_submodule("bert.embeddings").requires_grad_(requires_grad=False)
    plain.get_submodule("bert.encoder").train()
    before, config = fingerprint_of(plain), plain.config.to_json_string()
    weights = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    state = torch.get_rng_state()
    model = TransformerModel.wrap(plain).eval()
    expected = model(batch).logits
    model(batch, attention=model(batch).attention)
    handle = model.network.get_submodule("bert.encoder.layer.1").register_forward_hook(raising)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            model(batch)
    handle.remove()
    assert torch.equal(model(batch).logits, expected)
    assert fingerprint_of(plain) == before
    assert plain.config.to_json_string() == config
    assert plain.config._attn_implementation == implementation
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in plain.state_dict().items())
    alone = copy_sharing_weights(plain).train(mode=False)
    theirs = alone(input_ids=batch.inputs, attention_mask=batch.mask, token_type_ids=batch.segments).logits
    torch.testing.assert_close(theirs, expected, rtol=0, atol=1e-5)


def raising(module: nn.Module, inputs: object, output: object) -> None:
    raise ZeroDivisionError


def test_a_wrapped_network_and_its_model_share_their_weights() -> None:
    plain, batch = network(), texts()
    model = TransformerModel.wrap(plain).eval()
    ours, theirs = list(model.parameters()), list(plain.parameters())
    assert [id(weight) for weight in ours] == [id(weight) for weight in theirs]
    torch.autograd.backward(model(batch).logits.sum())
    assert plain.get_parameter("classifier.weight").grad is not None


def test_a_twin_shares_tensors_but_no_settings() -> None:
    plain = network()
    other = copy_sharing_weights(plain)
    set_attention_implementation(other, "eager")
    other.config.hidden_dropout_prob = 0.5
    assert plain.config._attn_implementation == "sdpa"
    assert plain.config.hidden_dropout_prob == 0.1
    assert vars(other.get_submodule("bert.encoder.layer.0.attention.self"))["config"] is other.config
    assert all(one is two for one, two in zip(plain.parameters(), other.parameters(), strict=True))


def test_threads_with_different_attention_do_not_meet() -> None:
    model, batch = tiny("bert").eval(), texts()
    own = model(batch).attention.detach()
    given = [own.roll(shift, dims=2) if shift % 2 else own for shift in range(16)]
    expected = [model(batch, attention=attention).logits for attention in given]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda attention: model(batch, attention=attention).logits, given))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_copy_of_a_model_is_independent() -> None:
    model, batch = tiny("bert").eval(), texts()
    expected = model(batch).logits
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.1)
    assert torch.equal(model(batch).logits, expected)
    assert not torch.allclose(other(batch).logits, expected)


def test_gradient_checkpointing_of_the_user_stays_on_for_the_user_only() -> None:
    plain, batch = network(), texts()
    plain.gradient_checkpointing_enable()
    model = TransformerModel.wrap(plain).train()
    trace = model(batch, attention=model(batch).attention.detach())
    torch.autograd.backward(trace.logits.sum())
    assert plain.is_gradient_checkpointing


def headless() -> PreTrainedModel:
    return cast("PreTrainedModel", network().base_model)


class Inconstant(BertForSequenceClassification):  # type: ignore[no-untyped-call]
    """A BERT that computes something else where its layers are hooked."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        output = super().forward(input_ids, attention_mask)
        output.logits += len(self.get_submodule("bert.encoder.layer.0")._forward_hooks)
        return cast("SequenceClassifierOutput", output)


def inconstant() -> PreTrainedModel:
    return Inconstant(network().config)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (headless, "BertModel has no head"),
        (inconstant, "Inconstant is not supported: it gives different logits"),
        (lambda: nn.Linear(2, 2), "expected a transformers model, got Linear"),
    ],
)
def test_a_network_that_cannot_be_opened_is_refused_by_name(make: Callable[[], PreTrainedModel], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TransformerModel.wrap(make())


@pytest.mark.parametrize(("options", "score"), [({}, 2.0), ({"scaling": None}, 2.0), ({"scaling": 0.25}, 1.0)])
def test_scores_are_divided_by_the_root_of_the_width_where_a_module_gives_no_scaling(
    options: dict[str, object], score: float
) -> None:
    """q = (1, 1, 1, 1) against itself and against zero: 4 / sqrt(4) and 0."""
    query, key = torch.ones(1, 1, 1, 4), torch.stack((torch.ones(4), torch.zeros(4)))[None, None]
    recorder = AttentionRecorder()
    with running(ForwardPass(recorder, units=2, depth=1)):
        attended, weights = hooked_attention(nn.Identity(), query, key, torch.eye(2)[None, None], None, **options)
    expected = torch.tensor([score, 0.0]).softmax(0)
    torch.testing.assert_close(attended.flatten(), expected)
    assert weights is recorder.attention[0]
    assert recorder.scores[0].flatten().tolist() == pytest.approx([score, 0.0])
    assert recorder.layers_run == 1


UNLIKE_KINDS = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss", "deberta-v2", "mpnet", "modernbert", "bloom")
"""Causal, grouped queries, sliding window, softcap, sink, and softmax in the layers themselves."""


@pytest.mark.parametrize("kind", UNLIKE_KINDS)
def test_logits_read_alone_are_those_of_a_forward_pass_whatever_the_attention_is(kind: str) -> None:
    plain, batch = build_tiny_network("text", kind, Generator().manual_seed(3)), texts()
    # The experts of gpt_oss have no products in double precision.
    close = partial(torch.allclose, rtol=1e-4, atol=1e-5)
    if kind != "gpt_oss":
        plain, close = plain.double(), partial(torch.allclose, rtol=1e-8, atol=1e-9)
    model = TransformerModel.wrap(plain).eval()
    expected = model(batch)
    assert close(model.read_logits(batch), expected.logits)
    for row in range(len(batch)):
        alone = model.read_logits(batch.rows(torch.tensor([row])))
        assert close(alone[0], expected.logits[row])
    vectors = model.read_embeddings(batch)
    assert close(vectors[batch.mask], expected.embeddings[batch.mask])
    given = vectors.detach().requires_grad_()
    logits = (model.read_logits(batch, embeddings=given), model(batch, embeddings=given).logits)
    slopes = [torch.autograd.grad(each[:, 1].sum(), given)[0][batch.mask] for each in logits]
    assert close(*slopes)


def test_the_fused_kernel_gets_no_mask_that_says_nothing() -> None:
    seen = []
    lowest = torch.finfo(torch.float32).min
    later = torch.full((1, 1, 4, 4), lowest).triu(1)
    query = torch.randn(2, 3, 4, 8, generator=Generator().manual_seed(0))
    for mask in (None, torch.zeros(1, 1, 4, 4), later, later.expand(2, 1, 4, 4), later.flip(-1), later + 1.0):
        hook = FusedAttention()
        inputs = AttentionInputs(query, query * 0.5, query + 1.0, mask, 0.3, 0.0)
        attended, _ = hook.attend(inputs)
        assert torch.allclose(attended, inputs.normalize(inputs.masked_scores()) @ inputs.value, atol=1e-6)
        seen.append((hook.mask is None, hook.is_causal))
    nothing, causal, other = (True, False), (True, True), (False, False)
    assert seen == [nothing, nothing, causal, causal, other, other]


def test_logits_read_alone_have_second_and_forward_derivatives() -> None:
    model, batch = tiny("bert").double(), texts()
    start = model.read_embeddings(batch).detach()

    def output(vectors: Tensor) -> Tensor:
        return model.read_logits(batch, embeddings=vectors)[:, 0].sum()

    step = torch.randn(start.shape, generator=Generator().manual_seed(1), dtype=start.dtype)
    expected = (output(start + 1e-6 * step) - output(start - 1e-6 * step)) / 2e-6
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(output(forward_ad.make_dual(start, step))).tangent  # type: ignore[no-untyped-call]
    assert tangent is not None
    assert torch.allclose(tangent, expected, atol=1e-6)
    with unfused_attention():
        given = start.clone().requires_grad_()
        (slope,) = torch.autograd.grad(output(given), given, create_graph=True)
        (second,) = torch.autograd.grad((slope * step).sum(), given)
    assert bool(second.abs().sum() > 0)


def test_attention_from_outside_reaches_logits_that_are_read_alone() -> None:
    model, batch = tiny("bert"), texts()
    uniform = torch.ones_like(model(batch).attention) / batch.mask.shape[1]

    def impose(
        module: nn.Module, given: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, dict[str, object]]:
        return given, {**named, "attention": uniform}

    expected = model(batch, attention=uniform).logits
    handle = model.register_forward_pre_hook(impose, with_kwargs=True)
    assert torch.equal(model.read_logits(batch), expected)
    handle.remove()


def test_a_network_that_rewrites_its_weights_keeps_them() -> None:
    """RWKV halves the weights of its third layer here when it runs in eval mode, once for each copy that asks."""
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 3, "vocab_size": 60}
    config = AutoConfig.for_model("rwkv", rescale_every=2, context_length=32, pad_token_id=0, **sizes)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        plain = nn.Module.train(tiny_network_class("causal", "rwkv")(config))
    before = {name: weight.clone() for name, weight in plain.state_dict().items()}
    batch = texts().rows(torch.tensor([0]))
    words = LabelWords(((6,), (7,)))
    model = TransformerModel.wrap_language_model(plain, words).eval()
    found = [model(batch).logits for _ in range(2)]
    assert all(torch.equal(weight, before[name]) for name, weight in plain.state_dict().items())
    assert any("rewrites its weights" in note for note in model.notes)
    alone = nn.Module.eval(copy.deepcopy(plain))
    theirs = alone(input_ids=batch.inputs).logits[:, -1].log_softmax(-1)[:, [6, 7]]
    halved = "rwkv.blocks.2.attention.output.weight"
    assert torch.equal(alone.state_dict()[halved], before[halved] / 2)
    for own in found:
        torch.testing.assert_close(own, theirs)
