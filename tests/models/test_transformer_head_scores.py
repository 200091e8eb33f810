"""The maps of a model's heads: the fast way against the mean of all query rows, and derivatives through it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad

from heedful.models._attention_hooks import AttentionInputs, AttentionRecorder
from heedful.models.input_forms import PairInput
from heedful.models.transformer import FAMILIES, HeadScoreRecorder, TinyTransformer
from heedful.tasks import MulticlassClassification
from heedful.types import (
    Batch,
    Model,
    Trace,
    UserError,
    architecture_summary,
    mean_over_queries,
    read_heads,
    requires_unfused_attention,
    unfused_attention,
)
from tests.attention_laws import pooled, subject
from tests.networks import batch_of, texts, tiny


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
def test_second_derivatives_pass_where_plain_attention_is_wished_for_and_only_there(family: str) -> None:
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


def test_the_wish_for_plain_attention_ends_with_its_block_and_stays_in_its_thread() -> None:
    with unfused_attention():
        assert requires_unfused_attention()
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(requires_unfused_attention).result()
    assert not requires_unfused_attention()
    with pytest.raises(ZeroDivisionError), unfused_attention():
        raise ZeroDivisionError
    assert not requires_unfused_attention()


def test_plain_and_fused_attention_read_the_same() -> None:
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
    taken, _ = tap.attend(nn.Identity(), reading)
    same, _ = fast.attend(nn.Identity(), reading)
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


def test_a_model_says_what_it_is_built_like() -> None:
    assert architecture_summary(tiny("bert")) == "bert, 2 layers, 2 heads, width 16"
    assert architecture_summary(tiny("distilbert")) == "distilbert, 2 layers, 2 heads, width 16"
    assert architecture_summary(tiny("vit")) == "vit, 2 layers, 2 heads, width 16"
    assert architecture_summary(pooled()) == "AttentiveModel"
