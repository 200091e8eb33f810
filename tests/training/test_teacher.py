"""Teachers: examples for students, stored outputs, and explanations as distributions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.attributions.gradient import InputXGradient
from heedful.attributions.head_mix import StaticAttention
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.perturbation import LeaveOneOut
from heedful.capabilities import read_heads
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel
from heedful.training.teacher import (
    AttentionExplanation,
    ExampleSubset,
    HeadMaps,
    LayerMaps,
    LearnedExplanation,
    MapSource,
    MethodExplanation,
    MethodMaps,
    NoExplanation,
    RidgeExplanation,
    StudentData,
    TeacherExplainer,
    TeacherExplanation,
    TeacherLookup,
    TeacherOutputs,
    point_predictions,
)
from heedful.types import Batch, UserError
from tests.students import DATA, TEACHER, same, weights

TRAIN_SUBSET = DATA.subset("train", 0)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("explainer"), batch_size=7)


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> LoadedModel:
    return TEACHER.restore(workspace)


@pytest.fixture(scope="module")
def batch(trained: LoadedModel) -> Batch:
    """Some training examples."""
    return trained.tokenizer(TRAIN_SUBSET.select_examples(trained)[3:9])


def uids(part: ExampleSubset, trained: LoadedModel) -> list[str]:
    return [example.uid for example in part.select_examples(trained)]


def explainer(explanation: TeacherExplanation, workspace: Workspace) -> TeacherExplainer:
    """The explainer on the training examples."""
    lookup = tuple(
        TeacherLookup(workspace.get(TeacherOutputs(TEACHER, TRAIN_SUBSET, source)))
        for source in explanation.map_sources
    )
    assert not isinstance(explanation, NoExplanation)
    return explanation.build_explainer(lookup)


def test_redrawn_examples_change_with_the_seed_and_fixed_ones_do_not(trained: LoadedModel) -> None:
    redrawn, fixed = StudentData(train_size=20), StudentData(train_size=20, sampling="fixed")
    assert uids(redrawn.subset("train", 1), trained) != uids(redrawn.subset("train", 2), trained)
    assert redrawn.subset("train", 1) == redrawn.subset("train", 1)
    assert fixed.subset("train", 1) == fixed.subset("train", 2)
    assert len(set(uids(fixed.subset("train", 1), trained))) == 20


def test_dev_is_divided_without_overlap_unless_it_is_shared(trained: LoadedModel) -> None:
    dev = trained.examples("dev")
    outer, judged = StudentData().divide_dev(dev)
    assert (len(outer), len(judged)) == (8, 8)
    assert {example.uid for example in (*outer, *judged)} == {example.uid for example in dev}
    shared = StudentData(share_dev=True).divide_dev(dev)
    assert shared == (dev, dev)


def test_examples_from_the_test_split_are_divided_without_overlap(trained: LoadedModel) -> None:
    data = StudentData(train_size=21, source_split="test")
    parts = [uids(part, trained) for part in (data.subset("train", 0), data.subset("dev", 0), data.subset("test", 0))]
    assert [len(part) for part in parts] == [21, 3, 6]
    assert len({uid for part in parts for uid in part}) == 30
    assert all(uid.startswith("test-") for part in parts for uid in part)


def test_a_limit_caps_dev_and_test_for_all_seeds_alike(trained: LoadedModel) -> None:
    data = StudentData(train_size=5, eval_limit=6)
    assert len(uids(data.subset("dev", 0), trained)) == len(uids(data.subset("test", 0), trained)) == 6
    assert len(uids(data.subset("train", 0), trained)) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_size": 0},
        {"sampling": "again"},
        {"source_split": "dev"},
        {"eval_limit": 1},
    ],
)
def test_invalid_student_data_is_refused(wrong: dict[str, int | str | float]) -> None:
    with pytest.raises(UserError):
        StudentData(**wrong)  # type: ignore[arg-type]


SOURCES: tuple[MapSource, ...] = (HeadMaps(), HeadMaps(-1), MethodMaps(InputXGradient()), LayerMaps())


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.display_name)
def test_stored_maps_equal_computed_maps(
    source: MapSource, workspace: Workspace, trained: LoadedModel, batch: Batch
) -> None:
    lookup = TeacherLookup(workspace.get(TeacherOutputs(TEACHER, TRAIN_SUBSET, source)))
    maps, logits = source.compute_maps(trained.model, batch)
    torch.testing.assert_close(lookup.maps(batch), maps.float().detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lookup.logits(batch), logits.detach(), rtol=1e-5, atol=1e-6)
    counts: dict[MapSource, int] = {HeadMaps(): 4, HeadMaps(-1): 2}
    assert lookup.map_count == counts.get(source, maps.shape[1])


def test_stored_maps_of_texts_of_different_length_are_zero_on_padding(tmp_path: Path) -> None:
    from tests.students import Pairs  # a corpus of unequal lengths

    workspace = Workspace(tmp_path, batch_size=5)
    teacher = replace(TEACHER, corpus=Pairs())
    trained = teacher.restore(workspace)
    whole = trained.tokenizer(ExampleSubset("train").select_examples(trained))
    lookup = TeacherLookup(workspace.get(TeacherOutputs(teacher, ExampleSubset("train"), HeadMaps())))
    order = whole.lengths.argsort(descending=True)
    for rows in (order[:4], order[-4:], torch.arange(24)):
        part = whole.rows(rows)
        with torch.no_grad():
            expected = read_heads(trained.model, part).maps
        torch.testing.assert_close(lookup.maps(part), expected, rtol=1e-5, atol=1e-6)
        assert not lookup.maps(part).transpose(1, 2)[~part.mask].any()


def test_computing_maps_does_not_change_the_teacher(workspace: Workspace) -> None:
    before = weights(workspace)
    model = TEACHER.restore(workspace).model
    for source in SOURCES:
        workspace.get(TeacherOutputs(TEACHER, ExampleSubset("dev"), source))
    assert same(weights(workspace), before)
    assert same(model.state_dict(), before)


def test_examples_and_tokens_that_are_not_stored_are_refused(
    workspace: Workspace, trained: LoadedModel, batch: Batch
) -> None:
    lookup = TeacherLookup(workspace.get(TeacherOutputs(TEACHER, TRAIN_SUBSET, HeadMaps())))
    with pytest.raises(UserError, match="example 'test-0' are not stored"):
        lookup.logits(trained.batch("test"))
    longer = replace(batch, mask=torch.cat((batch.mask, batch.mask[:, :1]), 1))
    with pytest.raises(UserError, match="same tokenization"):
        lookup.maps(longer)


def test_point_predictions_are_classes(trained: LoadedModel) -> None:
    assert point_predictions(trained.model.task, torch.tensor([[-1.0], [2.0]])).tolist() == [0, 1]


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def by_hand(logits: Tensor, support: Tensor) -> np.ndarray:
    """Softmax over the support of each row, one row at a time."""
    found = np.zeros(logits.shape)
    for row in range(len(logits)):
        units = support[row].numpy()
        found[row, units] = softmax(logits[row].double().numpy()[units])
    return found


def test_an_attention_explanation_is_the_softmax_of_the_mean_of_the_heads(
    workspace: Workspace, trained: LoadedModel, batch: Batch
) -> None:
    with torch.no_grad():
        scores = read_heads(trained.model, batch).scores
    for explanation, logits in (
        (AttentionExplanation(), scores.mean((1, 2))),
        (AttentionExplanation(HeadMaps(-1)), scores[:, -1].mean(1)),
        (LearnedExplanation(), scores.mean((1, 2))),
        (LearnedExplanation(learn_temperature=True, temperature=2.0), scores.mean((1, 2)) / 2.0),
    ):
        np.testing.assert_allclose(
            explainer(explanation, workspace)(batch), by_hand(logits, batch.content_mask), atol=1e-6
        )


def test_special_tokens_have_no_weight(workspace: Workspace, batch: Batch) -> None:
    found = explainer(AttentionExplanation(), workspace)(batch)
    assert (batch.mask & ~batch.content_mask).any()
    assert not found[~batch.content_mask].any()
    torch.testing.assert_close(found.sum(1), torch.ones(len(batch)))


def test_static_attention_as_a_method_equals_the_attention_explanation(workspace: Workspace, batch: Batch) -> None:
    method = MethodExplanation(StaticAttention(score_type="logits"))
    torch.testing.assert_close(explainer(method, workspace)(batch), explainer(AttentionExplanation(), workspace)(batch))


def test_a_method_explanation_is_the_softmax_of_its_scores_at_a_temperature(
    workspace: Workspace, trained: LoadedModel, batch: Batch
) -> None:
    target = point_predictions(trained.model.task, trained.model(batch).logits)
    scores = InputXGradient()(trained.model, batch, target).scores
    found = explainer(MethodExplanation(InputXGradient(), 0.1), workspace)(batch)
    np.testing.assert_allclose(found, by_hand(scores.detach() / 0.1, batch.content_mask), atol=1e-5)


def test_a_ridge_mix_solves_the_normal_equations_of_leave_one_out_effects(
    workspace: Workspace, trained: LoadedModel
) -> None:
    whole = trained.tokenizer(TRAIN_SUBSET.select_examples(trained))
    target = point_predictions(trained.model.task, trained.model(whole).logits)
    effects = LeaveOneOut("logit")(trained.model, whole, target).scores.double().numpy()
    with torch.no_grad():
        maps = read_heads(trained.model, whole).maps.double().numpy()
    rows, values = [], []
    for text in range(len(whole)):
        units = whole.content_mask[text].numpy()
        rows.append(maps[text][:, units].T - maps[text][:, units].mean(1))
        values.append(effects[text, units] - effects[text, units].mean())
    design, response = np.concatenate([*rows, np.eye(4)]), np.concatenate([*values, np.zeros(4)])
    expected = np.linalg.lstsq(design, response, rcond=None)[0]
    np.testing.assert_allclose(explainer(RidgeExplanation(), workspace).phi, expected, rtol=1e-3, atol=1e-6)


def peak(found: TeacherExplainer, batch: Batch) -> float:
    """The largest share over an even share, text by text."""
    shares = found(batch).double()
    return float(
        np.mean([float(row.max()) * int(words.sum()) for row, words in zip(shares, batch.content_mask, strict=True)])
    )


def test_a_ridge_mix_is_as_peaked_as_static_attention(workspace: Workspace, trained: LoadedModel) -> None:
    whole = trained.tokenizer(TRAIN_SUBSET.select_examples(trained))
    static, rival = (peak(explainer(each, workspace), whole) for each in (AttentionExplanation(), RidgeExplanation()))
    assert rival == pytest.approx(static, rel=1e-5)


def test_no_explanation_needs_no_maps() -> None:
    assert NoExplanation().map_sources == ()
    assert NoExplanation.beta == 0


def test_special_tokens_are_not_explained_to_students() -> None:
    with pytest.raises(UserError, match="special_tokens"):
        LearnedExplanation(LayerMaps(LayerMix(special_tokens=True)))
