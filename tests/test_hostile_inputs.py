"""Hostile inputs: every bad table and recipe file ends in one line and exit code 2, through every way in.

The cases are a product of inputs and ways in. A case is how to make the input and a word of the message. Readers are
fuzzed besides: any bytes give a table or a `UserError`, never another exception.
"""

from __future__ import annotations

import builtins
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pyarrow
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from rich.console import Console

import heedful
from heedful import cli
from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient
from heedful.attributions.registry import list_methods
from heedful.cli import attefa_command, console, run_command
from heedful.data.hub_datasets import SavedDataset
from heedful.data.io import MAX_LINE_SIZE
from heedful.data.table import Table
from heedful.execution.runner import recipes_from_file, run
from heedful.papers import PAPERS, UserData
from heedful.papers.disagreement import MINILM_PACKAGE
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.plausibility import Plausibility
from heedful.trials.trial import Trial
from heedful.types import Splits, UserError
from tests.tiny import subject
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
    "no column": Hostile(file("a.csv", "id,label\n1,yes\n2,no\n"), "--text-column"),
    "one class": Hostile(file("a.csv", CSV.replace(",no", ",yes")), "at least two"),
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
    "one endless line": Hostile(sparse("a.csv", 1 << 40), "line 1: longer than"),
    "endless quote": Hostile(
        file("a.csv", CSV.encode() + b'"' + (b"a" * 8191 + b"\n") * (MAX_LINE_SIZE // 8192)), "check the quotes"
    ),
    "unknown type": Hostile(file("a.xlsx", "spread"), "unknown file type"),
    "no type": Hostile(file("table", CSV), "unknown file type"),
    "not json": Hostile(file("a.jsonl", JSONL + "{\n"), "line 61: not JSON"),
    "json list": Hostile(file("a.jsonl", JSONL + "[1]\n"), "line 61: not a JSON object"),
    "json array of lists": Hostile(file("a.json", json.dumps([*OBJECTS, [1]])), "row 61: not a JSON object"),
    "json number": Hostile(file("a.json", "5"), "line 1: not a JSON object"),
    "number as text": Hostile(file("a.jsonl", JSONL + row(text="5", label='"yes"')), "holds 5, not a text"),
    "list as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="[1]")), "'label' holds [1]"),
    "object as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label='{"a": 1}')), "neither"),
    "null as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="null")), "no label"),
    "not a number as label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="NaN")), "no label"),
    "surrogate in text": Hostile(file("a.jsonl", JSONL + row(text=r'"a \ud800 b"', label='"yes"')), "ud800"),
    "surrogate in label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label=r'"\udfff"')), "udfff"),
    "deep nesting": Hostile(
        file("a.jsonl", JSONL + row(text="[" * 100_000 + "]" * 100_000, label='"yes"')), "nested too deeply"
    ),
    "nesting that is read": Hostile(
        file("a.jsonl", JSONL + row(text="[" * 300 + "]" * 300, label='"yes"')), "not a text"
    ),
    "nesting in a label": Hostile(file("a.jsonl", JSONL + row(text='"a"', label="[" * 300 + "]" * 300)), "neither"),
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
    "gzip bomb of zeros": Hostile(zipped("a.csv.gz", bytes(1024), 16), "times its size"),
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
    "parquet, binary text": Hostile(columns("a.parquet", text=pyarrow.array([b"a"] * COUNT)), "--text-column"),
    "parquet, list as label": Hostile(columns("a.parquet", label=pyarrow.array([[1]] * COUNT)), "neither"),
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
    "saved without rows": Hostile(saved("x", "train", rows=[]), "not a folder that datasets'"),
    "saved with broken rows": Hostile(saved("x", "train", broken="train/*.arrow"), "not a folder that datasets'"),
    "saved with a broken state": Hostile(saved("x", "train", broken="train/state.json"), "not a folder that datasets'"),
    "long name": Hostile(path("a" * 4000 + ".csv"), "File name too long"),
    "long path": Hostile(path("/".join(["a" * 200] * 30) + "/a.csv"), "File name too long"),
    "name that is not utf-8": Hostile(file("caf\udce9.csv", CSV), "not UTF-8"),
    "name of a home that is not there": Hostile(lambda parent: Path("~nobodyatall/a.csv"), "no such file"),
    "device": Hostile(lambda parent: Path("/dev/zero"), "no such file"),
    "pipe": Hostile(pipe, "no such file"),
    "link to itself": Hostile(circle, "symbolic links"),
    "file as parent": Hostile(lambda parent: file("a", "b")(parent) / "a.csv", "no such file"),
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


def command(*words: object) -> tuple[int, str, str]:
    """Exit code, output and errors of the command in this process; any exception but SystemExit passes."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code: object = 0
    terminate = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["heedful", *map(str, words)])
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            signal.signal(signal.SIGTERM, terminate)
    for stream in (out, err):
        stream.seek(0)
    assert isinstance(code, int)
    return code, out.read(), err.read()


def refused(*words: object) -> str:
    """The one line of a command that ends with exit code 2."""
    code, out, err = command(*words)
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("heedful: ")
    assert err.count("\n") == 1
    return err


def raised(call: Callable[[], object]) -> str:
    """The message of a `UserError`."""
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fine_tuned(tmp_path_factory.mktemp("hostile") / "teacher", names=("no", "yes"))


def run_paper(paper: str) -> Callable[[Path, Path, Path], str]:
    return lambda table, here, _: refused("run", paper, "--data", table, "-w", here / "w")


# Without the package of MiniLM, the scaffold paper refuses before it reads a table.
PAPERS_THAT_RUN = [paper for paper in PAPERS if paper != "scaffold" or find_spec(MINILM_PACKAGE)]
WAYS: Mapping[str, Callable[[Path, Path, Path], str]] = {
    "read": lambda table, here, _: raised(partial(read_table, UserData(str(table)), here)),
    "attefa": lambda table, here, _: refused("attefa", "--data", table, "-w", here / "w", "--out", here / "o"),
    **{f"run {paper}": run_paper(paper) for paper in PAPERS_THAT_RUN},
    "learn": lambda table, here, teacher: refused(
        "learn", "--teacher", teacher, "--data", table, "--label-column", "label", "-w", here / "w", "--out", here / "o"
    ),
}
"""Ways in for a table: the table, a folder for output and a model, to the message."""
FOLDERS = [name for name in TABLES if "folder" in name.split() or name.startswith("saved")]
OTHER_LABELS = ("class of one", "surrogate in label", "parquet, list as label")
"""Tables with labels that the model of `learn` does not have, which is said before what else is wrong with them."""
"""Where a file is needed, a folder is refused as such."""
FAST_WAYS = ("read", "attefa")
SLOW_TABLES = ("endless quote", "gzip bomb of zeros", "gzip bomb of rows", "parquet of many rows")


def crossed(inputs: Iterable[str], ways: Iterable[str]) -> list[ParameterSet]:
    """Every input through every way; marked slow unless both are fast."""
    return [
        pytest.param(
            name,
            way,
            marks=() if way in FAST_WAYS and name not in SLOW_TABLES else pytest.mark.slow,
            id=f"{name}-{way}",
        )
        for name in inputs
        for way in ways
    ]


@pytest.mark.parametrize(("name", "way"), crossed(TABLES, WAYS))
def test_a_bad_table_is_one_line_and_exit_code_2(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "data"))
    table = TABLES[name].make(tmp_path)
    model = request.getfixturevalue("teacher") if way == "learn" else tmp_path
    word = "is a folder" if way == "learn" and name in FOLDERS else TABLES[name].word
    if way == "learn" and name in OTHER_LABELS:
        word = "--label-column"
    assert word in WAYS[way](table, tmp_path, model)
    assert not (tmp_path / "w").exists()
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("option", ["--dev", "--test"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in TABLES if "class" not in name])
def test_a_bad_split_is_one_line_and_exit_code_2(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split may have one class."""
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "data"))
    (tmp_path / "good.csv").write_text(CSV)
    table = TABLES[name].make(tmp_path)
    said = refused("attefa", "--data", tmp_path / "good.csv", option, table, "-w", tmp_path / "w")
    # The columns are those of the training table: a split that lacks one, or has other values in it, is named.
    word = "column 'text'" if TABLES[name].word == "--text-column" else TABLES[name].word
    assert ("is a folder" if name in FOLDERS else word) in said
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", list(NUMERIC_WORDS))
def test_labels_that_only_look_like_numbers_are_names_of_classes(name: str, tmp_path: Path) -> None:
    first, second = NUMERIC_WORDS[name]
    table = CSV.replace(",no", f",{first}").replace(",yes", f",{second}")
    splits = Table(str(file("a.csv", table)(tmp_path))).read(tmp_path)
    assert splits.class_names == (first, second)


