"""The parts that methods share, by hand: explained outputs, options, features, deleted texts, chunks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from heedful.attributions._base import (
    copy_to_units,
    divide_among_units,
    expand_to_units,
    feature_counts,
    feature_index,
    replace_units,
    run_in_chunks,
    target_output,
)
from heedful.attributions.lime import Lime
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import UserError
from tests.games import words
from tests.trials.test_permutation import some_batch


def test_the_explained_output_is_the_targets_probability_or_logit() -> None:
    one, target = torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 1])
    assert target_output(BinaryClassification(), one, target, "logit").tolist() == [-2, -1]
    sigmoid = [1 / (1 + math.exp(2)), 1 / (1 + math.exp(1))]
    assert target_output(BinaryClassification(), one, target, "probability").tolist() == pytest.approx(sigmoid)
    several = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]])
    found = target_output(MulticlassClassification(3), several, torch.tensor([2, 0]), "logit")
    assert found.tolist() == [[3, 6], [7, 10]]
    assert found.dtype == torch.float64


def test_options_are_refused_outside_their_choices_and_where_they_contradict() -> None:
    assert Lime(baselines="delete").baselines == "delete"
    assert Lime(special_tokens=True).special_tokens
    with pytest.raises(UserError, match="cannot remove special tokens"):
        Lime(baselines="delete", special_tokens=True)
    with pytest.raises(UserError, match="output"):
        Lime(output="logits")  # type: ignore[arg-type]


def test_features_are_numbered_in_text_order() -> None:
    batch = some_batch((3, 1))
    assert feature_index(batch, "unit").tolist() == [[-1, 0, 1, 2, -1], [-1, 0, -1, -1, -1]]
    everything = feature_index(batch, "unit", special_tokens=True)
    assert everything.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]
    assert feature_counts(everything).tolist() == [5, 3]
    assert feature_index(words((1, 2, 3), (4, 5, 6), pieces=(0, 0, 1)), "word").tolist() == [[0, 0, 1]] * 2


def test_scores_and_coalitions_of_features_go_to_their_tokens() -> None:
    index, scores = torch.tensor([[0, 0, 1, -1], [0, 1, -1, -1]]), torch.tensor([[6.0, 4.0], [5.0, 7.0]])
    assert divide_among_units(scores, index).tolist() == [[3, 3, 4, 0], [5, 7, 0, 0]]
    assert copy_to_units(scores, index).tolist() == [[6, 6, 4, 0], [5, 7, 0, 0]]
    kept = torch.tensor([[[True, False], [False, True], [True, True]], [[True, False], [False, True], [False, False]]])
    assert expand_to_units(kept, index).long().tolist() == [
        [[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]],
    ]


def test_a_text_that_would_be_empty_keeps_one_pad_token() -> None:
    removed = torch.tensor([[True, True], [True, False]])
    found = replace_units(words((5, 6), (7, 8)), removed, "delete")
    assert [row[mask].tolist() for row, mask in zip(found.inputs, found.mask, strict=True)] == [[0], [8]]
    assert replace_units(words((5, 6), (7, 8)), removed, "pad").inputs.tolist() == [[0, 0], [0, 8]]


@pytest.mark.parametrize("room", [1, 2, 3, 9])
def test_chunks_are_halved_until_they_fit(room: int) -> None:
    done: list[int] = []

    def work(chunk: Tensor) -> None:
        if len(chunk) > room:
            raise MemoryError
        done.extend(chunk.tolist())

    run_in_chunks(work, 7, lambda start: 4, torch.device("cpu"))
    assert done == list(range(7))


def test_a_text_that_does_not_fit_alone_is_an_error() -> None:
    def work(chunk: Tensor) -> None:
        raise MemoryError

    with pytest.raises(UserError, match="does not fit into memory"):
        run_in_chunks(work, 7, lambda start: 4, torch.device("cpu"))
