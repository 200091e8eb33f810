"""Networks that differ in what they attend to and how, in float64 against the library's own eager attention."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from heedful.attributions.attention import Flow, KobayashiNorm, Relevance, Rollout
from heedful.attributions.deeplift import DeepLift
from heedful.catalogue import METHODS
from heedful.models.attention_hooks import copy_sharing_weights, set_attention_implementation
from heedful.models.tiny_networks import Units, build_tiny_network
from heedful.models.transformer import TransformerModel
from heedful.testing import check_method, check_model
from heedful.types import Batch, Method, UserError
from tests.attributions.test_attributions import method_of
from tests.models.test_tiny_networks import random_batch

NETWORKS: dict[str, Units] = {
    "bert": "text",
    "deberta-v2": "text",
    "modernbert": "text",
    "gpt2": "text",
    "llama": "text",
    "qwen3": "text",
    "dinov2": "image",
    "swin": "image",
    "donut-swin": "image",
}
CAUSAL = ("gpt2", "llama", "qwen3")
WINDOW = 2
"""Units to both sides that the second layer of ModernBERT sees."""
SHIFTED_WINDOWS = ("swin", "donut-swin")
"""Windows of 2 x 2 on a grid of 4 x 4; in the second layer they are shifted by 1 in both directions."""


@cache
def wrapped(kind: str, seed: int) -> TransformerModel:
    return TransformerModel.wrap(build_tiny_network(NETWORKS[kind], kind, Generator().manual_seed(seed)).double())


def build(kind: str, seed: int) -> TransformerModel:
    return copy.deepcopy(wrapped(kind, seed))


@pytest.fixture(scope="module", params=NETWORKS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str) -> TransformerModel:
    return wrapped(kind, 1)


class InFloat64(TorchFunctionMode):
    """Computes in float64 what a network converts to float32: the softmax of the library, norms, positions."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if getattr(func, "__name__", "") == "float":
            return torch.Tensor.double(*args)  # type: ignore[arg-type]
        wider = {torch.float32: torch.float64}
        named = {
            name: wider.get(value, value) if isinstance(value, torch.dtype) else value
            for name, value in (kwargs or {}).items()
        }
        return func(*(wider.get(each, each) if isinstance(each, torch.dtype) else each for each in args), **named)


def batch_of(model: TransformerModel) -> Batch:
    """Texts whose first token is special, or images."""
    batch = random_batch(model.network, model.stack.inputs.prefix)
    batch.words.copy_((torch.arange(batch.mask.shape[1]) - 1).expand_as(batch.words).masked_fill(~batch.mask, -1))
    return batch


def support(batch: Batch, kind: str) -> Tensor:
    """Where each layer may attend `[batch layer head query unit]`, by the definition of its family."""
    units = batch.mask.shape[1]
    distance = torch.arange(units) - torch.arange(units).unsqueeze(1)
    layers = torch.ones(2, units, units, dtype=torch.bool)
    if kind in CAUSAL:
        layers &= distance <= 0
    if kind == "modernbert":
        layers[1] &= distance.abs() <= WINDOW
    if kind in SHIFTED_WINDOWS:
        down, right = torch.arange(16) // 4, torch.arange(16) % 4
        for shift in (0, 1):
            window = (down + shift) // 2 * 4 + (right + shift) // 2
            layers[shift] &= window == window.unsqueeze(1)
    layers = layers[None, :, None] | ~batch.mask[:, None, None, :, None]  # the rows of padding are nobody's
    return layers & batch.mask[:, None, None, None]


def test_attention_that_is_put_back_gives_the_same_logits(kind: str, model: TransformerModel) -> None:
    batch = batch_of(model)
    with torch.no_grad():
        trace = model(batch)
        both = model(batch, embeddings=trace.embeddings, attention=trace.attention)
    assert trace.logits.dtype == torch.float64
    assert float((both.logits - trace.logits).abs().max()) <= 1e-10
    seen = trace.attention > 0
    assert torch.equal(seen, (support(batch, kind) & batch.mask[:, None, None, :, None]).expand_as(seen))


def test_gradients_of_all_weights_are_those_of_eager_attention(kind: str, model: TransformerModel) -> None:
    batch = batch_of(model)
    plain = copy_sharing_weights(model.network)
    set_attention_implementation(plain, "eager")
    row = batch.rows(torch.tensor([1]))  # alone, so that the library needs no mask
    weights = [each for each in model.parameters() if each.requires_grad]
    inputs = model.stack.inputs.arguments(plain, row)
    with InFloat64():
        outputs = (model(row).logits, plain(**inputs).logits)
    slopes = [
        torch.autograd.grad((logits * torch.tensor([1.0, 2.0, 4.0])).sum(), weights, allow_unused=True)
        for logits in outputs
    ]
    for own, expected in zip(*slopes, strict=True):
        assert (own is None) == (expected is None)
        if own is not None and expected is not None:
            assert float((own - expected).abs().max()) <= 1e-8