def read_table(data: UserData, folder: Path) -> Splits:
    return data.corpus.read(folder)


def digest_table(data: UserData, folder: Path) -> str:
    return data.corpus.digest(folder)


def test_a_table_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    """Also for root, who may open everything: as the user nobody."""
    (tmp_path / "shut").mkdir()
    for each in (saved("set", "train"), file("a.csv", CSV), file("a.parquet", b"PAR1"), file("a.jsonl.gz", b"")):
        each(tmp_path / "shut")
    places = [tmp_path / "shut" / name for name in ("set", "a.csv", "a.parquet", "a.jsonl.gz")]
    for place in (*places, tmp_path / "shut"):
        place.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        for place in places:
            table = UserData(str(place))
            assert "Permission denied" in raised(partial(read_table, table, tmp_path))
            assert "Permission denied" in raised(partial(digest_table, table, tmp_path))
    finally:
        os.seteuid(user)
    tmp_path.chmod(0o755)
    (tmp_path / "shut").chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gzip bomb of zeros", "gzip bomb of rows", "parquet of many rows", "endless quote"])
def test_a_bad_table_takes_less_than_a_gigabyte(name: str, tmp_path: Path) -> None:
    table = TABLES[name].make(tmp_path)
    code = (
        "import sys; from pathlib import Path; from heedful.data.io import read_rows\n"
        "try: read_rows(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)\n"
        # Not ru_maxrss, which a new process inherits from the one that started it.
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(table)], capture_output=True, text=True, check=True)
    kind, peak = done.stdout.split()
    assert kind == "UserError"
    assert int(peak) < 1_000_000


