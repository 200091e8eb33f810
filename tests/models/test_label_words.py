"""Label words: log-probabilities against bare calls of the library, padding on both sides, attention put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from transformers import BertForMaskedLM, PreTrainedModel

from heedful.attributions.attention import HeadAttention, row_weights
from heedful.attributions.deeplift import DeepLift
from heedful.attributions.perturbation import leave_one_out_logits
from heedful.models.acceptance import CAUSAL_NOTE, open_layers
from heedful.models.label_words import LabelWords
from heedful.models.tiny_networks import build_tiny_network, tiny_config
from heedful.models.transformer import TransformerModel
from heedful.seeding import temporary_seed
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.testing import check_model
from heedful.types import Batch, UserError

WORDS = LabelWords(((20,), (21, 22, 23), (21, 24)))
MASK = 5
MASKED_WORDS = LabelWords(((20, 21), (22, 20)), mask_id=MASK)
TEXTS = ((1, 8, 9, 10, 11, 12, 13), (1, 30, 31, 12))
"""Ids behind a first special token; the last two are those of a prompt."""


def network(kind: str, seed: int = 0) -> PreTrainedModel:
    if kind == "bert":
        with temporary_seed(seed):
            made: PreTrainedModel = BertForMaskedLM(tiny_config("bert"))  # type: ignore[no-untyped-call]
        torch.nn.Module.train(made.double(), mode=False)
        return made
    return build_tiny_network("causal", kind, Generator().manual_seed(seed)).double()


def model(kind: str, seed: int = 0, words: LabelWords = WORDS) -> TransformerModel:
    return TransformerModel.wrap_language_model(network(kind, seed), words).eval()


def batch(texts: tuple[tuple[int, ...], ...] = TEXTS) -> Batch:
    width = max(map(len, texts))
    inputs = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in texts])
    mask = torch.arange(width) < torch.tensor([[len(ids)] for ids in texts])
    words = torch.where(mask, torch.arange(width) - 1, -1)
    for row, ids in enumerate(texts):
        words[row, len(ids) - 2 :] = -1
    return Batch(tuple(map(str, range(len(texts)))), inputs, mask, torch.zeros_like(inputs), words)


def masked_batch() -> Batch:
    """The same texts with two mask tokens of the prompt at their end, and one in the user's own text."""
    made = batch(tuple((*ids[:2], MASK, *ids[2:-2], MASK, MASK) for ids in TEXTS))
    return replace(made, mask_id=MASK)


def joint(plain: PreTrainedModel, ids: tuple[int, ...], word: tuple[int, ...]) -> Tensor:
    """log p(word | ids), token by token, each from a call of the library on the whole text so far."""
    total = torch.zeros((), dtype=torch.float64)
    for count, token in enumerate(word):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([[*ids, *word[:count]]])).logits[0, -1]
        total = total + logits[token] - logits.logsumexp(0)
    return total


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "bloom"])
def test_the_logit_of_a_class_is_the_joint_log_probability_of_its_word(kind: str) -> None:
    plain = network(kind)
    expected = torch.stack([torch.stack([joint(plain, ids, word) for word in WORDS.words]) for ids in TEXTS])
    opened = model(kind)
    found = opened(batch())
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=1e-10)
    # The window of Mistral has four tokens: padding behind a short text would fill it.
    assert opened.task == MulticlassClassification(3)
    assert opened.deciding_row == "last"
    assert CAUSAL_NOTE in opened.notes
    # Attention is that of the text alone: what follows it has no place there.
    assert found.attention.shape[-2:] == (7, 7)


