"""Scores of special tokens: hand values, a twin whose class token is a word, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn

from heedful.attributions.attention import (
    AttentionXGradient,
    Flow,
    HeadAttention,
    KobayashiNorm,
    RawAttention,
    Relevance,
    Rollout,
    ValueNorm,
)
from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel
from heedful.attributions.gradient import InputXGradient
from heedful.attributions.lime import Lime
from heedful.attributions.method import feature_index, with_special_tokens
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.data.words import Words
from heedful.papers.disagreement import TRANSFORMER_METHODS
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.trials.agreement import Agreement, check_special_tokens
from heedful.types import Attribution, Batch, Method, Model, Trace, UserError
from tests.games import Game
from tests.networks import TinyTransformer, texts, tiny
from tests.small_models import MODELS, targets
from tests.small_models import subject as model_and_batch
from tests.tiny import subject

READING = (
    *(RawAttention(), RawAttention(-1, 0), HeadAttention(), Rollout(), Flow()),
    *(ValueNorm(), KobayashiNorm(), AttentionXGradient(positive=False), Relevance()),
)


"""Methods that do not perturb: scores of words do not depend on whether special tokens have one."""


PERTURBING = (
    *(Lime(60), Lime(60, feature="word"), Lime(60, baselines="zero", kernel_width=0.2)),
    *(KernelShap(60), KernelShap(60, baselines="zero", feature="word"), Shapley(), Shapley(feature="word")),
    *(Occlusion(), Occlusion(2, baselines="zero"), Occlusion(feature="word")),
)


NULLS = (Random(), PermutedAttention())


@cache
def kept(name: str) -> tuple[Model, Batch]:
    """A model and a batch, made once: no method alters them."""
    return model_and_batch(name)


class Shown(Model):
    """A model whose attention `[layer query unit]` is known, with one head."""

    def __init__(self, attention: Tensor) -> None:
        super().__init__()
        self.task = BinaryClassification()
        self.weights = attention.double()

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        vectors = batch.inputs.unsqueeze(-1).double()
        shown = self.weights[None, :, None].expand(len(batch), -1, -1, -1, -1)
        return Trace(vectors, vectors, shown, vectors.sum(1))


def sentence(units: int) -> Batch:
    """A class token, words, and a end token."""
    words = torch.arange(units).sub(1).unsqueeze(0)
    words[0, -1] = -1
    inputs = torch.arange(3, 3 + units).unsqueeze(0)
    return Batch(("a",), inputs, torch.ones_like(words).bool(), torch.zeros_like(words), words)


def special(batch: Batch) -> Tensor:
    return batch.mask & ~batch.content_mask


def as_words(batch: Batch) -> Batch:
    """The same text with its class token counted as a word: a transformer reads it in the same way."""
    return replace(batch, words=(batch.words + 1).masked_fill(~batch.mask, -1))


def scores_of(method: Method, model: Model, batch: Batch) -> list[float]:
    return [float(value) for value in method(model, batch, torch.zeros(len(batch)).long()).scores[0]]


def test_rollout_and_flow_give_their_known_answers_to_the_class_token_too() -> None:
    ten = Shown(torch.full((6, 10, 10), 0.1))
    assert scores_of(Rollout(special_tokens=True), ten, sentence(10)) == pytest.approx(
        [0.1140625] + [0.0984375] * 9, 1e-9
    )
    assert scores_of(Rollout(), ten, sentence(10)) == pytest.approx([0] + [0.0984375] * 8 + [0], 1e-9)
    three = Shown(torch.full((2, 3, 3), 1 / 3))
    assert scores_of(Flow(special_tokens=True), three, sentence(3)) == pytest.approx([1, 0.5, 0.5], abs=1e-7)
    assert scores_of(Flow(), three, sentence(3)) == pytest.approx([0, 0.5, 0], abs=1e-7)
    first = Shown(torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]]))
    assert scores_of(HeadAttention(special_tokens=True), first, sentence(3)) == pytest.approx([0.6, 0.3, 0.1])
    assert scores_of(RawAttention(special_tokens=True), first, sentence(3)) == pytest.approx([0.4, 0.4, 0.2])


@pytest.mark.parametrize("method", READING, ids=repr)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_read_of_words_is_the_same_with_special_tokens_and_without(name: str, method: Method) -> None:
    model, batch = kept(name)
    without, found = (each(model, batch, targets(batch)) for each in (method, with_special_tokens(method)))
    assert torch.equal(without.mask, batch.content_mask)
    assert torch.equal(without.scores, found.scores.masked_fill(~batch.content_mask, 0))
    # A pooled model attends to no special token; every transformer does.
    assert bool((found.scores[special(batch)] != 0).all()) == (name in ("bert", "distilbert", "vit"))


@pytest.mark.parametrize("method", [RawAttention(), Rollout(), HeadAttention(), HeadAttention(0, 1, "mean")], ids=repr)
@pytest.mark.parametrize("name", ["SingleInput", "bert", "vit"])
def test_shares_of_attention_sum_to_1_where_nothing_is_left_out(name: str, method: Method) -> None:
    model, batch = kept(name)
    total = with_special_tokens(method)(model, batch, targets(batch)).scores.sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-9)


def test_relevance_of_the_class_token_is_its_entry_in_the_literal_product() -> None:
    model, batch = tiny("bert"), texts()
    carried = model.read_values(batch)
    slopes = torch.autograd.grad(carried.logits[:, 2].sum(), carried.attention)
    found = Relevance(special_tokens=True)(model, batch, torch.full((3,), 2)).scores
    for row, length in enumerate(batch.lengths.tolist()):
        literal = torch.eye(length, dtype=torch.float64)
        for weights, slope in zip(carried.attention, slopes, strict=True):
            each = (weights * slope)[row, :, :length, :length].clamp(min=0).mean(0).detach()
            literal = literal + each @ literal
        expected = (literal - torch.eye(length))[0]
        torch.testing.assert_close(found[row, :length], expected, rtol=0, atol=1e-12)


ALIKE = (*PERTURBING, *READING[:2], HeadAttention(row="mean"), *READING[5:8], Random())


@pytest.mark.parametrize("method", ALIKE, ids=repr)
def test_a_class_token_is_scored_as_it_would_be_if_it_were_a_word(method: Method) -> None:
    model, batch = kept("bert")
    target = targets(batch)
    expected = method(model, as_words(batch), target)
    found = with_special_tokens(method)(model, batch, target)
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-10)
    assert (found.scores[special(batch)] != 0).all()


def read_by(method: Method, batch: Batch) -> list[int]:
    """The ids at the class token's position in all the texts that a tiny BERT reads under a method."""
    model, seen = tiny("bert"), list[int]()

    def look(_: nn.Module, given: tuple[Batch, ...]) -> None:
        seen.extend(given[0].inputs[:, 0].tolist())

    model.register_forward_pre_hook(look)
    method(model, batch, targets(batch))
    return seen