OWN = """from dataclasses import dataclass
from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Own(Recipe):
    value: object = 0

    def make(self, workspace):
        return Artefact()

"""
RECIPE_FILES: Mapping[str, tuple[str | bytes, str]] = {
    "syntax": ("x = 1\ndef recipes(:\n", "line 2: SyntaxError"),
    "indentation": ("x = 1\n  y = 2\n", "line 2: IndentationError"),
    "tabs and spaces": ("if 1:\n        x = 1\n\ty = 2\n", "line 3: TabError"),
    "open bracket": ("def recipes():\n    return [\n", "line 2: SyntaxError"),
    "zeros": (b"x = 1\0\n", "SyntaxError"),
    "not utf-8": (b"x = 1\ny = '\xff'\n", "SyntaxError"),
    "utf-16": ("x = 1\n".encode("utf-16"), "SyntaxError"),
    "deep brackets": ("(" * 5000 + ")" * 5000, "Error"),
    "unknown module": ("x = 1\nimport no_such_module\n", "line 2: ModuleNotFoundError"),
    "unknown name of a module": ("from heedful.trials import Nothing\n", "line 1: ImportError"),
    "relative import": ("from . import other\n", "line 1: ImportError"),
    "exception": ("x = 1\n\nx / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "unknown name": ("def recipes():\n    return [Nothing()]\n", "line 2: NameError"),
    "exception in recipes": ("def recipes():\n    x = 1\n    return x.y\n", "line 3: AttributeError"),
    "exception deeper": ("import json\ndef recipes():\n    return json.loads('{')\n", "line 3: JSONDecodeError"),
    "exception of many lines": ("raise ValueError('one\\ntwo')\n", "line 1: ValueError: one two"),
    "exception without a message": ("raise ValueError\n", "line 1: ValueError"),
    "exception that cannot be printed": (
        "class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\nraise Odd\n",
        "line 4: Odd",
    ),
    "no exception at all": ("raise BaseException('gone')\n", "line 1: BaseException: gone"),
    "endless recursion": ("def recipes():\n    return recipes()\n", "RecursionError"),
    "exit": ("import sys\nsys.exit()\n", "line 2: SystemExit"),
    "exit with 0": ("import sys\nsys.exit(0)\n", "line 2: SystemExit"),
    "exit in recipes": ("def recipes():\n    raise SystemExit('enough')\n", "line 2: SystemExit: enough"),
    "user error": (
        "from heedful.types import Splits, UserError\ndef recipes():\n    raise UserError('odd')\n",
        "line 3: UserError: odd",
    ),
    "wrong argument": (OWN + "def recipes():\n    return [Own(valu=1)]\n", "line 12: TypeError"),
    "nothing": ("", "has no function recipes()"),
    "not a function": ("recipes = 5\n", "has no function recipes()"),
    "no return": ("def recipes():\n    pass\n", "returned None"),
    "a number": ("def recipes():\n    return 5\n", "returned 5"),
    "a string": ("def recipes():\n    return 'jain-wallace'\n", "returned 'jain-wallace'"),
    "a mapping": ("def recipes():\n    return {'a': 1}\n", "returned {'a': 1}"),
    "an empty list": ("def recipes():\n    return []\n", "returned []"),
    "strings": ("def recipes():\n    return ['a']\n", "'a' is not a recipe"),
    "a class": (OWN + "def recipes():\n    return [Own]\n", "is not a recipe"),
    "nested lists": (OWN + "def recipes():\n    return [[Own()]]\n", "is not a recipe"),
    "one recipe": (OWN + "def recipes():\n    return Own()\n", "must return a list"),
    "a parameter": ("def recipes(size):\n    return []\n", "TypeError"),
    "a coroutine": ("async def recipes():\n    return []\n", "must return a list"),
    "an exception on the way": (
        OWN + "def recipes():\n    yield Own()\n    raise ValueError('late')\n",
        "line 13: ValueError: late",
    ),
    "a list in a field": (OWN + "def recipes():\n    return [Own([1])]\n", "Own.value: a recipe cannot hold a list"),
    "a list deep in a field": (OWN + "def recipes():\n    return [Own((1, (2, [3])))]\n", "Own.value[1][1]"),
    "a mapping in a field": (OWN + "def recipes():\n    return [Own({})]\n", "cannot hold a dict"),
    "a set in a field": (OWN + "def recipes():\n    return [Own({1})]\n", "cannot hold a set"),
    "a recipe that can change": (
        OWN.replace("(frozen=True)", "") + "def recipes():\n    return [Own()]\n",
        "@dataclass(frozen=True)",
    ),
}
"""Bad files of recipes, and a word of the message, with the line where there is one."""
BAD_FIELDS: Mapping[str, tuple[str | bytes, str]] = {
    "a function in a field": (OWN + "def recipes():\n    return [Own(len)]\n", "cannot hold a builtin"),
    "a class in a field": (OWN + "def recipes():\n    return [Own(Own)]\n", "give an instance of the class"),
    "bytes in a field": (OWN + "def recipes():\n    return [Own(b'a')]\n", "cannot hold a bytes"),
    "a complex number in a field": (OWN + "def recipes():\n    return [Own(1j)]\n", "cannot hold a complex"),
    "no dataclass": (
        OWN + "class Bare(Recipe):\n    make = Own.make\ndef recipes():\n    return [Bare()]\n",
        "is not a dataclass",
    ),
    "a reserved name": (
        OWN + "@dataclass(frozen=True)\nclass Typed(Own):\n    type: int = 1\ndef recipes():\n    return [Typed()]\n",
        "is reserved",
    ),
}
"""Files whose recipes are found to be wrong when they are identified."""
RECIPE_WAYS: Mapping[str, Callable[[Path, Path], str]] = {
    "run": lambda file, here: refused("run", file, "-w", here / "w", "--where", "here"),
    "run quietly": lambda file, here: refused("run", file, "-w", here / "w", "--where", "here", "-q"),
    "dry run": lambda file, here: refused("run", file, "-w", here / "w", "--dry-run"),
    "workers": lambda file, here: refused("run", file, "-w", here / "w", "--workers", "2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", list(RECIPE_WAYS))
@pytest.mark.parametrize("name", [*RECIPE_FILES, *BAD_FIELDS])
def test_a_bad_file_of_recipes_is_one_line_and_exit_code_2(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, word = {**RECIPE_FILES, **BAD_FIELDS}[name]
    monkeypatch.setattr(sys, "path", list(sys.path))
    said = RECIPE_WAYS[way](file("hostile_recipes.py", content)(tmp_path), tmp_path)
    assert word in said
    assert "hostile_recipes.py" in said or name in BAD_FIELDS
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("way", list(RECIPE_WAYS))
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("json.py", "name of a module"),
        ("a.b.py", "has no dot"),
        ("folder.py", "no such file"),
        ("absent.py", "no such file"),
        ("a" * 4000 + ".py", "no such file"),
    ],
)
def test_a_bad_name_of_a_file_of_recipes_is_one_line_and_exit_code_2(
    name: str, word: str, way: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.py").mkdir()
    for each in ("json.py", "a.b.py"):
        (tmp_path / each).write_text(OWN + "def recipes():\n    return [Own()]\n")
    assert word in RECIPE_WAYS[way](tmp_path / name, tmp_path)


LOCAL = (
    OWN
    + """
def recipes():
    @dataclass(frozen=True)
    class Local(Own):
        def make(self, workspace):
            return Artefact()

    return [Local(1), Local(2)]
"""
)


def test_recipes_that_cannot_be_sent_to_a_worker_are_named_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    place = file("local_recipes.py", LOCAL)(tmp_path)
    said = refused("run", place, "-w", tmp_path / "w", "--workers", "2", "-q")
    assert f"{place}, line 15: Local " in said
    assert "--where here" in said
    assert command("run", place, "-w", tmp_path / "w", "--where", "here", "-q") == (0, "", "")


# Any bytes


def read_or_refuse(path: Path) -> None:
    """Read a table or a saved dataset as examples."""
    with suppress(UserError):
        (SavedDataset(str(path)) if path.is_dir() else Table(str(path))).read(path.parent)


FUZZED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.lists(st.text(max_size=20) | st.sampled_from(["text,label", '"', "a,b", "a\tb", "\r"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["text", "label", "more"]), VALUES, max_size=3), max_size=8)


@FUZZED
@given(raw=st.binary(max_size=300), kind=st.sampled_from([".csv", ".tsv", ".jsonl", ".csv.gz", ".parquet", ".json.gz"]))
def test_any_bytes_are_a_table_or_refused(raw: bytes, kind: str, tmp_path: Path) -> None:
    read_or_refuse(file(f"any{kind}", raw)(tmp_path))


@FUZZED
@given(lines=LINES, kind=st.sampled_from([".csv", ".tsv", ".csv.gz", ".tsv.gz"]))
def test_any_delimited_text_is_a_table_or_refused(lines: list[str], kind: str, tmp_path: Path) -> None:
    header = "text,label" if "csv" in kind else "text\tlabel"
    raw = "\n".join([header, *lines]).encode("utf-8", "replace")
    read_or_refuse(file(f"any{kind}", gzip.compress(raw) if "gz" in kind else raw)(tmp_path))


@FUZZED
@given(rows=ROWS, copies=st.integers(1, 20))
def test_any_objects_are_a_table_or_refused(rows: list[dict[str, object]], copies: int, tmp_path: Path) -> None:
    read_or_refuse(file("any.jsonl", "".join(json.dumps(row) + "\n" for row in rows * copies))(tmp_path))


@FUZZED
@given(data=st.data())
def test_a_damaged_parquet_file_is_a_table_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    """Footer and pages with bytes overwritten."""
    raw = bytearray(columns("whole.parquet")(tmp_path).read_bytes())
    for place in data.draw(st.lists(st.integers(4, len(raw) - 9), min_size=1, max_size=6)):
        raw[place] = data.draw(st.integers(0, 255))
    read_or_refuse(file("damaged.parquet", bytes(raw))(tmp_path))


@pytest.mark.slow
def test_a_parquet_file_with_any_byte_not_of_utf8_is_a_table_or_refused(tmp_path: Path) -> None:
    raw = columns("whole.parquet")(tmp_path).read_bytes()
    for place in range(4, len(raw)):
        read_or_refuse(file("damaged.parquet", raw[:place] + b"\x80" + raw[place + 1 :])(tmp_path))


@pytest.mark.slow
@FUZZED
@given(
    name=st.sampled_from(["dataset_dict.json", "train/state.json", "train/dataset_info.json"]),
    content=st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()),
)
def test_any_saved_dataset_is_a_table_or_refused(
    name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = saved("set", "train")(tmp_path_factory.mktemp("any"))
    (place / name).write_bytes(content)
    read_or_refuse(place)


# Options and the terminal


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e999"])
def test_a_lambda_is_a_finite_number_from_0_on(number: str, tmp_path: Path) -> None:
    table = file("a.csv", CSV)(tmp_path)
    assert "lambdas are" in refused(
        "run", "wiegreffe-pinter", "--data", table, f"--lambda={number}", "-w", tmp_path / "w"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("run", "jain-wallace", "--seeds", "1000000000"),
        ("run", "jain-wallace", "--seeds", "0"),
        ("run", "jain-wallace", "--seeds", "many"),
        ("run", "jain-wallace", "--workers", "1000000"),
        ("run", "scaffold", "--size", "-5"),
        ("learn", "--teacher", "x", "--data", "y", "--seeds", "1000000000"),
        ("learn", "--teacher", "x", "--data", "y", "--seed", str(10**30)),
        ("attefa", "--data", "y", "--seeds", "10"),
    ],
)
def test_absurd_numbers_are_refused_before_any_work(words: tuple[str, ...]) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert words[-2] in err


@pytest.mark.slow
def test_an_empty_name_of_a_table_is_not_the_paper_on_its_own_corpora(tmp_path: Path) -> None:
    assert "not a folder that datasets' save_to_disk wrote" in refused("run", "attefa", "--data", "", "-w", tmp_path)


def test_a_mistyped_data_folder_names_the_corpora_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "mistyped"))
    said = refused("run", "attefa", "--quick", "--dry-run", "-w", tmp_path / "w")
    for word in ("sst, agnews, 20news", "mistyped", "HEEDFUL_DATA", "--only mock-1"):
        assert word in said
    assert command("run", "attefa", "--only", "mock-1", "--quick", "--dry-run", "-q", "-w", tmp_path / "w")[0] == 0


