"""DeepLIFT: each rule by hand, completeness on every model, captum as oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from captum.attr import DeepLift as CaptumDeepLift
from torch import Generator, Tensor, nn

from heedful.attributions import deeplift
from heedful.attributions import method as method_module
from heedful.attributions.deeplift import DeepLift, DeepShap, multipliers
from heedful.attributions.method import CompleteAttribution, target_output
from heedful.models.attentive import Attentive, Sparsemax
from heedful.models.tiny_networks import build_tiny_network
from heedful.models.transformer import TransformerModel
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import Batch, Model, Trace, UserError
from tests.attributions.test_gradient import BATCH, TARGET, pooled
from tests.models.test_attentive import PLANS, batch_for, built
from tests.networks import FAMILIES, TinyTransformer, batch_of, texts, tiny
from tests.small_models import some_batch

DOUBLE = torch.float64


def shares(
    read: Callable[[Tensor], Tensor], given: Tensor | list[float], reference: Tensor | list[float]
) -> tuple[Tensor, Tensor]:
    """What each entry of one row gets, and the difference that is to be shared out."""
    rows = [torch.as_tensor(row, dtype=DOUBLE).unsqueeze(0) for row in (given, reference)]
    slopes, difference = multipliers(read, *rows)
    return (slopes * (rows[0] - rows[1]))[0], difference[0]


def test_a_product_is_shared_at_the_middle_of_the_other_factor() -> None:
    found, difference = shares(lambda x: x[:, 0] * x[:, 1], [3, 5], [1, 2])
    assert found.tolist() == pytest.approx([2 * 3.5, 3 * 2])
    assert float(difference) == pytest.approx(15 - 2)


def test_a_quotient_is_shared_as_the_product_that_undoes_it() -> None:
    # y1 = 3/4 and y0 = 1/2: (da - 5/8 db) / 3 for da = db = 2
    found, _ = shares(lambda x: x[:, 0] / x[:, 1], [3, 4], [1, 2])
    assert found.tolist() == pytest.approx([2 / 3, -5 / 12])
    found, _ = shares(lambda x: (6 / x).sum(1), [3], [2])
    assert found.tolist() == pytest.approx([-1])
    found, _ = shares(lambda x: (torch.full((2, 1), 6.0, dtype=DOUBLE) / x).sum(1), [3], [2])
    assert found.tolist() == pytest.approx([-1])


def test_a_norm_of_a_reference_without_spread_stays_in_bounds() -> None:
    found, difference = shares(lambda x: nn.functional.layer_norm(x, (3,), eps=1e-12)[:, 0], [1, 2, 6], [0, 0, 0])
    assert float(found.sum()) == pytest.approx(float(difference))
    assert found.abs().max() < 10


RMS_NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rsqrt": lambda x, mean: x * mean.rsqrt(),
    "rsqrt first": lambda x, mean: torch.rsqrt(mean) * x,
    "power": lambda x, mean: x * mean.pow(-0.5),
    "reciprocal": lambda x, mean: x.mul(mean.sqrt().reciprocal()),
    "power of the root": lambda x, mean: x * mean.sqrt() ** -1,
    "one by the root": lambda x, mean: x * (1 / mean.sqrt()),
    "multiple of one by the root": lambda x, mean: x * (2 / mean.sqrt()) / 2,
    "quotient": lambda x, mean: x / mean.sqrt(),
}


@pytest.mark.parametrize("norm", RMS_NORMS.values(), ids=RMS_NORMS)
def test_an_rms_norm_is_shared_as_a_quotient_however_it_is_written(norm: Callable[[Tensor, Tensor], Tensor]) -> None:
    def read(x: Tensor, eps: float) -> Tensor:
        return norm(x, x.pow(2).mean(-1, keepdim=True) + eps)[:, 0]

    # The root s goes from 12 to 13, by 1/50 and 49/50 for the two entries: (dx - y ds) / s at the middles of y and s.
    found, difference = shares(lambda x: read(x, 144), [1, 7], [0, 0])
    assert found.tolist() == pytest.approx([(1 - 1 / 26 / 50) / 12.5, -49 / 26 / 50 / 12.5])
    assert float(difference) == pytest.approx(1 / 13)
    # At a zero vector with a small eps s goes from 0 to 5, by 1/10 and 49/10; the derivative there is 1e6.
    found, difference = shares(lambda x: read(x, 1e-12), [1, 7], [0, 0])
    assert found.tolist() == pytest.approx([(1 - 0.1 * 0.1) / 2.5, -0.1 * 4.9 / 2.5], rel=1e-5)
    assert float(found.sum()) == pytest.approx(float(difference)) == pytest.approx(0.2)


def test_the_winner_of_the_larger_half_gets_the_whole_difference_of_a_maximum() -> None:
    found, _ = shares(lambda x: x.amax(1), [4, 3, 1], [0, 2, 1])
    assert found.tolist() == pytest.approx([2, 0, 0])
    found, _ = shares(lambda x: x.amax(dim=1, keepdim=True)[:, 0], [0, 2, 1], [4, 3, 1])
    assert found.tolist() == pytest.approx([-2, 0, 0])
    found, _ = shares(lambda x: x.amax(1), [2, 1], [2, 0])
    assert found.tolist() == pytest.approx([0, 0])
    # The winner moves by 1, the maximum by one half.
    found, _ = shares(lambda x: x.amax(1), [2, 1], [1, 1.5])
    assert found.tolist() == pytest.approx([0.5, 0])


def test_the_softmax_of_two_is_the_sigmoid_of_their_difference() -> None:
    two, _ = shares(lambda x: x.softmax(-1)[:, 0], [2, -1], [-0.5, 0.25])
    one, _ = shares(lambda x: (x[:, 0] - x[:, 1]).sigmoid(), [2, -1], [-0.5, 0.25])
    assert torch.allclose(two, one, atol=1e-14)


def test_a_softmax_far_from_its_reference_is_complete_in_float32_and_ignores_masked_scores() -> None:
    given, reference = torch.tensor([[300.0, -200, 0, -torch.inf]]), torch.tensor([[-300.0, 200, 0, -torch.inf]])

    def read(scores: Tensor) -> Tensor:
        hidden = torch.tensor([False, False, False, True])
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)[:, 0]

    slopes, difference = multipliers(read, given.nan_to_num(neginf=7), reference.nan_to_num(neginf=-7))
    assert slopes[0, 3] == 0
    assert float((slopes * (given - reference).nan_to_num(0))[0].sum()) == pytest.approx(1)
    assert float(difference) == pytest.approx(1)


def some(rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=Generator().manual_seed(seed), dtype=DOUBLE)


def mixture(values: Tensor) -> Tensor:
    """A number of each row that depends on all of its entries, each with another weight."""
    flat = values.flatten(1)
    return flat @ torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch.Tensor, name) for name in ("tanh", "sigmoid", "erf", "expm1", "sin", "cos")},
    **{name: getattr(torch.Tensor, name) for name in ("relu", "abs", "square")},
    **{name: getattr(nn.functional, name) for name in ("gelu", "silu", "mish", "softplus", "leaky_relu")},
    **{name: getattr(nn.functional, name) for name in ("relu6", "elu", "selu", "hardtanh")},
    "log_sigmoid": nn.functional.logsigmoid,
    "exp": torch.exp,
    "log": lambda x: (x.abs() + 0.01).log(),
    "sqrt": lambda x: (x.abs() + 0.01).sqrt(),
    "rsqrt": lambda x: (x * x + 0.01).rsqrt(),
    "reciprocal": lambda x: 1 / (3 + x.tanh()),
    "pow": lambda x: x**3 + x**2 + (x.abs() + 0.1) ** 1.7 + (x.abs() + 0.1) ** -0.5,
    "clamp": lambda x: x.clamp(-0.3, 0.4),
    "clamp_min": lambda x: x.clamp_min(0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "in place": lambda x: (x * 2).mul_(x).sub_(1).tanh_(),
    "relu in place": lambda x: nn.functional.relu(x * 2, inplace=True),
    "gelu by tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "quotient": lambda x: x / (x.square() + 0.1),
    "quotient in place": lambda x: (x * 2).div_(x.square() + 0.1),
    "bmm": lambda x: torch.bmm(x[:, :6].reshape(-1, 2, 3), x[:, 2:8].reshape(-1, 3, 2)),
    "matmul": lambda x: x[:, :6].reshape(-1, 2, 3) @ x[:, 2:8].reshape(-1, 3, 2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x[:, :6].reshape(-1, 2, 3), x[:, 2:8].reshape(-1, 2, 3)),
    "softmax": lambda x: nn.functional.softmax(3 * x, dim=1),
    "log_softmax": lambda x: nn.functional.log_softmax(3 * x, dim=1),
    "rms norm": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
    "rms norm by a power": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5,
    "reciprocal power": lambda x: (3 + x.tanh()) ** -1 + (x.exp() + 1) ** -1 * x,
    "layer norm": lambda x: nn.functional.layer_norm(x, (8,), torch.arange(8).to(x), torch.ones(8).to(x)),
    "plain layer norm": lambda x: nn.functional.layer_norm(x, (8,)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_known_operation_carries_differences_exactly(name: str) -> None:
    given, other = some(4, 8, seed=1), some(4, 8, seed=2)
    for reference in (other, given + 1e-3 * other, given + 1e-7 * other):
        slopes, difference = multipliers(lambda x: mixture(OPERATIONS[name](x)), given, reference)
        assert torch.allclose((slopes * (given - reference)).sum(1), difference, rtol=1e-9, atol=1e-13)
        assert difference.abs().min() > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_where_input_and_reference_meet_multipliers_are_gradients(name: str) -> None:
    given = some(4, 8, seed=1)
    slopes, _ = multipliers(lambda x: mixture(OPERATIONS[name](x)), given, given.clone())
    at = given.clone().requires_grad_()
    (expected,) = torch.autograd.grad(mixture(OPERATIONS[name](at)).sum(), at)
    assert torch.allclose(slopes, expected, atol=1e-8)


def test_no_rule_is_without_a_test() -> None:
    named = {
        *deeplift.SMOOTH_FUNCTIONS,
        *deeplift.PIECEWISE_FUNCTIONS,
        *deeplift.CLOSED_FORM_SECANTS,
    }
    assert named <= set(OPERATIONS)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_kernels_are_written_out_with_the_same_values(kind: type[nn.LSTM | nn.GRU], *, bias: bool) -> None:
    cell = kind(3, 4, batch_first=True, bias=bias).double().requires_grad_(requires_grad=False)
    for weight in cell.parameters():
        weight.copy_(some(weight.shape[0], weight.numel() // weight.shape[0]).reshape(weight.shape))
    given, reference = some(2, 15, seed=1).reshape(2, 5, 3), some(2, 15, seed=2).reshape(2, 5, 3)
    inside: list[Tensor] = []

    def read(inputs: Tensor) -> Tensor:
        states, last = cell(inputs)
        inside.extend((states.detach(), (last[0] if kind is nn.LSTM else last).detach()))
        return mixture(states) + mixture(states.tanh()[:, -1])

    slopes, difference = multipliers(read, given, reference)
    fused, last = cell(torch.cat([given, reference]))
    assert torch.allclose(inside[0], fused, atol=1e-14)
    assert torch.allclose(inside[1], last[0] if kind is nn.LSTM else last, atol=1e-14)
    assert torch.allclose((slopes * (given - reference)).sum((1, 2)), difference, atol=1e-12)


def missing(found: CompleteAttribution, model: Model, batch: Batch, target: Tensor) -> float:
    """How far scores are from f(text) - f(text of padding), recomputed from the ids."""
    with torch.no_grad():
        blank = batch.inputs.masked_fill(
            batch.content_mask if batch.inputs.dim() == 2 else batch.content_mask.unsqueeze(-1), 0
        )
        ends = [model(some).logits for some in (batch, replace(batch, inputs=blank))]
    difference = target_output(model.task, ends[0], target, "logit") - target_output(
        model.task, ends[1], target, "logit"
    )
    assert difference.abs().max() > 1e-3
    return float((found.scores.sum(1) - difference).abs().max())


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, marks=pytest.mark.slow if number % 2 else (), id=repr(plan))
        for number, plan in enumerate(PLANS)
    ],
)
def test_deeplift_is_complete_on_pooled_models(plan: Attentive) -> None:
    model, batch = built(plan).eval(), replace(batch_for(plan.input_format), candidates=None)
    target = torch.arange(len(batch)) % 3
    found = DeepLift(output="logit")(model, batch, target)
    assert missing(found, model, batch, target) < 1e-12
    assert found.convergence_delta.abs().max() < 1e-12
    assert DeepLift()(model, batch, target).convergence_delta.abs().max() < 1e-12
    found = DeepLift(output="logit")(model.float(), batch, target)
    assert missing(found, model, batch, target) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_deeplift_is_complete_on_every_family_of_transformers(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    found = DeepLift(output="logit")(model, batch, TARGET)
    assert missing(found, model, batch, TARGET) < 1e-12
    assert DeepLift()(model, batch, TARGET).convergence_delta.abs().max() < 1e-12
    found = DeepLift(output="logit")(model.float(), batch, TARGET)
    assert missing(found, model, batch, TARGET) < 1e-5


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3", "t5gemma2", "zamba2"])
def test_deeplift_is_complete_where_the_vector_of_the_pad_token_is_zero(kind: str) -> None:
    model = TransformerModel.wrap(build_tiny_network("text", kind, Generator().manual_seed(0)))
    ids = torch.tensor([[11, 25, 37, 48, 59, 2]])
    batch = Batch(("text",), ids, ids > 0, torch.zeros_like(ids), torch.tensor([[0, 1, 2, 3, 4, -1]]))
    with torch.no_grad():
        blank = model.read_embeddings(replace(batch, inputs=batch.inputs.masked_fill(batch.content_mask, 0)))
    assert (blank[batch.content_mask] == 0).all()
    target = torch.zeros(1, dtype=torch.int64)
    found = DeepLift(output="logit")(model, batch, target)
    assert missing(found, model, batch, target) < 1e-4
    assert 1e-2 < float(found.scores.abs().sum()) < 1e3


def complete(scores: list[float], difference: float) -> CompleteAttribution:
    values = torch.tensor([scores], dtype=DOUBLE)
    return CompleteAttribution(values, values != 0, values.sum(1) - difference)


@pytest.mark.parametrize(
    ("scores", "difference", "is_complete"),
    [
        ([0.3, 0.205], 0.5, True),  # 1 %
        ([0.3, 0.215], 0.5, False),  # 3 %
        ([1e12, -1e12, 0.6], 0.5, False),  # large scores excuse nothing
        ([50.0, -49.97], 0.0, False),
        ([0.5, -0.5 + 1e-6], 0.0, True),  # rounding
        ([0.5, -0.5 + 1e-4], 0.0, False),
        ([1e-9, 2e-8], 1e-9, False),  # of a saturated probability; rounding is a share of the scores
        ([3e-24, -1e-24], 0.0, True),  # below the rounding of a probability
        ([torch.nan, 0.1], 0.1, False),
    ],
)
def test_scores_are_held_against_the_difference_of_the_outputs(
    scores: list[float], difference: float, *, is_complete: bool
) -> None:
    found = complete(scores, difference)
    if is_complete:
        deeplift._check_complete(found, DOUBLE)
    else:
        with pytest.raises(UserError, match="IntegratedGradients"):
            deeplift._check_complete(found, DOUBLE)


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_saturated_transformer_in_float32_is_complete_too(family: str) -> None:
    model = TinyTransformer(family, layers=3, initializer_range=1.0).build(
        MulticlassClassification(3), None, Generator().manual_seed(2)
    )
    found = DeepLift(output="logit")(model, batch_of(family), TARGET)
    attention = model(batch_of(family)).attention
    assert attention.max() > 0.999
    assert missing(found, model, batch_of(family), TARGET) < 1e-4


def test_deeplift_is_complete_with_candidate_answers() -> None:
    plan = next(plan for plan in PLANS if plan.input_format.has_question)
    model, batch = built(plan).eval(), batch_for(plan.input_format)
    found = DeepLift()(model, batch, torch.tensor([0, 0, 1, 2]))
    assert found.convergence_delta.abs().max() < 1e-12
    assert torch.isfinite(found.scores).all()


def test_an_operation_without_a_rule_leaves_a_gap_that_is_reported() -> None:
    model = pooled(normaliser=Sparsemax())
    found = DeepLift(output="logit")(model, BATCH, TARGET)
    assert found.convergence_delta.abs().max() > 1e-4
    twin = replace(BATCH, inputs=BATCH.inputs.masked_fill(BATCH.content_mask, 0))
    with torch.no_grad():
        ends = [target_output(model.task, model(some).logits, TARGET, "logit") for some in (BATCH, twin)]
    assert torch.allclose(found.convergence_delta, found.scores.sum(1) - (ends[0] - ends[1]))


class Layered(Model):
    """A feed-forward network of registered modules on all embeddings of a text of three units."""

    def __init__(self, *, registered: bool = True) -> None:
        super().__init__()
        self.task, self.registered = Regression(), registered
        self.table = nn.Parameter(some(9, 2, seed=5))
        sizes = ((6, 5), (5, 4), (4, 3), (3, 1))
        self.steps = nn.ModuleList(nn.Linear(*size).double() for size in sizes)
        self.curves = nn.ModuleList((nn.ReLU(), nn.Tanh(), nn.Sigmoid()))
        with torch.no_grad():
            for number, step in enumerate(self.steps):
                for weight in step.parameters():
                    weight.copy_(some(len(weight), weight.numel() // len(weight), seed=number).reshape(weight.shape))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        state = embeddings.flatten(1)
        for number, step in enumerate(self.steps):
            state = step(state)
            if number < 3:
                curve = self.curves[number] if self.registered else (torch.relu, torch.tanh, torch.sigmoid)[number]
                state = curve(state)
        return Trace(embeddings, embeddings, torch.ones(len(batch), 1, 1, 1, 3).to(embeddings) / 3, state)


def three(rows: int = 4) -> Batch:
    units = torch.arange(3).expand(rows, 3)
    inputs = torch.randint(1, 9, (rows, 3), generator=Generator().manual_seed(1))
    return Batch(tuple(map(str, range(rows))), inputs, inputs > 0, torch.zeros_like(inputs), units)


def test_on_registered_modules_deeplift_is_captums() -> None:
    model, batch, target = Layered(), three(), torch.zeros(4, dtype=torch.int64)
    found = DeepLift()(model, batch, target)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, embeddings: Tensor) -> Tensor:
            rows = batch.rows(torch.arange(len(embeddings)) % 4)
            logits: Tensor = self.model(rows, embeddings=embeddings).logits[:, 0]
            return logits

    given, reference = (model.table[ids].detach() for ids in (batch.inputs, torch.zeros_like(batch.inputs)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = CaptumDeepLift(Plain()).attribute(given, reference).sum(-1)
    assert torch.allclose(found.scores, expected, atol=1e-9)
    assert found.convergence_delta.abs().max() < 1e-12
    assert found.scores.abs().max() > 0.1


def test_functions_in_place_of_modules_change_nothing() -> None:
    module, function, target = Layered(), Layered(registered=False), torch.zeros(4, dtype=torch.int64)
    expected = DeepLift()(module, three(), target).scores
    assert torch.allclose(DeepLift()(function, three(), target).scores, expected, atol=1e-12)


def test_deepshap_over_equal_baselines_is_deeplift() -> None:
    model = pooled()
    found, expected = (method(model, BATCH, TARGET) for method in (DeepShap(n_baselines=7), DeepLift()))
    assert torch.equal(found.scores, expected.scores)
    near = DeepShap(n_baselines=7, stdevs=1e-9)(model, BATCH, TARGET)
    assert torch.allclose(near.scores, expected.scores, atol=1e-7)
    assert not torch.equal(near.scores, expected.scores)


def test_deepshap_is_the_mean_over_its_noisy_baselines() -> None:
    model, method = pooled(), DeepShap(n_baselines=3, stdevs=0.5, seed=4)
    given = model(BATCH).embeddings.detach()
    expected = torch.zeros_like(BATCH.words).double()
    weights = model.requires_grad_(requires_grad=False)
    for number in range(3):
        noise = method._noise(BATCH, torch.full((3,), number), given.shape[2])
        reference = torch.where(BATCH.content_mask.unsqueeze(-1), noise, given)

        def read(both: Tensor) -> Tensor:
            pair = BATCH.rows(torch.arange(6) % 3)
            return target_output(weights.task, weights(pair, embeddings=both).logits, TARGET.repeat(2), "probability")

        slopes, _ = multipliers(read, given, reference)
        expected += (slopes * (given - reference)).sum(-1) / 3
    found = method(model, BATCH, TARGET)
    assert torch.allclose(found.scores, expected, atol=1e-12)
    assert found.convergence_delta.abs().max() < 1e-12


def test_the_noise_of_baselines_is_gaussian_and_belongs_to_example_seed_and_number() -> None:
    method, number = DeepShap(stdevs=2.0), torch.zeros(3, dtype=torch.int64)
    noise = method._noise(BATCH, number, 2000)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.std()) == pytest.approx(2, rel=0.02)
    alone = method._noise(BATCH.rows(torch.tensor([1])), number[:1], 2000)
    assert torch.equal(alone[0], noise[1, :5])
    assert not torch.equal(method._noise(BATCH, number + 1, 2000), noise)
    assert not torch.equal(replace(method, seed=1)._noise(BATCH, number, 2000), noise)


def test_noise_is_the_normal_quantile_of_a_uniform_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one = 0.8413447460685429  # the share of a standard normal variable below 1
    uniform = torch.tensor([[[0.5, one, 1 - one, 0.0]]], dtype=torch.float64)
    monkeypatch.setattr("heedful.attributions.deeplift.sample_uniform", lambda seeds, draws, units: uniform)
    noise = DeepShap(stdevs=2.0)._noise(some_batch((2,)), torch.zeros(1, dtype=torch.int64), 1).flatten()
    assert noise[:3].tolist() == pytest.approx([0, 2, -2], abs=1e-9)
    assert -20 < float(noise[3]) < -15


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"'blank'.*pad, mask, unk, zero"):
        DeepLift(baselines="blank")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="delete"):
        DeepLift(baselines="delete")  # type: ignore[arg-type]


def test_texts_of_pairs_keep_their_segments_in_the_baseline() -> None:
    found = DeepLift(output="logit")(tiny("bert"), texts(), TARGET)
    assert (found.scores[texts().content_mask] != 0).all()


def test_the_size_of_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    methods: tuple[DeepLift | DeepShap, ...] = (DeepLift(), DeepShap(stdevs=0.1))
    expected = [method(pooled(), BATCH, TARGET).scores for method in methods]
    monkeypatch.setattr(method_module, "CHUNK_CELLS", 2 * BATCH.mask.shape[1] * 128)
    for method, whole in zip(methods, expected, strict=True):
        assert torch.allclose(method(pooled(), BATCH, TARGET).scores, whole, atol=1e-12)


def test_functions_of_torch_are_as_before_after_an_error_under_the_rules() -> None:
    model, calls = pooled(), 0

    def refuse(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # the third forward pass is the first under the rules
            raise ZeroDivisionError

    model.register_forward_hook(refuse)
    with pytest.raises(ZeroDivisionError):
        DeepLift()(model, BATCH, TARGET)
    assert torch.equal(torch.relu(torch.tensor([-1.0], requires_grad=True)), torch.zeros(1))


def test_a_product_of_a_batch_that_is_added_to_biases_keeps_differences() -> None:
    """Scores as BLOOM computes them."""
    draw = Generator().manual_seed(0)
    first, second = (torch.randn(1, 3, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    bias, keys = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((1, 1, 3), (4, 4)))

    def attend(states: Tensor) -> Tensor:
        scores = bias.repeat(len(states), 1, 1).baddbmm(
            batch1=states, batch2=(states @ keys).transpose(1, 2), beta=0.5, alpha=2.0
        )
        return scores.softmax(-1).bmm(states).square().sum((1, 2))

    slopes, difference = multipliers(attend, first, second)
    assert float((slopes * (first - second)).sum() - difference) == pytest.approx(0.0, abs=1e-12)
    assert float(difference) == pytest.approx(float(attend(first) - attend(second)))
