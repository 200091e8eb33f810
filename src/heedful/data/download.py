"""Where the public corpora are on the hub and how their rows become rows of the layout.

One `Piece` per file that is written. A conversion gives None for a row that the corpus does not have (another
class, no gold label). Some sets were once scripts; of these the hub's own Parquet conversion is read, so no
code runs.

Obtaining public corpora: from the hub (or a folder that `save_to_disk` wrote) into the normalised layout.

Everything is written aside and renamed at the end: a folder that is there is complete, and a failed download
leaves nothing.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.data.io import atomic_folder, write_rows
from heedful.data.table import Record, Repository, class_names, dataset_records, load_from_hub, load_saved_dataset
from heedful.types import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

RowValues = Mapping[str, object]
RowConverter = Callable[[RowValues], list[dict[str, object]]]
PARQUET_REVISION = "refs/convert/parquet"
_NON_WORDS = re.compile(r"\W+")
SENTIMENT_LABELS = {"neg": 0, "pos": 1, "NEG": 0, "POS": 1, "negative": 0, "positive": 1, "0": 0, "1": 1}


@dataclass(frozen=True)
class TextSource:
    """One file of the layout and the split of a hub dataset that it is made of."""

    file: str
    repository: Repository
    split: str
    convert: RowConverter


@dataclass(frozen=True)
class ImageSource:
    """One image archive and the hub dataset that it is made of."""

    file: str
    repository: Repository
    image_column: str
    label_column: str


def _text_converter(label: str, known: Mapping[str, int], text: str = "text") -> RowConverter:
    """Rows of one text whose label is known; others are no part of the corpus."""

    def convert(values: RowValues) -> list[dict[str, object]]:
        word, content = str(values[label]), str(values[text])
        return [{"text": content, "label": known[word]}] if word in known and content.strip() else []

    return convert


def _clean_text_converter(label: str, known: Mapping[str, int]) -> RowConverter:
    """As Jain & Wallace clean SST: lower case, words only."""
    whole = _text_converter(label, known)

    def convert(values: RowValues) -> list[dict[str, object]]:
        rows = [{**row, "text": _NON_WORDS.sub(" ", str(row["text"])).strip().lower()} for row in whole(values)]
        return [row for row in rows if row["text"]]

    return convert


def _convert_newsgroup(values: RowValues) -> list[dict[str, object]]:
    """As Jain & Wallace clean 20 Newsgroups: lower case, digits as qqq, runs of signs as one sign."""
    groups = {"rec.sport.baseball": 0, "rec.sport.hockey": 1}
    tokens = re.findall(r"\w+|[^\w\s]+", str(values["text"]).lower())
    words = ["qqq" if re.search(r"\d", token) else token if token[0].isalnum() else token[0] for token in tokens]
    label = groups.get(str(values["label_text"]))
    return [{"text": " ".join(words), "label": label}] if words and label is not None else []


def _convert_entailment(values: RowValues) -> list[dict[str, object]]:
    label = values["label"]
    if label not in ("entailment", "neutral", "contradiction"):
        return []
    return [{"premise": values["premise"], "hypothesis": values["hypothesis"], "label": label}]


def _convert_question_pair(values: RowValues) -> list[dict[str, object]]:
    """Pairs of at most 200 words, as in "A Song of (Dis)agreement"."""
    first, second = str(values["question1"]), str(values["question2"])
    known = {"not_duplicate": 0, "duplicate": 1, "0": 0, "1": 1}
    label = known.get(str(values["label"]))
    fits = first.strip() and second.strip() and len(first.split()) + len(second.split()) <= 200
    return [{"premise": first, "hypothesis": second, "label": label}] if fits and label is not None else []


def _convert_eraser_review(values: RowValues) -> list[dict[str, object]]:
    """A review whose evidence is found again, each span at its first exact match, over `text.split(' ')`."""
    words = str(values["review"]).split()
    spans = values["evidences"]
    found = [_find_span(words, str(span).split()) for span in spans] if isinstance(spans, list) else []
    label = SENTIMENT_LABELS.get(str(values["label"]))
    row: dict[str, object] = {"text": " ".join(words), "label": label}
    row["rationale"] = [span for span in found if span]
    return [row] if words and label is not None else []


def _find_span(words: list[str], span: list[str]) -> list[int]:
    starts = range(len(words) - len(span) + 1) if span else range(0)
    first = next((start for start in starts if words[start : start + len(span)] == span), None)
    return [] if first is None else list(range(first, first + len(span)))


def _translation_converter(pair: str) -> RowConverter:
    """Source, translation and mean judgement; the hub's edition has no marks on wrong words."""
    source, target = pair.split("-")

    def convert(values: RowValues) -> list[dict[str, object]]:
        texts, label = values["translation"], values["z_mean"]
        if not isinstance(texts, Mapping) or not isinstance(label, float):
            return []
        return [{"lp": pair, "src": texts[source], "mt": texts[target], "label": label}]

    return convert


