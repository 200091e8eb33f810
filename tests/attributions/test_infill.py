"""Infill: what is drawn, from which texts, and the mean of outputs against a slow literal twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.attributions.infill import Infill, WordPool, draw_infill, infilled_probabilities
from heedful.types import Batch, NotApplicable
from tests.small_models import some_batch, subject


def texts(*words: tuple[tuple[int, ...], ...]) -> Batch:
    """Texts of words with these token ids, between a start and an end token."""
    width = 2 + max(sum(map(len, text)) for text in words)
    inputs, numbers = torch.zeros(len(words), width, dtype=torch.int64), torch.full((len(words), width), -1)
    for row, text in enumerate(words):
        ids = [2, *(token for word in text for token in word), 3]
        inputs[row, : len(ids)] = torch.tensor(ids)
        own = [number for number, word in enumerate(text) for _ in word]
        numbers[row, 1 : len(own) + 1] = torch.tensor(own)
    uids = tuple(f"t{row}" for row in range(len(words)))
    return Batch(uids, inputs, inputs > 0, torch.zeros_like(inputs), numbers)


def test_a_pool_has_each_word_as_often_as_it_occurs_and_none_of_the_text_itself() -> None:
    pool = WordPool.of_texts(texts(((10,), (11, 12), (10,)), ((20,), (21, 22, 23))))
    assert {length: ids.tolist() for length, ids in pool.words.items()} == {
        1: [[10], [10], [20]],
        2: [[11, 12]],
        3: [[21, 22, 23]],
    }
    assert {length: ids.tolist() for length, ids in pool.without("t0").items()} == {1: [[20]], 3: [[21, 22, 23]]}
    assert {length: len(ids) for length, ids in pool.without("unknown").items()} == {1: 3, 2: 1, 3: 1}


def test_a_word_is_replaced_by_words_of_other_texts_with_as_many_tokens() -> None:
    batch = texts(((10,), (11, 12), (13, 14, 15)), ((20,), (21, 22)), ((30,),))
    drawn = draw_infill(batch, WordPool.of_texts(batch), seed=0, draws=20).ids
    assert drawn.shape == (20, *batch.inputs.shape)
    for draw in drawn.tolist():
        first, second, _ = draw
        # One token, two tokens, and three tokens as two and one because no other text has a word of three.
        assert first[0] == 2
        assert first[1] in (20, 30)
        assert first[2:4] == [21, 22]
        assert (first[4:6], first[6] in (20, 30), first[7]) == ([21, 22], True, 3)
        assert second[1] in (10, 30)
        assert second[2:4] == [11, 12]
        assert second[4:] == [3, 0, 0, 0]
    assert len({tuple(draw[0]) for draw in drawn.tolist()}) > 1


def test_what_is_drawn_does_not_depend_on_the_batch_and_follows_the_seed() -> None:
    batch = texts(((10,), (11,), (12,)), ((20,), (21,), (22,), (23,)), ((30,), (31,), (32,)))
    pool = WordPool.of_texts(batch)
    whole = draw_infill(batch, pool, seed=1, draws=3).ids
    alone = draw_infill(batch.rows(torch.tensor([2])), pool, seed=1, draws=3).ids
    assert torch.equal(whole[:, 2, : alone.shape[2]], alone[:, 0])
    assert torch.equal(whole[:2], draw_infill(batch, pool, seed=1, draws=2).ids)
    assert not torch.equal(whole, draw_infill(batch, pool, seed=2, draws=3).ids)


def test_frequent_words_are_drawn_in_proportion_wherever_they_stand() -> None:
    batch = texts(((10,), (11,)), ((20,), (20,), (20,), (21,)))
    drawn = draw_infill(batch, WordPool.of_texts(batch), seed=0, draws=400).ids[:, 0, 1:3]
    share = (drawn == 20).double().mean(0)
    # Four standard errors of a share of 3/4 in 400 draws.
    assert float((share - 0.75).abs().max()) < 4 * (0.75 * 0.25 / 400) ** 0.5


def test_a_file_of_one_text_has_nothing_to_fill_in() -> None:
    batch = texts(((10,), (11,)))
    with pytest.raises(NotApplicable):
        draw_infill(batch, WordPool.of_texts(batch), seed=0, draws=1)


@pytest.mark.parametrize("name", ["SingleInput", "PairInput", "bert"])
def test_probabilities_under_infill_are_means_over_texts_written_out(name: str) -> None:
    model, batch = subject(name)
    generator = torch.Generator().manual_seed(0)
    infill = draw_infill(batch, WordPool.of_texts(batch), seed=3, draws=2)
    kept = (torch.rand(len(batch), 5, batch.mask.shape[1], generator=generator) < 0.5) & batch.content_mask.unsqueeze(1)
    kept[:, 3] = kept[:, 1]  # read once
    kept[:, 4] = batch.content_mask
    found = infilled_probabilities(model, batch, kept, infill)

    def read(row: int, ids: Tensor) -> Tensor:
        with torch.no_grad():
            one = replace(batch, inputs=batch.inputs.clone())
            one.inputs[row] = ids
            return model.task.probabilities(model.read_logits(one).double())[row]

    for row in range(len(batch)):
        for sample in range(5):
            outputs = []
            for ids in infill.ids[:, row]:
                written = [
                    int(old) if not content or keep else int(new)
                    for old, new, content, keep in zip(
                        batch.inputs[row], ids, batch.content_mask[row], kept[row, sample], strict=True
                    )
                ]
                outputs.append(read(row, torch.tensor(written)))
            expected = torch.stack(outputs).mean(0)
            assert found[row, sample].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        whole = read(row, batch.inputs[row]).tolist()
        assert found[row, 4].tolist() == pytest.approx(whole, abs=1e-5)


def test_nothing_is_filled_in_for_special_tokens() -> None:
    batch = some_batch((3, 5))
    ids = draw_infill(batch, WordPool.of_texts(batch), seed=0, draws=2).ids
    assert isinstance(Infill(ids), Infill)
    assert torch.equal(ids[:, ~batch.content_mask], batch.inputs[~batch.content_mask].expand(2, -1))
