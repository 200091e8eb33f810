"""The batch keeps its promises: rows, repetition, dropped units, segments; attributions add up to words."""

from __future__ import annotations

import pytest
import torch

from heedful.types import Attribution, Batch, UserError, pool_by_word


def two_rows() -> Batch:
    """`<sos> a b <eos> <sos> c <eos>` and `<sos> d <eos> <sos> e f <eos>`, with one column of padding."""
    return Batch(
        uids=("first", "second"),
        inputs=torch.tensor([[2, 10, 11, 3, 2, 12, 3, 0], [2, 13, 3, 2, 14, 15, 3, 0]]),
        mask=torch.tensor([[True] * 7 + [False]] * 2),
        segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 0]]),
        words=torch.tensor([[-1, 0, 1, -1, -1, 2, -1, -1], [-1, 0, -1, -1, 1, 2, -1, -1]]),
        labels=torch.tensor([0, 1]),
    )


def test_rows_come_in_the_asked_order_without_needless_padding() -> None:
    picked = two_rows().rows(torch.tensor([1, 0]))
    assert picked.uids == ("second", "first")
    assert picked.inputs.tolist() == [[2, 13, 3, 2, 14, 15, 3], [2, 10, 11, 3, 2, 12, 3]]
    assert picked.labels is not None
    assert picked.labels.tolist() == [1, 0]


def test_repeat_puts_copies_side_by_side() -> None:
    repeated = two_rows().repeat(2)
    assert repeated.uids == ("first", "first", "second", "second")
    assert torch.equal(repeated.inputs[0], repeated.inputs[1])
    assert repeated.labels is not None
    assert repeated.labels.tolist() == [0, 0, 1, 1]


def test_keep_drops_units_closes_the_gap_and_leaves_word_numbers() -> None:
    batch = two_rows()
    kept = batch.keep_units(batch.words != 0)
    assert kept.inputs.tolist() == [[2, 11, 3, 2, 12, 3], [2, 3, 2, 14, 15, 3]]
    assert kept.words.tolist() == [[-1, 1, -1, -1, 2, -1], [-1, -1, -1, 1, 2, -1]]
    assert kept.mask.all()


def test_keep_never_revives_padding() -> None:
    kept = two_rows().keep_units(torch.ones(2, 8, dtype=torch.bool))
    assert kept.inputs.shape[1] == 7


def test_keep_blanks_patches_of_an_image() -> None:
    patches = torch.ones(1, 3, 4)
    batch = Batch(("image",), patches, torch.ones(1, 3).bool(), torch.zeros(1, 3).long(), torch.tensor([[-1, 0, 1]]))
    kept = batch.keep_units(torch.tensor([[True, False, True]]))
    assert kept.inputs.sum(-1).tolist() == [[4.0, 0.0, 4.0]]


def test_special_symbols_and_padding_are_not_scored() -> None:
    assert two_rows().content_mask.sum(1).tolist() == [3, 3]


def test_scores_of_pieces_add_up_to_their_word_and_a_word_without_a_scored_unit_is_masked_out() -> None:
    words = torch.tensor([[-1, 0, 0, 2, 3]])
    mask = torch.tensor([[False, True, True, True, False]])
    by_word = Attribution(torch.tensor([[9.0, 1.0, 2.0, -4.0, 5.0]]), mask).sum_by_word(words)
    assert by_word.scores.tolist() == [[3.0, 0.0, -4.0, 0.0]]
    assert by_word.mask.tolist() == [[True, False, True, False]]


def test_scores_and_mask_must_agree_in_shape() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        Attribution(torch.zeros(1, 2), torch.zeros(1, 3).bool())


@pytest.mark.parametrize(("pooling", "expected"), [("sum", [0.7, -0.3]), ("mean", [0.35, -0.3]), ("max", [0.5, -0.3])])
def test_a_words_score_comes_from_its_pieces(pooling: str, expected: list[float]) -> None:
    words = torch.tensor([[-1, 0, 0, 2, -1]])
    scores = torch.tensor([[9.0, 0.5, 0.2, -0.3, 9.0]])
    found, present = pool_by_word(scores, words, pooling, 4)  # type: ignore[arg-type]
    assert found[present].tolist() == pytest.approx(expected)
    assert present.tolist() == [[True, False, True, False]]
    both, _ = pool_by_word(torch.stack((scores, 2 * scores), 1), words, pooling)  # type: ignore[arg-type]
    torch.testing.assert_close(both[:, 1], 2 * both[:, 0])
    torch.testing.assert_close(both[:, 0], found[:, :3])


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(UserError, match="median"):
        pool_by_word(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.long), "median")  # type: ignore[arg-type]
