"""Rows and files: typed access with location, one read per file state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from heedful.data.io import FileCorpus, Row, find_path, read_rows, write_rows
from heedful.data.words import Words
from heedful.tasks import BinaryClassification
from heedful.types import Example, Splits, UserError


def row(**values: object) -> Row:
    return Row("here.csv", 7, values)


def test_a_row_gives_typed_values() -> None:
    cells = row(text=" a b ", number=2, name="poor", index=1, marks=[[0], [2, 3]])
    assert (cells.text("text"), cells.number("number")) == (" a b ", 2.0)
    assert (cells.class_index("name", ("poor", "fine")), cells.class_index("index", ("poor", "fine"))) == (0, 1)
    assert cells.integers("marks") == (0, 2, 3)
    assert cells.word_mask("marks", 5) == (True, False, True, True, False)


@pytest.mark.parametrize("column", ["absent", "blank", "number"])
def test_a_cell_that_is_no_text_is_refused_with_its_location(column: str) -> None:
    with pytest.raises(UserError, match=rf"^here\.csv, line 7: .*{column}"):
        row(blank=" ", number=3).text(column)


@pytest.mark.parametrize("value", [True, "3", None])
def test_only_numbers_are_numbers(value: object) -> None:
    with pytest.raises(UserError, match="not a number"):
        row(number=value).number("number")
    with pytest.raises(UserError, match="not one of"):
        row(label=value).class_index("label", ("poor", "fine"))
    with pytest.raises(UserError, match="not an integer"):
        row(marks=[value]).integers("marks")


def test_a_rationale_beyond_the_text_is_refused() -> None:
    with pytest.raises(UserError, match="word 4"):
        row(marks=[4]).word_mask("marks", 4)


def test_rows_come_back_as_written_and_bytes_depend_on_them_alone(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": "é\u2028", "label": 1}, {"text": "b", "label": None}]
    assert [write_rows(tmp_path / name, rows) for name in ("a.jsonl.gz", "b.jsonl.gz")] == [2, 2]
    assert [row.values for row in read_rows(tmp_path / "a.jsonl.gz")] == rows
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_path_is_found_here_first_and_then_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, here = tmp_path / "data", tmp_path / "here"
    for folder in (data / "sub", here):
        folder.mkdir(parents=True)
    (data / "a.csv").write_text("data")
    monkeypatch.chdir(here)
    assert find_path("a.csv", data) == data / "a.csv"
    (here / "a.csv").write_text("here")
    assert find_path("a.csv", data).read_text() == "here"
    assert find_path("sub", data, "folder") == data / "sub"
    with pytest.raises(UserError, match="sub: is a folder, but a file is needed"):
        find_path("sub", data)


@dataclass(frozen=True)
class Lines(FileCorpus):
    name: ClassVar[str] = "lines"
    tokenization: ClassVar[Words] = Words()

    def files(self, data: Path) -> tuple[Path, ...]:
        return (data / "lines.txt",)

    def load(self, data: Path) -> Splits:
        lines = (data / "lines.txt").read_text().splitlines()
        examples = tuple(Example(str(number), (line,), 0) for number, line in enumerate(lines))
        return Splits(BinaryClassification(), ("a", "b"), examples, (), ())


def test_files_are_loaded_once_until_they_change(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one")
    first, digest = Lines().read(tmp_path), Lines().digest(tmp_path)
    assert Lines().read(tmp_path) is first
    (tmp_path / "lines.txt").write_text("one\ntwo")
    assert len(Lines().read(tmp_path).train) == 2
    assert Lines().digest(tmp_path) != digest
