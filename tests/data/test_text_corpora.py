"""Published corpora: laws on invented rows in the layout, complaints about damaged files, real sizes."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.catalogue import PUBLISHED, PUBLISHED_CORPORA
from heedful.data.images import CIFAR10, Digits, FashionMNIST
from heedful.data.io import write_rows
from heedful.data.question_corpora import CNN, Babi
from heedful.data.text_corpora import IMDB, MLQE, MNLI, QQP, SNLI, SST, AGNews, EraserMovies, IMDBRaw, TwentyNewsSports
from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import SPLITS, UserError
from tests.corpus_laws import SENTENCES, clozes, lawful, leaves, pairs, prepared, written


@pytest.mark.parametrize("name", list(PUBLISHED_CORPORA))
def test_every_published_corpus_obeys_the_laws(name: str, tmp_path: Path) -> None:
    corpus = prepared(PUBLISHED_CORPORA[name], tmp_path)
    splits = corpus.read(tmp_path)
    everything = [example for split in SPLITS for example in splits[split]]
    assert isinstance(corpus, PUBLISHED)
    assert all(splits[split] for split in SPLITS)
    assert len({example.uid for example in everything}) == len(everything)
    for example in everything:
        assert lawful(example, splits)
    assert corpus.read(tmp_path) is splits or isinstance(corpus, Digits)
    assert hash(corpus) == hash(replace(corpus))  # type: ignore[type-var]


@pytest.mark.parametrize("name", [name for name in PUBLISHED_CORPORA if name != "digits"])
def test_a_missing_corpus_names_the_folder_and_the_remedy(name: str, tmp_path: Path, no_package: None) -> None:
    with pytest.raises(UserError) as complaint:
        PUBLISHED_CORPORA[name].read(tmp_path)
    assert str(tmp_path) in str(complaint.value)
    assert "HEEDFUL_DATA" in str(complaint.value)
    assert ("heedful fetch" in str(complaint.value)) == (name not in ("cnn", "babi-3-v11"))
    assert "\n" not in str(complaint.value)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.data.text_corpora.REVIEWS_PACKAGE", "no-such-package-at-all")


def test_snli_classes_are_sorted_and_qqp_and_sst_have_two(tmp_path: Path) -> None:
    for name in ("snli", "qqp", "sst"):
        written(name, tmp_path)
    snli = SNLI().read(tmp_path)
    assert snli.class_names == ("contradiction", "entailment", "neutral")
    assert [example.label for example in snli.train[:3]] == [2, 0, 1]
    assert snli.task == MulticlassClassification(3)
    assert QQP().read(tmp_path).task == SST().read(tmp_path).task == BinaryClassification()
    assert snli.train[0].parts == (SENTENCES[0], "there is salt")


def test_evidence_becomes_one_mark_per_word(tmp_path: Path) -> None:
    written("eraser-movies", tmp_path)
    example = EraserMovies().read(tmp_path).train[0]
    assert example.parts == ("a kind film about rain and salt",)
    assert example.rationale == (False, True, True, False, True, False, False)


def test_the_leaves_of_sst_carry_the_sentiment_of_each_word(tmp_path: Path) -> None:
    written("sst", tmp_path)
    assert SST().read(tmp_path).train[0].rationale is None
    example = SST(tree_leaves=True).read(tmp_path).train[0]
    assert example.parts == ("A n't bad .",)
    assert example.rationale == (False, True, True, False)


def test_wrong_words_are_marked_over_both_parts_of_a_translation(tmp_path: Path) -> None:
    written("mlqe", tmp_path)
    example = MLQE().read(tmp_path).dev[1]
    assert example.parts == ("der alte Baum 1", "the old beam 1 dev")
    assert example.rationale == (False, False, True, False, False, False, True, True, False)
    assert example.label == 0.5


def test_language_pairs_can_be_chosen_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    written("mlqe", tmp_path)
    assert len(MLQE().read(tmp_path).train) == 12
    chosen = MLQE(language_pairs=("si-en",))
    assert chosen.name == "mlqe-si-en"
    assert {example.uid[:5] for example in chosen.read(tmp_path).train} == {"si-en"}
    with pytest.raises(UserError, match="no language pair xx-yy; there are en-de, en-zh"):
        MLQE(language_pairs=("xx-yy",)).read(tmp_path)


def test_babi_answers_are_all_training_words_of_the_tasks_that_are_there(tmp_path: Path) -> None:
    written("babi-1", tmp_path)
    alone, before = Babi(1).read(tmp_path), Babi(1).digest(tmp_path)
    words = {"Ida", "ran", "to", "the", "attic", "barn", ".", "Otto", "slept", "very", "long", "Where", "is"}
    assert alone.class_names == tuple(sorted(words))
    example = alone.train[0]
    assert alone.class_names[int(example.label or 0)] == "attic"
    assert example.candidates is None
    assert example.rationale == (True,) * 5 + (False,) * 4 + (False,) * 3
    folder = tmp_path / "babi_qa2"
    folder.mkdir()
    write_rows(
        folder / "train.jsonl.gz",
        [{"id": "0", "document": "Xaver sang", "question": "Who", "answer": "Xaver"}],
    )
    assert set(Babi(1).read(tmp_path).class_names) - set(alone.class_names) == {"Xaver", "sang", "Who"}
    assert Babi(1).digest(tmp_path) != before
    assert Babi(1).read(tmp_path).notes["answers are words of"] == "babi_qa1, babi_qa2"


def test_only_three_babi_tasks_exist() -> None:
    with pytest.raises(UserError, match="no task 4"):
        Babi(4)
    with pytest.raises(UserError, match="task 3 only"):
        Babi(2, version="v1-1")


def test_cnn_admits_the_entities_of_the_story_that_training_knows(tmp_path: Path) -> None:
    folder = written("cnn", tmp_path)
    rows = clozes("test")
    rows[0]["document"] = "@entity0 met @entity99"
    rows.append({"id": "lost", "document": "@entity98 sang", "question": "@placeholder sang", "answer": "@entity98"})
    write_rows(folder / "test.jsonl.gz", rows)
    splits = CNN().read(tmp_path)
    assert splits.class_names == ("@entity0", "@entity1", "@entity2", "@entity3", "@entity4")
    assert splits.train[2].candidates == (2, 3)
    assert splits.test[0].candidates == (0,)
    assert len(splits.test) == 4
    assert splits.notes["questions left out, answer unseen in train"] == 1
    assert splits.notes["stories with candidates unseen in train"] == 2


def test_agnews_reads_descriptions_and_counts_where_there_are_none(tmp_path: Path) -> None:
    written("agnews", tmp_path)
    plain, titled = AGNews().read(tmp_path), AGNews(title=True).read(tmp_path)
    assert plain.train[1].parts == (f"{SENTENCES[1]} today",)
    assert plain.train[0].parts == titled.train[0].parts == (SENTENCES[0],)
    assert titled.train[1].parts == (SENTENCES[1],)
    assert plain.notes["texts with the title, not separable"] == 3
    assert "texts with the title, not separable" not in titled.notes


def test_mnli_can_take_its_dev_split_from_xnli(tmp_path: Path) -> None:
    written("mnli", tmp_path)
    assert MNLI().read(tmp_path).dev[0].uid == "dev-0"
    folder = tmp_path / "mnli"
    write_rows(
        folder / "xnli_en_dev.jsonl.gz",
        [{**row, "id": f"x{row['id']}"} for row in pairs("dev", ("neutral",))],
    )
    assert MNLI(evaluation="xnli").read(tmp_path).dev[0].uid == "xdev-0"


def test_a_corpus_without_dev_gets_one_from_train_and_says_so(tmp_path: Path) -> None:
    written("imdb-raw", tmp_path)
    splits = IMDBRaw().read(tmp_path)
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (16, 4, 6)
    assert splits.notes["dev carved from train"] == 4
    assert Counter(example.label for example in splits.dev) == {0: 2, 1: 2}


def test_pixels_lie_between_nought_and_one_with_channels_first(tmp_path: Path) -> None:
    for corpus, shape in ((CIFAR10(), (3, 32, 32)), (FashionMNIST(), (1, 28, 28)), (Digits(), (1, 8, 8))):
        data = tmp_path / corpus.name
        data.mkdir()
        splits = prepared(corpus, data).read(data)
        image = splits.test[0].parts[0]
        assert isinstance(image, torch.Tensor)
        assert tuple(image.shape) == shape
        assert 0 <= float(image.min()) < float(image.max()) <= 1


def test_a_colour_stays_at_its_place(tmp_path: Path) -> None:
    prepared(CIFAR10(), tmp_path)
    with np.load(tmp_path / "images" / "cifar10_tiny.npz") as archive:
        raw = archive["x_test"][3]
    image = CIFAR10().read(tmp_path).test[3].parts[0]
    assert isinstance(image, torch.Tensor)
    assert float(image[2, 5, 7]) == pytest.approx(int(raw[5, 7, 2]) / 255)


def test_pickles_inside_an_image_archive_are_refused(tmp_path: Path) -> None:
    prepared(CIFAR10(), tmp_path)
    path = tmp_path / "images" / "cifar10_tiny.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["class_names"] = np.array([{"a": 1}] * 10, dtype=object)
    np.savez(path, **arrays)
    with pytest.raises(UserError, match="delete the file and fetch it again"):
        CIFAR10().read(tmp_path)


def _sst_with(tmp_path: Path, content: bytes) -> None:
    (written("sst", tmp_path) / "dev.jsonl.gz").write_bytes(content)


def gzipped(content: bytes) -> bytes:
    """Without the time of day, so that every worker of a parallel run collects the same tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"this is no gzip", r"dev\.jsonl\.gz, line 1: unreadable"),
        (gzipped(b"x" * 99)[:-9], r"dev\.jsonl\.gz, line 1: unreadable"),
        (gzipped(b'{"id": "a", "text": "b c", "label": 1}\n{"id": '), r"line 2: not JSON"),
        (gzipped(b'["a"]'), r"line 1: not a JSON object"),
        (gzipped(b'{"id": "a", "text": " ", "label": 1}'), r"line 1: field 'text' is missing, empty"),
        (gzipped(b'{"id": "a", "text": "b"}'), r"line 1: label None is none of negative, positive"),
        (
            gzipped(b'{"id": "a", "text": "b", "label": 7}'),
            r"line 1: label 7 is none of negative, positive",
        ),
        (
            gzipped(b'{"id": "a", "text": "b", "label": 1, "rationale": [[3]]}'),
            r"names word 3, .* has 1 words",
        ),
        (gzipped(b'{"id": "train-0", "text": "b", "label": 1}'), r"the id train-0 stands on two rows"),
        (gzipped(b'{"id": "a", "text": "\xe9", "label": 1}'), r"line 1: unreadable"),
        (gzipped(b""), r"holds no rows"),
    ],
)
def test_damage_is_reported_with_file_and_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    _sst_with(tmp_path, content)
    with pytest.raises(UserError, match=complaint):
        SST().read(tmp_path)


def test_the_digest_follows_the_bytes_and_reading_follows_the_digest(tmp_path: Path) -> None:
    folder = written("sst", tmp_path)
    first, splits = SST().digest(tmp_path), SST().read(tmp_path)
    assert SST().digest(tmp_path) == first
    write_rows(folder / "dev.jsonl.gz", leaves("dev")[:5])
    assert SST().digest(tmp_path) != first
    assert len(SST().read(tmp_path).dev) == 5 == len(splits.dev) - 1


def test_preprocessing_says_what_the_papers_did() -> None:
    assert SST.tokenization == Words(longer_than=5, shorter_than="longest")
    assert IMDB.tokenization == Words(min_documents=10, longer_than=6, shorter_than="longest")
    assert TwentyNewsSports.tokenization == Words(min_documents=2, longer_than=6, shorter_than=500)
    assert SNLI.tokenization == Words("english", lowercase=True, digits="qqq", min_documents=3)
    assert (Babi.embedding_dim, CNN.tokenization.min_documents) == (50, 8)
    assert (AGNews.tokenization.longer_than, AGNews.tokenization.shorter_than) == ("shortest", "longest")
