"""Admissions out of MIMIC-III: all discharge summaries of one stay as one text, and its diagnoses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from heedful.core.types import UserError

NOTE_COLUMNS = ["HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT"]
CODE_COLUMNS = ["HADM_ID", "ICD9_CODE"]
CHUNK = 20_000
_HIDDEN = re.compile(r"\[\*\*.*?\*\*\]", re.DOTALL)
_REPEATED = re.compile(r"([^\w\s])\1+")


@dataclass(frozen=True)
class Admission:
    """One stay in hospital.

    Args:
        codes: ICD-9 codes as MIMIC writes them, without the dot: 25000 is 250.00.
    """

    number: int
    text: str
    codes: frozenset[str]

    def has(self, start: str) -> bool:
        """Whether a diagnosis starts with these digits."""
        return any(code.startswith(start) for code in self.codes)


def cleaned(text: str) -> str:
    """The note with its de-identification brackets as <DE>, repeated punctuation once, and single blanks.

    >>> cleaned("Mr. [**Last Name 12**]   slept.... ---- well")
    'Mr. <DE> slept. - well'
    """
    return " ".join(_REPEATED.sub(r"\1", _HIDDEN.sub(" <DE> ", text)).split())


def admissions(notes: Path, diagnoses: Path, wanted: frozenset[int] | None) -> dict[int, Admission]:
    """The admissions with a discharge summary; only the wanted ones if they are named."""
    codes = _codes(diagnoses)
    texts: dict[int, list[tuple[bool, str, str]]] = defaultdict(list)
    for number, note in _summaries(notes):
        if (wanted is None or number in wanted) and number in codes:
            texts[number].append(note)
    return {
        # False sorts before True: the report comes first, then the addenda by date.
        number: Admission(number, cleaned(" ".join(note for _, _, note in sorted(parts))), codes[number])
        for number, parts in texts.items()
    }


def listed(path: Path) -> frozenset[int]:
    """The admission ids of a list, one a line."""
    numbers: set[int] = set()
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        if not line.strip().isdigit():
            raise UserError(f"{path}, line {place}: {line.strip()!r} is no admission id; give one number a line")
        numbers.add(int(line))
    return frozenset(numbers)


def _chunks(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    # NOTEEVENTS has 3.7 GB: it is never in memory as a whole.
    try:
        yield from pd.read_csv(path, usecols=columns, dtype=str, chunksize=CHUNK, keep_default_na=False)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not the MIMIC-III table with columns {', '.join(columns)} ({error})") from error


def _codes(path: Path) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for chunk in _chunks(path, CODE_COLUMNS):
        for number, code in zip(chunk["HADM_ID"], chunk["ICD9_CODE"], strict=True):
            if number and code:
                found[int(number)].add(code)
    return {number: frozenset(codes) for number, codes in found.items()}


def _summaries(path: Path) -> Iterator[tuple[int, tuple[bool, str, str]]]:
    for chunk in _chunks(path, NOTE_COLUMNS):
        kept = chunk[(chunk["CATEGORY"] == "Discharge summary") & (chunk["HADM_ID"] != "")]
        columns = (kept[name].tolist() for name in ("HADM_ID", "DESCRIPTION", "CHARTDATE", "TEXT"))
        for number, description, date, text in zip(*columns, strict=True):
            yield int(float(number)), (description != "Report", date, text)
