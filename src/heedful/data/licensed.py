"""Corpora that cannot be handed on: loaders for the user's own copy of MIMIC-III, the ADR tweets and the CNN
questions.

Paths are fields, taken from the data folder unless absolute. They follow the pipelines of Jain & Wallace
(2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from heedful.core.tasks import Binary
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, UserError
from heedful.data.batching import Words
from heedful.data.layout import Row, Stamp, digest, stamp
from heedful.data.mimic import Admission, admissions, listed
from heedful.data.published import settled
from heedful.data.questions import cloze
from heedful.data.records import Record, records

MIMIC_WORDS = Words("english", lower=True, digits="qqq", min_documents=5, longer_than=6, shorter_than=4000)


def _needed(corpus: Corpus, paths: Iterable[Path], what: str) -> tuple[Path, ...]:
    found = tuple(paths)
    for path in found:
        if not path.exists():
            raise UserError(f"{corpus.name}: no {path.name} in the folder {path.parent}; {what}")
    return found


def _first(folder: Path, names: Sequence[str]) -> Path:
    """The first of the files that is there, else the first name, for the complaint."""
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _mimic_files(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    notes = _first(folder, ("NOTEEVENTS.csv", "NOTEEVENTS.csv.gz"))
    diagnoses = _first(folder, ("DIAGNOSES_ICD.csv", "DIAGNOSES_ICD.csv.gz"))
    _needed(
        corpus,
        (notes, diagnoses),
        "put your own copy of MIMIC-III v1.4 there (PhysioNet, credentialed access)",
    )
    return notes, diagnoses


@dataclass(frozen=True)
class Diabetes(Corpus):
    """MIMIC-III discharge summaries: is there an ICD-9 code that starts with 250.00?

    Args:
        folder: holds NOTEEVENTS.csv, DIAGNOSES_ICD.csv (or .csv.gz) and the three lists of admissions, one id
            a line: train_50_hadm_ids.csv, dev_50_hadm_ids.csv, test_50_hadm_ids.csv.
    """

    folder: str = "mimic"
    name: ClassVar[str] = "diabetes"
    batching: ClassVar[Words] = MIMIC_WORDS

    def read(self, data: Path) -> Splits:
        files = self._files(data)
        return _diabetes(self, files, tuple(stamp(path) for path in files))

    def digest(self, data: Path) -> str:
        return digest(self._files(data), type(self).__name__)

    def _files(self, data: Path) -> tuple[Path, ...]:
        folder = data / self.folder
        lists = _needed(
            self,
            (folder / f"{split}_50_hadm_ids.csv" for split in SPLITS),
            "it lists the admissions of the 50-code subset, one id a line",
        )
        return (*_mimic_files(self, folder), *lists)


@lru_cache(maxsize=1)
def _diabetes(corpus: Diabetes, files: tuple[Path, ...], stamps: tuple[Stamp, ...]) -> Splits:
    notes, diagnoses, *lists = files
    members = {split: listed(path) for split, path in zip(SPLITS, lists, strict=True)}
    found = admissions(notes, diagnoses, frozenset().union(*members.values()))
    parts = {
        split: tuple(_admission(found[number], "25000") for number in sorted(wanted) if number in found)
        for split, wanted in members.items()
    }
    lost = sum(number not in found for wanted in members.values() for number in wanted)
    remarks: dict[str, int | float | str] = {"listed admissions without a discharge summary": lost} if lost else {}
    classes = ("no diabetes", "diabetes")
    return settled(corpus, Splits(Binary(), classes, parts["train"], parts["dev"], parts["test"], remarks))


def _admission(admission: Admission, start: str) -> Example:
    return Example(f"hadm-{admission.number}", (admission.text,), int(admission.has(start)))


@dataclass(frozen=True)
class Anemia(Corpus):
    """MIMIC-III discharge summaries with either acute (285.1) or chronic (285.2x) anaemia, never both.

    The label follows the released code: acute is 1, chronic is 0. Both papers print it the other way round.
    """

    folder: str = "mimic"
    name: ClassVar[str] = "anemia"
    batching: ClassVar[Words] = Words(
        "english", lower=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than=4000
    )

    def read(self, data: Path) -> Splits:
        files = _mimic_files(self, data / self.folder)
        return _anemia(self, files, tuple(stamp(path) for path in files))

    def digest(self, data: Path) -> str:
        return digest(_mimic_files(self, data / self.folder), type(self).__name__)


@lru_cache(maxsize=1)
def _anemia(corpus: Anemia, files: tuple[Path, Path], stamps: tuple[Stamp, ...]) -> Splits:
    found = admissions(*files, None)
    chosen = [
        _admission(found[number], "2851")
        for number in sorted(found)
        if found[number].has("2851") != found[number].has("2852")
    ]
    if len({example.label for example in chosen}) < 2:
        raise UserError(f"anemia: {files[1]} lacks one of the two kinds (ICD-9 285.1 and 285.2x); use the full tables")
    rest, test = drawn(chosen, 0.2, 12939, stratified=True)
    train, dev = drawn(rest, 0.15, 13448, stratified=True)
    return settled(corpus, Splits(Binary(), ("chronic", "acute"), train, dev, test))


def drawn(
    examples: Sequence[Example], share: float, seed: int, *, stratified: bool = False
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Rest and part by scikit-learn's `train_test_split`, whose seeds Jain & Wallace give."""
    from sklearn.model_selection import train_test_split

    labels = [example.label for example in examples] if stratified else None
    rest, part = train_test_split(list(examples), test_size=share, random_state=seed, stratify=labels)
    return tuple(rest), tuple(part)