@pytest.mark.parametrize("method", [Lime(64), KernelShap(64), Occlusion()], ids=repr)
def test_special_tokens_are_replaced_only_with_the_option(method: Method) -> None:
    batch = texts()
    filler = batch.pad_id
    assert filler not in batch.inputs[:, 0]
    assert filler not in read_by(method, batch)
    assert filler in read_by(with_special_tokens(method), batch)


def test_lime_tosses_the_same_fair_coin_for_a_special_token() -> None:
    batch = texts()
    index = feature_index(batch, "unit", special_tokens=True)
    coins = Lime(4000).coalitions(batch, index)
    assert coins.shape == (3, 4000, 7)
    assert index[1].tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert abs(float(coins[:, :, 0].double().mean()) - 0.5) < 0.02
    assert Lime(4000).coalitions(batch, feature_index(batch, "unit")).shape == (3, 4000, 6)


def test_weights_that_add_up_are_found_for_special_tokens_too() -> None:
    game = Game(torch.tensor([0.5, 0.0, 0.0, 2.0, -1.0, 4.0, 0.25]))
    batch = sentence(4)
    worth, target = [1.5, -1.5, 3.5, -0.25], torch.zeros(1).long()
    for method in (KernelShap(40), Shapley(), Occlusion(), Lime(400, ridge=0)):
        assert scores_of(with_special_tokens(method), game, batch) == pytest.approx(worth, abs=1e-9)
        assert scores_of(method, game, batch) == pytest.approx([0, *worth[1:3], 0], abs=1e-9)
    # Scores sum to the difference between the text and only pad tokens.
    assert float(KernelShap(40, special_tokens=True)(game, batch, target).scores.sum()) == pytest.approx(5.25 - 4 * 0.5)


def test_by_word_each_special_token_is_a_feature_of_its_own() -> None:
    batch = replace(sentence(6), words=torch.tensor([[-1, 0, 0, 1, 0, -1]]))
    assert feature_index(batch, "word", special_tokens=True).tolist() == [[0, 1, 1, 2, 1, 3]]
    assert feature_index(batch, "word").tolist() == [[-1, 0, 0, 1, 0, -1]]


def test_a_window_removes_the_class_token_with_its_neighbour() -> None:
    game = Game(torch.tensor([0.0, 0.0, 0.0, 2.0, -1.0, 4.0, 0.25]))
    # Windows of two lose 1, 3 and 4.25.
    expected = [1, (1 + 3) / 2, (3 + 4.25) / 2, 4.25]
    assert scores_of(Occlusion(2, special_tokens=True), game, sentence(4)) == pytest.approx(expected)
    assert scores_of(Occlusion(2), game, sentence(4)) == pytest.approx([0, 3, 3, 0])


