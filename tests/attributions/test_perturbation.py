"""Perturbation: texts written out by hand, one forward pass per distinct text, captum's occlusion, chunking."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from captum.attr import Occlusion as CaptumOcclusion
from torch import Generator, Tensor

from heedful.attributions import perturbation
from heedful.attributions.lime import Lime
from heedful.attributions.method import Baseline, copy_to_units, divide_among_units, expand_to_units, feature_index
from heedful.attributions.perturbation import LeaveOneOut, Occlusion, baseline_embeddings, logits_keeping
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.data.subwords import SubwordTokenizer
from heedful.data.words import UNK, Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import InputFormat, PairInput, QuestionAnswering, SingleInput
from heedful.models.tiny_networks import build_tiny_network
from heedful.models.transformer import TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import Batch, Example, Method, Model, Trace, UserError
from tests.games import Game, words
from tests.models.test_attentive import batch_of
from tests.networks import images, texts, tiny
from tests.subword_tokenizers import bert

SHAPES: tuple[InputFormat, ...] = (SingleInput(), PairInput(), QuestionAnswering())
SYMBOL = {"pad": 0, "mask": 3, "unk": 1}
PARTS = ((5, 6, 7, 8), (9, 10)), ((11,), (12, 13, 5)), ((14, 15), (6,))
METHODS: tuple[Method, ...] = (
    Lime(60),
    Lime(60, "delete"),
    KernelShap(24),
    KernelShap(24, "delete"),
    Shapley("zero"),
    Occlusion(),
    Occlusion(2, "delete"),
)


def pooled(shape: InputFormat) -> Model:
    generator = Generator().manual_seed(0)
    table = torch.randn(30, 5, generator=generator)
    return (
        Attentive(BiLSTM(3), Additive(), input_format=shape)
        .build(MulticlassClassification(3), table, generator)
        .double()
        .eval()
    )


def pairs() -> Batch:
    return replace(batch_of(*PARTS), unk_id=1, mask_id=3)


def some_coalitions(batch: Batch, samples: int = 7) -> Tensor:
    kept = torch.rand(*batch.mask.shape, samples, generator=Generator().manual_seed(1)).transpose(1, 2) < 0.5
    kept[:, 0], kept[:, 1] = False, True
    return kept


def by_hand(batch: Batch, row: int, kept: Tensor, baselines: str) -> Batch:
    """One text, unit after unit, in plain Python; a text left empty keeps one pad token."""
    units: list[tuple[int, int, int]] = []
    for place in range(int(batch.lengths[row])):
        number, part, word = (int(field[row, place]) for field in (batch.inputs, batch.segments, batch.words))
        if word < 0 or bool(kept[place]):
            units.append((number, part, word))
        elif baselines != "delete":
            units.append((SYMBOL[baselines], part, word))
        else:
            mine = [
                u for u in range(batch.mask.shape[1]) if batch.words[row, u] >= 0 and batch.segments[row, u] == part
            ]
            if not any(bool(kept[u]) for u in mine) and place == mine[0]:
                units.append((0, part, word))
    inputs, segments, words = (torch.tensor([column]) for column in zip(*units, strict=True))
    return Batch((batch.uids[row],), inputs, torch.ones_like(inputs).bool(), segments, words)


@pytest.mark.parametrize("baselines", ["pad", "mask", "unk", "delete"])
@pytest.mark.parametrize(
    "kind", ["one", "transformer", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("compared", "question"))]
)
def test_answers_are_those_of_texts_written_out_by_hand(kind: str, baselines: Baseline) -> None:
    models: dict[str, Callable[[], Model]] = {
        "one": lambda: pooled(SingleInput()),
        "compared": lambda: pooled(PairInput()),
        "question": lambda: pooled(QuestionAnswering()),
        "transformer": lambda: tiny("bert"),
    }
    model, batch = models[kind](), pairs()
    kept = some_coalitions(batch)
    found = logits_keeping(model, batch, kept, baselines)
    for row, sample in itertools.product(range(len(batch)), range(kept.shape[1])):
        expected = model(by_hand(batch, row, kept[row, sample], baselines)).logits[0]
        assert torch.allclose(found[row, sample], expected, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "roberta", "vit"])
def test_zero_puts_the_vectors_of_removed_units_to_zero_and_no_others(family: str) -> None:
    model, batch = tiny(family), images() if family == "vit" else texts()
    kept = some_coalitions(batch)
    found = logits_keeping(model, batch, kept, "zero")
    for sample in range(kept.shape[1]):
        gone = ~kept[:, sample] & batch.content_mask
        vectors = model(batch).embeddings * ~gone.unsqueeze(-1)
        assert torch.allclose(found[:, sample], model(batch, embeddings=vectors).logits, atol=1e-10)


def test_patches_of_an_image_are_blanked() -> None:
    model, batch = tiny("vit"), images()
    kept = some_coalitions(batch)
    expected = model(replace(batch, inputs=batch.inputs * (kept[:, 3] | ~batch.content_mask).unsqueeze(-1))).logits
    for baselines in ("pad", "delete"):
        assert torch.allclose(logits_keeping(model, batch, kept, baselines)[:, 3], expected, atol=1e-10)
    with pytest.raises(UserError, match="an image has no mask"):
        logits_keeping(model, batch, kept, "mask")


def test_a_token_that_the_vocabulary_lacks_is_refused_with_the_remedy() -> None:
    batch = batch_of(*PARTS)
    for baselines in ("mask", "unk"):
        with pytest.raises(UserError, match=f"no {baselines} token"):
            Lime(4, baselines)(pooled(SingleInput()), batch, torch.zeros(3).long())


def test_batches_have_their_unknown_and_mask_tokens() -> None:
    examples = (Example("a", ("the film",)),)
    assert (Words().fit(examples)(examples).unk_id, Words().fit(examples)(examples).mask_id) == (UNK, None)
    tokenizer = bert()
    assert (SubwordTokenizer(tokenizer)(examples).unk_id, SubwordTokenizer(tokenizer)(examples).mask_id) == (1, None)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    batch = SubwordTokenizer(tokenizer)(examples)
    assert batch.mask_id == tokenizer.convert_tokens_to_ids("[MASK]") == 13
    moved = batch.rows(torch.tensor([0])).repeat(2).keep_units(batch.repeat(2).mask).to("cpu")
    assert (moved.unk_id, moved.mask_id) == (1, 13)


def test_each_distinct_text_is_read_once_per_call() -> None:
    model = Game(torch.arange(9.0))
    batch = words((3, 4), (5, 5, 6))
    everything = torch.tensor(list(itertools.product([False, True], repeat=3))).expand(2, 8, 3)
    logits_keeping(model, batch, everything, "delete")
    # {}, 3, 4, 34 of the first text; {}, 5, 6, 55, 56, 556 of the second, in which two words are equal.
    assert sum(model.read) == 10
    model.read.clear()
    logits_keeping(model, batch, everything, "pad")
    assert sum(model.read) == 4 + 8
    model.read.clear()
    logits_keeping(model, batch, everything, "zero")
    assert sum(model.read) == len(batch) + 4 + 8
    model.read.clear()
    LeaveOneOut()(model, words((3, 4, 5, 6)), torch.tensor([0]))
    assert sum(model.read) == 5


class Cramped(Game):
    """Runs out of memory when more than `most` texts are read at once."""

    most = 3
    complaint = "CUDA out of memory. Tried to allocate 2.00 GiB"

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        if len(batch) > self.most:
            raise RuntimeError(self.complaint)
        return super().forward(batch, embeddings=embeddings, attention=attention)


def test_fewer_texts_are_read_at_once_when_memory_runs_out() -> None:
    model, batch = Cramped(torch.arange(99.0)), words(*((number,) for number in range(1, 41)))
    whole = batch.mask.unsqueeze(1)
    assert logits_keeping(model, batch, whole, "pad").flatten().tolist() == list(range(1, 41))
    assert max(model.read) in (2, 3)
    model.most = 0
    with pytest.raises(UserError, match="memory"):
        logits_keeping(model, batch, whole, "pad")
    model.complaint = "mat1 and mat2 shapes cannot be multiplied"
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        logits_keeping(model, batch, whole, "pad")


def test_the_size_of_chunks_and_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = Game(torch.arange(20.0), bond=0.5), words((3, 4, 5), (6, 7), (8,))
    kept = some_coalitions(batch, 20)
    free = logits_keeping(model, batch, kept, "delete")
    model.read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(model, "tokens_per_pass", 6)
        assert torch.equal(logits_keeping(model, batch, kept, "delete"), free)
        assert max(model.read) <= 6 < len(kept) * 20
    monkeypatch.setattr(perturbation, "BLOCK_ELEMENTS", 4)
    assert torch.equal(logits_keeping(model, batch, kept, "delete"), free)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize(
    "kind", ["one", "bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("compared", "question", "vit"))]
)
def test_blocks_and_chunks_change_nothing(kind: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = dict(zip(("one", "compared", "question"), SHAPES, strict=True))
    model = pooled(shapes[kind]) if kind in shapes else tiny(kind)
    batch, target = images() if kind == "vit" else pairs(), torch.tensor([0, 2, 1])
    together = method(model, batch, target)
    assert together.scores.dtype == torch.float64
    assert (together.scores[~batch.content_mask] == 0).all()
    assert (together.scores[batch.content_mask] != 0).all()
    monkeypatch.setattr(perturbation, "BLOCK_ELEMENTS", 300)
    monkeypatch.setattr(model, "tokens_per_pass", 6)
    assert torch.allclose(method(model, batch, target).scores, together.scores, atol=1e-9)


def test_occluding_one_deleted_unit_is_leaving_one_out() -> None:
    model, target = tiny("bert"), torch.tensor([0, 2, 1])
    batch = batch_of(((5, 6, 7), (8, 9)), ((5, 6), (9, 9)), ((4, 5), (6, 7)))
    expected = LeaveOneOut("logit")(model, batch, target).scores
    assert torch.allclose(Occlusion(1, "delete", output="logit")(model, batch, target).scores, expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["one", "transformer"])
@pytest.mark.parametrize("output", ["probability", "logit", "distribution"])
def test_leaving_out_a_word_leaves_out_all_its_tokens(
    kind: str, output: Literal["probability", "logit", "distribution"]
) -> None:
    """Words of one, two and three tokens in both texts of a pair, each text read again by hand; an only word gets 0."""
    model, target = pooled(SingleInput()) if kind == "one" else tiny("bert"), torch.tensor([0, 2, 1])
    batch = pairs()
    numbers = torch.tensor([[0, 0, 1, 2, 3, 3], [0, 1, 1, 1, -1, -1], [0, 1, 2, -1, -1, -1]])
    owners = torch.full_like(batch.words, -1)
    for row in range(3):
        owners[row, batch.content_mask[row]] = numbers[row][numbers[row] >= 0]
    batch = replace(batch, words=owners)
    found = LeaveOneOut(output, feature="word")(model, batch, target)
    assert torch.equal(found.mask, batch.content_mask)
    for row in range(3):
        whole = model(by_hand(batch, row, batch.mask[row], "delete")).logits[0]
        for word in range(int(owners[row].max()) + 1):
            own = owners[row] == word
            part = batch.segments[row][own][0]
            expected = torch.zeros((), dtype=torch.float64)
            if bool((batch.content_mask[row] & ~own & (batch.segments[row] == part)).any()):
                shorter = model(by_hand(batch, row, ~own, "delete")).logits[0]
                if output == "distribution":
                    expected = (whole.softmax(0) - shorter.softmax(0)).abs().sum() / 2
                else:
                    both = (whole, shorter) if output == "logit" else (whole.softmax(0), shorter.softmax(0))
                    expected = both[0][target[row]] - both[1][target[row]]
            assert torch.allclose(found.scores[row][own], expected / own.sum(), atol=1e-9)
    # All second texts, and the first of the second pair, have one word.
    assert found.scores.count_nonzero(1).tolist() == [4, 0, 2]


def test_leaving_out_words_of_one_token_is_leaving_out_tokens() -> None:
    model, target = tiny("bert"), torch.tensor([0, 2, 1])
    batch = batch_of(((5, 6, 7), (8, 9)), ((5, 6), (9, 9)), ((4, 5), (6,)))
    by_token, by_word = (LeaveOneOut(feature=feature)(model, batch, target).scores for feature in ("unit", "word"))
    assert torch.allclose(by_token, by_word, atol=1e-9)
    alone = LeaveOneOut(feature="word")(model, batch.rows(torch.tensor([2])), target[2:]).scores[0]
    assert torch.allclose(alone, by_word[2, : len(alone)], atol=1e-9)


def test_a_window_averages_over_the_places_that_cover_a_unit() -> None:
    model = Game(torch.tensor([0.0, 1, 2, 4, 8, 16]))
    batch, target = words((1, 2, 3, 4), (5,)), torch.zeros(2).long()
    # Windows 12, 23, 34 lose 3, 6, 12; a text shorter than the window is one window.
    expected = [[3, 4.5, 9, 12], [16, 0, 0, 0]]
    assert Occlusion(2)(model, batch, target).scores.tolist() == expected
    pair = replace(batch, segments=torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]))
    # No window reaches from one text of a pair into the other.
    assert Occlusion(3)(model, pair, target).scores.tolist() == [[3, 3, 12, 12], [16, 0, 0, 0]]


@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows_are_those_of_captum(window: int) -> None:
    model, batch = pooled(SingleInput()), words((3, 4, 5, 6, 7))

    def probability(vectors: Tensor) -> Tensor:
        return model(batch.repeat(len(vectors)), embeddings=vectors).logits.softmax(-1)[:, 1]

    vectors = model(batch).embeddings.detach()
    expected = CaptumOcclusion(probability).attribute(vectors, sliding_window_shapes=(window, vectors.shape[2]))
    found = Occlusion(window, "zero")(model, batch, torch.tensor([1])).scores
    assert torch.allclose(found, expected[..., 0].double(), atol=1e-7)


def test_pieces_of_a_word_stay_together_and_share_its_score() -> None:
    batch = words((1, 2, 3, 4), (1, 2, 3), pieces=(0, 0, 2, 5))
    index = feature_index(batch, "word")
    assert index.tolist() == [[0, 0, 1, 2], [0, 0, 1, -1]]
    assert expand_to_units(torch.tensor([[[True, False, True]], [[False, True, False]]]), index).tolist() == [
        [[True, True, False, True]],
        [[False, False, True, False]],
    ]
    assert divide_among_units(torch.tensor([[4.0, 5, 6], [4, 5, 0]]), index).tolist() == [[2, 2, 5, 6], [2, 2, 5, 0]]
    assert copy_to_units(torch.tensor([[4.0, 5, 6], [4, 5, 0]]), index).tolist() == [[4, 4, 5, 6], [4, 4, 5, 0]]
    model, target = Game(torch.tensor([0.0, 1, 2, 4, 8]), bond=0.5), torch.zeros(2).long()
    for method in (Shapley(feature="word"), KernelShap(feature="word"), Occlusion(feature="word")):
        by_word = method(model, batch, target).sum_by_word(batch.words).scores
        assert by_word[1, [0, 2]].tolist() == pytest.approx(
            [3.75, 4.25] if not isinstance(method, Occlusion) else [4.0, 4.5]
        )


def test_a_word_whose_pieces_are_apart_is_still_one_feature() -> None:
    batch = words((1, 2, 3, 4), pieces=(7, 1, 7, 1))
    assert feature_index(batch, "word").tolist() == [[0, 1, 0, 1]]
    with pytest.raises(UserError, match="letter"):
        Shapley(feature="letter")  # type: ignore[arg-type]


def test_tokens_of_a_pair_are_features_of_their_own() -> None:
    batch = pairs()
    index = feature_index(batch, "unit")
    assert index[0][batch.content_mask[0]].tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(index < 0, ~batch.content_mask)


def test_baseline_vectors_are_what_the_model_reads_when_all_is_removed() -> None:
    model, batch = tiny("bert"), pairs()
    whole = model(batch).embeddings
    masked = model(replace(batch, inputs=batch.inputs.masked_fill(batch.content_mask, 3))).embeddings
    assert torch.equal(baseline_embeddings(model, batch, "mask"), masked)
    for baselines in ("zero", "delete"):
        assert torch.equal(baseline_embeddings(model, batch, baselines), whole * ~batch.content_mask.unsqueeze(-1))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "bloom"])
def test_a_causal_model_reads_the_unchanged_beginning_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_tiny_network("text", kind, Generator().manual_seed(5)).double()
    model = TransformerModel.wrap(plain).eval()
    assert model.reuses_prefixes
    batch, target = words((3, 4, 5, 6, 7, 8, 6, 7), (6, 7, 8, 6, 8), (9, 3)), torch.tensor([0, 2, 1])
    tokens, read = [], TransformerModel.run

    def count(*given: object, **named: object) -> object:
        tokens.append(int(given[1].mask.numel()))  # type: ignore[attr-defined]
        return read(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformerModel, "run", count)
    for method in (LeaveOneOut("logit"), Occlusion(2, "pad"), Lime(40, "delete")):
        found = method(model, batch, target).scores
        tokens.clear()
        model.continues_prefixes = False
        assert torch.allclose(method(model, batch, target).scores, found, rtol=1e-8, atol=1e-10)
        assert tokens
        model.continues_prefixes = True
        tokens.clear()
    LeaveOneOut()(model, batch, target)
    assert not tokens, "no text is read whole"


def test_what_looks_on_at_a_causal_model_sees_every_text_whole() -> None:
    model = TransformerModel.wrap(build_tiny_network("text", "gpt2", Generator().manual_seed(5))).eval()
    handle = model.register_forward_hook(lambda *_: None)
    assert not model.reuses_prefixes
    handle.remove()
    assert model.reuses_prefixes
