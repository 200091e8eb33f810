"""Integrated gradients and GradientSHAP: closed forms, captum as oracle, baselines, chunks that fit into memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from captum.attr import GradientShap as CaptumGradientShap
from captum.attr import IntegratedGradients as CaptumIntegratedGradients
from torch import Tensor, nn

from heedful.attributions import method as method_module
from heedful.attributions.deeplift import DeepLift
from heedful.attributions.integrated_gradients import (
    FIRST_INTERVALS,
    GradientShap,
    IntegratedGradients,
    clenshaw_curtis,
    gauss_legendre,
    integrate_path,
)
from heedful.attributions.method import baseline_vectors, run_copies, target_output
from heedful.models.attentive import AttentiveModel
from heedful.models.input_forms import PairInput, QuestionAnswering
from heedful.tasks import Regression
from heedful.testing.checks import add_padding
from heedful.types import Batch, Model, Trace, UserError
from tests.attributions.test_gradient import BATCH, TARGET, bag, pooled
from tests.models.test_attentive import batch_for
from tests.networks import batch_of, images, texts, tiny

NAMES = ("bilstm", "bert", "distilbert", "electra", "vit")


def case(name: str) -> tuple[Model, Batch]:
    return (pooled(), BATCH) if name == "bilstm" else (tiny(name), batch_of(name))


class Polynomial(Model):
    """The logit is x^power for the one number x that a text has; all else is for show."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.task, self.power = Regression(), power
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        given = batch.inputs.double().unsqueeze(-1) if embeddings is None else embeddings
        logits = (self.weight * given**self.power).sum(1)
        return Trace(given, given, torch.ones(len(batch), 1, 1, 1, 1).double(), logits)


ONE = Batch(("one",), torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1).bool(), *torch.zeros(2, 1, 1).long())


NOUGHT = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize("steps", [1, 2, 10, 50])
def test_a_square_is_integrated_to_one(steps: int) -> None:
    found = IntegratedGradients(steps, baselines="zero")(Polynomial(2), ONE, NOUGHT)
    assert float(found.scores) == pytest.approx(1, abs=1e-12)
    assert float(found.convergence_delta) == pytest.approx(0, abs=1e-12)


def test_the_gap_is_what_the_quadrature_misses() -> None:
    # One point, a = 1/2: 4 (1/2)^3 = 1/2 instead of 1; two points are exact up to degree 3.
    found = IntegratedGradients(1, baselines="zero")(Polynomial(4), ONE, NOUGHT)
    assert (float(found.scores), float(found.convergence_delta)) == pytest.approx((0.5, -0.5))
    assert float(
        IntegratedGradients(2, baselines="zero")(Polynomial(4), ONE, NOUGHT).convergence_delta
    ) == pytest.approx(0)


@pytest.mark.parametrize("method", [IntegratedGradients(1), IntegratedGradients(7), GradientShap(1), GradientShap(5)])
def test_a_linear_model_is_explained_exactly_at_any_number_of_points(
    method: IntegratedGradients | GradientShap,
) -> None:
    model, batch = bag()
    found = replace(method, baselines="zero", output="logit")(model, batch, torch.ones(1, dtype=torch.int64))
    # a_t (w . e_t) with a = (.6, .3, .1), w = (.5, -.25) and e = (1, 0), (0, 2), (-1, 1)
    assert found.scores[0].tolist() == pytest.approx([0.3, -0.15, -0.075])
    assert float(found.convergence_delta) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("intervals", [2, 4, 8, 16, 64, 1024])
def test_clenshaw_curtis_integrates_chebyshev_polynomials_and_holds_the_points_of_half_as_many(intervals: int) -> None:
    points, weights = clenshaw_curtis(intervals)
    # The weights are those with which all polynomials up to this degree have their integral on [0, 1].
    degree = torch.arange(intervals + 1, dtype=torch.float64)
    values = torch.cos(degree[:, None] * torch.arccos(1 - 2 * points))
    integrals = torch.where(degree % 2 == 0, 1 / (1 - degree.square()).where(degree != 1, 1.0), 0.0)
    assert (values @ weights - integrals).abs().max() < 1e-13
    assert (weights > 0).all()
    assert torch.allclose(clenshaw_curtis(2 * intervals)[0][::2], points, atol=1e-15)


