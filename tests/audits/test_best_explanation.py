"""Erasure of words against texts written out one by one, and the search for the best order against all orders."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.method import Baseline, feature_index
from heedful.attributions.perturbation import LeaveOneOut
from heedful.audits.best_explanation import MAX_PASSES, BestErasure, search_best_erasure, word_erasure
from heedful.measures.erasure import AOPC_FRACTIONS, ErasureOutputs, bin_counts
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import Batch, Model, Trace
from tests.attributions.test_perturbation import by_hand
from tests.games import Game, words
from tests.networks import tiny


def sharp(seed: int = 0) -> Model:
    """A BiLSTM of three classes whose decisions depend on single words and on their neighbours."""
    draw = Generator().manual_seed(seed)
    table = torch.randn(40, 5, generator=draw)
    model = Attentive(BiLSTM(3), Additive()).build(MulticlassClassification(3), table, draw).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    return model


class AnyGame(Game):
    """A number for each set of words that is drawn at random: no two words act alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(torch.rand(2**7, generator=Generator().manual_seed(seed)))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        trace = super().forward(batch, embeddings=embeddings, attention=attention)
        members = (2 ** (batch.inputs - 1) * (batch.inputs > 0)).sum(1)
        return replace(trace, logits=self.weights[members].unsqueeze(1))


def texts(*lengths: int, seed: int = 0) -> Batch:
    """Texts of random words."""
    draw = Generator().manual_seed(seed)
    rows = [tuple(torch.randint(4, 40, (length,), generator=draw).tolist()) for length in lengths]
    return replace(words(*rows), unk_id=1, mask_id=3)


