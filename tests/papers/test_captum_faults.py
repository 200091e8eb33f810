"""The faults of captum 0.2 that Neely et al. (2022) print: each derived by hand, and the agreement that they cause."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.deeplift import DeepLift
from heedful.attributions.lime import Lime
from heedful.attributions.method import target_output
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models.attentive import Additive, Attentive, Softmax
from heedful.models.encoders import GRU, BiLSTM
from heedful.models.input_forms import InputFormat, PairInput, SingleInput
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.testing.checks import check_method
from heedful.types import Batch, Model, Task, UserError
from tests.attributions.test_deeplift import Layered, three
from tests.attributions.test_gradient import BATCH, TARGET, pooled
from tests.attributions.test_lime import captum_scores
from tests.attributions.test_perturbation import pairs
from tests.attributions.test_perturbation import pooled as pair_model
from tests.games import Game, words
from tests.models.test_attentive import batch_for, built
from tests.papers.captum_faults import FaultyDeepLift, FaultyDeepShap, FaultyLime, shared_position_index


def test_on_registered_modules_captum_is_right_and_with_functions_it_is_not() -> None:
    batch, target = three(), torch.zeros(4, dtype=torch.int64)
    expected = DeepLift()(Layered(), batch, target).scores
    assert torch.allclose(FaultyDeepLift()(Layered(), batch, target).scores, expected, atol=1e-9)
    found = FaultyDeepLift()(Layered(registered=False), batch, target)
    assert found.convergence_delta.abs().max() > 0.01


def gradient_times_difference(model: Model, batch: Batch, target: Tensor, given: Tensor, blank: Tensor) -> Tensor:
    at = given.detach().clone().requires_grad_()
    values = target_output(model.task, model(batch, embeddings=at).logits, target, "probability")
    return (torch.autograd.grad(values.sum(), at)[0] * (given - blank)).sum(-1)


@pytest.mark.parametrize("encoder", [BiLSTM(3), GRU(3)])
def test_captums_deeplift_of_a_recurrent_model_is_gradient_times_difference(encoder: BiLSTM | GRU) -> None:
    model = pooled(encoder)
    given = model(BATCH).embeddings.detach()
    blank = given.masked_fill(BATCH.content_mask.unsqueeze(-1), 0)
    expected = gradient_times_difference(model, BATCH, TARGET, given, blank)
    found = FaultyDeepLift()(model, BATCH, TARGET)
    assert torch.allclose(found.scores, expected, atol=1e-10)
    assert found.convergence_delta.abs().max() > 1e-3
    assert not torch.allclose(DeepLift()(model, BATCH, TARGET).scores, expected, atol=1e-3)


def test_captums_deepshap_reads_half_of_each_mean_under_the_other_texts_mask_and_target() -> None:
    model, batch = pooled(), BATCH.rows(torch.tensor([0, 2, 1]))
    target = torch.tensor([0, 1, 1])
    given = model(batch).embeddings.detach()
    blank = given.masked_fill(batch.content_mask.unsqueeze(-1), 0)
    found = FaultyDeepShap()(model, batch, target).scores
    for row, hosts in enumerate(((0, 1), (0, 1), (2, 2))):
        expected = torch.zeros(batch.mask.shape[1]).double()
        for host in hosts:
            foreign = replace(batch, mask=batch.mask[[host] * 3], words=batch.words[[host] * 3])
            share = gradient_times_difference(model, foreign, target[[host] * 3], given[[row] * 3], blank[[row] * 3])
            expected += share[0] / 2
        assert torch.allclose(found[row], expected * batch.content_mask[row], atol=1e-12)


def test_captums_deepshap_cuts_or_pads_each_text_of_a_pair_to_the_others_length() -> None:
    model, batch = built(Attentive(BiLSTM(3), Additive(), input_format=PairInput())).eval(), batch_for(PairInput())
    first = batch.rows(torch.tensor([0, 3]))
    target = torch.tensor([2, 0])
    given = model(first).embeddings.detach()
    # Row 0: parts of 6 and 4 units; row 1: of 8 and 5. Under row 1's masks row 0 has two and one units of padding.
    none = torch.zeros(3, given.shape[2]).double()
    moved = torch.cat([given[0, :6], none[:2], given[0, 6:10], none[:1]]).unsqueeze(0)
    host = first.rows(torch.tensor([1]))
    blank = moved.masked_fill(first.content_mask[0][[*range(6), 0, 0, *range(6, 10), 0]].unsqueeze(-1), 0)
    share = gradient_times_difference(model, host, target[1:], moved, blank)[0]
    own = gradient_times_difference(
        model, first, target, given, given.masked_fill(first.content_mask.unsqueeze(-1), 0)
    )[0, :10]
    found = FaultyDeepShap()(model, first, target).scores[0, :10]
    assert torch.allclose(found, (own + torch.cat([share[:6], share[8:12]])) / 2, atol=1e-12)


def drawn_texts(rows: int, *, pair: bool) -> Batch:
    generator = Generator().manual_seed(0)
    lengths = torch.randint(5, 40, (rows,), generator=generator)
    place = torch.arange(int(lengths.max()))
    mask = place < lengths.unsqueeze(1)
    inputs = torch.randint(4, 200, mask.shape, generator=generator).masked_fill(~mask, 0)
    segments = (place >= (lengths // 2).unsqueeze(1)) & mask & pair
    return Batch(tuple(map(str, range(rows))), inputs, mask, segments.long(), place.where(mask, -1))


@pytest.mark.parametrize(
    ("task", "shape", "printed"),
    [
        (BinaryClassification(), SingleInput(), (0.842, 0.873)),
        (MulticlassClassification(3), PairInput(), (0.58, 0.676)),
    ],
)
def test_the_tiling_fault_alone_gives_the_agreement_that_the_paper_prints(
    task: Task, shape: InputFormat, printed: tuple[float, float]
) -> None:
    batch, generator = drawn_texts(40, pair=shape == PairInput()), Generator().manual_seed(1)
    table = torch.randn(200, 50, generator=generator)
    model = Attentive(BiLSTM(64), Additive(), Softmax(), shape).build(task, table, generator).eval()
    target = task.probabilities(model(batch).logits).argmax(1)
    lift, shap = (method(model, batch, target).scores.abs() for method in (FaultyDeepLift(), FaultyDeepShap()))
    tau = float(kendall_matrix(torch.stack((lift, shap), 1), batch.content_mask).value[:, 0, 1].mean())
    assert printed[0] - 0.1 < tau < printed[1] + 0.1


def test_with_the_papers_fault_unit_i_of_both_texts_has_one_score() -> None:
    model, batch = pair_model(PairInput()), pairs()
    wrong = FaultyLime(Lime(200))(model, batch, torch.tensor([0, 2, 1])).scores
    right = Lime(200)(model, batch, torch.tensor([0, 2, 1])).scores
    first, second = ((batch.content_mask & (batch.segments == part))[0] for part in (0, 1))
    assert torch.equal(wrong[0][first][:2], wrong[0][second])
    assert len(set(right[0][batch.content_mask[0]].tolist())) == 6
    single = words((1, 2, 3))
    game, target = Game(torch.arange(5.0)), torch.zeros(1).long()
    assert torch.equal(FaultyLime(Lime(50))(game, single, target).scores, Lime(50)(game, single, target).scores)


def test_token_i_of_both_texts_is_one_feature() -> None:
    batch = pairs()
    wrong = shared_position_index(batch)
    assert wrong[0][batch.content_mask[0]].tolist() == [0, 1, 2, 3, 0, 1]
    assert torch.equal(wrong < 0, ~batch.content_mask)


def test_faulty_lime_is_captums_on_the_same_samples() -> None:
    model, whole, target = pair_model(PairInput()), pairs(), torch.tensor([0, 2, 1])
    found = FaultyLime(Lime(120))(model, whole, target).scores
    for row in range(3):
        batch = whole.rows(torch.tensor([row]))
        expected = captum_scores(Lime(120), model, batch, int(target[row]), shared_position_index(batch))
        assert torch.allclose(found[row, : len(expected)], expected * batch.content_mask[0], atol=2e-6)
    with pytest.raises(UserError, match="feature='unit'"):
        FaultyLime(Lime(feature="word"))


def test_special_tokens_are_numbered_too() -> None:
    words_of = torch.tensor([[-1, 0, 1, 2, 3, -1]])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    pair = Batch(("a",), words_of + 5, words_of > -2, segments, words_of)
    assert shared_position_index(pair, special_tokens=True).tolist() == [[0, 1, 2, 0, 1, 2]]
    assert shared_position_index(pair).tolist() == [[-1, 0, 1, 0, 1, -1]]


def test_captums_deeplift_leaves_the_model_as_it_was() -> None:
    report = check_method(FaultyDeepLift())
    assert all(result.passed for result in report.results if "model" in result.law), report
