"""Question answering: bAbI stories and CNN cloze questions.

Parts are (document, question), the label is the index of the answer among the classes, and the rationale marks the
supporting facts in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from heedful.data.io import Row, SplitRows, read_rows
from heedful.data.splitting import Notes
from heedful.data.text_corpora import PublishedCorpus, build_splits
from heedful.data.tokenization import Words
from heedful.tasks import MulticlassClassification
from heedful.types import Example, Splits, UserError

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
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.task not in (1, 2, 3):
            raise UserError(f"babi: there is no task {self.task}; choose 1, 2 or 3")
        if self.version == "v1-1" and self.task != 3:
            raise UserError("babi: version v1-1 has task 3 only; use version v1-2")

    @property
    def name(self) -> str:
        return f"babi-{self.task}" + ("-v11" if self.version == "v1-1" else "")

    @property
    def folder(self) -> str:
        return f"babi_qa{self.task}" + ("_v11_10k" if self.version == "v1-1" else "")

    def extra_files(self, data: Path) -> tuple[Path, ...]:
        trains = (data / f"babi_qa{task}" / "train.jsonl.gz" for task in (1, 2, 3))
        return tuple(path for path in trains if path.is_file())

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        joint = [row for path in self.extra_files(data) for row in read_rows(path)]
        words = {
            word
            for row in (*joint, *rows["train"])
            for column in ("document", "question")
            for word in row.text(column).split()
        }
        words |= {row.text("answer") for row in rows["train"]}
        classes = tuple(sorted(words))
        index = {word: number for number, word in enumerate(classes)}
        notes: Notes = {"answers are words of": ", ".join(path.parent.name for path in self.extra_files(data))}
        task = MulticlassClassification(len(classes))
        return build_splits(task, classes, rows, lambda row, _: _question_example(row, index), notes)


@dataclass(frozen=True)
class CNN(PublishedCorpus):
    """Cloze questions about CNN stories with anonymised entities.

    The classes are the entities of the training stories; the candidates of an example are those in its story. Questions
    whose answer is in no training story are left out and counted.
    """

    name: ClassVar[str] = "cnn"
    folder: ClassVar[str] = "cnndm_cloze"
    tokenization: ClassVar[Words] = Words(min_documents=8)

    def make_splits(self, rows: SplitRows, data: Path) -> Splits:
        classes = tuple(sorted({word for row in rows["train"] for word in _entities(row)}))
        index = {word: number for number, word in enumerate(classes)}
        kept = {split: [row for row in some if row.text("answer") in index] for split, some in rows.items()}
        dropped = sum(len(some) - len(kept[split]) for split, some in rows.items())
        unseen = sum(any(word not in index for word in _entities(row)) for some in rows.values() for row in some)
        counts = {
            "questions left out, answer unseen in train": dropped,
            "stories with candidates unseen in train": unseen,
        }
        notes: Notes = {note: count for note, count in counts.items() if count}
        task = MulticlassClassification(len(classes))
        return build_splits(task, classes, kept, lambda row, _: _cloze_example(row, index), notes)


def _entities(row: Row) -> set[str]:
    return {word for word in row.text("document").split() if word.startswith(ENTITY_PREFIX)}


def _cloze_example(row: Row, index: Mapping[str, int]) -> Example:
    present = _entities(row)
    if row.text("answer") not in present:
        raise UserError(f"{row.location}: the answer {row.text('answer')} is not in its story; fix or refetch the file")
    return _question_example(row, index, tuple(sorted(index[word] for word in present if word in index)))
