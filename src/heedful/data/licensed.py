"""Corpora that may not be redistributed: loaders for the user's own copy of MIMIC-III and of the ADR tweets.

They follow the pipelines of Jain & Wallace (2019). Paths are fields, relative to the data folder unless absolute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from heedful.data.io import FileCorpus, read_rows
from heedful.data.splitting import Notes, finalize_splits
from heedful.data.words import Words
from heedful.tasks import BinaryClassification
from heedful.types import SPLITS, Example, Splits, UserError

NOTE_COLUMNS = ["HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT"]
CODE_COLUMNS = ["HADM_ID", "ICD9_CODE"]
ROWS_PER_CHUNK = 20_000
_DEIDENTIFIED = re.compile(r"\[\*\*.*?\*\*\]", re.DOTALL)
_REPEATED_PUNCTUATION = re.compile(r"([^\w\s])\1+")


@dataclass(frozen=True)
class Admission:
    """A hospital stay: its discharge summaries as one text, and its ICD-9 codes without the dot (25000 is 250.00)."""

    admission_id: int
    text: str
    codes: frozenset[str]

    def has_code(self, prefix: str) -> bool:
        return any(code.startswith(prefix) for code in self.codes)

    def to_example(self, positive_code: str) -> Example:
        """The example whose label says whether a diagnosis starts with `positive_code`."""
        return Example(f"hadm-{self.admission_id}", (self.text,), int(self.has_code(positive_code)))


def clean_note(text: str) -> str:
    """Replace de-identification brackets by <DE>, repeated punctuation by one sign, and white space by single spaces.

    >>> clean_note("Mr. [**Last Name 12**]   slept.... ---- well")
    'Mr. <DE> slept. - well'
    """
    return " ".join(_REPEATED_PUNCTUATION.sub(r"\1", _DEIDENTIFIED.sub(" <DE> ", text)).split())


def read_admissions(notes: Path, diagnoses: Path, wanted: frozenset[int] | None = None) -> dict[int, Admission]:
    """The admissions with a discharge summary and a diagnosis, or only the wanted ones of them."""
    codes: dict[int, set[str]] = defaultdict(set)
    for chunk in _read_chunks(diagnoses, CODE_COLUMNS):
        for number, code in zip(chunk["HADM_ID"], chunk["ICD9_CODE"], strict=True):
            if number and code:
                codes[int(number)].add(code)
    texts: dict[int, list[tuple[bool, str, str]]] = defaultdict(list)
    for chunk in _read_chunks(notes, NOTE_COLUMNS):
        summaries = chunk[(chunk["CATEGORY"] == "Discharge summary") & (chunk["HADM_ID"] != "")]
        columns = (summaries[name].tolist() for name in ("HADM_ID", "DESCRIPTION", "CHARTDATE", "TEXT"))
        for hadm_id, description, date, text in zip(*columns, strict=True):
            number = int(float(hadm_id))
            if (wanted is None or number in wanted) and number in codes:
                texts[number].append((description != "Report", date, text))
    return {
        # False sorts before True: the report comes first, then the addenda by date.
        number: Admission(number, clean_note(" ".join(text for _, _, text in sorted(parts))), frozenset(codes[number]))
        for number, parts in texts.items()
    }


def _read_chunks(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    # NOTEEVENTS has 3.7 GB and is never in memory as a whole.
    try:
        yield from pd.read_csv(path, usecols=columns, dtype=str, chunksize=ROWS_PER_CHUNK, keep_default_na=False)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not the MIMIC-III table with columns {', '.join(columns)} ({error})") from error


def read_admission_ids(path: Path) -> frozenset[int]:
    """The admission ids of a list, one per line."""
    lines = [text.strip() for text in path.read_text(encoding="utf-8").splitlines()]
    for line, text in enumerate(lines, start=1):
        if text and not text.isdigit():
            raise UserError(f"{path}, line {line}: {text!r} is not an admission id; give one number per line")
    return frozenset(int(text) for text in lines if text)


def _check_files(name: str, paths: tuple[Path, ...], remedy: str) -> tuple[Path, ...]:
    for path in paths:
        if not path.exists():
            raise UserError(f"{name}: no {path.name} in the folder {path.parent}; {remedy}")
    return paths


def _mimic_files(name: str, folder: Path) -> tuple[Path, ...]:
    plain = (folder / "NOTEEVENTS.csv", folder / "DIAGNOSES_ICD.csv")
    compressed = (path.with_name(f"{path.name}.gz") for path in plain)
    paths = tuple(gz if gz.is_file() and not csv.is_file() else csv for csv, gz in zip(plain, compressed, strict=True))
    return _check_files(name, paths, "put your own copy of MIMIC-III v1.4 there (PhysioNet, credentialed access)")


@dataclass(frozen=True)
class Diabetes(FileCorpus):
    """MIMIC-III discharge summaries: is there an ICD-9 code that starts with 250.00?

    Args:
        folder: holds NOTEEVENTS.csv, DIAGNOSES_ICD.csv (or .csv.gz) and three lists of admission ids, one per line:
            train_50_hadm_ids.csv, dev_50_hadm_ids.csv, test_50_hadm_ids.csv.
    """

    folder: str = "mimic"
    name: ClassVar[str] = "diabetes"
    tokenization: ClassVar[Words] = Words(
        "english", lowercase=True, digits="qqq", min_documents=5, longer_than=6, shorter_than=4000
    )

    def files(self, data: Path) -> tuple[Path, ...]:
        folder = data / self.folder
        lists = tuple(folder / f"{split}_50_hadm_ids.csv" for split in SPLITS)
        _check_files(self.name, lists, "it lists the admissions of the 50-code subset, one id per line")
        return (*_mimic_files(self.name, folder), *lists)

    def load(self, data: Path) -> Splits:
        notes, diagnoses, *lists = self.files(data)
        wanted = [read_admission_ids(path) for path in lists]
        admissions = read_admissions(notes, diagnoses, frozenset().union(*wanted))
        train, dev, test = (
            tuple(admissions[number].to_example("25000") for number in sorted(numbers) if number in admissions)
            for numbers in wanted
        )
        missing = sum(number not in admissions for numbers in wanted for number in numbers)
        remarks: Notes = {"listed admissions without a discharge summary": missing} if missing else {}
        classes = ("no diabetes", "diabetes")
        return finalize_splits(self.name, Splits(BinaryClassification(), classes, train, dev, test, remarks))


@dataclass(frozen=True)
class Anemia(FileCorpus):
    """MIMIC-III discharge summaries with either acute (285.1) or chronic (285.2x) anemia, not both.

    The label follows the released code: acute is 1, chronic is 0. Both papers print the opposite.
    """

    folder: str = "mimic"
    name: ClassVar[str] = "anemia"
    tokenization: ClassVar[Words] = Words(
        "english", lowercase=True, digits="qqq", min_documents=5, longer_than="shortest", shorter_than=4000
    )

    def files(self, data: Path) -> tuple[Path, ...]:
        return _mimic_files(self.name, data / self.folder)

    def load(self, data: Path) -> Splits:
        notes, diagnoses = self.files(data)
        admissions = read_admissions(notes, diagnoses)
        examples = [
            admissions[number].to_example("2851")
            for number in sorted(admissions)
            if admissions[number].has_code("2851") != admissions[number].has_code("2852")
        ]
        if len({example.label for example in examples}) < 2:
            raise UserError(
                f"anemia: {diagnoses} lacks one of the two classes (ICD-9 285.1 and 285.2x); use the full tables"
            )
        rest, test = _random_split(examples, 0.2, 12939, stratified=True)
        train, dev = _random_split(rest, 0.15, 13448, stratified=True)
        return finalize_splits(self.name, Splits(BinaryClassification(), ("chronic", "acute"), train, dev, test))


def _random_split(
    examples: Sequence[Example], share: float, seed: int, *, stratified: bool = False
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Rest and held-out part by scikit-learn's `train_test_split`, for which Jain & Wallace give the seeds."""
    from sklearn.model_selection import train_test_split

    labels = [example.label for example in examples] if stratified else None
    rest, held_out = train_test_split(list(examples), test_size=share, random_state=seed, stratify=labels)
    return tuple(rest), tuple(held_out)


