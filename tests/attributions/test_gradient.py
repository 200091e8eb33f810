"""Gradient methods: hand values, finite differences, captum as oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from captum.attr import InputXGradient as CaptumInputXGradient
from captum.attr import Saliency
from torch import Generator, Tensor, nn

from heedful.attributions.gradient import Gradient, GradientNorm, GradientSum, InputXGradient
from heedful.attributions.method import target_output
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models.attentive import Additive, Attentive, AttentiveModel, Normalizer, Softmax
from heedful.models.encoders import BiLSTM, Encoder
from heedful.models.input_forms import InputFormat, QuestionAnswering, SingleInput
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import Batch, Model, Trace
from tests.models.test_attentive import batch_for
from tests.networks import TinyTransformer, images, texts, tiny
from tests.small_models import some_batch

BATCH = some_batch((5, 3, 7))


TARGET = torch.tensor([0, 1, 1])


class Bag(Model):
    """No projection: the logit is sum_t a_t (w . e_t) + b; attention is the softmax of fixed scores plus k . e_t."""

    def __init__(self, rows: Tensor, attention: Tensor, key: Tensor) -> None:
        super().__init__()
        self.task = BinaryClassification()
        self.table = nn.Parameter(rows)
        self.scores, self.key = attention.log(), key
        self.weight, self.bias = torch.tensor([0.5, -0.25]).to(rows), 0.1

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        if attention is None:
            attention = (self.scores + embeddings @ self.key).softmax(-1)[:, None, None, None]
        logits = (attention[:, 0, 0, 0] * (embeddings @ self.weight)).sum(-1, keepdim=True) + self.bias
        return Trace(embeddings, embeddings, attention, logits)


def bag(
    rows: tuple[tuple[float, float], ...] = ((1, 0), (0, 2), (-1, 1)),
    attention: tuple[float, ...] = (0.6, 0.3, 0.1),
    key: tuple[float, float] = (0, 0),
) -> tuple[Bag, Batch]:
    """The model and text of the specification's fifth check."""
    model = Bag(*(torch.tensor(values, dtype=torch.float64) for values in (rows, attention, key)))
    units = torch.arange(len(rows)).unsqueeze(0)
    return model, Batch(("text",), units, units >= 0, torch.zeros_like(units), units)


def pooled(
    encoder: Encoder | None = None, shape: InputFormat | None = None, normaliser: Normalizer | None = None
) -> AttentiveModel:
    plan = Attentive(encoder or BiLSTM(3), Additive(), normaliser or Softmax(), shape or SingleInput())
    generator = Generator().manual_seed(0)
    model = plan.build(BinaryClassification(), torch.randn(30, 5, generator=generator), generator).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def test_the_gradient_of_the_specification() -> None:
    model, batch = bag()
    probability = BinaryClassification().probabilities(model(batch).logits.detach())[0, 1]
    assert float(probability) == pytest.approx(0.543639, abs=5e-7)
    found = Gradient()(model, batch, torch.tensor([1])).scores[0]
    assert found.tolist() == pytest.approx([0.074429, -0.037214, -0.018607], abs=5e-7)
    shares = found.abs() / found.abs().sum()
    assert shares.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_where_all_words_contribute_equally_the_gradient_ranks_them_as_attention_does() -> None:
    weights = (0.4, 0.1, 0.3, 0.2)
    model, batch = bag(((1, 0), (-1, 0), (0, 2), (2, 2)), weights)
    scores = Gradient()(model, batch, torch.tensor([1])).scores.abs()
    found = kendall_matrix(torch.stack((scores[0], torch.tensor(weights, dtype=torch.float64))), batch.mask[0])
    assert float(found.value[0, 1]) == pytest.approx(1)


def test_letting_the_gradient_pass_through_attention_changes_it() -> None:
    model, batch = bag(key=(0.7, -0.4))
    target = torch.tensor([1])
    cut, uncut = (method(model, batch, target).scores for method in (Gradient(), InputXGradient()))
    assert not torch.allclose(cut, uncut, atol=1e-3)
    fixed, same = bag()
    one, other = (method(fixed, same, target).scores for method in (Gradient(), InputXGradient()))
    assert torch.allclose(one, other)


def slope(model: Model, batch: Batch, target: Tensor, unit: int, attention: Tensor | None) -> Tensor:
    """d probability / d s at s = 1 where the unit's embedding is stretched to s e, by central differences."""
    embeddings = model(batch).embeddings
    found = []
    for factor in (1 + 1e-5, 1 - 1e-5):
        stretched = embeddings.clone()
        stretched[:, unit] *= factor
        logits = model(batch, embeddings=stretched, attention=attention).logits
        found.append(model.task.probabilities(logits).gather(1, target.unsqueeze(1)).squeeze(1))
    return (found[0] - found[1]) / 2e-5


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("name", ["bilstm", "bert", "vit"])
@torch.no_grad()
def test_finite_differences_agree(name: str, *, cut: bool) -> None:
    model: Model = pooled() if name == "bilstm" else tiny(name)
    batch = {"bilstm": BATCH, "bert": texts(), "vit": images()}[name]
    attention = model(batch).attention if cut else None
    method = Gradient() if cut else InputXGradient()
    found = method(model, batch, TARGET).scores
    assert found.abs().max() > 1e-3
    for unit in range(batch.mask.shape[1]):
        expected = slope(model, batch, TARGET, unit, attention)[batch.content_mask[:, unit]]
        assert torch.allclose(found[:, unit][batch.content_mask[:, unit]], expected, atol=1e-7)