def test_the_class_unit_of_an_image_can_be_put_to_zero_but_not_blanked() -> None:
    model, batch = kept("vit")
    for method in (Lime(30, special_tokens=True), KernelShap(30, special_tokens=True), Occlusion(special_tokens=True)):
        with pytest.raises(UserError, match=r"class token.*baselines='zero'"):
            method(model, batch, targets(batch))
        found = replace(method, baselines="zero")(model, batch, targets(batch))
        assert torch.equal(found.mask, batch.mask)
        assert (found.scores[:, 0] != 0).all()


@pytest.mark.parametrize("method", [Lime, KernelShap, Shapley, Occlusion])
def test_special_tokens_are_never_deleted(method: type[Lime | KernelShap | Shapley | Occlusion]) -> None:
    assert method(baselines="delete").baselines == "delete"
    with pytest.raises(UserError, match="special tokens"):
        method(baselines="delete", special_tokens=True)


def parted(found: Attribution, batch: Batch, part: int, row: int) -> list[float]:
    here = batch.mask[row] & (batch.segments[row] == part)
    return sorted(float(value) for value in found.scores[row, here])


def test_attention_is_permuted_among_all_real_units_of_a_text() -> None:
    model, batch = kept("bert")
    target = targets(batch)
    weights = RawAttention(special_tokens=True)(model, batch, target)
    at_class = set()
    for seed in range(12):
        found = PermutedAttention(seed, special_tokens=True)(model, batch, target)
        at_class.add(float(found.scores[0, 0]))
        for row, part in np.ndindex(3, 2):
            assert parted(found, batch, part, row) == parted(weights, batch, part, row)
    assert len(at_class) > 1
    assert torch.equal(PermutedAttention()(model, batch, target).mask, batch.content_mask)


def test_random_scores_are_drawn_for_as_many_units_as_are_scored() -> None:
    model, batch = kept("bert")
    for specials, units in ((False, batch.content_mask), (True, batch.mask)):
        found = Random(2, special_tokens=specials)(model, batch, targets(batch))
        for row, uid in enumerate(batch.uids):
            draw = Generator().manual_seed(derive_seed("random", 2, uid))
            expected = torch.rand(int(units[row].sum()), generator=draw)
            assert torch.equal(found.scores[row, units[row]], expected)


@pytest.fixture(scope="module")
def layered() -> TrainedModel:
    """A tiny transformer on words between an opening and a end token."""
    return replace(subject(epochs=2, count=6), tokenization=Words(), architecture=TinyTransformer(), embeddings=None)


def quicker(method: Method) -> Method:
    names = {each.name for each in fields(method)}  # type: ignore[arg-type]
    less = {name: 40 for name in ("n_samples", "n_steps") if name in names}
    return replace(method, **less)  # type: ignore[type-var]


@pytest.mark.slow
def test_all_methods_of_neely_et_al_but_leave_one_out_are_ranked_with_special_tokens(
    layered: TrainedModel, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    chosen = (quicker(method) for method in TRANSFORMER_METHODS if not isinstance(method, LeaveOneOut))
    methods, nulls = (
        tuple(with_special_tokens(each) for each in chosen),
        tuple(with_special_tokens(each) for each in NULLS),
    )
    table = workspace.get(Agreement(layered, methods, nulls, special_tokens=True, limit=3)).table
    assert table["uid"].nunique() == 3
    assert len(table) == 3 * 13 * 12 / 2
    each = [workspace.get(AttributionTable(layered, method, limit=3)).table for method in (*methods, *nulls)]
    clear = 0
    places = [(one, other) for one in range(13) for other in range(one + 1, 13)]
    for row, scored in enumerate(each[0]["scored"]):
        found = table[table["uid"] == each[0]["uid"][row]].sort_values("place")
        assert (found["length"] == len(scored)).all()
        assert sum(scored) == len(scored) - 2
        for (one, other), value in zip(places, found["value"], strict=True):
            x, y = (np.abs(each[number]["scores"][row]) for number in (one, other))
            if min(np.diff(np.sort(x)).min() / x.max(), np.diff(np.sort(y)).min() / y.max()) > 1e-6:
                assert value == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)
                clear += 1
    assert clear > 3 * 40


def test_leaving_one_out_is_refused_with_its_reason_and_other_methods_get_the_option() -> None:
    with pytest.raises(UserError, match=r"leave-one-out.*Occlusion"):
        Agreement(
            subject(),
            (RawAttention(), LeaveOneOut()),
            NULLS,
            special_tokens=True,
        )
    with pytest.raises(UserError, match=r"^randomized\(method-leave-one-out\): no scores"):
        check_special_tokens([RandomizedModel(), RandomizedModel(LeaveOneOut()), RandomizedModel(Rollout())])
    both = (InputXGradient(), RandomizedModel(Rollout()), LeaveOneOut())
    expected = (InputXGradient(special_tokens=True), RandomizedModel(Rollout(special_tokens=True)), LeaveOneOut())
    assert tuple(with_special_tokens(each) for each in both) == expected