def _convert_babi_story(values: RowValues) -> list[dict[str, object]]:
    """One row per question of a story: the sentences before it and the words of its supporting facts."""
    told: list[tuple[str, list[str]]] = []
    rows: list[dict[str, object]] = []
    for line in _story_lines(values["story"]):
        if str(line["type"]) in ("context", "0"):
            told.append((str(line["id"]), str(line["text"]).rstrip(". ").split()))
            continue
        document = " . ".join(" ".join(words) for _, words in told)
        question = str(line["text"]).rstrip("? ")
        facts = _fact_positions(told, line["supporting_ids"])
        rows.append({"document": document, "question": question, "answer": line["answer"], "rationale": facts})
    return rows


def _story_lines(story: object) -> list[RowValues]:
    """The lines of a story; `datasets` gives them as a list of rows or, in older files, as columns."""
    if isinstance(story, Mapping):
        return [dict(zip(story, line, strict=True)) for line in zip(*story.values(), strict=True)]
    return list(story) if isinstance(story, list) else []


def _fact_positions(sentences: list[tuple[str, list[str]]], facts: object) -> list[list[int]]:
    spans: dict[str, list[int]] = {}
    place = 0
    for number, words in sentences:
        spans[number] = list(range(place, place + len(words)))
        place += len(words) + 1
    chosen = facts if isinstance(facts, list) else []
    return [spans[str(fact)] for fact in chosen if str(fact) in spans]


_SST = Repository("SetFit/sst2")
_IMDB = Repository("stanfordnlp/imdb")
_NEWSGROUPS = Repository("SetFit/20_newsgroups")
_AG_NEWS = Repository("fancyzhx/ag_news")
_SNLI = Repository("stanfordnlp/snli")
_MNLI = Repository("nyu-mll/multi_nli")
_XNLI = Repository("facebook/xnli", "en")
_QQP = Repository("nyu-mll/glue", "qqp")
_MOVIES = Repository("eraser-benchmark/movie_rationales", revision=PARQUET_REVISION)
_TRAIN_DEV_TEST = (("train", "train"), ("dev", "validation"), ("test", "test"))
_TOPICS = {"World": 0, "Business": 1}


def _text_sources(
    folder: str, repository: Repository, splits: tuple[tuple[str, str], ...], convert: RowConverter
) -> tuple[TextSource, ...]:
    return tuple(TextSource(f"{folder}/{ours}", repository, theirs, convert) for ours, theirs in splits)


def _babi_sources(task: int) -> tuple[TextSource, ...]:
    repository = Repository("facebook/babi_qa", f"en-10k-qa{task}", PARQUET_REVISION)
    return _text_sources(f"babi_qa{task}", repository, (("train", "train"), ("test", "test")), _convert_babi_story)


def _mlqe_sources(pair: str) -> tuple[TextSource, ...]:
    return _text_sources(
        "mlqe_pe", Repository("wmt/wmt20_mlqe_task1", pair), _TRAIN_DEV_TEST, _translation_converter(pair)
    )


_TRAIN_TEST = (("train", "train"), ("test", "test"))
TEXT_SOURCES: Mapping[str, tuple[TextSource, ...]] = {
    "sst": _text_sources("sst", _SST, _TRAIN_DEV_TEST, _clean_text_converter("label", SENTIMENT_LABELS)),
    "imdb-raw": _text_sources("imdb_raw", _IMDB, _TRAIN_TEST, _text_converter("label", SENTIMENT_LABELS)),
    "imdb": _text_sources("imdb_raw", _IMDB, _TRAIN_TEST, _text_converter("label", SENTIMENT_LABELS)),
    "20news": _text_sources("20news_sports", _NEWSGROUPS, _TRAIN_TEST, _convert_newsgroup),
    "agnews": _text_sources("agnews_wb", _AG_NEWS, _TRAIN_TEST, _text_converter("label", _TOPICS)),
    "snli": _text_sources("snli", _SNLI, _TRAIN_DEV_TEST, _convert_entailment),
    "mnli": (
        *_text_sources("mnli", _MNLI, (("train", "train"), ("dev", "validation_matched")), _convert_entailment),
        *_text_sources("mnli", _XNLI, (("test", "test"), ("xnli_en_dev", "validation")), _convert_entailment),
    ),
    # The hub hides the labels of its test part: our test is its validation part, and dev is carved.
    "qqp": _text_sources("qqp", _QQP, (("train", "train"), ("test", "validation")), _convert_question_pair),
    "eraser-movies": _text_sources("eraser_movies", _MOVIES, _TRAIN_DEV_TEST, _convert_eraser_review),
    "mlqe": tuple(
        piece
        for pair in ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en", "si-en")
        for piece in _mlqe_sources(pair)
    ),
    **{f"babi-{task}": _babi_sources(task) for task in (1, 2, 3)},
}
IMAGE_SOURCES: Mapping[str, ImageSource] = {
    "cifar10": ImageSource("cifar10", Repository("uoft-cs/cifar10"), "img", "label"),
    "cifar100": ImageSource("cifar100", Repository("uoft-cs/cifar100"), "img", "fine_label"),
    "fashion-mnist": ImageSource("fashion_mnist", Repository("zalando-datasets/fashion_mnist"), "image", "label"),
}