class Counted(Model):
    """A model that keeps the first number of each text whose gradient is read."""

    def __init__(self, inner: Model) -> None:
        super().__init__()
        self.inner, self.task = inner, inner.task
        self.states: list[float] = []

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        if torch.is_grad_enabled() and embeddings is not None:
            self.states += embeddings[:, 0, 0].tolist()
        return self.inner(batch, embeddings=embeddings, attention=attention)


@pytest.mark.parametrize(("power", "points"), [(2, 9), (10, 9), (11, 17), (18, 17), (40, 33)])
def test_points_are_added_until_the_scores_add_up_and_none_is_read_twice(power: int, points: int) -> None:
    # By symmetry, n intervals are exact up to degree n + 1, which the gradient of x^(n + 2) has.
    model = Counted(Polynomial(power))
    found = IntegratedGradients(baselines="zero", error=1e-9)(model, ONE, NOUGHT)
    assert float(found.scores) == pytest.approx(1, abs=1e-9)
    assert len(set(model.states)) == len(model.states) == points
    coarse = Counted(Polynomial(power))
    IntegratedGradients(baselines="zero", error=0.5)(coarse, ONE, NOUGHT)
    assert len(coarse.states) == FIRST_INTERVALS + 1


def test_an_error_out_of_reach_ends_at_the_first_power_of_two_that_has_the_points() -> None:
    for steps, points in ((1, 9), (9, 9), (10, 17), (50, 65)):
        model = Counted(Polynomial(600))
        found = IntegratedGradients(steps, baselines="zero", error=1e-12)(model, ONE, NOUGHT)
        assert len(model.states) == points
        at, weights = clenshaw_curtis(points - 1)
        expected = float(600 * at**599 @ weights)
        assert float(found.scores) == pytest.approx(expected)
        assert float(found.convergence_delta) == pytest.approx(expected - 1)


def steep(name: str) -> tuple[Model, Batch]:
    """A network whose texts need different numbers of points."""
    model, batch = case(name)
    with torch.no_grad():
        for parameter in list(model.parameters())[-2:]:
            parameter.mul_(30)
    return model, batch


UNEQUAL = {"bilstm": 2e-3, "bert": 1e-6, "vit": 1e-2}
"""Errors for which the texts of these networks need different numbers of points."""


@pytest.mark.parametrize(("name", "error"), UNEQUAL.items())
@pytest.mark.parametrize("units", ["content", "all"])
def test_each_text_is_read_as_the_quadratures_one_by_one_say(name: str, error: float, units: str) -> None:
    model, batch = steep(name)
    method = IntegratedGradients(error=error, special_tokens=units == "all" and name != "vit")
    found, needed = method(model, batch, TARGET), []
    for row in range(len(batch)):
        at = torch.tensor([row])
        for intervals in (8, 16, 32, 64):
            points, weights = clenshaw_curtis(intervals)
            expected = replace(method, error=None).along(model, batch.rows(at), TARGET[at], points[None], weights)
            if abs(float(expected.convergence_delta)) <= error * float(expected.scores.abs().sum()):
                break
        needed.append(intervals)
        width = expected.scores.shape[1]
        torch.testing.assert_close(found.scores[row, :width], expected.scores[0], atol=1e-10, rtol=0)
        torch.testing.assert_close(found.convergence_delta[at], expected.convergence_delta, atol=1e-10, rtol=0)
        assert not found.scores[row, width:].any()
    assert len(set(needed)) > 1
    plain = IntegratedGradients(special_tokens=method.special_tokens)(model, batch, TARGET)
    assert (found.mask == plain.mask).all()