@dataclass(frozen=True)
class ADRTweets(FileCorpus):
    """Tweets: does one report an adverse drug reaction (1) or not (0)?

    Args:
        path: a table (CSV, TSV, JSONL or Parquet) with one tweet per row.
        split_column: column that says train or test; dev is 15 % of train.
    """

    path: str = "adr/tweets.csv"
    text_column: str = "text"
    label_column: str = "label"
    split_column: str = "split"
    name: ClassVar[str] = "adr"
    tokenization: ClassVar[Words] = Words(lowercase=True, min_documents=2, longer_than=5, shorter_than=100)

    def files(self, data: Path) -> tuple[Path, ...]:
        remedy = "ask the authors of the corpus for the tweets and set path= to your copy"
        return _check_files(self.name, (data / self.path,), remedy)

    def load(self, data: Path) -> Splits:
        (path,) = self.files(data)
        examples: dict[str, list[Example]] = {"train": [], "test": []}
        for row in read_rows(path):
            split = ("train", "test")[row.class_index(self.split_column, ("train", "test"))]
            label = row.class_index(self.label_column, ("0", "1"))
            examples[split].append(Example(f"adr-{row.line}", (row.text(self.text_column).strip(),), label))
        if min(len(split_examples) for split_examples in examples.values()) < 2:
            raise UserError(f"{path}: column '{self.split_column}' needs at least two train and two test rows")
        train, dev = _random_split(examples["train"], 0.15, 16377)
        classes = ("no reaction", "reaction")
        splits = Splits(BinaryClassification(), classes, train, dev, tuple(examples["test"]))
        return finalize_splits(self.name, splits)
