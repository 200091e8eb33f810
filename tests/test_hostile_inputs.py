"""Hostile inputs: every bad table and recipe file ends in one line and exit code 2, through every way in.

The cases are a product of inputs and ways in. A case is how to make the input and a word of the message. Readers are
fuzzed besides: any bytes give a table or a `UserError`, never another exception.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from heedful import cli
from heedful.data.io import MAX_LINE_SIZE, read_rows
from heedful.data.table import SavedDataset, Table, TableColumns, corpus_from_source
from heedful.papers import UserData
from heedful.types import UserError
from tests.training.test_checkpoint import fine_tuned

COUNT = 60
TEXTS = [f"the good word {number}" for number in range(COUNT)]
LABELS = [("no", "yes")[number % 2] for number in range(COUNT)]
CSV = "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
OBJECTS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
JSONL = "".join(json.dumps(row) + "\n" for row in OBJECTS)
FOREVER = 9_000_000_000_000_000
"""Microseconds after 1970 that no year of four digits has reached."""

Make = Callable[[Path], Path]


@dataclass(frozen=True)
class Hostile:
    """How to make an input in a folder, and a word of the message about it."""

    make: Make
    word: str


def file(name: str, content: str | bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder / name

    return make


def path(name: str) -> Make:
    """A path at which nothing is."""
    return lambda folder: folder / name


def sparse(name: str, size: int) -> Make:
    def make(folder: Path) -> Path:
        with open(folder / name, "wb") as stream:
            stream.truncate(size)
        return folder / name

    return make


def zipped(name: str, line: bytes, times: int, start: bytes = b"text,label\n") -> Make:
    """A small file that holds a large one."""

    def make(folder: Path) -> Path:
        with gzip.open(folder / name, "wb", 1) as stream:
            stream.write(start)
            for _ in range(times):
                stream.write(line * 4096)
        return folder / name

    return make


def columns(name: str, **more: pyarrow.Array) -> Make:
    def make(folder: Path) -> Path:
        parquet.write_table(pyarrow.table({"text": TEXTS, "label": LABELS, **more}), folder / name)
        return folder / name

    return make


def not_utf8() -> pyarrow.Array:
    raw = pyarrow.array([b"\xff\xfe bad"] * COUNT, pyarrow.binary())
    return pyarrow.Array.from_buffers(pyarrow.string(), COUNT, raw.buffers())


def many_rows(folder: Path) -> Path:
    """Ten million equal rows in some kilobytes."""
    equal = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 100_000, pyarrow.int32()), pyarrow.array(["good words"])
    )
    chunk = pyarrow.table({"text": equal, "label": equal})
    parquet.write_table(pyarrow.concat_tables([chunk] * 100), folder / "many.parquet")
    return folder / "many.parquet"


def two_columns(folder: Path) -> Path:
    arrays = [pyarrow.array(TEXTS), pyarrow.array(LABELS), pyarrow.array(LABELS)]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, ["text", "label", "label"]), folder / "two.parquet")
    return folder / "two.parquet"


def folder(name: str, **files: str) -> Make:
    def make(parent: Path) -> Path:
        (parent / name).mkdir()
        for each, content in files.items():
            (parent / name / f"{each}.json").write_text(content)
        return parent / name

    return make


def saved(name: str, *splits: str, rows: list[dict[str, str]] = OBJECTS, broken: str = "") -> Make:
    """A folder of the `datasets` library; no splits for a single dataset, and a file that is then overwritten."""

    def make(parent: Path) -> Path:
        one = datasets.Dataset.from_list(rows)
        (datasets.DatasetDict(dict.fromkeys(splits, one)) if splits else one).save_to_disk(str(parent / name))
        for each in (parent / name).glob(broken) if broken else ():
            each.write_bytes(b"{}")
        return parent / name

    return make


def pipe(parent: Path) -> Path:
    os.mkfifo(parent / "pipe.csv")
    return parent / "pipe.csv"


def circle(parent: Path) -> Path:
    (parent / "circle.csv").symlink_to(parent / "circle.csv")
    return parent / "circle.csv"


def row(**values: str) -> str:
    """A line of JSON from the text of its values."""
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}\n"


TABLES: Mapping[str, Hostile] = {
    "empty": Hostile(file("a.csv", ""), "empty"),
    "header only": Hostile(file("a.csv", "text,label\n"), "no rows"),
    "absent": Hostile(path("absent.csv"), "no such file"),
    "no label": Hostile(file("a.csv", CSV + "some words,\n"), "line 62: no label"),
    "no text": Hostile(file("a.csv", CSV + " ,yes\n"), "line 62: the text in column 'text' is empty"),
    "no column": Hostile(file("a.csv", CSV.replace("text,", "words,")), "no column 'text'"),
    "one class": Hostile(file("a.csv", CSV.replace(",no", ",yes")), "only one class"),
    "class of one": Hostile(file("a.csv", CSV + "alone,maybe\n"), "class 'maybe' has 1"),
    "open quote": Hostile(file("a.csv", CSV + '"open,yes\n'), "check the quotes"),
    "three fields": Hostile(file("a.csv", CSV + "a,b,c\n"), "3 fields"),
    "column twice": Hostile(file("a.csv", CSV.replace("text,label", "text,text")), "two columns"),
    "latin-1": Hostile(file("a.csv", CSV.encode() + b"caf\xe9,yes\n"), "line 62: not UTF-8 (byte 0xe9)"),
    "utf-16": Hostile(file("a.csv", CSV.encode("utf-16")), "iconv -f UTF-16"),
    "utf-16 without mark": Hostile(file("a.csv", CSV.encode("utf-16-le")), "iconv -f UTF-16"),
    "utf-16 in big endian": Hostile(file("a.csv", CSV.encode("utf-16-be")), "iconv -f UTF-16"),
    "utf-16 jsonl": Hostile(file("a.jsonl", JSONL.encode("utf-16")), "iconv -f UTF-16"),
    "zeros": Hostile(file("a.csv", bytes(1000)), "iconv -f UTF-16"),
    "one endless line": Hostile(sparse("a.csv", 1 << 40), "UTF-16"),
    "endless quote": Hostile(file("a.csv", CSV.encode() + b'"' + b"a\n" * (MAX_LINE_SIZE // 2)), "check the quotes"),
    "unknown type": Hostile(file("a.xlsx", "spread"), "unknown file type"),
    "no type": Hostile(file("table", CSV), "unknown file type"),
    "not json": Hostile(file("a.jsonl", JSONL + "{\n"), "line 61: not JSON"),
    "json list": Hostile(file("a.jsonl", JSONL + "[1]\n"), "line 61: not a JSON object"),
    "json array file": Hostile(file("a.json", json.dumps(OBJECTS)), "line 1: not a JSON object"),
    "number as text": Hostile(file("a.jsonl", JSONL + row(text="5", label='"yes"')), "holds 5, not a text"),
    "list as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="[1]")), "the label [1] is neither"),
    "object as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label='{"a": 1}')), "is neither"),
    "null as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="null")), "no label"),
    "not a number as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="NaN")), "no label"),
    "surrogate in text": Hostile(file("a.jsonl", JSONL + row(text=r'"a \ud800 b"', label='"yes"')), "half a character"),
    "surrogate in label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label=r'"\udfff"')), "half a character"),
    "deep nesting": Hostile(
        file("a.jsonl", JSONL + row(text="[" * 100_000 + "]" * 100_000, label='"yes"')), "nested too deeply"
    ),
    "nesting that is read": Hostile(
        file("a.jsonl", JSONL + row(text="[" * 300 + "]" * 300, label='"yes"')), "not a text"
    ),
    "nesting in a label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="[" * 300 + "]" * 300)), "is neither"),
    "huge number": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="9" * 10_000)), "too many digits"),
    "huge number elsewhere": Hostile(
        file("a.jsonl", JSONL + row(text='"a"', label='"yes"', n="9" * 10_000)), "too many digits"
    ),
    "long list as text": Hostile(file("a.jsonl", JSONL + row(text=str([0] * 100_000), label='"yes"')), "not a text"),
    "no gzip": Hostile(file("a.csv.gz", "plain"), "unreadable"),
    "half a gzip": Hostile(file("a.csv.gz", gzip.compress(CSV.encode())[:-20]), "unreadable"),
    "damaged gzip": Hostile(
        file("a.csv.gz", gzip.compress(CSV.encode())[:60] + b"\xff" * 40 + gzip.compress(CSV.encode())[100:]),
        "unreadable",
    ),
    "gzip bomb of zeros": Hostile(zipped("a.csv.gz", bytes(1024), 64), "times its size"),
    "gzip bomb of rows": Hostile(zipped("a.csv.gz", b"a,b\n", 1500), "times its size"),
    "gzip bomb of objects": Hostile(zipped("a.jsonl.gz", b'{"text": "a"}\n', 400, b""), "times its size"),
    "no parquet": Hostile(file("a.parquet", "plain"), "not a Parquet file"),
    "empty parquet": Hostile(file("a.parquet", ""), "not a Parquet file"),
    "parquet of many rows": Hostile(many_rows, "times its size"),
    "parquet with a column twice": Hostile(two_columns, "two columns"),
    "parquet, not utf-8": Hostile(
        columns("a.parquet", more=not_utf8()), "column 'more' holds a value that cannot be read"
    ),
    "parquet, text not utf-8": Hostile(columns("a.parquet", text=not_utf8()), "column 'text' holds a value"),
    "parquet, times": Hostile(
        columns("a.parquet", when=pyarrow.array([FOREVER * 1000] * COUNT, pyarrow.timestamp("us"))), "column 'when'"
    ),
    "parquet, durations": Hostile(
        columns("a.parquet", long=pyarrow.array([FOREVER] * COUNT, pyarrow.duration("s"))), "column 'long'"
    ),
    "parquet, dates": Hostile(
        columns("a.parquet", day=pyarrow.array([2**31 - 1] * COUNT, pyarrow.date32())), "column 'day'"
    ),
    "parquet, times in a list": Hostile(
        columns("a.parquet", x=pyarrow.array([[FOREVER * 1000]] * COUNT, pyarrow.list_(pyarrow.timestamp("us")))),
        "column 'x'",
    ),
    "parquet, binary text": Hostile(columns("a.parquet", text=pyarrow.array([b"a"] * COUNT)), "not a text"),
    "parquet, list as label": Hostile(columns("a.parquet", label=pyarrow.array([[1]] * COUNT)), "is neither"),
    "folder named csv": Hostile(folder("x.csv"), "not a folder that datasets' save_to_disk wrote"),
    "folder named parquet": Hostile(folder("x.parquet"), "not a folder that datasets' save_to_disk wrote"),
    "empty folder": Hostile(folder("x"), "not a folder that datasets' save_to_disk wrote"),
    "folder with broken state": Hostile(folder("x", state="[1]", dataset_info="[1]"), "not a folder that datasets'"),
    "folder with an absurd state": Hostile(
        folder("x", state='{"_data_files": [{"filename": 5}]}', dataset_info="{}"), "not a folder that datasets'"
    ),
    "folder of no splits": Hostile(folder("x", dataset_dict='{"splits": []}'), "no split train"),
    "folder of odd splits": Hostile(folder("x", dataset_dict='{"splits": 5}'), "not a folder that datasets'"),
    "saved without train": Hostile(saved("x", "validation", "test"), "no split train"),
    "saved without rows": Hostile(saved("x", "train", rows=[]), "no split train"),
    "saved with broken rows": Hostile(saved("x", "train", broken="train/*.arrow"), "not a folder that datasets'"),
    "saved with a broken state": Hostile(saved("x", "train", broken="train/state.json"), "not a folder that datasets'"),
    "long name": Hostile(path("a" * 4000 + ".csv"), "File name too long"),
    "long path": Hostile(path("/".join(["a" * 200] * 30) + "/a.csv"), "File name too long"),
    "name that is not utf-8": Hostile(file("caf\udce9.csv", CSV), "not UTF-8"),
    "name of a home that is not there": Hostile(lambda parent: Path("~nobodyatall/a.csv"), "no such file"),
    "device": Hostile(lambda parent: Path("/dev/zero"), "unknown file type"),
    "pipe": Hostile(pipe, "no such file"),
    "link to itself": Hostile(circle, "symbolic links"),
    "file as folder": Hostile(lambda parent: file("a", "b")(parent) / "a.csv", "no such file"),
}
"""Bad tables by name; the last ones are not tables at all."""

NUMERIC_WORDS: Mapping[str, tuple[str, str]] = {
    "superscripts": ("²", "³"),
    "two signs": ("--2", "--3"),
    "5 000 digits": ("7" * 5000, "8" * 5000),
    "circled digits": ("①", "②"),
    "a sign alone": ("-", "--"),
    "zeros before": ("01", "1"),
    "not ascii": ("٣", "٤"),
}
"""Labels that look like numbers in one way or another, in their order as classes."""


def command(*words: object, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command in this process; any exception but SystemExit passes."""
    with pytest.MonkeyPatch.context() as patch, captured() as (out, err):
        patch.setattr(sys, "argv", ["heedful", *map(str, words)])
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            cli.main()
            code: object = 0
        except SystemExit as stop:
            code = stop.code or 0
    assert isinstance(code, int)
    return code, "".join(out), "".join(err)


@contextmanager
def captured() -> Iterator[tuple[list[str], list[str]]]:
    """What the two consoles of the command print."""
    out: list[str] = []
    err: list[str] = []
    with cli.screen.capture() as screen, cli.errors.capture() as errors:
        yield out, err
        out.append(screen.get())
        err.append(errors.get())