@pytest.mark.parametrize(("name", "error"), UNEQUAL.items())
def test_where_a_text_ends_depends_on_no_other_text(name: str, error: float) -> None:
    model, batch = steep(name)
    method = IntegratedGradients(error=error)
    found = method(model, batch, TARGET)
    turned = torch.tensor([2, 0, 1])
    moved = method(model, batch.rows(turned), TARGET[turned])
    torch.testing.assert_close(moved.scores, found.scores[turned], atol=1e-10, rtol=0)
    wide = method(model, batch if name == "vit" else add_padding(batch, 3), TARGET)
    torch.testing.assert_close(wide.scores[:, : batch.mask.shape[1]], found.scores, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_nested_points_come_to_what_gauss_legendre_does(name: str) -> None:
    # The error is that of the sum of the scores; the scores themselves are as close on these networks.
    model, batch = case(name)
    exact = IntegratedGradients(200)(model, batch, TARGET)
    found = IntegratedGradients(error=0.02)(model, batch, TARGET)
    sizes = found.scores.abs().sum(1)
    assert (found.convergence_delta.abs() <= 0.02 * sizes).all()
    assert ((found.scores - exact.scores).abs().amax(1) <= 0.02 * sizes).all()


def test_a_path_is_summed_in_float64_and_read_in_the_dtype_of_its_ends() -> None:
    start, end = torch.full((1, 1, 1), 1e-9), torch.ones(1, 1, 1)
    points, weights = gauss_legendre(50)
    seen: list[torch.dtype] = []

    def output_at(row: Tensor, states: Tensor) -> Tensor:
        seen.append(states.dtype)
        return states.sum((1, 2))

    scores = integrate_path(output_at, ONE, (start, end), points.unsqueeze(0), weights.unsqueeze(1))
    assert set(seen) == {torch.float32}
    assert scores.dtype == torch.float64
    # In float32, 1 - 1e-9 is 1.
    assert float(scores) == pytest.approx(1 - float(start), abs=1e-13)


class LearnedInput(Polynomial):
    """Its only text is a parameter."""

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        given = self.weight if embeddings is None else embeddings
        return Trace(given, given, torch.ones(1, 1, 1, 1, 1).double(), (given**self.power).sum(1))


def test_scores_of_embeddings_that_are_parameters_are_detached() -> None:
    model = LearnedInput(2)
    model.weight = nn.Parameter(torch.full((1, 1, 1), 3.0, dtype=torch.float64))
    found = IntegratedGradients(3, baselines="zero")(model, ONE, NOUGHT)
    assert float(found.scores) == pytest.approx(9)
    assert not found.scores.requires_grad
    assert not found.convergence_delta.requires_grad
    assert model.weight.grad is None


def captums(model: Model, batch: Batch, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The output as captum reads it: embeddings, and beside them the numbers of their texts."""

    def read(embeddings: Tensor, row: Tensor) -> Tensor:
        width = int(batch.lengths[row].max())
        logits = model(batch.rows(row), embeddings=embeddings[:, :width]).logits
        return target_output(model.task, logits, target[row], "probability")

    return read


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The type of new tensors of fractions."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [5, 50])
def test_integrated_gradients_and_their_gap_are_captums(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = case(name)
    given = model(batch).embeddings.detach()
    blank = baseline_vectors(model, batch, "pad", batch.content_mask)
    with monkeypatch.context() as patched, default_dtype(torch.float64):
        # captum rounds the weights of the quadrature to float32, twice, which alone is a gap of some 1e-9.
        patched.setattr(Tensor, "float", Tensor.double)
        expected, delta = CaptumIntegratedGradients(captums(model, batch, TARGET)).attribute(
            given,
            blank,
            additional_forward_args=(torch.arange(3),),
            n_steps=steps,
            method="gausslegendre",
            return_convergence_delta=True,
        )
    found = IntegratedGradients(steps)(model, batch, TARGET)
    torch.testing.assert_close(found.scores, expected.sum(-1), atol=1e-13, rtol=0)
    torch.testing.assert_close(found.convergence_delta, delta, atol=1e-13, rtol=0)
    assert steps == 5 or found.convergence_delta.abs().max() < 1e-3
    single = IntegratedGradients(steps)(model.float(), batch, TARGET)
    assert torch.allclose(single.scores, found.scores, atol=1e-5)


def test_grad_shap_is_captums_arithmetic_at_points_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, method = pooled(), GradientShap(n_samples=4, seed=3)
    given = model(BATCH).embeddings.detach()
    blank = baseline_vectors(model, BATCH, "pad", BATCH.content_mask)
    points: list[Tensor] = []
    honest = torch.nn.Module.__call__

    def watched(self: nn.Module, *inputs: object, **named: object) -> object:
        at = named.get("embeddings")
        if isinstance(self, AttentiveModel) and isinstance(at, Tensor) and at.requires_grad:
            points.append(at.detach())
        return honest(self, *inputs, **named)

    with monkeypatch.context() as patched:
        patched.setattr(AttentiveModel, "__call__", watched)
        found = method(model, BATCH, TARGET)
    (seen,) = points
    word = BATCH.content_mask.nonzero()[:, 1].min()
    share = torch.empty(0)

    def drawn(low: float, high: float, size: int) -> object:
        return share.flatten()[:size].numpy()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr("captum.attr._core.gradient_shap.np.random.uniform", drawn)
        oracle = CaptumGradientShap(captums(model, BATCH, TARGET))
        # One baseline for each text: captum draws among baselines, so it is called text by text.
        for row in range(3):
            share = (seen.reshape(3, 4, 9, 5)[row : row + 1, :, word] / given[row, word])[..., 0]
            expected = oracle.attribute(
                given[row : row + 1],
                blank[row : row + 1],
                n_samples=4,
                additional_forward_args=(torch.tensor([row]),),
            )
            width = int(BATCH.lengths[row])
            assert torch.allclose(found.scores[row, :width], expected.sum(-1)[0, :width], atol=1e-9)
    assert len(set(share.flatten().tolist())) == 4


@pytest.mark.slow
def test_grad_shap_comes_closer_to_integrated_gradients_with_the_root_of_its_samples() -> None:
    model = pooled()
    expected = IntegratedGradients()(model, BATCH, TARGET).scores
    errors = []
    for samples in (4, 64, 1024):
        found = [GradientShap(samples, seed=seed)(model, BATCH, TARGET).scores - expected for seed in range(6)]
        errors.append(float(torch.stack(found).square().mean().sqrt()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.5)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.5)


def test_grad_shap_draws_from_seed_and_example() -> None:
    model = pooled()
    one, other = (GradientShap(seed=seed)(model, BATCH, TARGET).scores for seed in (0, 1))
    assert not torch.allclose(one, other, atol=1e-6)
    renamed = replace(BATCH, uids=("x", "y", "z"))
    assert not torch.allclose(GradientShap()(model, renamed, TARGET).scores, one, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_the_padding_baseline_of_a_transformer_keeps_positions_and_segments(family: str) -> None:
    model, batch = tiny(family), replace(texts(), pad_id=1)
    found = baseline_vectors(model, batch, "pad", batch.content_mask)
    inputs = {
        "input_ids": batch.inputs.masked_fill(batch.content_mask, 1),
        "position_ids": torch.arange(7).expand(3, 7) + (2 if family == "roberta" else 0),
    }
    if family != "distilbert":
        inputs["token_type_ids"] = batch.segments
    expected = model.network.base_model.get_submodule("embeddings")(**inputs)
    assert torch.allclose(found[batch.mask], expected[batch.mask])
    given = model(batch).embeddings
    assert torch.equal(found[:, 0], given[:, 0])
    assert not torch.allclose(found[0, 1], found[0, 2])


def test_baselines_hold_the_token_that_is_named() -> None:
    model, batch = pooled(), replace(BATCH, unk_id=1, mask_id=7)
    table = dict(model.named_parameters())["embedding_tables.0.weight"]
    for name, symbol in (("unk", 1), ("mask", 7), ("pad", 0)):
        found = baseline_vectors(model, batch, name, batch.content_mask)  # type: ignore[arg-type]
        assert torch.equal(found[batch.content_mask], table[symbol].expand(15, -1))
        special = batch.mask & ~batch.content_mask
        assert torch.equal(found[special], model(batch).embeddings[special])
    zero = baseline_vectors(tiny("bert"), texts(), "zero", texts().content_mask)
    assert int(zero[texts().content_mask].count_nonzero()) == 0


def test_a_token_that_the_vocabulary_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="no mask token"):
        IntegratedGradients(baselines="mask")(pooled(), replace(BATCH, unk_id=1), TARGET)
    with pytest.raises(UserError, match="no unk token"):
        IntegratedGradients(baselines="unk")(tiny("vit"), replace(images(), unk_id=1), TARGET)


@pytest.mark.parametrize("name", NAMES[:-1])
@pytest.mark.parametrize(
    "method", [IntegratedGradients(100, special_tokens=True), DeepLift(special_tokens=True)], ids=repr
)
def test_with_special_tokens_replaced_they_share_in_the_difference(
    name: str, method: IntegratedGradients | DeepLift
) -> None:
    model, batch = case(name)
    found = method(model, batch, TARGET)
    assert torch.equal(found.mask, batch.mask)
    assert (found.scores[batch.mask & ~batch.content_mask] != 0).all()
    limit = 1e-3 if isinstance(method, IntegratedGradients) else 1e-12
    assert found.convergence_delta.abs().max() < limit
    with torch.no_grad():
        blank = baseline_vectors(model, batch, "pad", batch.mask)
        traces = (model(batch), model(batch, embeddings=blank))
        ends = [target_output(model.task, trace.logits, TARGET, "probability") for trace in traces]
    assert torch.allclose(found.scores.sum(1), ends[0] - ends[1], atol=limit)


def test_where_gradients_jump_at_the_baseline_only_deeplift_stays_complete() -> None:
    # A ViT normalises first: vectors of any length but zero are the same to it, and the way starts at zero.
    model, batch = tiny("vit"), images()
    assert (
        IntegratedGradients(baselines="zero", special_tokens=True)(model, batch, TARGET).convergence_delta.abs().max()
        > 0.1
    )
    assert DeepLift(baselines="zero", special_tokens=True)(model, batch, TARGET).convergence_delta.abs().max() < 1e-10


@pytest.mark.parametrize("shape", [PairInput(), QuestionAnswering()])
def test_both_texts_of_a_pair_share_in_the_difference(shape: PairInput | QuestionAnswering) -> None:
    batch = replace(batch_for(shape), candidates=None)
    found = IntegratedGradients(200)(pooled(shape=shape), batch, torch.ones(4, dtype=torch.int64))
    assert (found.scores[batch.content_mask] != 0).all()
    assert found.convergence_delta.abs().max() < 1e-3


class Cramped(Model):
    """A model on a device with room for a few rows at a time."""

    def __init__(self, inner: Model, room: int, words: str = "CUDA out of memory. Tried to allocate") -> None:
        super().__init__()
        self.inner, self.task, self.room, self.words = inner, inner.task, room, words
        self.sizes: list[int] = []

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        if torch.is_grad_enabled():
            self.sizes.append(len(batch))
            if len(batch) > self.room:
                raise RuntimeError(self.words)
        return self.inner(batch, embeddings=embeddings, attention=attention)


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate", "DefaultCPUAllocator: can't allocate memory"]
)
def test_blocks_are_halved_until_they_fit(words: str) -> None:
    model = pooled()
    cramped = Cramped(model, 5, words)
    expected = IntegratedGradients(10)(model, BATCH, TARGET)
    found = IntegratedGradients(10)(cramped, BATCH, TARGET)
    assert torch.allclose(found.scores, expected.scores, atol=1e-12)
    assert cramped.sizes == [30, 15, 7, *[3] * 10]
    lifted = DeepLift()(Cramped(model, 2), BATCH, TARGET)
    assert torch.allclose(lifted.scores, DeepLift()(model, BATCH, TARGET).scores, atol=1e-12)


def test_where_not_one_row_fits_the_error_says_so() -> None:
    with pytest.raises(UserError, match="does not fit into memory"):
        IntegratedGradients(10)(Cramped(pooled(), 0), BATCH, TARGET)


def test_other_errors_are_not_reported_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        IntegratedGradients(10)(Cramped(pooled(), 5, "shapes do not match"), BATCH, TARGET)


def test_pytorchs_own_error_is_understood_and_every_row_is_done_once() -> None:
    done: list[int] = []

    def work(row: Tensor, copy: Tensor) -> None:
        if len(row) > 4:
            raise torch.OutOfMemoryError
        done.extend((7 * row + copy).tolist())

    run_copies(work, BATCH, 7)
    assert done == list(range(21))


@pytest.mark.parametrize("method", [IntegratedGradients(6), GradientShap(output="logit", special_tokens=True)])
def test_chunks_and_padding_change_nothing(
    method: IntegratedGradients | GradientShap, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pooled()
    found = method(model, BATCH, TARGET)
    assert found.scores.dtype == torch.float64
    for size in (1, 4, 1000):
        with monkeypatch.context() as patched:
            patched.setattr(method_module, "CHUNK_CELLS", size * 9 * 128)
            chunked = method(model, BATCH, TARGET)
        assert torch.allclose(chunked.scores, found.scores, atol=1e-12)
    wide = method(model, add_padding(BATCH, 3), TARGET)
    assert torch.allclose(wide.scores[:, :9], found.scores, atol=1e-12)
    assert torch.allclose(wide.convergence_delta, found.convergence_delta, atol=1e-12)
