"""Human rationales and subwords: marks stay on their words, also in pairs of texts, and what is cut is counted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from heedful.attributions.attention import RawAttention
from heedful.data.io import read_rows, write_rows
from heedful.data.subwords import Subwords, SubwordTokenizer
from heedful.data.text_corpora import MLQE, EraserMovies
from heedful.store.workspace import Workspace
from heedful.tasks import Regression
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import AdamW, EpochSelection, Training
from heedful.types import Attribution, Example, UserError
from tests.invented_corpora import written
from tests.networks import TinyTransformer
from tests.subword_tokenizers import bert, roberta, xlmr

REAL = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def marked_units(batcher: SubwordTokenizer, examples: Sequence[Example]) -> Attribution:
    """A score of 1 on each unit of a marked word, on a batch of the examples."""
    batch = batcher(examples)
    scores = torch.zeros(batch.mask.shape)
    for row, example in enumerate(examples):
        for unit, word in enumerate(batch.words[row].tolist()):
            scores[row, unit] = float(word >= 0 and (example.rationale or ())[word])
    return Attribution(scores, batch.content_mask).sum_by_word(batch.words)


@pytest.mark.parametrize("tokenizer", [bert(), roberta(), xlmr()], ids=["bert", "roberta", "xlmr"])
def test_scores_of_a_pair_come_back_word_by_word_source_first(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    written("mlqe", tmp_path)
    examples = MLQE(("ro-en",)).read(tmp_path).dev
    marks = marked_units(SubwordTokenizer(tokenizer), examples)
    for row, example in enumerate(examples):
        words = [word for part in example.parts for word in str(part).split()]
        assert words[:5] == ["der", "alte", "Baum", str(row), "the"]
        chosen = [word for word, score in zip(words, marks.scores[row].tolist(), strict=True) if score > 0]
        assert chosen == ["Baum", "beam", str(row)]
        assert bool(marks.mask[row].all())


def test_the_letters_of_a_word_are_its_units_in_source_and_translation() -> None:
    batcher = SubwordTokenizer(roberta())
    example = Example("1", ("Über die Bäume", "over the trees, née 樹"), 0.5, (True, False, False) + (False,) * 5)
    batch = batcher([example])
    words = [word for part in example.parts for word in str(part).split()]
    tokens_by_word: dict[int, list[int]] = {}
    for number, word in zip(batch.inputs[0].tolist(), batch.words[0].tolist(), strict=True):
        tokens_by_word.setdefault(word, []).append(number)
    tokenizer = roberta()
    assert [str(tokenizer.decode(tokens_by_word[word])).strip() for word in range(len(words))] == words
    in_source = torch.tensor([word < 3 for word in batch.words[0].tolist() if word >= 0])
    assert torch.equal(batch.segments[0][batch.content_mask[0]] == 0, in_source)


def test_a_regressor_learns_and_explains_translations_as_pairs(tmp_path: Path) -> None:
    written("mlqe", tmp_path)
    bert().save_pretrained(tmp_path / "tokenizer")
    subject = TrainedModel(
        corpus=MLQE(),
        tokenization=Subwords(str(tmp_path / "tokenizer"), 24),
        architecture=TinyTransformer("bert", vocab_size=13),
        training=Training(epochs=1, batch_size=4, optimizer=AdamW(), selection=EpochSelection(), reduction="mean"),
    )
    workspace = Workspace(tmp_path / "workspace", data_dir=tmp_path)
    assert subject.restore(workspace).model.task == Regression()
    scores = workspace.get(subject).notes["scores"]
    assert isinstance(scores, dict)
    assert set(scores["test"] or ()) == {"pearson", "mean_squared_error"}  # type: ignore[arg-type]
    table = workspace.get(AttributionTable(subject, RawAttention())).table
    examples = {example.uid: example for example in MLQE().read(tmp_path).test}
    for uid, words, segments in zip(table["uid"], table["words"], table["segments"], strict=True):
        source = len(str(examples[uid].parts[0]).split())
        assert set(words) == {-1, *range(len(examples[uid].rationale or ()))}
        assert all((word >= source) == (part == 1) for word, part in zip(words, segments, strict=True) if word >= 0)
    assert set(table["predicted"]) == {0}, "a number has one output"


def test_marks_count_blanks_and_words_count_white_space(tmp_path: Path) -> None:
    folder = tmp_path / "mlqe_pe"
    folder.mkdir()
    row = {"lp": "ro-en", "label": 0.25, "src": "un\u00a0mare  arbore", "mt": "a big\u3000big tree"}
    marks = {"src_rationale": [2], "mt_rationale": [1]}
    for split in ("train", "dev", "test"):
        write_rows(folder / f"{split}.jsonl.gz", [{"id": split, **row, **marks}])
    example = MLQE(("ro-en",)).read(tmp_path).train[0]
    words = [word for part in example.parts for word in str(part).split()]
    assert words == ["un", "mare", "arbore", "a", "big", "big", "tree"]
    # Between single blanks the source has "un mare", nothing and "arbore", the translation "a", "big big" and "tree".
    assert example.rationale == (False, False, True, False, True, True, False)


def test_a_translation_with_marks_in_one_part_only_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mlqe_pe"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        row = {"id": split, "lp": "ro-en", "label": 0.25, "src": "un arbore", "mt": "a tree", "src_rationale": [0]}
        write_rows(folder / f"{split}.jsonl.gz", [row])
    with pytest.raises(UserError, match=r"train\.jsonl\.gz, line 1: only one part has a rationale"):
        MLQE(("ro-en",)).read(tmp_path)


def test_truncated_words_of_a_rationale_are_counted() -> None:
    texts = (
        Example("1", ("the film is dull the film",), 0, (True, False, True, True, False, True)),
        Example("2", ("the film",), 1, (True, True)),
        Example("3", ("the unforget film",), 1, None),
        Example("4", ("film is the film is the film",), 1, (True,) + (False,) * 6),
    )
    assert SubwordTokenizer(bert()).preprocessing_notes(texts) == {}
    # With six units four words are read: the last mark of the first text is lost, and the fourth loses none.
    batcher = SubwordTokenizer(bert(), 6)
    assert list(batcher.preprocessing_notes(texts).values()) == [3, "1 of 7"]
    assert batcher.preprocessing_notes(texts[1:2]) == {}


def test_a_word_that_keeps_its_first_token_is_not_lost() -> None:
    # <cls> the un <sep>: of three pieces one is left, and the word with it.
    whole = Example("1", ("the film unforget",), 0, (False, False, True))
    assert list(SubwordTokenizer(bert(), 5).preprocessing_notes([whole]).values()) == [1]
    lost = Example("1", ("the film is dull",), 0, (False, False, True, True))
    assert list(SubwordTokenizer(bert(), 5).preprocessing_notes([lost]).values()) == [1, "1 of 2"]


def test_every_word_of_a_real_translation_has_a_unit_and_marks_find_it() -> None:
    if not (REAL / "mlqe_pe").is_dir():
        pytest.skip(f"no mlqe_pe at {REAL}: set HEEDFUL_DATA to run on the real corpus")
    splits = MLQE().make_splits({"dev": read_rows(REAL / "mlqe_pe" / "dev.jsonl.gz")}, REAL)
    # Some of each language pair: the pairs stand one after the other.
    examples = splits.dev[:: len(splits.dev) // 60]
    assert len({example.uid[:5] for example in examples}) == len(MLQE().language_pairs)
    for tokenizer in (roberta(), xlmr()):
        marks = marked_units(SubwordTokenizer(tokenizer), examples)
        for row, example in enumerate(examples):
            count = sum(len(str(part).split()) for part in example.parts)
            assert int(marks.mask[row].sum()) == count
            assert (marks.scores[row, :count] > 0).tolist() == list(example.rationale or ())


def test_real_reviews_truncated_at_256_tokens_lose_the_marks_that_a_slow_count_finds() -> None:
    if not (REAL / "eraser_movies").is_dir():
        pytest.skip(f"no eraser_movies at {REAL}: set HEEDFUL_DATA to run on the real corpus")
    examples = EraserMovies().make_splits({"dev": read_rows(REAL / "eraser_movies" / "dev.jsonl.gz")}, REAL).dev[:20]
    batcher = SubwordTokenizer(xlmr(), 256)
    batch = batcher(examples)
    read = [int(words.max()) for words in batch.words]
    # Texts are cut at the end, so that all words up to the last one read have a unit.
    lost = sum(sum((example.rationale or ())[last + 1 :]) for example, last in zip(examples, read, strict=True))
    marked = sum(sum(example.rationale or ()) for example in examples)
    assert batcher.preprocessing_notes(examples)["rationale words without a token"] == f"{lost} of {marked}"
    assert 0 < lost < marked