FETCHABLE: tuple[str, ...] = (*TEXT_SOURCES, *IMAGE_SOURCES)


def fetch(name: str, data: Path, *, source: str | None = None) -> Path:
    """The folder (or image file) of the corpus under `data`, fetched unless it is there already.

    Args:
        source: a folder that `save_to_disk` wrote, used instead of the hub; where a corpus is made of several
            hub datasets, a folder with one such folder for each, named after the last part of its id and its
            config (`multi_nli`, `xnli-en`).
    """
    if name in TEXT_SOURCES:
        return _fetch_texts(name, TEXT_SOURCES[name], data, source)
    if name in IMAGE_SOURCES:
        return _fetch_images(name, IMAGE_SOURCES[name], data, source)
    raise UserError(f"nobody can fetch '{name}'; can be fetched: {', '.join(FETCHABLE)}")


def _load_repository(repository: Repository, source: str | None) -> DatasetDict:
    if source is None:
        return load_from_hub(repository)
    last = repository.name.split("/")[-1]
    inside = Path(source) / (f"{last}-{repository.config}" if repository.config else last)
    return load_saved_dataset(inside if inside.is_dir() else Path(source))


def _require_split(found: DatasetDict, split: str, repository: Repository) -> Dataset:
    if split not in found:
        raise UserError(
            f"{repository.name}: no split {split}; there are {', '.join(map(str, found))}; "
            "this source does not fit the corpus"
        )
    return found[split]


def _fetch_texts(name: str, pieces: Sequence[TextSource], data: Path, source: str | None) -> Path:
    target = data / Path(pieces[0].file).parent
    if target.is_dir():
        return target
    opened = {repository: _load_repository(repository, source) for repository in {piece.repository for piece in pieces}}
    files = sorted({piece.file for piece in pieces})
    with atomic_folder(target) as folder:
        for file in files:
            lines = _convert_rows([piece for piece in pieces if piece.file == file], opened)
            if not write_rows(folder / f"{Path(file).name}.jsonl.gz", lines):
                raise UserError(
                    f"{name}: {pieces[0].repository.name} gave no row for {file}; this source does not fit the corpus"
                )
    return target


def _convert_rows(
    pieces: Sequence[TextSource], opened: Mapping[Repository, DatasetDict]
) -> Iterator[dict[str, object]]:
    count = 0
    for piece in pieces:
        dataset = _require_split(opened[piece.repository], piece.split, piece.repository)
        for record in dataset_records(dataset, piece.repository.name):
            for row in _convert_record(piece, record):
                yield {"id": f"{piece.file.replace('/', '-')}-{count}", **row}
                count += 1


def _convert_record(piece: TextSource, record: Record) -> list[dict[str, object]]:
    try:
        return piece.convert(record.values)
    except KeyError as error:
        present = ", ".join(record.values)
        raise UserError(
            f"{record.location}: no column {error}; the columns are {present}; the dataset has changed"
        ) from error


def _fetch_images(name: str, source_spec: ImageSource, data: Path, source: str | None) -> Path:
    target = data / "images" / f"{source_spec.file}.npz"
    if target.is_file():
        return target
    found = _load_repository(source_spec.repository, source)
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    for split in ("train", "test"):
        dataset = _require_split(found, split, source_spec.repository)
        arrays[f"x_{split}"], arrays[f"y_{split}"] = _image_arrays(dataset, source_spec, name)
    arrays["class_names"] = np.array(class_names(found["train"]).get(source_spec.label_column, ()), dtype=np.str_)
    if not len(arrays["class_names"]):
        raise UserError(
            f"{name}: {source_spec.repository.name} does not name its classes in column '{source_spec.label_column}'"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".npz", prefix=".", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _image_arrays(
    dataset: Dataset, source_spec: ImageSource, name: str
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.generic]], np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    if not {source_spec.image_column, source_spec.label_column} <= set(dataset.column_names):
        present = ", ".join(dataset.column_names)
        raise UserError(
            f"{name}: no columns '{source_spec.image_column}' and '{source_spec.label_column}'; "
            f"the columns are {present}"
        )
    images = np.stack([np.asarray(image, dtype=np.uint8) for image in dataset[source_spec.image_column]])
    return images, np.asarray(dataset[source_spec.label_column], dtype=np.uint8)
