"""Admissions out of MIMIC-III: all discharge summaries of one stay as one text, and its diagnoses.

Corpora that cannot be handed on: loaders for the user's own copy of MIMIC-III and the ADR tweets.

Paths are fields, taken from the data folder unless absolute. They follow the pipelines of Jain & Wallace
(2019).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import pandas as pd

from heedful.data.io import FileState, file_state, hash_files
from heedful.data.table import Record, read_records
from heedful.data.text_corpora import finalize_splits
from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification
from heedful.types import SPLITS, Corpus, Example, Splits, UserError

NOTE_COLUMNS = ["HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT"]
CODE_COLUMNS = ["HADM_ID", "ICD9_CODE"]
ROWS_PER_CHUNK = 20_000
_DEIDENTIFIED = re.compile(r"\[\*\*.*?\*\*\]", re.DOTALL)
_REPEATED_PUNCTUATION = re.compile(r"([^\w\s])\1+")


@dataclass(frozen=True)
class Admission:
    """One stay in hospital.

    Args:
        codes: ICD-9 codes as MIMIC writes them, without the dot: 25000 is 250.00.
    """

    admission_id: int
    text: str
    codes: frozenset[str]

    def has_code(self, prefix: str) -> bool:
        """Whether a diagnosis starts with these digits."""
        return any(code.startswith(prefix) for code in self.codes)


def clean_note(text: str) -> str:
    """The note with its de-identification brackets as <DE>, repeated punctuation once, and single blanks.

    >>> clean_note("Mr. [**Last Name 12**]   slept.... ---- well")
    'Mr. <DE> slept. - well'
    """
    return " ".join(_REPEATED_PUNCTUATION.sub(r"\1", _DEIDENTIFIED.sub(" <DE> ", text)).split())


def read_admissions(notes: Path, diagnoses: Path, wanted: frozenset[int] | None) -> dict[int, Admission]:
    """The admissions with a discharge summary; only the wanted ones if they are named."""
    codes = _read_codes(diagnoses)
    texts: dict[int, list[tuple[bool, str, str]]] = defaultdict(list)
    for number, note in _read_summaries(notes):
        if (wanted is None or number in wanted) and number in codes:
            texts[number].append(note)
    return {
        # False sorts before True: the report comes first, then the addenda by date.
        number: Admission(number, clean_note(" ".join(note for _, _, note in sorted(parts))), codes[number])
        for number, parts in texts.items()
    }


def read_admission_ids(path: Path) -> frozenset[int]:
    """The admission ids of a list, one a line."""
    numbers: set[int] = set()
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        if not line.strip().isdigit():
            raise UserError(f"{path}, line {place}: {line.strip()!r} is no admission id; give one number a line")
        numbers.add(int(line))
    return frozenset(numbers)


def _read_chunks(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    # NOTEEVENTS has 3.7 GB: it is never in memory as a whole.
    try:
        yield from pd.read_csv(path, usecols=columns, dtype=str, chunksize=ROWS_PER_CHUNK, keep_default_na=False)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not the MIMIC-III table with columns {', '.join(columns)} ({error})") from error


def _read_codes(path: Path) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for chunk in _read_chunks(path, CODE_COLUMNS):
        for number, code in zip(chunk["HADM_ID"], chunk["ICD9_CODE"], strict=True):
            if number and code:
                found[int(number)].add(code)
    return {number: frozenset(codes) for number, codes in found.items()}


def _read_summaries(path: Path) -> Iterator[tuple[int, tuple[bool, str, str]]]:
    for chunk in _read_chunks(path, NOTE_COLUMNS):
        kept = chunk[(chunk["CATEGORY"] == "Discharge summary") & (chunk["HADM_ID"] != "")]
        columns = (kept[name].tolist() for name in ("HADM_ID", "DESCRIPTION", "CHARTDATE", "TEXT"))
        for number, description, date, text in zip(*columns, strict=True):
            yield int(float(number)), (description != "Report", date, text)


MIMIC_TOKENIZATION = Words("english", lowercase=True, digits="qqq", min_documents=5, longer_than=6, shorter_than=4000)


def _require_files(corpus: Corpus, paths: Iterable[Path], what: str) -> tuple[Path, ...]:
    found = tuple(paths)
    for path in found:
        if not path.exists():
            raise UserError(f"{corpus.name}: no {path.name} in the folder {path.parent}; {what}")
    return found


def _first_existing(folder: Path, names: Sequence[str]) -> Path:
    """The first of the files that is there, else the first name, for the complaint."""
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _mimic_files(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    notes = _first_existing(folder, ("NOTEEVENTS.csv", "NOTEEVENTS.csv.gz"))
    diagnoses = _first_existing(folder, ("DIAGNOSES_ICD.csv", "DIAGNOSES_ICD.csv.gz"))
    _require_files(
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
    tokenization: ClassVar[Words] = MIMIC_TOKENIZATION

    def read(self, data: Path) -> Splits:
        files = self._files(data)
        return _read_diabetes(self, files, tuple(file_state(path) for path in files))

    def digest(self, data: Path) -> str:
        return hash_files(self._files(data), type(self).__name__)

    def _files(self, data: Path) -> tuple[Path, ...]:
        folder = data / self.folder
        lists = _require_files(
            self,
            (folder / f"{split}_50_hadm_ids.csv" for split in SPLITS),
            "it lists the admissions of the 50-code subset, one id a line",
        )
        return (*_mimic_files(self, folder), *lists)


@lru_cache(maxsize=1)
def _read_diabetes(corpus: Diabetes, files: tuple[Path, ...], stamps: tuple[FileState, ...]) -> Splits:
    notes, diagnoses, *lists = files
    members = {split: read_admission_ids(path) for split, path in zip(SPLITS, lists, strict=True)}
    found = read_admissions(notes, diagnoses, frozenset().union(*members.values()))
    parts = {
        split: tuple(_admission_example(found[number], "25000") for number in sorted(wanted) if number in found)
        for split, wanted in members.items()
    }
    lost = sum(number not in found for wanted in members.values() for number in wanted)
    remarks: dict[str, int | float | str] = {"listed admissions without a discharge summary": lost} if lost else {}
    classes = ("no diabetes", "diabetes")
    return finalize_splits(
        corpus, Splits(BinaryClassification(), classes, parts["train"], parts["dev"], parts["test"], remarks)
    )


def _admission_example(admission: Admission, start: str) -> Example:
    return Example(f"hadm-{admission.admission_id}", (admission.text,), int(admission.has_code(start)))


@dataclass(frozen=True)
class Anemia(Corpus):
    """MIMIC-III discharge summaries with either acute (285.1) or chronic (285.2x) anaemia, never both.

    The label follows the released code: acute is 1, chronic is 0. Both papers print it the other way round.
    """

    folder: str = "mimic"
    name: ClassVar[str] = "anemia"
    tokenization: ClassVar[Words] = Words(
        "english", lowercase=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than=4000
    )

    def read(self, data: Path) -> Splits:
        files = _mimic_files(self, data / self.folder)
        return _read_anemia(self, files, tuple(file_state(path) for path in files))

    def digest(self, data: Path) -> str:
        return hash_files(_mimic_files(self, data / self.folder), type(self).__name__)


@lru_cache(maxsize=1)
def _read_anemia(corpus: Anemia, files: tuple[Path, Path], stamps: tuple[FileState, ...]) -> Splits:
    found = read_admissions(*files, None)
    chosen = [
        _admission_example(found[number], "2851")
        for number in sorted(found)
        if found[number].has_code("2851") != found[number].has_code("2852")
    ]
    if len({example.label for example in chosen}) < 2:
        raise UserError(f"anemia: {files[1]} lacks one of the two kinds (ICD-9 285.1 and 285.2x); use the full tables")
    rest, test = random_split(chosen, 0.2, 12939, stratified=True)
    train, dev = random_split(rest, 0.15, 13448, stratified=True)
    return finalize_splits(corpus, Splits(BinaryClassification(), ("chronic", "acute"), train, dev, test))


def random_split(
    examples: Sequence[Example], held_out_share: float, seed: int, *, stratified: bool = False
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Rest and part by scikit-learn's `train_test_split`, whose seeds Jain & Wallace give."""
    from sklearn.model_selection import train_test_split

    labels = [example.label for example in examples] if stratified else None
    rest, part = train_test_split(list(examples), test_size=held_out_share, random_state=seed, stratify=labels)
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
    text_column: str = "text"
    label_column: str = "label"
    split_column: str = "split"
    drug_names: tuple[str, ...] = field(default=())
    name: ClassVar[str] = "adr"
    tokenization: ClassVar[Words] = Words(lowercase=True, min_documents=2, longer_than=5, shorter_than=100)

    def read(self, data: Path) -> Splits:
        path = self._path(data)
        found: dict[str, list[Example]] = {"train": [], "test": []}
        for record in read_records(path):
            found[self._split_name(record)].append(self._example(record))
        if min(len(examples) for examples in found.values()) < 2:
            raise UserError(f"{path}: column '{self.split_column}' must name train and test rows, at least two of each")
        train, dev = random_split(found["train"], 0.15, 16377)
        return finalize_splits(
            self, Splits(BinaryClassification(), ("no reaction", "reaction"), train, dev, tuple(found["test"]))
        )

    def digest(self, data: Path) -> str:
        return hash_files([self._path(data)], type(self).__name__)

    def _path(self, data: Path) -> Path:
        what = "the tweets are given out by the authors of the corpus on request; say path= where your copy is"
        return _require_files(self, [data / self.path], what)[0]

    def _split_name(self, record: Record) -> str:
        value = str(record.value(self.split_column)).strip()
        if value not in ("train", "test"):
            raise UserError(
                f"{record.location}: column '{self.split_column}' says {value!r}; it must say train or test"
            )
        return value

    def _example(self, record: Record) -> Example:
        label = str(record.value(self.label_column)).strip()
        if label not in ("0", "1"):
            raise UserError(f"{record.location}: column '{self.label_column}' says {label!r}; it must say 0 or 1")
        text = record.text(self.text_column)
        if self.drug_names:
            names = "|".join(re.escape(drug) for drug in sorted(self.drug_names, key=len, reverse=True))
            text = re.sub(rf"\b({names})\b", "DRUG", text, flags=re.IGNORECASE)
        return Example(f"adr-{record.line}", (text,), int(label))