@dataclass(frozen=True)
class ADRTweets(Corpus):
    """Tweets: does one report an adverse drug reaction (1) or not (0)?

    Args:
        path: a table (CSV, TSV, JSONL or Parquet) with one tweet a row.
        split: column that says train or test; dev is 15 % of train.
        drugs: names to be replaced by DRUG, as in the heat-maps that Jain & Wallace print.
    """

    path: str = "adr/tweets.csv"
    text: str = "text"
    label: str = "label"
    split: str = "split"
    drugs: tuple[str, ...] = field(default=())
    name: ClassVar[str] = "adr"
    batching: ClassVar[Words] = Words(lower=True, min_documents=2, longer_than=5, shorter_than=100)

    def read(self, data: Path) -> Splits:
        path = self._path(data)
        found: dict[str, list[Example]] = {"train": [], "test": []}
        for record in records(path):
            found[self._part(record)].append(self._example(record))
        if min(len(examples) for examples in found.values()) < 2:
            raise UserError(f"{path}: column '{self.split}' must name train and test rows, at least two of each")
        train, dev = drawn(found["train"], 0.15, 16377)
        return settled(self, Splits(Binary(), ("no reaction", "reaction"), train, dev, tuple(found["test"])))

    def digest(self, data: Path) -> str:
        return digest([self._path(data)], type(self).__name__)

    def _path(self, data: Path) -> Path:
        what = "the tweets are given out by the authors of the corpus on request; say path= where your copy is"
        return _needed(self, [data / self.path], what)[0]

    def _part(self, record: Record) -> str:
        value = str(record.value(self.split)).strip()
        if value not in ("train", "test"):
            raise UserError(f"{record.where}: column '{self.split}' says {value!r}; it must say train or test")
        return value

    def _example(self, record: Record) -> Example:
        label = str(record.value(self.label)).strip()
        if label not in ("0", "1"):
            raise UserError(f"{record.where}: column '{self.label}' says {label!r}; it must say 0 or 1")
        text = record.text(self.text)
        if self.drugs:
            names = "|".join(re.escape(drug) for drug in sorted(self.drugs, key=len, reverse=True))
            text = re.sub(rf"\b({names})\b", "DRUG", text, flags=re.IGNORECASE)
        return Example(f"adr-{record.line}", (text,), int(label))


@dataclass(frozen=True)
class CNNQuestions(Corpus):
    """The original CNN questions, in either of the forms that people have.

    Args:
        folder: holds `train.txt`, `dev.txt`, `test.txt` (blocks of question, answer, passage with a blank
            line between, the form of Chen et al. 2016) or `questions/{training,validation,test}/*.question`
            (the first release).
    """

    folder: str = "cnn"
    name: ClassVar[str] = "cnn-original"
    batching: ClassVar[Words] = Words(min_documents=8)

    def read(self, data: Path) -> Splits:
        files = self._files(data)
        found: dict[Split, list[Row]] = {
            split: [row for path in paths for row in _asked(path)] for split, paths in files.items()
        }
        return settled(self, cloze(found))

    def digest(self, data: Path) -> str:
        return digest([path for paths in self._files(data).values() for path in paths], type(self).__name__)

    def _files(self, data: Path) -> Mapping[Split, tuple[Path, ...]]:
        folder = data / self.folder
        released: dict[Split, Path] = {
            split: folder / "questions" / part
            for split, part in zip(SPLITS, ("training", "validation", "test"), strict=True)
        }
        if all(any(path.glob("*.question")) for path in released.values()):
            return {split: tuple(sorted(path.glob("*.question"))) for split, path in released.items()}
        what = "put train.txt, dev.txt and test.txt there, or the folder questions/ of the first release"
        return {split: _needed(self, [folder / f"{split}.txt"], what) for split in SPLITS}


def _asked(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}); unpack the archive again") from error
    if path.suffix == ".question":
        return [_released(path, [line for line in lines if line.strip()])]
    starts = [
        place for place, line in enumerate(lines) if line.strip() and (place == 0 or not lines[place - 1].strip())
    ]
    return [_block(path, start, lines[start : start + 3]) for start in starts]


def _block(path: Path, start: int, lines: list[str]) -> Row:
    if len(lines) < 3 or not all(line.strip() for line in lines):
        raise UserError(f"{path}, line {start + 1}: a question needs three lines: question, answer, passage")
    question, answer, document = (line.strip() for line in lines)
    values = {"id": f"{path.stem}-{start + 1}", "question": question, "answer": answer, "document": document}
    return Row(path, start + 1, values)


def _released(path: Path, lines: list[str]) -> Row:
    if len(lines) < 4:
        raise UserError(
            f"{path}: a question file needs address, passage, question and answer; unpack the archive again"
        )
    values = {
        "id": f"{path.parent.name}-{path.stem}",
        "document": lines[1],
        "question": lines[2],
        "answer": lines[3],
    }
    return Row(path, 1, values)


LICENSED: tuple[type[Corpus], ...] = (Diabetes, Anemia, ADRTweets, CNNQuestions)
