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
from heedful.audits.best_explanation import BestErasure, search_best_erasure, word_erasure
from heedful.measures.erasure import ErasureOutputs
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


class EitherWord(Game):
    """1 while one of the words 5 and 9 is there: no single removal has an effect."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(64))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        trace = super().forward(batch, embeddings=embeddings, attention=attention)
        is_there = ((batch.inputs == 5) | (batch.inputs == 9)) & batch.mask
        return replace(trace, logits=is_there.any(1, keepdim=True).double())


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


def sizes_of(count: int) -> list[int]:
    """All sizes up to half of the words, or the first, the middle and the last of them."""
    half = math.ceil(count / 2)
    return [*range(1, half + 1)] if half <= 5 else [1, math.ceil((1 + half) / 2 - 0.5), half]


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
    for most in sizes_of(count):
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
    assert found.bins[0].tolist() == [0, 0, 1, 2, 3]


def test_erasure_by_hand() -> None:
    """The logit is the sum of the weights 4, 2, 1, -1, -3, so that the decision is another below 0."""
    model = Game(torch.tensor([0.0, 4, 2, 1, -1, -3]), task=BinaryClassification())
    batch, target = words((1, 2, 3, 4, 5)), torch.tensor([1])

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    right = erase(model, batch, target, torch.tensor([[4.0, 2, 1, -1, -3]]), "pad")
    # 1, 2 and 3 of five words: without them -1, -3 and -4 are left, alone they are 4, 6 and 7.
    drop = sigmoid(3) - (sigmoid(-1) + sigmoid(-3) + sigmoid(-4)) / 3
    assert right.comprehensiveness.tolist() == pytest.approx([drop])
    assert right.sufficiency.tolist() == pytest.approx([sigmoid(3) - (sigmoid(4) + sigmoid(6) + sigmoid(7)) / 3])
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
    # One and two of three words, whose highest are 1 and 2; one of two words, which is 5.
    assert found.comprehensiveness.tolist() == pytest.approx([(1 + 3) / 2, 5])
    best = search_best_erasure(model, batch, target, "pad")
    assert best.flip.isnan().all()
    assert best.comprehensiveness.tolist() == pytest.approx([(3 + 5) / 2, 5])
    assert best.sufficiency.tolist() == pytest.approx([6 - (3 + 5) / 2, 9 - 5])


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
    weights, bins = model.weights.tolist(), sizes_of(len(ids))

    def mean(order: tuple[int, ...], *, removes: bool) -> float:
        left = [[word for word in ids if (word in order[:size]) != removes] for size in bins]
        return math.fsum(weights[sum(2 ** (word - 1) for word in chosen)] for chosen in left) / len(bins)

    full, orders = weights[sum(2 ** (word - 1) for word in ids)], [*itertools.permutations(ids, max(bins))]
    drop = full - min(mean(order, removes=True) for order in orders)
    return [drop, full - max(mean(order, removes=False) for order in orders)]


def values_of(found: BestErasure) -> list[tuple[float, float]]:
    return list(zip(found.comprehensiveness.tolist(), found.sufficiency.tolist(), strict=True))


def test_short_texts_are_searched_exactly_and_a_narrow_search_finds_no_better() -> None:
    target = torch.zeros(len(SETS)).long()
    for seed in range(8):
        model = AnyGame(seed)
        exact = search_best_erasure(model, SETS, target, "pad")
        narrow = search_best_erasure(model, SETS, target, "pad", exact=0, candidates=3, beam=1)
        for row, (best, found) in enumerate(zip(values_of(exact), values_of(narrow), strict=True)):
            drop, loss = all_orders(model, SETS.inputs[row][SETS.mask[row]].tolist())
            assert [*best] == pytest.approx([drop, loss])
            assert found[0] <= drop + 1e-9
            assert found[1] >= loss - 1e-9
        assert bool((exact.passes <= 2 ** SETS.mask.sum(1)).all())


def test_a_set_of_words_is_read_once_for_removal_and_keeping() -> None:
    """What is left without four of eight words is what is kept of the other four."""
    model, batch = Game(torch.linspace(-1, 1, 11), bond=0.1), words((1, 2, 3, 4, 5, 6, 7, 8))
    found = search_best_erasure(model, batch, torch.zeros(1).long(), "pad")
    assert sum(model.read) == int(found.passes) <= 2**8
    sizes = {*sizes_of(8)}
    needed = {8, *sizes, *(8 - size for size in sizes)}
    assert int(found.passes) == sum(math.comb(8, size) for size in needed)


def singles(model: Model, batch: Batch, target: Tensor, row: int) -> Tensor:
    """The drop of the output without each single word of a text, one shorter text at a time."""
    count = int(batch.mask[row].sum())
    kept = [torch.ones(count, dtype=torch.bool), *~torch.eye(count, dtype=torch.bool)]
    own = batch.rows(torch.tensor([row]))
    with torch.no_grad():
        outputs = [
            float(model(by_hand(own, 0, each, "delete")).logits.double().softmax(1)[0, target[row]]) for each in kept
        ]
    return torch.tensor([outputs[0] - output for output in outputs[1:]], dtype=torch.float64)


@pytest.mark.parametrize("length", [9, 14, 30])
def test_the_search_is_never_worse_than_the_order_of_single_removals(length: int) -> None:
    for seed in (0, 1):
        model, batch = sharp(seed), texts(length, length, seed=seed)
        target = predicted(model, batch)
        scores = torch.stack([singles(model, batch, target, row) for row in range(2)])
        own = erase(model, batch, target, scores, "delete")
        found = search_best_erasure(model, batch, target, "delete", candidates=2, beam=1)
        assert bool((found.comprehensiveness >= own.comprehensiveness - 1e-9).all())
        assert bool((found.sufficiency <= own.sufficiency + 1e-9).all())
        assert bool((found.flip <= own.flip).all())


class Redundant(Game):
    """Two groups of words, of which one word each is as good as all: `strength` for each group that is there.

    The weights of the words are added.
    """

    def __init__(self, groups: tuple[tuple[int, ...], ...], weights: Tensor, strength: float) -> None:
        super().__init__(weights, task=BinaryClassification())
        self.groups, self.strength = groups, strength

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        trace = super().forward(batch, embeddings=embeddings, attention=attention)
        there = [torch.isin(batch.inputs, torch.tensor(group)).any(1) for group in self.groups]
        return replace(trace, logits=trace.logits + self.strength * torch.stack(there).sum(0).unsqueeze(1) - 2)


class Strongest(Game):
    """The weight of the strongest word alone."""

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        trace = super().forward(batch, embeddings=embeddings, attention=attention)
        return replace(trace, logits=(4 * self.weights[batch.inputs].amax(1, keepdim=True) - 3))


SMALL = 0.1 * torch.randn(41, generator=Generator().manual_seed(5)).index_fill(0, torch.tensor([0]), 0.0)
TEN_WORDS: dict[str, tuple[Model, float, float]] = {
    "a sum": (Game(10 * SMALL, task=BinaryClassification()), 1.0, 1.0),
    "the strongest word": (Strongest((10 * SMALL).abs(), task=BinaryClassification()), 0.99, 0.99),
    "one of two words": (Redundant(((1, 2),), SMALL, 4.0), 0.98, 0.98),
    "one of some words": (Redundant((tuple(range(1, 9)),), SMALL, 4.0), 0.95, 0.98),
    "two groups of words": (Redundant((tuple(range(1, 11)), tuple(range(11, 21))), SMALL, 3.0), 0.8, 0.95),
}
"""Models, and the shares of the exact comprehensiveness and sufficiency, above random orders, that are found."""


@pytest.mark.parametrize("name", TEN_WORDS)
def test_the_slack_of_the_search_against_exact_enumeration(name: str) -> None:
    """Ten distinct words: the bound that the search gives against the best of all sets, random orders at 0."""
    model, comprehensiveness, sufficiency = TEN_WORDS[name]
    rows = [
        (1, 2, *(torch.randperm(38, generator=Generator().manual_seed(seed))[:8] + 3).tolist())
        if name == "one of two words"
        else tuple((torch.randperm(40, generator=Generator().manual_seed(seed))[:10] + 1).tolist())
        for seed in range(30)
    ]
    batch = words(*rows)
    with torch.no_grad():
        target = (model(batch).logits[:, 0] > 0).long()
    orders = [erase(model, batch, target, distinct_scores(batch, seed), "pad") for seed in range(8)]
    exact = search_best_erasure(model, batch, target, "pad", exact=10)
    found = search_best_erasure(model, batch, target, "pad")
    assert bool((found.passes < exact.passes).all())
    for measure, least in (("comprehensiveness", comprehensiveness), ("sufficiency", sufficiency)):
        chance = torch.stack([getattr(order, measure) for order in orders]).mean(0)
        best, reached = ((getattr(each, measure) - chance).mean() for each in (exact, found))
        assert least <= float(reached / best) <= 1 + 1e-9


@pytest.mark.parametrize("length", [9, 14, 23, 40])
def test_evidence_that_is_given_twice_is_found_whatever_the_length(length: int) -> None:
    rows = [[20 + place for place in range(length)] for _ in range(3)]
    for row, places in zip(rows, ((0, 1), (3, length - 1), (length // 2, 2)), strict=True):
        row[places[0]], row[places[1]] = 5, 9
    batch = words(*map(tuple, rows))
    best = search_best_erasure(EitherWord(), batch, torch.zeros(3, dtype=torch.long), "delete")
    # Zero after the first removal, and one after all others.
    steps = len(sizes_of(length))
    assert best.comprehensiveness.tolist() == pytest.approx([(steps - 1) / steps] * 3)


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
    """No single word of 3, 3, -2, -1, 1 changes the sign of their sum, but the two highest do."""
    model = Game(torch.tensor([0.0, 3, 3, -2, -1, 1]), task=BinaryClassification())
    batch, target = words((1, 2, 3, 4, 5), (1, 3, 4), (1, 5, 2)), torch.tensor([1, 1, 1])
    assert search_best_erasure(model, batch, target, "pad").flip.tolist() == pytest.approx([2 / 5, 1 / 3, 1.0])


def test_the_passes_are_one_per_word_and_direction_and_a_constant() -> None:
    lengths = (3, 9, 14, 30, 80, 200)
    model = Game(torch.linspace(-1, 1, 40), bond=0.1)
    batch = texts(*lengths)
    found = search_best_erasure(model, batch, torch.zeros(len(batch)).long(), "delete")
    for length, passes, order in zip(lengths, found.passes.tolist(), found.order, strict=True):
        assert passes <= 1 + 2 * (length + 250)
        assert len(order) == len({*order}) == math.ceil(length / 2)
    assert found.passes[0] < found.passes[1]


def test_more_candidates_find_no_less_on_a_long_text() -> None:
    model, batch = sharp(), texts(40)
    target = predicted(model, batch)
    few, more = (
        search_best_erasure(model, batch, target, "delete", candidates=count, beam=beam)
        for count, beam in ((1, 1), (20, 8))
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
    assert search_best_erasure(model, batch, target, "delete").order[0][0] == int(change.argmax())
