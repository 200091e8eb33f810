"""The published text corpora in the normalised layout, one frozen class each, with their papers'
preprocessing.

Texts stay texts: `preprocessing` says in plain parameters how the paper made words of them, and the recipes
turn that into `Words(...)`. Numbers follow spec 1.2 of Jain & Wallace (2019) where the corpus is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from heedful.core.tasks import Binary, Regression
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, Task, UserError
from heedful.data.batching import Words
from heedful.data.images import CIFAR10, CIFAR100, Digits, FashionMNIST
from heedful.data.imdb import IMDB
from heedful.data.layout import Row, marked, named
from heedful.data.published import Notes, Published, missing, task_of
from heedful.data.questions import CNN, Babi

__all__ = [
    "CIFAR10", "CIFAR100", "CNN", "CORPORA", "IMDB", "MLQE", "MNLI", "PUBLISHED", "QQP", "SNLI", "SST",
    "AGNews", "Babi", "Digits", "EraserMovies", "FashionMNIST", "IMDBRaw",
    "TwentyNewsSports",
]  # fmt: skip

ENTAILMENT = ("contradiction", "entailment", "neutral")
SENTIMENT = ("negative", "positive")
SMAT_PAIRS = ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en")


def _splits(task: Task, classes: tuple[str, ...], found: Mapping[Split, Sequence[Example]], notes: Notes) -> Splits:
    parts = {split: tuple(found.get(split, ())) for split in SPLITS}
    return Splits(task, classes, parts["train"], parts["dev"], parts["test"], notes)


def _texts(classes: tuple[str, ...], found: Mapping[Split, Sequence[Row]], field: str = "text") -> Splits:
    """Single texts with a class and, where there is one, a rationale."""
    examples = {split: [_text(row, classes, field) for row in rows] for split, rows in found.items()}
    return _splits(task_of(classes), classes, examples, {})


def _text(row: Row, classes: tuple[str, ...], field: str) -> Example:
    text = row.text(field)
    rationale = _marks(text, row.numbers("rationale"), row) if "rationale" in row.values else None
    return Example(row.text("id"), (text,), row.index("label", classes), rationale)


def _marks(text: str, chosen: Sequence[int], row: Row) -> tuple[bool, ...]:
    """One mark per word; the layout counts what stands between single blanks, we what stands between white space."""
    pieces = text.split(" ")
    return tuple(
        mark for piece, mark in zip(pieces, marked(len(pieces), chosen, row), strict=True) for _ in piece.split()
    )


def _pairs(classes: tuple[str, ...], found: Mapping[Split, Sequence[Row]]) -> Splits:
    """Two texts with a class; the first one is the attended one."""
    examples = {
        split: [
            Example(row.text("id"), (row.text("premise"), row.text("hypothesis")), row.index("label", classes))
            for row in rows
        ]
        for split, rows in found.items()
    }
    return _splits(task_of(classes), classes, examples, {})


@dataclass(frozen=True)
class SST(Published):
    """Stanford Sentiment Treebank, whole sentences, neutral ones left out.

    Args:
        leaves: the tree leaves as they are (cased, Penn escapes; what "A Song of (Dis)agreement" reads)
            instead of the cleaned text of Jain & Wallace; the rationale then marks the words that people did
            not call neutral.
    """

    leaves: bool = False
    name: ClassVar[str] = "sst"
    folder: ClassVar[str] = "sst"
    batching: ClassVar[Words] = Words(longer_than=5, shorter_than="longest")

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        if not self.leaves:
            return _texts(SENTIMENT, found)
        examples = {split: [_leaves(row) for row in rows] for split, rows in found.items()}
        return _splits(Binary(), SENTIMENT, examples, {})


class NoLeaves(UserError):
    """A copy of SST without tree leaves, as the one of the hub is."""


def _leaves(row: Row) -> Example:
    tokens = row.values.get("tokens")
    if tokens is None or row.values.get("token_label5") is None:
        raise NoLeaves(f"{row.where}: no tree leaves with their sentiment; use SST() without leaves on this copy")
    feelings = row.numbers("token_label5")
    if not isinstance(tokens, list) or len(tokens) != len(feelings):
        raise UserError(f"{row.where}: 'tokens' and 'token_label5' must be lists of the same length; mend this row")
    text = " ".join(str(token) for token in tokens)
    rationale = tuple(feeling != 2 for feeling in feelings)
    return Example(row.text("id"), (text,), row.index("label", SENTIMENT), rationale)


@dataclass(frozen=True)
class IMDBRaw(Published):
    """The complete aclImdb reviews as they were written; dev is carved from train."""

    name: ClassVar[str] = "imdb-raw"
    folder: ClassVar[str] = "imdb_raw"
    batching: ClassVar[Words] = Words(tokeniser="english", lower=True, min_documents=10)

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _texts(SENTIMENT, found)


@dataclass(frozen=True)
class TwentyNewsSports(Published):
    """20 Newsgroups, baseball against hockey, headers, footers and quotes removed and cleaned."""

    name: ClassVar[str] = "20news"
    folder: ClassVar[str] = "20news_sports"
    batching: ClassVar[Words] = Words(min_documents=2, longer_than=6, shorter_than=500)

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _texts(("baseball", "hockey"), found)


@dataclass(frozen=True)
class AGNews(Published):
    """AG News, world against business.

    Args:
        title: read title and description; else the description alone (what Jain & Wallace did) where it can
            be told apart from the title, and the whole text where not, which the notes count.
    """

    title: bool = False
    name: ClassVar[str] = "agnews"
    folder: ClassVar[str] = "agnews_wb"
    batching: ClassVar[Words] = Words(
        "english", lower=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than="longest"
    )

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        classes = ("world", "business")
        examples = {split: [_text(row, classes, self._field(row)) for row in rows] for split, rows in found.items()}
        whole = sum(self._field(row) == "text" for rows in found.values() for row in rows)
        notes: Notes = {} if self.title or not whole else {"texts with the title, not separable": whole}
        return _splits(Binary(), classes, examples, notes)

    def _field(self, row: Row) -> str:
        return "text" if self.title or not row.values.get("description") else "description"


@dataclass(frozen=True)
class EraserMovies(Published):
    """ERASER movie reviews with the spans that people marked as evidence."""

    name: ClassVar[str] = "eraser-movies"
    folder: ClassVar[str] = "eraser_movies"
    batching: ClassVar[Words] = Words()

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _texts(SENTIMENT, found)


@dataclass(frozen=True)
class SNLI(Published):
    """Stanford natural language inference; the premise is attended, the hypothesis asks."""

    name: ClassVar[str] = "snli"
    folder: ClassVar[str] = "snli"
    batching: ClassVar[Words] = Words("english", lower=True, digits="qqq", min_documents=3)

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _pairs(ENTAILMENT, found)


@dataclass(frozen=True)
class MNLI(Published):
    """MultiNLI; the test split is the English test part of XNLI, as in "A Song of (Dis)agreement".

    Args:
        evaluation: the dev split: MultiNLI's matched one, or the English dev part of XNLI.
    """

    evaluation: Literal["matched", "xnli"] = "matched"
    name: ClassVar[str] = "mnli"
    folder: ClassVar[str] = "mnli"
    batching: ClassVar[Words] = Words("english")

    def paths(self, data: Path) -> dict[Split, Path]:
        paths = Published.paths(self, data)
        if self.evaluation == "xnli":
            paths["dev"] = data / self.folder / "xnli_en_dev.jsonl.gz"
            if not paths["dev"].is_file():
                raise missing(self, paths["dev"])
        return paths

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _pairs(ENTAILMENT, found)


@dataclass(frozen=True)
class QQP(Published):
    """Quora question pairs: do two questions ask the same?"""

    name: ClassVar[str] = "qqp"
    folder: ClassVar[str] = "qqp"
    batching: ClassVar[Words] = Words()

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        return _pairs(("different", "duplicate"), found)


@dataclass(frozen=True)
class MLQE(Published):
    """Quality of machine translations, a real number; the rationale marks the words that are wrong, first those
    of the source, then those of the translation.

    Args:
        pairs: language pairs to read, by default the six of SMaT (which drops si-en).
    """

    pairs: tuple[str, ...] = SMAT_PAIRS
    name: ClassVar[str] = "mlqe"
    folder: ClassVar[str] = "mlqe_pe"
    batching: ClassVar[Words] = Words()

    def __post_init__(self) -> None:
        named(self, "mlqe" if self.pairs == SMAT_PAIRS else "mlqe-" + "-".join(self.pairs))

    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        present = sorted({str(row.values.get("lp")) for rows in found.values() for row in rows})
        strange = [pair for pair in self.pairs if pair not in present]
        if strange or not self.pairs:
            wanted = ", ".join(strange) or "(none given)"
            raise UserError(f"mlqe: no language pair {wanted}; there are {', '.join(present)}")
        examples = {
            split: [_translation(row) for row in rows if row.values.get("lp") in self.pairs]
            for split, rows in found.items()
        }
        return _splits(Regression(), (), examples, {"language pairs": ", ".join(self.pairs)})


def _translation(row: Row) -> Example:
    parts = (row.text("src"), row.text("mt"))
    fields = ("src_rationale", "mt_rationale")
    given = [field in row.values for field in fields]
    if any(given) and not all(given):
        raise UserError(f"{row.where}: words are marked in one part only; mend or refetch the file")
    rationale = None
    if all(given):
        marks = (_marks(part, row.numbers(field), row) for part, field in zip(parts, fields, strict=True))
        rationale = tuple(mark for part in marks for mark in part)
    return Example(row.text("id"), parts, row.number("label"), rationale)


PUBLISHED: tuple[type[Corpus], ...] = (
    SST, IMDB, IMDBRaw, TwentyNewsSports, AGNews, Babi, CNN, EraserMovies, SNLI, MNLI, QQP, MLQE,
    CIFAR10, CIFAR100, FashionMNIST, Digits,
)  # fmt: skip

CORPORA: Mapping[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        *(kind() for kind in PUBLISHED if kind is not Babi),
        *(Babi(task) for task in (1, 2, 3)),
        Babi(3, version="v1-1"),
    )
}
"""Every published corpus by its name, with its default options."""