def test_terminal_escapes_in_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    table = file("a.csv", "te\x1b[2Jxt\x07\u202e,b,label\none two,three four,yes\nfive six,seven eight,no\n")(tmp_path)
    said = refused("attefa", "--data", table)
    assert r"te\x1b[2Jxt\x07\u202e" in said
    assert not set("\x1b\x07\u202e") & set(said)
    name = file("\x1b[31m[bold]\n.csv", "")(tmp_path)
    assert r"\x1b[31m[bold]\n.csv: the file is empty" in refused("attefa", "--data", name)


def test_titles_of_progress_bars_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "errors", Console(file=screen, force_terminal=True, width=200))
    with console.progress_display() as progress, progress.task("[/b] \x1b[2J", 2) as step:
        step(1, "[/i]")
        assert isinstance(progress, console.ScreenProgress)
        progress.bars.refresh()
    assert r"[/b] \x1b[2J" in screen.getvalue()
    assert "[/i]" in screen.getvalue()


def test_the_remaining_time_of_a_bar_is_from_all_its_parts_and_passes_between_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four of nine recipes are finished together after ten minutes: five are left, 10 / 4 * 5 = 12.5 minutes."""
    now = 1000.0
    monkeypatch.setattr(console, "errors", Console(file=io.StringIO(), force_terminal=True, width=200))
    with console.progress_display() as progress:
        assert isinstance(progress, console.ScreenProgress)
        progress.bars.get_time = lambda: now
        column = console.RemainingTime()
        with progress.task("all recipes", 9) as step, progress.task("epochs", 100) as report:
            report(40)  # done on a node before the bar was opened here
            recipes, epochs = progress.bars.tasks
            recipes._get_time = epochs._get_time = lambda: now
            assert str(column.render(recipes)) == str(column.render(epochs)) == "-:--:--"
            now += 20.0
            report(10)  # 2 seconds each, 50 are left
            assert console.remaining_seconds(epochs) == pytest.approx(100.0)
            now += 580.0
            step(0, "3 nodes")
            assert console.remaining_seconds(recipes) is None
            for _ in range(4):
                step()
            assert str(column.render(recipes)) == "0:12:30"
            now += 30.0
            step(0, "2 nodes")
            column = console.RemainingTime()
            assert str(column.render(recipes)) == "0:12:00"
            now += 10_000.0
            assert console.remaining_seconds(recipes) == 0.0


@pytest.mark.parametrize("module", ["torch", "papers"])
def test_an_interrupt_while_importing_is_130(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def stop(name: str, *rest: Any) -> ModuleType:
        if name == module or (name == "heedful" and module in (rest[2] or ())):
            raise KeyboardInterrupt
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", stop)
    code, out, err = command("list")
    monkeypatch.undo()
    assert (code, out) == (130, "")
    assert "interrupted" in err


def test_an_interrupt_before_the_command_is_there_is_130() -> None:
    code = (
        "import builtins\nusual = builtins.__import__\n"
        "def stop(name, *rest, **more):\n"
        "    if name.startswith('rich'): raise KeyboardInterrupt\n"
        "    return usual(name, *rest, **more)\n"
        "builtins.__import__ = stop\nfrom heedful.cli import main"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "heedful: interrupted\n")


SLEEP = OWN.replace("return Artefact()", "import time; open(f'{workspace.root}/at-work', 'w'); time.sleep(2)")
SLEEP += "def recipes():\n    return [Own(1), Own(2)]\n"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_run_says_nothing_of_semaphores(number: signal.Signals, code: int, tmp_path: Path) -> None:
    words = ("run", str(file("sleepy_recipes.py", SLEEP)(tmp_path)), "-w", str(tmp_path / "w"), "--workers", "2", "-q")
    (tmp_path / "w").mkdir()
    program = [sys.executable, "-c", "from heedful.cli import main; main()", *words]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 120
        while not (tmp_path / "w" / "at-work").exists() and time.monotonic() < until:
            time.sleep(0.1)
        running.send_signal(number)
        _, said = running.communicate(timeout=120)
    assert running.returncode == code
    assert "semaphore" not in said
    assert "Traceback" not in said
    assert said.count("\n") <= 1


# Values of a wrong type in Python


@pytest.mark.parametrize("trial", [Agreement, Faithfulness, GroundTruth, Plausibility])
@pytest.mark.parametrize(
    ("methods", "word"),
    [
        ("lime", "methods is 'lime': give a tuple"),
        (RawAttention(), r"methods is RawAttention\(.*: give a tuple"),
        ([RawAttention(), Gradient()], r"methods is \[.*: give a tuple"),
        (("lime", "gradient"), "the name 'lime': give the method itself"),
        ((RawAttention, Gradient), r"the class RawAttention: give an instance, RawAttention\(\)"),
        ((RawAttention(), 5), "5, which is not a method"),
    ],
)
def test_methods_that_are_no_tuple_of_methods_are_refused_in_the_users_words(
    trial: Callable[..., Trial], methods: object, word: str
) -> None:
    with pytest.raises(UserError, match=word):
        trial(subject(), methods=methods)


def test_a_method_of_an_attribution_table_is_no_name_and_no_class() -> None:
    wrong: list[Any] = ["lime", RawAttention, None]
    for method in wrong:
        with pytest.raises(UserError, match="method has"):
            AttributionTable(subject(), method)


def test_a_plain_string_is_a_path_and_a_path_a_name(tmp_path: Path) -> None:
    table = file("a.csv", CSV)(tmp_path)
    places: list[Any] = [table, str(table), "a.csv", Path("a.csv")]
    folders: list[Any] = [str(tmp_path), tmp_path]
    read = [Table(place).read(folder) for place in places for folder in folders]
    assert all(each == read[0] for each in read)
    assert len({Table(place).digest(folder) for place in places for folder in folders}) == 1
    recipes = file("plain_recipes.py", OWN + "def recipes():\n    return [Own()]\n")(tmp_path)
    workspace: Any = str(tmp_path / "w")
    with pytest.raises(UserError, match=r"give a workspace, for instance run\(recipes, Workspace\("):
        run(recipes_from_file(str(recipes)), workspace)
    (recipe,) = recipes_from_file(recipes)
    assert [outcome.error for outcome in run(recipe, Workspace(workspace))] == [None]


@pytest.mark.parametrize("words", [("attefa",), ("run", "jain-wallace")])
def test_a_column_of_rationales_is_read_and_named(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (attefa_command, run_command):
        monkeypatch.setattr(module, "run_recipes", lambda *recipes, **options: 1)
    rows = [{**row, "evidence": str(row["text"]).split()[:1]} for row in OBJECTS]
    table = file("mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))(tmp_path)
    code, out, _ = command(*words, "--data", table, "-w", tmp_path / "w")
    assert code == 1
    assert "rationale evidence" in out


ANYTHING: Any = 5
WRONG: list[Any] = [None, 5, 1.5, b"x", {}, object(), RawAttention]


@pytest.mark.parametrize("value", WRONG, ids=["None", "int", "float", "bytes", "dict", "object", "class"])
def test_values_of_a_wrong_type_are_refused_at_the_boundary(value: Any, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: Workspace(value),
        lambda: run([value], workspace),
        lambda: run([], workspace, where=value),
        lambda: heedful.audit("absent", "absent.csv", options=value or ANYTHING),
        lambda: recipes_from_file(value),
    ]
    if not isinstance(value, dict):  # no recipes are no mistake
        calls.append(lambda: run(value, workspace))
    if value is not None:
        calls += [lambda: Workspace(tmp_path, data_dir=value), lambda: heedful.audit("absent", "absent.csv", out=value)]
        calls += [lambda: heedful.load("absent", task=value)]
    if value not in (None, 5):
        calls += [lambda: run([], workspace, workers=value), lambda: Workspace(tmp_path, device=value)]
    if value not in (None, RawAttention):
        calls += [lambda: heedful.audit("absent", "absent.csv", methods=value), lambda: list_methods(value)]
        calls += [lambda: heedful.audit("absent", "absent.csv", say=value)]
    for call in calls:
        raised(call)


@pytest.mark.parametrize("workers", [True, 1.0, "2", 0, -1])
def test_workers_are_a_whole_number_from_1_on(workers: Any, tmp_path: Path) -> None:
    assert "workers" in raised(lambda: run([], Workspace(tmp_path), workers=workers))


@pytest.mark.parametrize("deadline", ["soon", float("nan"), [1]])
def test_a_deadline_is_a_time(deadline: Any, tmp_path: Path) -> None:
    assert "deadline" in raised(lambda: run([], Workspace(tmp_path), deadline=deadline))
