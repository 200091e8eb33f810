"""Questions over documents: bAbI stories and CNN cloze questions.

Parts are (document, question); the label is the place of the answer among the classes; the rationale marks
the supporting facts in the document and no word of the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from heedful.data.io import JsonRow, rationale_mask, read_rows
from heedful.data.text_corpora import Notes, PublishedCorpus
from heedful.data.tokenization import Words
from heedful.tasks import MulticlassClassification
from heedful.types import SPLITS, Example, Split, Splits, UserError

ENTITY_PREFIX = "@entity"


def question_example(row: JsonRow, classes: Mapping[str, int], candidates: tuple[int, ...] | None = None) -> Example:
    """The example of a row with document, question and answer."""
    document, question, answer = row.text("document"), row.text("question"), row.text("answer")
    if answer not in classes:
        raise UserError(f"{row.location}: the answer {answer!r} never occurs in the training texts; mend the file")
    rationale = None
    if "rationale" in row.values:
        marks = rationale_mask(len(document.split()), row.integers("rationale"), row)
        rationale = marks + (False,) * len(question.split())
    return Example(row.text("id"), (document, question), classes[answer], rationale, candidates)


@dataclass(frozen=True)
class Babi(PublishedCorpus):
    """bAbI stories with one, two or three supporting facts.

    The candidate answers are all the words of the training texts of tasks 1, 2 and 3 together, as in Jain &
    Wallace (every answer is admitted everywhere). Tasks that are not in the data folder cannot contribute;
    the notes name those that did, and the digest covers their files.

    Args:
        version: v1-2 (the one of the paper), or the full-size v1-1 edition of task 3.
    """

    task: int = 1
    version: Literal["v1-2", "v1-1"] = "v1-2"
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.task not in (1, 2, 3):
            raise UserError(f"babi: there is no task {self.task}; choose 1, 2 or 3")
        if self.version == "v1-1" and self.task != 3:
            raise UserError("babi: version v1-1 is there for task 3 only; leave version out")

    @property
    def name(self) -> str:
        return f"babi-{self.task}" + ("-v11" if self.version == "v1-1" else "")

    def directory(self, data: Path) -> Path:
        return data / (f"babi_qa{self.task}" + ("_v11_10k" if self.version == "v1-1" else ""))

    def is_fetchable(self) -> bool:
        return self.version == "v1-2"

    def extra_files(self, data: Path) -> tuple[Path, ...]:
        trains = (data / f"babi_qa{task}" / "train.jsonl.gz" for task in (1, 2, 3))
        return tuple(path for path in trains if path.is_file())

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        joint = [row for path in self.extra_files(data) for row in read_rows(path)]
        words = {
            word
            for row in (*joint, *found["train"])
            for field in ("document", "question")
            for word in row.text(field).split()
        }
        words |= {row.text("answer") for row in found["train"]}
        classes = tuple(sorted(words))
        index = {word: place for place, word in enumerate(classes)}
        parts = {split: tuple(question_example(row, index) for row in found.get(split, ())) for split in SPLITS}
        notes: Notes = {"answers are words of": ", ".join(path.parent.name for path in self.extra_files(data))}
        return Splits(
            MulticlassClassification(len(classes)), classes, parts["train"], parts["dev"], parts["test"], notes
        )


@dataclass(frozen=True)
class CNN(PublishedCorpus):
    """Cloze questions about CNN stories with anonymised entities.

    The classes are the sorted entities of the training stories; an example admits those that occur in its
    story.
    """

    name: ClassVar[str] = "cnn"
    folder: ClassVar[str] = "cnndm_cloze"
    tokenization: ClassVar[Words] = Words(min_documents=8)

    def is_fetchable(self) -> bool:
        return False

    def make_splits(self, found: Mapping[Split, Sequence[JsonRow]], data: Path) -> Splits:
        return cloze_splits(found)


def cloze_splits(found: Mapping[Split, Sequence[JsonRow]]) -> Splits:
    """Examples of cloze questions; those whose answer no training story knows are left out and counted."""
    classes = tuple(sorted({word for row in found["train"] for word in entities(row.text("document"))}))
    index = {word: place for place, word in enumerate(classes)}
    parts = {split: [row for row in found.get(split, ()) if row.text("answer") in index] for split in SPLITS}
    every = [row for rows_ in found.values() for row in rows_]
    lost = len(every) - sum(len(rows_) for rows_ in parts.values())
    strange = sum(any(word not in index for word in entities(row.text("document"))) for row in every)
    notes: Notes = {}
    if lost:
        notes["questions left out, answer unseen in train"] = lost
    if strange:
        notes["stories with candidates unseen in train"] = strange
    examples = {split: tuple(_cloze_example(row, index) for row in kept) for split, kept in parts.items()}
    return Splits(
        MulticlassClassification(len(classes)), classes, examples["train"], examples["dev"], examples["test"], notes
    )


def entities(document: str) -> set[str]:
    """The anonymised entities of a story."""
    return {word for word in document.split() if word.startswith(ENTITY_PREFIX)}


def _cloze_example(row: JsonRow, index: Mapping[str, int]) -> Example:
    present = entities(row.text("document"))
    if row.text("answer") not in present:
        raise UserError(f"{row.location}: the answer {row.text('answer')} does not occur in its story; mend the file")
    candidates = tuple(sorted(index[word] for word in present if word in index))
    return question_example(row, index, candidates)
