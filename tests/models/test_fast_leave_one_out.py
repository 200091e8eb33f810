"""Leave-one-out: the fast path against texts written out by hand, and known values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from heedful.attributions.perturbation import LeaveOneOut, leave_one_out_logits
from heedful.capabilities import SupportsLeaveOneOut
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models import fast_leave_one_out
from heedful.models.attentive import Additive, Attentive, AttentiveModel, Dot, Softmax, UniformWeights
from heedful.models.encoders import Average, BiLSTM, Convolution, Encoder, EncoderModule
from heedful.models.fast_leave_one_out import neighbor_offsets
from heedful.models.input_forms import InputFormat, PairInput, QuestionAnswering, SingleInput
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.testing.checks import add_padding
from heedful.types import Batch, Model
from tests.models.test_attentive import ENCODERS, NORMALISERS, PLANS, SHAPES, batch_of, built, vectors
from tests.networks import images, texts, tiny
from tests.small_models import small_models, some_batch

Rows = tuple[tuple[tuple[int, ...], ...], ...]
ONE: Rows = (((5, 6, 7, 8),), ((9,),), ((6, 10, 5, 5, 11, 12, 4, 13),), ((14, 15),))
TWO: Rows = (
    ((5, 6, 7, 8), (9, 10)),
    ((11,), (12, 13, 5)),
    ((14, 15), (6,)),
    ((7, 7, 8, 16, 17, 18, 4, 9), (19, 4, 6)),
)
WIDE = (Convolution(2, (1, 3, 5, 7)), Convolution(3, (5,)), Convolution(2, (1,)))
BATCH = some_batch((5, 3, 7))
TARGET = torch.tensor([0, 1, 1])
PAIRS = Attentive(BiLSTM(4), Additive(), input_format=PairInput())


def rows_for(shape: InputFormat) -> Rows:
    return ONE if isinstance(shape, SingleInput) else TWO


def batch_for(shape: InputFormat, rows: Rows) -> Batch:
    """The rows as a batch; questions admit two of three answers in every other row."""
    batch = batch_of(*rows)
    admitted = torch.tensor([[True, True, True], [True, False, True]]).repeat(2, 1)[: len(rows)]
    return replace(batch, candidates=admitted) if isinstance(shape, QuestionAnswering) else batch


def written_out(model: Model, shape: InputFormat) -> Tensor:
    """Logits of each text alone, and of each text from whose list of words one was taken: one reading per deletion."""
    rows = rows_for(shape)
    whole = batch_for(shape, rows)
    found = model(whole).logits.unsqueeze(1).repeat(1, whole.mask.shape[1], 1)
    for row, parts in enumerate(rows):
        unit = 0
        for number, part in enumerate(parts):
            for place in range(len(part)):
                if len(part) > 1:
                    shorter = (*part[:place], *part[place + 1 :])
                    text = batch_of((*parts[:number], shorter, *parts[number + 1 :]))
                    admitted = None if whole.candidates is None else whole.candidates[row : row + 1]
                    found[row, unit + 1 + place] = model(replace(text, candidates=admitted)).logits[0]
            unit += len(part) + 2
    return found


def finite(logits: Tensor) -> Tensor:
    """Logits with a number where an answer is not admitted."""
    return logits.masked_fill(logits == -math.inf, -99.0)


@pytest.mark.parametrize(
    "plan", PLANS + tuple(Attentive(encoder, Additive(), input_format=s) for encoder in WIDE for s in SHAPES)
)
@torch.no_grad()
def test_deletions_from_pooled_models_equal_texts_written_without_the_word(plan: Attentive) -> None:
    model, batch = built(plan).eval(), batch_for(plan.input_format, rows_for(plan.input_format))
    expected = finite(written_out(model, plan.input_format))
    assert torch.allclose(finite(model.leave_one_out_logits(batch)), expected, rtol=0, atol=1e-9)
    assert torch.allclose(finite(leave_one_out_logits(model, batch)), expected, rtol=0, atol=1e-9)
    moved = (expected - expected[:, :1]).abs().amax(-1) > 1e-6
    assert not moved[~batch.deletable_mask].any()
    # A rectified filter or a maximum may not notice a deletion; most must.
    assert moved[batch.deletable_mask].double().mean() > 0.5


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize(
    "encoder", [ENCODERS[0], *(pytest.param(encoder, marks=pytest.mark.slow) for encoder in ENCODERS[1:])]
)
@torch.no_grad()
def test_weights_are_renormalised_by_every_normaliser(encoder: Encoder, normaliser: Softmax) -> None:
    for shape in SHAPES:
        model = built(Attentive(encoder, Dot(), normaliser, shape)).eval()
        found = finite(model.leave_one_out_logits(batch_for(shape, rows_for(shape))))
        assert torch.allclose(found, finite(written_out(model, shape)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("encoder", [*ENCODERS, *WIDE])
@torch.no_grad()
def test_in_float32_the_ways_agree_to_a_millionth(encoder: Encoder) -> None:
    for shape in SHAPES:
        model = (
            Attentive(encoder, Additive(), input_format=shape)
            .build(MulticlassClassification(3), vectors(), Generator().manual_seed(1))
            .eval()
        )
        found = finite(model.leave_one_out_logits(batch_for(shape, rows_for(shape))))
        assert torch.allclose(found, finite(written_out(model, shape)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.attention == Additive()])
@torch.no_grad()
def test_chunk_sizes_change_nothing(plan: Attentive, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = built(plan).eval(), batch_for(plan.input_format, rows_for(plan.input_format))
    expected = finite(model.leave_one_out_logits(batch))
    for numbers in (1, 300):
        monkeypatch.setattr(fast_leave_one_out, "MAX_ELEMENTS", numbers)
        assert torch.allclose(finite(model.leave_one_out_logits(batch)), expected, rtol=0, atol=1e-12)
    monkeypatch.setattr(model, "tokens_per_pass", 30)
    assert torch.allclose(finite(leave_one_out_logits(model, batch)), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_other_rows_order_and_padding_change_nothing(plan: Attentive) -> None:
    model, batch = built(plan).eval(), batch_for(plan.input_format, rows_for(plan.input_format))
    expected = finite(model.leave_one_out_logits(batch))
    units = batch.mask.shape[1]
    for dirt in (None, 7):
        wider = finite(model.leave_one_out_logits(add_padding(batch, 3, token_id=dirt)))
        assert torch.allclose(wider[:, :units], expected, rtol=0, atol=1e-9)
        assert torch.allclose(wider[:, units:], expected[:, :1].expand(-1, 3, -1), rtol=0, atol=1e-9)
    for index in ([3, 1, 0, 2], [2], [1, 1]):
        other = finite(model.leave_one_out_logits(batch.rows(torch.tensor(index))))
        assert torch.allclose(other, expected[index, : other.shape[1]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("encoder", [*ENCODERS, *WIDE])
def test_no_text_is_encoded_again_for_a_deletion(encoder: Encoder) -> None:
    model = built(Attentive(encoder, Additive())).eval()
    read: list[int] = []
    model.encoders[0].register_forward_hook(lambda module, given, states: read.append(len(states)))
    model.leave_one_out_logits(batch_of(*ONE))
    assert sum(read) == len(ONE)


class Doubling(EncoderModule):
    """An encoder without a fast path: each state looks at the whole text."""

    dim = 5

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(-1)
        return (embeddings * 2 + (embeddings * real).sum(1, keepdim=True)).tanh() * real

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return (hidden * mask.unsqueeze(-1)).sum(1)


@torch.no_grad()
def test_an_unknown_encoder_reads_the_shortened_texts() -> None:
    for shape in SHAPES:
        model = built(Attentive(Average(5), Additive(), input_format=shape)).eval()
        model.encoders = nn.ModuleList(Doubling() for _ in model.encoders)
        found = finite(model.leave_one_out_logits(batch_for(shape, rows_for(shape))))
        assert torch.allclose(found, finite(written_out(model, shape)), rtol=0, atol=1e-9)


def test_the_neighbours_of_a_gap_do_not_include_it() -> None:
    assert neighbor_offsets(0) == []
    assert neighbor_offsets(1) == [-1, 1]


SCORES = (2.0, 1.0, -1.0, -3.0)


def planted(weights: tuple[float, ...] | None) -> AttentiveModel:
    """A token-wise model whose four words have the logits of `SCORES` and these weights; None: uniform."""
    plan = Attentive(Average(4), Dot(), UniformWeights() if weights is None else Softmax())
    model = plan.build(BinaryClassification(), torch.zeros(30, 4), Generator().manual_seed(0)).double().eval()
    with torch.no_grad():  # h_t = tanh(W e_t) is half a unit vector: twice as much in the readers of h makes up for it
        model.embedding_tables[0].weight[4:8] = torch.eye(4, dtype=torch.float64)  # type: ignore[operator]
        model.encoders[0].projection.weight.copy_(torch.eye(4) * math.atanh(0.5))  # type: ignore[union-attr, operator]
        model.encoders[0].projection.bias.zero_()  # type: ignore[union-attr, operator]
        model.decoder.output_layer.weight.copy_(2 * torch.tensor([SCORES]))  # type: ignore[union-attr, operator]
        model.decoder.output_layer.bias.zero_()  # type: ignore[union-attr, operator]
        if weights is not None:
            model.attention.score.weight.copy_(2 * 2 * torch.tensor([weights]).log())  # type: ignore[union-attr, operator]
    return model


def test_leave_one_out_under_uniform_attention_has_the_specified_values() -> None:
    model, batch = planted(None), some_batch((4,))
    assert float(model(batch).logits.sigmoid().detach()) == pytest.approx(0.437823, abs=5e-7)
    found = LeaveOneOut("distribution")(model, batch, torch.tensor([1])).scores[0, 1:-1]
    assert found.tolist() == pytest.approx([0.168882, 0.098580, 0.062177, 0.222933], abs=1e-6)
    signed = LeaveOneOut()(model, batch, torch.tensor([1])).scores[0, 1:-1]
    assert signed.tolist() == pytest.approx([0.168882, 0.098580, -0.062177, -0.222933], abs=1e-6)


def test_leave_one_out_with_weights_renormalised_has_the_specified_values() -> None:
    weights = (0.7, 0.2, 0.05, 0.05)
    model, batch = planted(weights), some_batch((4,))
    assert model(batch).attention[0, 0, 0, 0, 1:-1].tolist() == pytest.approx(weights, abs=1e-6)
    assert float(model(batch).logits.sigmoid().detach()) == pytest.approx(0.802184, abs=5e-7)
    found = LeaveOneOut("distribution")(model, batch, torch.tensor([1])).scores[0, 1:-1]
    assert found.tolist() == pytest.approx([0.302184, 0.015391, 0.019283, 0.034202], abs=1e-6)
    tau = kendall_matrix(torch.stack((found, torch.tensor(weights).double())))
    assert float(tau.value[0, 1]) == pytest.approx(0.182574, abs=5e-7)


def test_logit_differences_have_the_sign_of_the_contribution() -> None:
    model, batch = planted(None), some_batch((4,))
    method = LeaveOneOut(output="logit")
    found = method(model, batch, torch.tensor([1])).scores[0, 1:-1]
    mean = sum(SCORES) / 4
    assert found.tolist() == pytest.approx([mean - (sum(SCORES) - score) / 3 for score in SCORES])
    assert method(model, batch, torch.tensor([0])).scores[0, 1:-1].tolist() == pytest.approx((-found).tolist())


def test_many_classes_are_compared_by_total_variation_whatever_the_target() -> None:
    model = tiny("bert")
    batch = texts()
    with torch.no_grad():
        after, before = leave_one_out_logits(model, batch).softmax(-1), model(batch).logits.softmax(-1)
    found = LeaveOneOut("distribution")(model, batch, torch.tensor([0, 1, 2])).scores
    for row, unit in batch.deletable_mask.nonzero().tolist():
        literal = sum(abs(float(p) - float(q)) for p, q in zip(after[row, unit], before[row], strict=True)) / 2
        assert found[row, unit] == pytest.approx(literal, abs=1e-12)


def test_a_number_changes_by_half_its_difference_or_by_all_of_it() -> None:
    model = Attentive(BiLSTM(3), Additive()).build(Regression(), vectors(), Generator().manual_seed(1)).eval()
    batch, target = batch_of(*ONE), torch.zeros(4, dtype=torch.int64)
    halved, signed = (LeaveOneOut(output=o)(model, batch, target).scores for o in ("distribution", "logit"))
    assert torch.allclose(halved * 2, signed.abs(), atol=1e-7)
    assert signed.abs().sum() > 0


def test_the_only_word_of_a_part_gets_zero_and_its_neighbour_part_is_unharmed() -> None:
    model = built(Attentive(BiLSTM(3), Additive(), input_format=PairInput())).eval()
    batch = batch_of(*TWO)
    scores = LeaveOneOut("distribution")(model, batch, torch.zeros(4, dtype=torch.int64)).scores
    only = (batch.content_mask & ~batch.deletable_mask).nonzero().tolist()
    assert only == [[1, 1], [2, 5]]
    assert all(scores[row, unit] == 0 for row, unit in only)
    assert (scores[batch.deletable_mask] > 0).all()


@torch.no_grad()
def test_a_transformer_reads_each_text_without_the_word_at_the_next_position() -> None:
    model, batch = tiny("bert"), texts()
    found = leave_one_out_logits(model, batch)
    for row, unit in batch.deletable_mask.nonzero().tolist():
        here = [place for place in range(int(batch.lengths[row])) if place != unit]
        shorter = Batch(
            ("x",),
            batch.inputs[row : row + 1, here],
            torch.ones(1, len(here), dtype=torch.bool),
            batch.segments[row : row + 1, here],
            batch.words[row : row + 1, here],
        )
        assert torch.allclose(found[row, unit], model(shorter).logits[0], atol=1e-12)
    assert torch.allclose(found[:, 0], model(batch).logits, atol=1e-12)


@torch.no_grad()
def test_a_patch_of_an_image_is_blanked() -> None:
    model, batch = tiny("vit"), images()
    scores = LeaveOneOut(output="logit")(model, batch, torch.tensor([2, 1, 0])).scores
    blanked = batch.inputs.clone()
    blanked[1, 3] = 0
    expected = model(batch).logits[1, 1] - model(replace(batch, inputs=blanked)).logits[1, 1]
    assert scores[1, 3] == pytest.approx(float(expected))
    assert (scores[batch.content_mask] != 0).all()


def test_attentive_models_support_fast_leave_one_out_and_transformers_do_not() -> None:
    assert isinstance(small_models()["pooled"], SupportsLeaveOneOut)
    assert not isinstance(small_models()["transformer"], SupportsLeaveOneOut)


@torch.no_grad()
def test_deletions_that_leave_the_same_text_tie_as_on_the_slow_path() -> None:
    """Rounding in float32 separated them on 38 of 50 models; a rank correlation then ranks noise."""
    runs: Rows = (((5, 6, 6, 6, 7),), ((5, 5, 8, 7, 7, 7, 9),), ((9, 9),), ((5, 6, 7, 8, 8, 8),))
    single, pair = batch_of(*runs), batch_of(*((parts[0], (6, 6, 9, 9, 9)) for parts in runs))
    for seed in range(50):
        batch, plan = (single, Attentive(BiLSTM(16), Additive())) if seed < 40 else (pair, PAIRS)
        generator = Generator().manual_seed(seed)
        model = plan.build(BinaryClassification(), torch.randn(30, 8, generator=generator), generator).eval()
        fast, slow = model.leave_one_out_logits(batch)[..., 0], leave_one_out_logits(model, batch)[..., 0]
        ties, expected = (each.unsqueeze(1) == each.unsqueeze(2) for each in (fast, slow))
        deleted = batch.deletable_mask.unsqueeze(1) & batch.deletable_mask.unsqueeze(2)
        assert torch.equal(ties & deleted, expected & deleted)
        assert torch.allclose(fast, slow, atol=1e-5)


@torch.no_grad()
def test_deletions_of_one_word_from_a_bag_of_words_tie_wherever_it_stands() -> None:
    batch = batch_of(((5, 6, 5, 8, 6, 5),), ((9, 7, 7, 9, 5),), ((9, 8),))
    for seed in range(20):
        generator = Generator().manual_seed(seed)
        table = torch.randn(30, 8, generator=generator)
        model = Attentive(Average(16), Additive()).build(BinaryClassification(), table, generator).eval()
        fast, slow = model.leave_one_out_logits(batch)[..., 0], leave_one_out_logits(model, batch)[..., 0]
        deleted = batch.deletable_mask.unsqueeze(1) & batch.deletable_mask.unsqueeze(2)
        same_word = batch.inputs.unsqueeze(1) == batch.inputs.unsqueeze(2)
        assert torch.equal((fast.unsqueeze(1) == fast.unsqueeze(2)) & deleted, same_word & deleted)
        assert torch.allclose(fast, slow, atol=1e-6)


def test_the_logit_of_an_answer_that_is_no_candidate_does_not_change() -> None:
    shape = QuestionAnswering()
    model, batch = built(Attentive(BiLSTM(3), Additive(), input_format=shape)).eval(), batch_for(shape, TWO)
    scores = LeaveOneOut("logit")(model, batch, torch.ones(4, dtype=torch.int64)).scores
    assert scores.isfinite().all()
    assert (scores[1] == 0).all(), "the second row does not admit answer 1"
    assert (scores[0] != 0).any()