def test_deeplift_is_complete(kind: str, model: TransformerModel) -> None:
    batch = batch_of(model)
    found = DeepLift()(model, batch, torch.zeros(len(batch), dtype=torch.int64))
    assert float(found.scores.abs().sum()) > 1e-3
    # Llama and Qwen3 compute the squares of their norms in float32.
    assert float(found.convergence_delta.abs().max()) <= (1e-6 if kind in ("llama", "qwen3") else 1e-8)


def test_the_model_laws_hold(kind: str) -> None:
    batch = batch_of(build(kind, 1))
    report = check_model(lambda seed: build(kind, seed), batch, lambda batch: support(batch, kind))
    assert report, str(report)


@pytest.mark.parametrize(
    ("kind", "method", "words"),
    [
        ("xlnet", DeepLift(), "unit batch width"),
        ("mixtral", DeepLift(output="logit"), "miss the difference"),
        ("bart", Rollout(), "decoder"),
        ("t5", Relevance(), "decoder"),
        ("diffllama", KobayashiNorm(), "no linear map"),
        ("jamba", Flow(), "1 attention maps in 2 layers"),
        ("convbert", Rollout(), "outside attention"),
        ("swin", Rollout(), "stages above merge them"),
        ("swinv2", Flow(), "stages above merge them"),
        ("donut-swin", Relevance(), "stages above merge them"),
    ],
)
def test_methods_that_read_layers_refuse_by_name_what_they_would_approximate(
    kind: str, method: Method, words: str
) -> None:
    units: Units = "image" if "swin" in kind else "text"
    model = TransformerModel.wrap(build_tiny_network(units, kind, Generator().manual_seed(1)))
    batch = batch_of(model)
    with pytest.raises(UserError, match=words):
        method(model, batch, torch.zeros(len(batch), dtype=torch.int64))


def test_the_norms_of_grouped_queries_are_those_of_the_values_that_heads_share() -> None:
    """Llama has two values for four heads; a literal twin with the weights of its projections."""
    model = wrapped("llama", 1)
    batch = batch_of(model).rows(torch.tensor([0]))
    with torch.no_grad():
        trace = model(batch)
        layer = model.layers[0]
        states = layer.get_submodule("input_layernorm")(trace.embeddings)
        values = layer.get_submodule("self_attn.v_proj")(states).reshape(9, 2, 8).repeat_interleave(2, 1)
        output = layer.get_submodule("self_attn.o_proj").get_parameter("weight").t().reshape(4, 8, -1)
        added = torch.einsum("hqu,uhd,hdw->quw", trace.attention[0, 0], values, output)
    scores = KobayashiNorm(layer=0, special_tokens=True)(model, batch, torch.tensor([0])).scores
    torch.testing.assert_close(scores[0], added.norm(dim=-1).mean(0))


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_embeddings_of_an_encoder_and_a_decoder_reach_both(kind: str) -> None:
    """The gradient at the word vectors is that of the rows of the table, which encoder and decoder share."""
    network = build_tiny_network("text", kind, Generator().manual_seed(1)).double()
    model = TransformerModel.wrap(network)
    batch = batch_of(model).rows(torch.tensor([0]))
    batch.inputs[0, :-1] = torch.arange(20, 28)  # every word once
    table = network.get_input_embeddings().get_parameter("weight")
    given = model(batch).embeddings.detach().requires_grad_()
    (own,) = torch.autograd.grad(model(batch, embeddings=given).logits[:, 0].sum(), given)
    (expected,) = torch.autograd.grad(model(batch).logits[:, 0].sum(), table)
    scale = float((given[0, 0] / table[20]).mean().detach())  # some encoders multiply their vectors
    torch.testing.assert_close(own[0, :-1] * scale, expected[20:28])


SHOWN = METHODS if os.environ.get("HEEDFUL_SWEEP") else ("rollout", "kobayashi-norm", "deep-lift")
"""All methods by `make sweep`; in every run those that rest on most of what differs."""


@pytest.mark.parametrize("name", SHOWN)
def test_the_laws_of_attributions_hold(name: str, kind: str, model: TransformerModel) -> None:
    if name == "shapley" and NETWORKS[kind] == "image":
        pytest.skip("more patches than exact Shapley values allow")
    if name in ("rollout", "flow", "relevance") and kind in SHIFTED_WINDOWS:
        pytest.skip("refused by name: see above")
    report = check_method(method_of(name), {kind: (model, batch_of(model))})
    assert report, str(report)
