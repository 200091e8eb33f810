"""Plausibility measures against scikit-learn and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    auc,
    average_precision_score,
    f1_score,
    jaccard_score,
    precision_recall_curve,
    roc_auc_score,
)
from torch import Generator, Tensor

from heedful.measures.rationale_agreement import (
    PLAUSIBILITY_MEASURES,
    PickedWords,
    check_top_k,
    has_partial_rationale,
    iou_f1,
    num_top_words,
    plausibility_metrics,
)
from heedful.types import UserError

NAN = math.nan


def there(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def drawn(seed: int, rows: int = 40, width: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with many ties, marks and lengths, by chance."""
    generator = Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (rows, width), generator=generator).double() / 3
    marks = torch.rand(rows, width, generator=generator) < 0.4
    lengths = torch.randint(2, width + 1, (rows, 1), generator=generator)
    return scores, marks, torch.arange(width) < lengths


def test_a_perfect_order_scores_one_its_reverse_zero_and_a_constant_one_half() -> None:
    marks = torch.tensor([[True, True, False, False, False]] * 3)
    scores = torch.tensor([[5.0, 4, 3, 2, 1], [1.0, 2, 3, 4, 5], [2.0] * 5])
    found = plausibility_metrics(scores, marks, there(3, 5))
    assert found["auc"].tolist() == [1.0, 0.0, 0.5]
    assert found["average_precision"].tolist() == pytest.approx([1.0, (1 / 4 + 2 / 5) / 2, 2 / 5])
    assert found["recall"].tolist() == found["f1"].tolist() == pytest.approx([1.0, 0.0, 2 / 5])
    assert found["token_iou"].tolist() == pytest.approx([1.0, 0.0, 0.8 / 3.2])


def test_texts_of_only_one_kind_of_words_are_undefined_in_every_measure() -> None:
    marks = torch.tensor([[True, True, False], [False, False, True], [True, False, False]])
    mask = torch.tensor([[True, True, False]] * 3)
    assert has_partial_rationale(marks, mask).tolist() == [False, False, True]
    for values in plausibility_metrics(torch.rand(3, 3), marks, mask).values():
        assert values.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("seed", range(3))
def test_areas_and_precisions_are_those_of_scikit_learn_with_ties_and_padding(seed: int) -> None:
    scores, marks, mask = drawn(seed)
    whole = plausibility_metrics(scores, marks, mask)
    area, precision, trapezoids = whole["auc"], whole["average_precision"], whole["auprc"]
    seen = 0
    for row in range(len(scores)):
        ours, truth = scores[row][mask[row]].numpy(), marks[row][mask[row]].numpy()
        if 0 < truth.sum() < len(truth):
            seen += 1
            assert area[row].item() == pytest.approx(roc_auc_score(truth, ours))
            assert precision[row].item() == pytest.approx(average_precision_score(truth, ours))
            curve = precision_recall_curve(truth, ours)
            assert trapezoids[row].item() == pytest.approx(auc(curve[1], curve[0])), "as in ERASER and ferret"
    assert seen > 20


@pytest.mark.parametrize("top", [3, 0.25])
def test_picked_words_give_the_f1_and_the_overlap_of_scikit_learn(top: int | float) -> None:
    _, marks, mask = drawn(7)
    scores = torch.rand(marks.shape, generator=Generator().manual_seed(1), dtype=torch.float64)
    found = plausibility_metrics(scores, marks, mask, top)
    for row in range(len(scores)):
        ours, truth = scores[row][mask[row]].numpy(), marks[row][mask[row]].numpy()
        count = min(len(ours), top if isinstance(top, int) else max(1, round(top * len(ours))))
        picked = np.zeros(len(ours), dtype=bool)
        picked[np.argsort(-ours)[:count]] = True
        if 0 < truth.sum() < len(truth):
            assert found["f1"][row].item() == pytest.approx(f1_score(truth, picked, zero_division=0))
            assert found["token_iou"][row].item() == pytest.approx(jaccard_score(truth, picked, zero_division=0))


def test_words_that_tie_at_the_edge_count_as_the_mean_over_all_ways_to_break_the_tie() -> None:
    scores = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    marks = torch.tensor([[False, True, True, False, False]])
    found = plausibility_metrics(scores, marks, there(1, 5), top=3)
    ways = [[0, 1, 2], [0, 1, 3], [0, 2, 3]]
    hits = [sum(bool(marks[0, word]) for word in way) for way in ways]
    assert found["f1"].item() == pytest.approx(float(np.mean([each * 2 / 5 for each in hits])))
    mean = float(np.mean(hits))
    assert found["token_iou"].item() == pytest.approx(mean / (5 - mean)), "of the mean hits, as the docstring says"
    assert found["token_iou"].item() < np.mean([each / (5 - each) for each in hits])


