"""Download of public corpora: from the hub, or from a folder that `save_to_disk` wrote, into the data folder.

Each file has a source on the hub and a function that converts its rows; rows that do not belong to the corpus (another
class, no gold label) convert to nothing. Datasets that are scripts on the hub are read from its Parquet conversion, so
no code runs. Folders and files are renamed into place at the end: what exists is complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heedful.data.hub_datasets import Repository, dataset_rows, hub_class_names, load_from_hub, load_saved_dataset
from heedful.data.io import write_rows
from heedful.names import choose_name
from heedful.store.atomic_write import atomic_path, delete_drafts, refuse_write_errors, try_to_write
from heedful.types import UserError, user_path

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

RowValues = Mapping[str, object]
RowConverter = Callable[[RowValues], list[dict[str, object]]]
"""The rows that one row of the hub becomes, often none or one."""
PARQUET_REVISION = "refs/convert/parquet"
SENTIMENT_LABELS = {"neg": 0, "pos": 1, "NEG": 0, "POS": 1, "negative": 0, "positive": 1, "0": 0, "1": 1}


@dataclass(frozen=True)
class TextSource:
    """One file of the data folder and the split of a hub dataset that it comes from."""

    file: str
    repository: Repository
    split: str
    convert: RowConverter


@dataclass(frozen=True)
class ImageSource:
    """One image archive and the hub dataset that it comes from."""

    file: str
    repository: Repository
    image_column: str
    label_column: str


def _text_converter(classes: Mapping[str, int], *, words_only: bool = False) -> RowConverter:
    """Single texts with one of these classes; lower case and words only, as Jain & Wallace clean SST, on request."""

    def convert(values: RowValues) -> list[dict[str, object]]:
        label, text = classes.get(str(values["label"])), str(values["text"])
        text = re.sub(r"\W+", " ", text).strip().lower() if words_only else text
        return [{"text": text, "label": label}] if label is not None and text.strip() else []

    return convert


def _convert_newsgroup(values: RowValues) -> list[dict[str, object]]:
    """Lower case, digits as qqq and runs of signs as one sign, as Jain & Wallace clean 20 Newsgroups."""
    tokens = re.findall(r"\w+|[^\w\s]+", str(values["text"]).lower())
    words = ["qqq" if re.search(r"\d", token) else token if token[0].isalnum() else token[0] for token in tokens]
    label = {"rec.sport.baseball": 0, "rec.sport.hockey": 1}.get(str(values["label_text"]))
    return [{"text": " ".join(words), "label": label}] if words and label is not None else []


def _convert_entailment(values: RowValues) -> list[dict[str, object]]:
    label = values["label"]
    if label not in ("entailment", "neutral", "contradiction"):
        return []
    return [{"premise": values["premise"], "hypothesis": values["hypothesis"], "label": label}]


def _convert_question_pair(values: RowValues) -> list[dict[str, object]]:
    """Pairs of at most 200 words, as in Neely et al. (2022)."""
    first, second = str(values["question1"]), str(values["question2"])
    known = {"not_duplicate": 0, "duplicate": 1, "0": 0, "1": 1}
    label = known.get(str(values["label"]))
    fits = first.strip() and second.strip() and len(first.split()) + len(second.split()) <= 200
    return [{"premise": first, "hypothesis": second, "label": label}] if fits and label is not None else []


def _convert_eraser_review(values: RowValues) -> list[dict[str, object]]:
    """A review with word indices as evidence: each evidence text at its first exact match."""
    words = str(values["review"]).split()
    texts = values["evidences"] if isinstance(values["evidences"], list) else []
    spans = [_find_span(words, str(text).split()) for text in texts]
    label = SENTIMENT_LABELS.get(str(values["label"]))
    if not words or label is None:
        return []
    return [{"text": " ".join(words), "label": label, "rationale": [span for span in spans if span]}]


def _find_span(words: list[str], span: list[str]) -> list[int]:
    starts = range(len(words) - len(span) + 1) if span else range(0)
    first = next((start for start in starts if words[start : start + len(span)] == span), None)
    return [] if first is None else list(range(first, first + len(span)))


def _translation_converter(pair: str) -> RowConverter:
    """Source, translation and mean quality; the edition on the hub does not mark wrong words."""
    source, target = pair.split("-")

    def convert(values: RowValues) -> list[dict[str, object]]:
        texts, label = values["translation"], values["z_mean"]
        if not isinstance(texts, Mapping) or not isinstance(label, float):
            return []
        return [{"lp": pair, "src": texts[source], "mt": texts[target], "label": label}]

    return convert


def _convert_babi_story(values: RowValues) -> list[dict[str, object]]:
    """One row per question of a story: the sentences before it and the words of its supporting facts."""
    sentences: list[tuple[str, list[str]]] = []
    rows: list[dict[str, object]] = []
    for line in _story_lines(values["story"]):
        if str(line["type"]) in ("context", "0"):
            sentences.append((str(line["id"]), str(line["text"]).rstrip(". ").split()))
            continue
        document = " . ".join(" ".join(words) for _, words in sentences)
        question = str(line["text"]).rstrip("? ")
        facts = _fact_positions(sentences, line["supporting_ids"])
        rows.append({"document": document, "question": question, "answer": line["answer"], "rationale": facts})
    return rows


def _story_lines(story: object) -> list[RowValues]:
    """The lines of a story, which `datasets` gives as a list of rows or, in older files, as columns."""
    if isinstance(story, Mapping):
        return [dict(zip(story, line, strict=True)) for line in zip(*story.values(), strict=True)]
    return list(story) if isinstance(story, list) else []


def _fact_positions(sentences: list[tuple[str, list[str]]], facts: object) -> list[list[int]]:
    spans: dict[str, list[int]] = {}
    start = 0
    for number, words in sentences:
        spans[number] = list(range(start, start + len(words)))
        start += len(words) + 1
    return [spans[str(fact)] for fact in (facts if isinstance(facts, list) else []) if str(fact) in spans]


_TRAIN_TEST = {"train": "train", "test": "test"}
_TRAIN_DEV_TEST = {"train": "train", "dev": "validation", "test": "test"}


def _sources(
    folder: str, repository: Repository | str, splits: Mapping[str, str], convert: RowConverter
) -> tuple[TextSource, ...]:
    """One source per file, where `splits` maps our file names to splits of the hub dataset."""
    hub = Repository(repository) if isinstance(repository, str) else repository
    return tuple(TextSource(f"{folder}/{file}", hub, split, convert) for file, split in splits.items())


def _babi_sources(task: int) -> tuple[TextSource, ...]:
    hub = Repository("facebook/babi_qa", f"en-10k-qa{task}", PARQUET_REVISION)
    return _sources(f"babi_qa{task}", hub, _TRAIN_TEST, _convert_babi_story)


def _mlqe_sources(pair: str) -> tuple[TextSource, ...]:
    hub = Repository("wmt/wmt20_mlqe_task1", pair)
    return _sources("mlqe_pe", hub, _TRAIN_DEV_TEST, _translation_converter(pair))


_IMDB = _sources("imdb_raw", "stanfordnlp/imdb", _TRAIN_TEST, _text_converter(SENTIMENT_LABELS))
_MOVIES = Repository("eraser-benchmark/movie_rationales", revision=PARQUET_REVISION)
_MNLI_FILES = {"train": "train", "dev": "validation_matched"}
# The hub hides the labels of its test split: our test is its validation split, and dev is held out from train.
_QQP_FILES = {"train": "train", "test": "validation"}
_MLQE_PAIRS = ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en", "si-en")
TEXT_SOURCES: Mapping[str, tuple[TextSource, ...]] = {
    "sst": _sources("sst", "SetFit/sst2", _TRAIN_DEV_TEST, _text_converter(SENTIMENT_LABELS, words_only=True)),
    "imdb-raw": _IMDB,
    "imdb": _IMDB,
    "20news": _sources("20news_sports", "SetFit/20_newsgroups", _TRAIN_TEST, _convert_newsgroup),
    "agnews": _sources("agnews_wb", "fancyzhx/ag_news", _TRAIN_TEST, _text_converter({"World": 0, "Business": 1})),
    "snli": _sources("snli", "stanfordnlp/snli", _TRAIN_DEV_TEST, _convert_entailment),
    "mnli": (
        *_sources("mnli", "nyu-mll/multi_nli", _MNLI_FILES, _convert_entailment),
        *_sources("mnli", Repository("facebook/xnli", "en"), {"test": "test"}, _convert_entailment),
    ),
    "qqp": _sources("qqp", Repository("nyu-mll/glue", "qqp"), _QQP_FILES, _convert_question_pair),
    "eraser-movies": _sources("eraser_movies", _MOVIES, _TRAIN_DEV_TEST, _convert_eraser_review),
    "mlqe": tuple(source for pair in _MLQE_PAIRS for source in _mlqe_sources(pair)),
    **{f"babi-{task}": _babi_sources(task) for task in (1, 2, 3)},
}
IMAGE_SOURCES: Mapping[str, ImageSource] = {
    "cifar10": ImageSource("cifar10", Repository("uoft-cs/cifar10"), "img", "label"),
    "cifar100": ImageSource("cifar100", Repository("uoft-cs/cifar100"), "img", "fine_label"),
    "fashion-mnist": ImageSource("fashion_mnist", Repository("zalando-datasets/fashion_mnist"), "image", "label"),
}


FETCHABLE: tuple[str, ...] = (*TEXT_SOURCES, *IMAGE_SOURCES)


def fetch(name: str, data: Path, *, source: str | None = None) -> Path:
    """Fetch a corpus into the data folder unless it is there, and return its folder or image file.

    Args:
        source: a folder that `save_to_disk` wrote, used instead of the hub. Where a corpus consists of several hub
            datasets, a folder with one such folder for each, named after the last part of its id and its config
            (`multi_nli`, `xnli-en`).
    """
    with refuse_write_errors(f"in the data folder ({data})", "make room there or set HEEDFUL_DATA"):
        name = choose_name("corpus to fetch", str(name), FETCHABLE)
        if name in TEXT_SOURCES:
            return _fetch_texts(name, TEXT_SOURCES[name], data, source)
        return _fetch_images(name, IMAGE_SOURCES[name], data, source)


def _load_repository(repository: Repository, source: str | None) -> DatasetDict:
    if source is None:
        return load_from_hub(repository)
    last, folder = repository.name.split("/")[-1], user_path(source)
    inside = folder / (f"{last}-{repository.config}" if repository.config else last)
    return load_saved_dataset(inside if inside.is_dir() else folder)


def _require_split(loaded: DatasetDict, split: str, repository: Repository) -> Dataset:
    if split not in loaded:
        raise UserError(
            f"{repository.name}: no split {split}; there are {', '.join(map(str, loaded))}; "
            "this source does not fit the corpus"
        )
    return loaded[split]


def _fetch_texts(name: str, sources: Sequence[TextSource], data: Path, saved: str | None) -> Path:
    target = data / Path(sources[0].file).parent
    delete_drafts(target)
    if target.is_dir():
        return target
    try_to_write(data)
    repositories = {source.repository for source in sources}
    loaded = {repository: _load_repository(repository, saved) for repository in repositories}
    with atomic_path(target) as folder:
        folder.mkdir()
        for file in sorted({source.file for source in sources}):
            rows = _convert_rows([source for source in sources if source.file == file], loaded)
            if not write_rows(folder / f"{Path(file).name}.jsonl.gz", rows):
                raise UserError(
                    f"{name}: {sources[0].repository.name} has no row for {file}; this source does not fit the corpus"
                )
    return target


def _convert_rows(
    sources: Sequence[TextSource], loaded: Mapping[Repository, DatasetDict]
) -> Iterator[dict[str, object]]:
    count = 0
    for source in sources:
        dataset = _require_split(loaded[source.repository], source.split, source.repository)
        for row in dataset_rows(dataset, source.repository.name):
            try:
                converted = source.convert(row.values)
            except KeyError as error:
                present = ", ".join(row.values)
                raise UserError(
                    f"{row.location}: no column {error}; the columns are {present}; the dataset has changed"
                ) from error
            for values in converted:
                yield {"id": f"{source.file.replace('/', '-')}-{count}", **values}
                count += 1


def _fetch_images(name: str, source: ImageSource, data: Path, saved: str | None) -> Path:
    target = data / "images" / f"{source.file}.npz"
    delete_drafts(target)
    if target.is_file():
        return target
    try_to_write(data)
    loaded = _load_repository(source.repository, saved)
    arrays: dict[str, NDArray[np.generic]] = {}
    for split in ("train", "test"):
        dataset = _require_split(loaded, split, source.repository)
        if not {source.image_column, source.label_column} <= set(dataset.column_names):
            raise UserError(
                f"{name}: no columns '{source.image_column}' and '{source.label_column}'; "
                f"the columns are {', '.join(dataset.column_names)}"
            )
        arrays[f"x_{split}"] = np.stack([np.asarray(image, dtype=np.uint8) for image in dataset[source.image_column]])
        arrays[f"y_{split}"] = np.asarray(dataset[source.label_column], dtype=np.uint8)
    arrays["class_names"] = np.array(hub_class_names(loaded["train"]).get(source.label_column, ()), dtype=np.str_)
    if not len(arrays["class_names"]):
        raise UserError(f"{name}: {source.repository.name} has no class names in column '{source.label_column}'")
    with atomic_path(target) as path:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return target