def predicted(model: Model, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model(batch).logits.argmax(1)


def erase(
    model: Model, batch: Batch, target: Tensor, scores: Tensor, deletion: Baseline, seed: int = 0
) -> ErasureOutputs:
    return word_erasure(deletion, seed)(model, batch, target, scores.unsqueeze(0))


def distinct_scores(batch: Batch, seed: int = 0) -> Tensor:
    return torch.rand(len(batch), batch.mask.shape[1], generator=Generator().manual_seed(seed), dtype=torch.float64)


# Erasure in the order of scores


def written_out(
    model: Model, batch: Batch, target: Tensor, scores: Tensor, deletion: Baseline, row: int
) -> list[float]:
    """Comprehensiveness, sufficiency and flip of one text, one shorter text at a time."""
    index = feature_index(batch, "word")[row]
    count = int(index.max()) + 1
    ranked = sorted(range(count), key=lambda word: -float(scores[row, word]))

    def read(removed: list[int]) -> tuple[float, int]:
        kept = torch.tensor([int(word) not in removed for word in index])
        with torch.no_grad():
            probabilities = model.task.probabilities(model(by_hand(batch, row, kept, deletion)).logits.double())[0]
        return float(probabilities[target[row]]), int(probabilities.argmax())

    full, decision = read([])
    drops, losses, flips = [], [], [1.0]
    for share in AOPC_FRACTIONS:
        most = math.ceil(share * count - 1e-9)
        output, changed = read(ranked[:most])
        drops.append(full - output)
        losses.append(full - read(ranked[most:])[0])
        flips += [most / count] * (changed != decision)
    return [sum(drops) / len(drops), sum(losses) / len(losses), min(flips)]


@pytest.mark.parametrize("deletion", ["delete", "pad", "mask", "unk"])
def test_erasure_is_that_of_texts_written_out_one_by_one(deletion: Baseline) -> None:
    batch, model = texts(7, 3, 12, 1, 8, 9, 5, 6), sharp(2)
    target, scores = predicted(model, batch), distinct_scores(batch)
    found = erase(model, batch, target, scores, deletion)
    for row in range(len(batch)):
        values = [float(each[row]) for each in (found.comprehensiveness, found.sufficiency, found.flip)]
        assert values == pytest.approx(written_out(model, batch, target, scores, deletion, row), abs=1e-9)
    assert len({*found.flip.tolist()}) > 1


def test_words_of_several_tokens_and_special_tokens_are_erased_as_they_are_read() -> None:
    model = tiny("bert")
    pieces = (-1, 0, 0, 1, 2, 2, 2, 3, 4, -1)
    batch = words(tuple(range(4, 14)), tuple(range(20, 30)), tuple(range(9, 15)), pieces=pieces)
    batch = replace(batch, unk_id=1, mask_id=3, segments=(batch.words > 2).long())
    target, scores = predicted(model, batch), distinct_scores(batch)
    for deletion in ("delete", "mask"):
        found = erase(model, batch, target, scores, deletion)
        for row in range(len(batch)):
            values = [float(each[row]) for each in (found.comprehensiveness, found.sufficiency, found.flip)]
            assert values == pytest.approx(written_out(model, batch, target, scores, deletion, row), abs=1e-9)
    assert bin_counts(found.mask.sum(1)).tolist()[0] == [1, 1, 1, 1, 3]


def test_erasure_by_hand() -> None:
    """The logit is the sum of the weights 4, 2, 1, -1, -3, so that the decision is another below 0."""
    model = Game(torch.tensor([0.0, 4, 2, 1, -1, -3]), task=BinaryClassification())
    batch, target = words((1, 2, 3, 4, 5)), torch.tensor([1])

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    right = erase(model, batch, target, torch.tensor([[4.0, 2, 1, -1, -3]]), "pad")
    # 1, 1, 1, 1 and 3 of five words: without them -1 and -4 are left, alone they are 4 and 7.
    drop = sigmoid(3) - (4 * sigmoid(-1) + sigmoid(-4)) / 5
    assert right.comprehensiveness.tolist() == pytest.approx([drop])
    assert right.sufficiency.tolist() == pytest.approx([sigmoid(3) - (4 * sigmoid(4) + sigmoid(7)) / 5])
    assert right.flip.tolist() == pytest.approx([0.2])
    wrong = erase(model, batch, target, -torch.tensor([[4.0, 2, 1, -1, -3]]), "pad")
    assert wrong.flip.tolist() == [1.0]
    assert wrong.comprehensiveness.item() < 0
    assert right.full_output.tolist() == pytest.approx([sigmoid(3)])


def test_a_number_has_no_decision_that_could_be_another() -> None:
    model, batch = Game(torch.arange(9.0)), words((1, 2, 3), (4, 5))
    target, scores = torch.zeros(2).long(), torch.tensor([[3.0, 2, 1], [1, 2, 0]])
    found = erase(model, batch, target, scores, "pad")
    assert found.flip.isnan().all()
    # (3 - 0) and (5 - 4) ...: the highest word of each bin of three words is 1, of two 5.
    assert found.comprehensiveness.tolist() == pytest.approx([(4 * 1 + 3) / 5, 5])
    best = search_best_erasure(model, batch, target, "pad")
    assert best.flip.isnan().all()
    assert best.comprehensiveness.tolist() == pytest.approx([(4 * 3 + 5) / 5, 5])
    assert best.sufficiency.tolist() == pytest.approx([6 - (4 * 3 + 5) / 5, 9 - 5])


def test_ties_are_broken_by_the_text_and_not_by_the_place_of_a_word() -> None:
    model, batch = sharp(), texts(9, 9, 9)
    target, tied = predicted(model, batch), torch.zeros(3, 9)
    first, again, other = (erase(model, batch, target, tied, "delete", seed) for seed in (0, 0, 1))
    assert torch.equal(first.comprehensiveness_outputs, again.comprehensiveness_outputs)
    assert not torch.equal(first.comprehensiveness_outputs, other.comprehensiveness_outputs)
    ordered = erase(model, batch, target, -torch.arange(9.0).expand(3, 9), "delete")
    assert not torch.equal(first.comprehensiveness_outputs, ordered.comprehensiveness_outputs)


# The search


SETS = words((1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7))


def all_orders(model: AnyGame, ids: list[int]) -> list[float]:
    """The best comprehensiveness and sufficiency of a text over all orders of its words."""
    weights, bins = model.weights.tolist(), [math.ceil(share * len(ids) - 1e-9) for share in AOPC_FRACTIONS]

    def mean(order: tuple[int, ...], *, removes: bool) -> float:
        left = [[word for word in ids if (word in order[:size]) != removes] for size in bins]
        return math.fsum(weights[sum(2 ** (word - 1) for word in chosen)] for chosen in left) / len(bins)

    full, orders = weights[sum(2 ** (word - 1) for word in ids)], [*itertools.permutations(ids, max(bins))]
    drop = full - min(mean(order, removes=True) for order in orders)
    return [drop, full - max(mean(order, removes=False) for order in orders)]


def values_of(found: BestErasure) -> list[tuple[float, float]]:
    return list(zip(found.comprehensiveness.tolist(), found.sufficiency.tolist(), strict=True))


def test_a_wide_search_finds_the_best_of_all_orders_and_a_narrow_one_no_better() -> None:
    target = torch.zeros(len(SETS)).long()
    for seed in range(8):
        model = AnyGame(seed)
        wide = search_best_erasure(model, SETS, target, "pad", beam=1000, max_passes=10**9)
        narrow = search_best_erasure(model, SETS, target, "pad")
        for row, (best, found) in enumerate(zip(values_of(wide), values_of(narrow), strict=True)):
            drop, loss = all_orders(model, SETS.inputs[row][SETS.mask[row]].tolist())
            assert [*best] == pytest.approx([drop, loss])
            assert found[0] <= drop + 1e-9
            assert found[1] >= loss - 1e-9


def greedy(model: Model, batch: Batch, target: Tensor, row: int, *, removes: bool) -> float:
    """The mean output over bins when the word with the best output is removed (or kept) next, one at a time."""
    own = batch.rows(torch.tensor([row]))
    size = int(own.mask.sum())

    def read(chosen: list[int]) -> float:
        kept = torch.tensor([(word in chosen) != removes for word in range(size)])
        with torch.no_grad():
            return float(model(by_hand(own, 0, kept, "delete")).logits.softmax(1)[0, target[row]])

    sign, outputs = (-1 if removes else 1), [read([])]
    chosen: list[int] = []
    while len(chosen) < math.ceil(size / 2):
        left = [word for word in range(size) if word not in chosen]
        chosen.append(max(left, key=lambda word: sign * read([*chosen, word])))
        outputs.append(read(chosen))
    return sum(outputs[math.ceil(share * size - 1e-9)] for share in AOPC_FRACTIONS) / len(AOPC_FRACTIONS)


def test_the_search_is_never_worse_than_a_greedy_one() -> None:
    for seed in (0, 1):
        model, batch = sharp(seed), texts(4, 9, seed=seed)
        target = predicted(model, batch)
        full = erase(model, batch, target, distinct_scores(batch), "delete").full_output
        one, two = (values_of(search_best_erasure(model, batch, target, "delete", beam=beam)) for beam in (1, 2))
        for row in range(len(batch)):
            drop = float(full[row]) - greedy(model, batch, target, row, removes=True)
            loss = float(full[row]) - greedy(model, batch, target, row, removes=False)
            assert one[row] == pytest.approx((drop, loss))
            assert two[row][0] >= drop - 1e-9
            assert two[row][1] <= loss + 1e-9


def test_a_beam_loses_no_greedy_path() -> None:
    """A beam that keeps what stands highest now would drop the greedy path of some of these and end lower."""
    for seed in range(10):
        model, target = AnyGame(seed), torch.zeros(len(SETS)).long()
        narrow, wide = (search_best_erasure(model, SETS, target, "pad", beam=beam) for beam in (1, 2))
        assert bool((wide.comprehensiveness >= narrow.comprehensiveness - 1e-12).all())
        assert bool((wide.sufficiency <= narrow.sufficiency + 1e-12).all())


def test_the_best_explanation_of_a_sum_is_its_weights() -> None:
    weights = torch.tensor([0.0, 5, -2, 3, 0.5, -1, 4, 2, 1, -3, 0.25])
    model, batch = Game(weights), words((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (4, 9, 1))
    target = torch.zeros(2).long()
    found = search_best_erasure(model, batch, target, "pad")
    scores = torch.stack((weights[1:11], torch.tensor([0.5, -3, 5, 0, 0, 0, 0, 0, 0, 0])))
    own = erase(model, batch, target, scores, "pad")
    torch.testing.assert_close(found.comprehensiveness, own.comprehensiveness)
    torch.testing.assert_close(found.sufficiency, own.sufficiency)
    assert found.order == ((0, 5, 2, 6, 7), (2, 0))


def test_the_flip_found_is_the_fewest_words_that_change_the_decision() -> None:
    """No single word of 3, 3, -2, -1, 1 changes the sign of their sum, but a half of them (three words) does."""
    model = Game(torch.tensor([0.0, 3, 3, -2, -1, 1]), task=BinaryClassification())
    batch, target = words((1, 2, 3, 4, 5), (1, 3, 4), (1, 5, 2)), torch.tensor([1, 1, 1])
    assert search_best_erasure(model, batch, target, "pad").flip.tolist() == pytest.approx([3 / 5, 1 / 3, 1.0])


def test_the_passes_of_a_long_text_are_bounded() -> None:
    lengths = (3, 10, 14, 30, 80, 200)
    model = Game(torch.linspace(-1, 1, 40), bond=0.1)
    batch = texts(*lengths)
    found = search_best_erasure(model, batch, torch.zeros(len(batch)).long(), "delete")
    for length, passes, order in zip(lengths, found.passes.tolist(), found.order, strict=True):
        # Every word once for every bin, and the sets that are taken together.
        assert passes <= 1 + 2 * max(MAX_PASSES, 5 * length + 5)
        assert len(order) == len({*order}) == math.ceil(length / 2)
    assert found.passes[0] < found.passes[1]


def test_more_passes_find_no_less_on_a_long_text() -> None:
    model, batch = sharp(), texts(40)
    target = predicted(model, batch)
    few, more = (
        search_best_erasure(model, batch, target, "delete", beam=1, max_passes=passes) for passes in (1, 10**6)
    )
    assert int(few.passes) < int(more.passes)
    assert float(few.comprehensiveness) <= float(more.comprehensiveness) + 1e-9


def test_a_text_without_words_loses_nothing() -> None:
    model = tiny("bert")
    batch = words((5, 6), (7, 8))
    batch = replace(batch, words=batch.words.index_fill(0, torch.tensor([1]), -1))
    target = predicted(model, batch)
    for found in (
        search_best_erasure(model, batch, target, "delete"),
        erase(model, batch, target, torch.zeros(2, 2), "delete"),
    ):
        assert [float(each[1]) for each in (found.comprehensiveness, found.sufficiency, found.flip)] == [0, 0, 1]


# Company


@pytest.mark.parametrize("kind", ["bilstm", "bert"])
def test_the_company_and_the_order_of_texts_change_nothing(kind: str) -> None:
    model, batch = (sharp(), texts(9, 4, 13, 6)) if kind == "bilstm" else (tiny("bert"), texts(8, 4, 11, 6))
    target, scores = predicted(model, batch), distinct_scores(batch)

    def found(rows: list[int]) -> tuple[list[ErasureOutputs | BestErasure], tuple[tuple[int, ...], ...]]:
        part, own, ranked = batch.rows(torch.tensor(rows)), target[rows], scores[rows]
        search = search_best_erasure(model, part, own, "delete")
        return [erase(model, part, own, ranked[:, : part.mask.shape[1]], "delete"), search], search.order

    together, orders = found([0, 1, 2, 3])
    turned, turned_orders = found([2, 3, 1, 0])
    for row in range(4):
        alone, own = found([row])
        assert own[0] == orders[row] == turned_orders[[2, 3, 1, 0].index(row)]
        for whole, other, single in zip(together, turned, alone, strict=True):
            for name in ("comprehensiveness", "sufficiency", "flip"):
                value = getattr(whole, name)[row]
                torch.testing.assert_close(getattr(single, name)[0], value)
                torch.testing.assert_close(getattr(other, name)[[2, 3, 1, 0].index(row)], value)


def test_the_best_explanation_of_one_word_is_to_leave_it_out() -> None:
    """With one word in each bin the best single word is the one whose removal lowers the output most."""
    model, batch = sharp(), texts(3)
    target = predicted(model, batch)
    change = LeaveOneOut(feature="word")(model, batch, target).scores[0]
    assert search_best_erasure(model, batch, target, "delete", beam=1).order[0][0] == int(change.argmax())