def spans(words: Sequence[bool]) -> list[set[int]]:
    """The runs of marked words, each as the set of its places."""
    runs: list[set[int]] = []
    for place, is_marked in enumerate(words):
        if is_marked and place and words[place - 1]:
            runs[-1].add(place)
        elif is_marked:
            runs.append({place})
    return runs


@pytest.mark.parametrize("top", ["rationale", 5])
def test_spans_match_from_an_overlap_of_one_half_as_in_eraser(top: PickedWords) -> None:
    """The literal definition: each selected span counts if its best IOU with a marked span is at least .5."""
    scores, marks, mask = drawn(11, rows=200, width=16)
    found = plausibility_metrics(scores, marks, mask, top)
    judged = []
    for row in range(len(scores)):
        ours, truth = scores[row][mask[row]].tolist(), marks[row][mask[row]].tolist()
        if not 0 < sum(truth) < len(truth):
            continue
        count = sum(truth) if top == "rationale" else min(5, len(truth))
        first = sorted(range(len(ours)), key=lambda word: (-ours[word], word))[:count]
        picked, marked = spans([word in first for word in range(len(ours))]), spans(truth)
        matches = sum(max(len(one & other) / len(one | other) for other in marked) >= 0.5 for one in picked)
        assert found["iou_precision"][row].item() == pytest.approx(matches / len(picked))
        assert found["iou_recall"][row].item() == pytest.approx(matches / len(marked))
        judged.append((matches / len(picked), matches / len(marked)))
    assert len(judged) > 100
    assert {share for pair in judged for share in pair} > {0.0, 0.5, 1.0}


def test_spans_by_hand() -> None:
    """Selected: words 0-2 and 5; marked: words 1-2, 4-5 and 7. Overlaps 2/3 and 1/2 match, the third has none."""
    scores = torch.tensor([[9.0, 8.0, 7.0, 0.0, 0.0, 6.0, 0.0, 0.0]])
    marks = torch.tensor([[False, True, True, False, True, True, False, True]])
    found = plausibility_metrics(scores, marks, there(1, 8), top=4)
    assert [found["iou_precision"].item(), found["iou_recall"].item()] == pytest.approx([1.0, 2 / 3])
    assert found["token_iou"].item() == pytest.approx(3 / 6)
    assert iou_f1(1.0, 2 / 3) == pytest.approx(0.8)
    assert (iou_f1(0.0, 0.0), iou_f1(0.0, 1.0)) == (0.0, 0.0)
    assert math.isnan(iou_f1(NAN, NAN))


def test_padding_other_rows_and_further_axes_change_nothing() -> None:
    scores, marks, mask = drawn(3)
    wide = torch.nn.functional.pad(scores, (0, 5), value=99.0)
    more = [torch.nn.functional.pad(each, (0, 5)) for each in (marks, mask)]
    stacked = torch.stack((wide, -wide), 1)
    found = plausibility_metrics(stacked, more[0].unsqueeze(1), more[1].unsqueeze(1))
    alone, reverse = plausibility_metrics(scores, marks, mask), plausibility_metrics(-scores, marks, mask)
    for name in PLAUSIBILITY_MEASURES:
        torch.testing.assert_close(found[name][:, 0], alone[name], equal_nan=True)
        torch.testing.assert_close(found[name][:, 1], reverse[name], equal_nan=True)


def test_a_share_selects_at_least_one_word_where_there_is_one() -> None:
    assert num_top_words(torch.tensor([[True, False], [True, True], [False, False]]), 0.2).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: num_top_words(there(1, 3), 0),
        lambda: num_top_words(there(1, 3), 1.5),
        lambda: plausibility_metrics(torch.tensor([[NAN, 1.0]]), torch.tensor([[True, False]]), there(1, 2)),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        wrong()


def test_words_are_selected_by_number_by_share_or_as_the_rationale() -> None:
    for top in (1, 7, 0.1, 1.0, "rationale"):
        check_top_k(top)
    for wrong in (0, -1, 0.0, 1.01, "all"):
        with pytest.raises(UserError, match="is not a number of words"):
            check_top_k(wrong)  # type: ignore[arg-type]