def test_padding_on_the_left_gives_the_same_as_the_library_with_its_positions() -> None:
    plain, words = network("gpt2"), LabelWords(((20,), (21,)))
    ids = torch.tensor([TEXTS[0], (0, 0, 0, *TEXTS[1])])
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    with torch.no_grad():
        logits = plain(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, -1]
    expected = logits.log_softmax(-1)[:, [20, 21]]
    torch.testing.assert_close(model("gpt2", words=words)(batch()).logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_attention_that_is_put_back_gives_the_same_logits(kind: str) -> None:
    opened, texts = model(kind).requires_grad_(requires_grad=False), batch()
    trace = opened(texts)
    torch.testing.assert_close(opened(texts, attention=trace.attention).logits, trace.logits, rtol=0, atol=1e-10)
    assert float(trace.attention.triu(1).abs().max()) == 0.0
    own = torch.eye(7, dtype=torch.float64).expand_as(trace.attention)
    assert not torch.allclose(opened(texts, attention=own).logits, trace.logits)


def test_a_language_model_obeys_the_laws_of_models() -> None:
    def build(seed: int) -> TransformerModel:
        # Not by wrapping, which takes most of the time and has tests of its own.
        return TransformerModel(open_layers(network("llama", seed), "interface"), WORDS.task, WORDS).eval()

    report = check_model(build, batch())
    assert report, report


@pytest.mark.parametrize("words", [LabelWords(((20,), (21,))), LabelWords(((20,),))])
def test_deeplift_is_complete_on_label_words(words: LabelWords) -> None:
    opened, texts = model("gpt2", words=words), batch()
    found = DeepLift(output="logit")(opened, texts, torch.tensor([0, 1]))
    assert float(found.convergence_delta.abs().max()) < 1e-5


def test_a_masked_model_is_read_at_the_mask_tokens_of_the_prompt() -> None:
    plain, texts = network("bert"), masked_batch()
    opened = TransformerModel.wrap_language_model(plain, MASKED_WORDS).eval().requires_grad_(requires_grad=False)
    expected = []
    for row, length in enumerate(texts.lengths.tolist()):
        with torch.no_grad():
            logits = plain(input_ids=texts.inputs[row : row + 1, :length]).logits[0].log_softmax(-1)
        expected.append([logits[-2, first] + logits[-1, second] for first, second in MASKED_WORDS.words])
    torch.testing.assert_close(opened(texts).logits, torch.tensor(expected).double(), rtol=0, atol=1e-6)
    assert opened.deciding_row == "mask"
    rows = row_weights(texts, "class", texts.mask.shape[1], "mask")
    assert rows[1].tolist() == [0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    weights = opened(texts).attention[:, -1].mean(1)
    shown = HeadAttention()(opened, texts, torch.tensor([0, 0])).scores
    assert float(shown[1, 1]) == pytest.approx(float(weights[1, 3:5, 1].mean()))


def test_a_single_word_has_its_odds_against_everything_else() -> None:
    opened, plain = model("gpt2", words=LabelWords(((21, 22),))), network("gpt2")
    probability = joint(plain, TEXTS[0], (21, 22)).exp()
    assert opened.task == BinaryClassification()
    found = opened.task.probabilities(opened(batch()).logits)[0, 1]
    assert float(found) == pytest.approx(float(probability), rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LabelWords(()),
        lambda: LabelWords(((3,), ())),
        lambda: LabelWords(((3,), (3,))),
        lambda: LabelWords(((3,), (3, 4))),
        lambda: LabelWords(((3,), (4, 5)), mask_id=MASK),
        lambda: LabelWords(((3, 4, 5, 6), (4, 5, 6, 7)), mask_id=MASK),
        lambda: TransformerModel.wrap_language_model(torch.nn.Linear(2, 2), WORDS),  # type: ignore[arg-type]
        lambda: model("bert", words=LabelWords(((20,), (21,)), mask_id=MASK))(batch()),
    ],
)
def test_words_that_cannot_be_compared_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        make()


@pytest.mark.parametrize("words", [LabelWords(((20,), (21,))), WORDS])
def test_deletions_that_reuse_the_beginning_of_a_text_are_whole_forward_passes(words: LabelWords) -> None:
    plain, opened, texts = network("llama"), model("llama", words=words), batch()
    assert opened.reuses_prefixes
    found = leave_one_out_logits(opened, texts)
    for row, unit in texts.deletable_mask.nonzero().tolist():
        kept = texts.mask[row].clone()
        kept[unit] = False
        ids = tuple(texts.inputs[row][kept].tolist())
        expected = torch.stack([joint(plain, ids, word) for word in words.words])
        torch.testing.assert_close(found[row, unit], expected, rtol=0, atol=1e-10)


def test_rows_and_words_of_a_batch_change_nothing() -> None:
    opened, texts = model("llama"), batch()
    for row in range(2):
        alone = opened(texts.rows(torch.tensor([row]))).logits[0]
        torch.testing.assert_close(alone, opened(texts).logits[row], rtol=0, atol=1e-10)