def test_the_two_classes_of_one_logit_have_opposite_gradients() -> None:
    for output in ("probability", "logit"):
        method = Gradient(output=output)
        one, other = (method(pooled(), BATCH, torch.full((3,), label)).scores for label in (0, 1))
        assert torch.allclose(one, -other)
        assert one.abs().sum() > 0


def test_a_probability_has_the_gradient_of_its_logit_times_p_times_one_minus_p() -> None:
    model = pooled()
    p = model(BATCH).logits.sigmoid().detach()
    logit = Gradient(output="logit")(model, BATCH, torch.ones(3, dtype=torch.int64)).scores
    probability = Gradient()(model, BATCH, torch.ones(3, dtype=torch.int64)).scores
    assert torch.allclose(probability, logit * p * (1 - p))


def test_each_row_is_explained_for_its_own_target() -> None:
    model = TinyTransformer().build(MulticlassClassification(3), None, Generator().manual_seed(1)).double()
    by_class = [Gradient()(model, texts(), torch.full((3,), label)).scores for label in range(3)]
    mixed = Gradient()(model, texts(), torch.tensor([2, 0, 1])).scores
    assert torch.allclose(mixed, torch.stack([by_class[2][0], by_class[0][1], by_class[1][2]]))
    assert torch.allclose(sum(by_class, torch.zeros(())), torch.zeros(()).double(), atol=1e-12)


def test_the_units_of_a_question_have_gradients_too() -> None:
    model, batch = pooled(shape=QuestionAnswering()), replace(batch_for(QuestionAnswering()), candidates=None)
    found = Gradient()(model, batch, torch.ones(4, dtype=torch.int64)).scores
    assert (found[batch.content_mask & (batch.segments == 1)] != 0).all()


def test_a_sure_model_in_float32_still_ranks_its_words() -> None:
    model = pooled().float()
    with torch.no_grad():
        model.decoder.output_layer.bias.fill_(30)  # type: ignore[union-attr, operator]
    assert (model(BATCH).logits.sigmoid() == 1).all()
    target = torch.ones(3, dtype=torch.int64)
    probability, logit = (Gradient(output=o)(model, BATCH, target).scores for o in ("probability", "logit"))
    assert torch.equal(probability.argsort(1), logit.argsort(1))
    assert (probability[BATCH.content_mask] != 0).all()


@pytest.mark.parametrize("name", ["bilstm", "bert", "vit"])
def test_products_norms_and_sums_are_those_of_captums_gradients(name: str) -> None:
    model: Model = pooled() if name == "bilstm" else tiny(name)
    batch = {"bilstm": BATCH, "bert": texts(), "vit": images()}[name]

    def read(embeddings: Tensor) -> Tensor:
        return target_output(model.task, model(batch, embeddings=embeddings).logits, TARGET, "logit")

    given = model(batch).embeddings.detach().requires_grad_()
    slope = Saliency(read).attribute(given, abs=False)
    scored = batch.content_mask
    expected: dict[InputXGradient | GradientNorm | GradientSum, Tensor] = {
        InputXGradient("logit"): CaptumInputXGradient(read).attribute(given).sum(-1),
        GradientNorm(1, "logit"): Saliency(read).attribute(given).sum(-1),
        GradientNorm(2, "logit"): slope.square().sum(-1).sqrt(),
        GradientSum("logit"): slope.sum(-1),
    }
    for method, scores in expected.items():
        assert torch.allclose(method(model, batch, TARGET).scores[scored], scores[scored].detach(), atol=1e-10)


def test_norms_and_sums_by_hand() -> None:
    # The slope along e_t is a_t w = (.5, -.25) a_t.
    model, batch = bag()
    target = torch.tensor([1])
    weights = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    for method, size in ((GradientNorm(1, "logit"), 0.75), (GradientNorm(2, "logit"), 0.3125**0.5)):
        assert torch.allclose(method(model, batch, target).scores, weights * size)
    assert torch.allclose(GradientSum("logit")(model, batch, target).scores, weights * 0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_are_zero_but_for_rounding_are_exact_ties(dtype: torch.dtype) -> None:
    # Every layer of a ViT normalises its input first: a constant added to an embedding changes nothing.
    batch = replace(images(), inputs=images().inputs.to(dtype))
    model, target = tiny("vit").to(dtype), torch.tensor([0, 1, 2])
    moved = model(batch).embeddings.detach()
    shift = torch.zeros_like(moved).masked_fill(
        torch.tensor([[False, True, False, False, False]] * 3).unsqueeze(-1), 0.5
    )
    change = model(batch, embeddings=moved + shift).logits - model(batch, embeddings=moved).logits
    assert float(change.abs().max()) < (1e-5 if dtype == torch.float32 else 1e-13)
    assert torch.count_nonzero(GradientSum(special_tokens=True)(model, batch, target).scores) == 0
    assert torch.count_nonzero(GradientNorm()(model, batch, target).scores) == 3 * 4


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra"])
def test_sums_that_are_not_zero_keep_their_last_digit(family: str) -> None:
    model, batch, target = tiny(family), texts(), torch.tensor([0, 1, 2])
    given = model(batch).embeddings.detach().requires_grad_()
    logits = model(batch, embeddings=given).logits
    (slopes,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), given)
    found = GradientSum("logit", special_tokens=True)(model, batch, target).scores
    torch.testing.assert_close(found, slopes.sum(-1).masked_fill(~batch.mask, 0), rtol=1e-12, atol=1e-15)
    assert torch.count_nonzero(found) == batch.mask.sum()
