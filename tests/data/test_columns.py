"""The user's table: columns, labels in the order of the outputs, rationales, HateXplain and ERASER."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from heedful.data.columns import DetectedColumns, TableColumns, detect_columns
from heedful.data.io import MAX_LINE_SIZE, read_json, read_rows
from heedful.data.label_match import LabelMatch, match_labels
from heedful.data.table import EvaluationTable
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import Splits, UserError

SENTIMENT = ("NEGATIVE", "POSITIVE")
Rows = Sequence[Mapping[str, object]]
TEXTS = ("a fine film", "a dull, long film", "what a mess", "quite fine")


def write(folder: Path, name: str, content: str | bytes | Rows) -> Path:
    """A file of bytes or text, or of rows as JSONL."""
    path = folder / name
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(
    path: Path, outputs: tuple[str, ...] = SENTIMENT, chosen: TableColumns | None = None
) -> tuple[DetectedColumns, Splits]:
    columns = detect_columns(path, outputs=outputs, columns=chosen)
    return columns, EvaluationTable(str(path), columns).read(path.parent)


def refusal(path: Path, outputs: tuple[str, ...] = SENTIMENT, chosen: TableColumns | None = None) -> str:
    with pytest.raises(UserError) as error:
        read(path, outputs, chosen)
    assert "\n" not in str(error.value)
    return str(error.value)


# Columns


@pytest.mark.parametrize(
    ("header", "rows", "expected"),
    [
        ("text,label", ["a fine film,1", "bad film,0"], ("text", None, "label", None)),
        ("Review,Sentiment", ["a fine film,pos", "bad film,neg"], ("Review", None, "Sentiment", None)),
        ("idx,sentence,label", ["0,a fine film,1", "1,bad film,0"], ("sentence", None, "label", "idx")),
        ("x,y1", ["a fine film,POSITIVE", "bad film,NEGATIVE"], ("x", None, "y1", None)),
        ("sentence1,sentence2,label", ["a b,c d,1", "e f,g h,0"], ("sentence1", "sentence2", "label", None)),
        ("label,hypothesis,premise", ["1,a b,c d", "0,e f,g h"], ("premise", "hypothesis", "label", None)),
        ("document,question,label", ["a b,c d,1", "e f,g h,0"], ("document", "question", "label", None)),
        ("text,title,class", ["a b,c d,1", "e f,g h,0"], ("text", None, "class", None)),
        ("text,description,label", ["a b,c d,1", "e f,g h,0"], ("text", None, "label", None)),
        ("words", ["a fine film", "bad film"], ("words", None, None, None)),
        ("id,text,label", ["7,a b,1", "7,c d,0"], ("text", None, "label", None)),
        ("source,target", ["a b,1", "c d,0"], ("source", None, "target", None)),
        ("text,label,label_text", ["a b,1,pos", "c d,0,neg"], ("text", None, "label", None)),
    ],
)
def test_columns_are_found_by_name_and_content(
    header: str, rows: list[str], expected: tuple[str | None, ...], tmp_path: Path
) -> None:
    columns, splits = read(write(tmp_path, "a.csv", "\n".join([header, *rows])))
    assert (columns.text, columns.second_text, columns.label, columns.uid) == expected
    assert [example.label for example in splits.test] == ([1, 0] if columns.label else [None, None])
    assert splits.task == MulticlassClassification(2)
    assert splits.class_names == SENTIMENT
    assert not splits.train
    assert not splits.dev
    assert all(repr(name) in " ".join(columns.notes) for name in columns.roles.values())


@pytest.mark.parametrize(
    ("header", "row", "option", "names"),
    [
        ("text,review,label", "a b,c d,1", "--text-column", ("text", "review")),
        ("one,two,label", "a b,c d,1", "--text-column", ("one", "two")),
        ("text,premise,hypothesis", "a b,c d,e f", "--text-column", ("text", "premise", "hypothesis")),
        ("text,label,sentiment", "a b,1,0", "--label-column", ("label", "sentiment")),
        ("text,one,two", "a b,1,0", "--label-column", ("one", "two")),
        ("text,label,rationale,evidence", "a b,1,a,b", "--rationale-column", ("rationale", "evidence")),
    ],
)
def test_what_is_ambiguous_is_asked_for(
    header: str, row: str, option: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    other = row.replace("a b", "g h").replace(",1", ",9").replace(",0", ",1").replace(",9", ",0")
    other = other.replace(",a,b", ",g,h").replace("c d", "i j").replace("e f", "k l")
    message = refusal(write(tmp_path, "a.csv", f"{header}\n{row}\n{other}\n"))
    assert option in message
    assert all(repr(name) in message for name in names)


def test_given_columns_come_first_and_none_is_a_choice(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "review,text,label,stars\na b,c d,1,0\ne f,g h,1,1\n")
    columns, splits = read(path, chosen=TableColumns(text="review", second_text="text", label="stars"))
    assert columns.roles == {"text": "review", "second text": "text", "label": "stars"}
    assert [(example.parts, example.label) for example in splits.test] == [(("a b", "c d"), 0), (("e f", "g h"), 1)]
    columns, splits = read(path, chosen=TableColumns(text="review", label="none"))
    assert (columns.label, splits.test[0].label) == (None, None)
    assert "--label-column" in refusal(path, chosen=TableColumns(text="review", label="nothing"))


@pytest.mark.parametrize(
    ("values", "outputs", "expected"),
    [
        (["1", "0"], SENTIMENT, ("index", (("1", 1), ("0", 0)))),
        (["Negative", "positive"], ("POSITIVE", "NEGATIVE"), ("name", (("Negative", 1), ("positive", 0)))),
        (["LABEL_1"], SENTIMENT, ("index", (("LABEL_1", 1),))),
        (["1", "2"], SENTIMENT, ("order", (("1", 0), ("2", 1)))),
        (["1", "-1"], SENTIMENT, ("order", (("1", 1), ("-1", 0)))),
        (["no", "yes"], ("LABEL_0", "LABEL_1"), ("order", (("no", 0), ("yes", 1)))),
        (["2", "4"], ("1 star", "2 stars", "3 stars", "4 stars"), ("name", (("2", 1), ("4", 3)))),
        (["hatespeech"], ("hate speech", "normal", "offensive"), ("name", (("hatespeech", 0),))),
        (["offensive", "normal"], ("NORMAL", "ABUSIVE"), ("united", (("offensive", 1), ("normal", 0)))),
        (["entail", "neutral"], ("neutral", "entailment"), ("beginning", (("entail", 1), ("neutral", 0)))),
        (["negotiation", "posting"], ("neg", "pos"), ("beginning", (("negotiation", 0), ("posting", 1)))),
        (["negotiation", "neg", "pos"], ("neg", "pos"), None),
        (["1", "2"], ("a", "b", "c"), ("counted", (("1", 1), ("2", 2)))),
        (["1"], SENTIMENT, ("counted", (("1", 1),))),
        (["0", "2"], ("a", "b", "c"), ("index", (("0", 0), ("2", 2)))),
        (["1", "2", "3"], ("a", "b", "c"), ("order", (("1", 0), ("2", 1), ("3", 2)))),
        (["2", "0"], SENTIMENT, None),
        (["cat", "dog"], SENTIMENT, None),
        (["no", "yes", "maybe"], ("LABEL_0", "LABEL_1"), None),
        (["pos"], ("positive", "possible"), None),
        ([], SENTIMENT, None),
    ],
)
def test_labels_are_matched_with_outputs(
    values: list[str], outputs: tuple[str, ...], expected: LabelMatch | None
) -> None:
    assert match_labels(values, outputs) == expected


def test_an_assumed_order_is_said_aloud(tmp_path: Path) -> None:
    columns, _ = read(write(tmp_path, "a.csv", "text,label\na b,yes\nc d,no\n"), ("LABEL_0", "LABEL_1"))
    assert columns.matching == "order"
    assert any("assumption" in note and "'no' is LABEL_0" in note for note in columns.notes)


def test_labels_may_be_numbers_for_regression(tmp_path: Path) -> None:
    columns, splits = read(write(tmp_path, "a.csv", "src,mt,da\na b,c d,0.5\ne f,g h,-2\ni j,k l,\n"), ())
    assert (columns.label, columns.matching, splits.task) == ("da", "number", Regression())
    assert [example.label for example in splits.test] == [0.5, -2.0, None]


# Rows


def test_rows_without_text_and_repeated_texts_are_counted_and_left_out(tmp_path: Path) -> None:
    rows: Rows = [
        {"text": "a b", "label": 1},
        {"text": " ", "label": 1},
        {"label": 0},
        {"text": " a b ", "label": 0},
        {"text": "A b", "label": -1},
        {"text": "c", "label": None},
    ]
    _, splits = read(write(tmp_path, "a.jsonl", rows))
    assert [(example.uid, example.parts, example.label) for example in splits.test] == [
        ("1", ("a b",), 1),
        ("5", ("A b",), None),
        ("6", ("c",), None),
    ]
    assert splits.notes == {
        "rows": 6,
        "rows without a text, left out": 2,
        "rows with the text of another row, left out": 1,
        "of these with another label than the first": 1,
        "texts without a label": 2,
    }


def test_a_sample_does_not_depend_on_the_order_of_rows_and_repeats_stay_counted(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(200)]
    lines = [f"{text},{number % 2}\n" for number, text in enumerate(texts)]
    kept = {}
    for name, order in {"forward": lines + lines, "backward": lines[::-1]}.items():
        path = write(tmp_path, f"{name}.csv", "text,label\n" + "".join(order))
        table = EvaluationTable(str(path), detect_columns(path, outputs=SENTIMENT), limit=20)
        splits = table.read(tmp_path)
        kept[name] = {(example.parts[0], example.label) for example in splits.test}
        assert len(splits.test) == splits.notes["texts kept by a random choice"] == 20
        lines_kept = [int(example.uid) for example in splits.test]
        assert lines_kept == sorted(lines_kept)
        assert splits.notes.get("rows with the text of another row, left out", 0) == (20 if name == "forward" else 0)
    assert kept["forward"] == kept["backward"]
    other = EvaluationTable(str(path), detect_columns(path, outputs=SENTIMENT), limit=20, seed=1).read(tmp_path)
    assert {example.parts[0] for example in other.test} != {text for text, _ in kept["backward"]}


def test_an_id_that_is_used_again_gets_its_line(tmp_path: Path) -> None:
    columns = DetectedColumns("text", uid="id", outputs=SENTIMENT)
    path = write(tmp_path, "a.csv", "id,text\nx,a\nx,b\n1.0,c\n")
    assert [example.uid for example in EvaluationTable(str(path), columns).read(tmp_path).test] == ["x", "x#3", "1.0"]


# Rationales

T, F = True, False


@pytest.mark.parametrize(
    ("cells", "form", "expected"),
    [
        ([[0, 1, 0], [0, 1, 1, 0], None, [1, 0]], "flags", [(F, T, F), (F, T, T, F), None, (T, F)]),
        (["[0, 1, 0]", "(0, 1, 1, 0)", "", "0 1"], "flags", [(F, T, F), (F, T, T, F), None, (F, T)]),
        ([[T, F, F], [F, F, F, T], [F, F, F], [F, T]], "flags", [(T, F, F), (F, F, F, T), (F, F, F), (F, T)]),
        ([[1], [0, 3], [], [1]], "indices", [(F, T, F), (T, F, F, T), None, (F, T)]),
        ([[[1, 2]], [[0], [3]], [[]], [[1]]], "indices", [(F, T, T), (T, F, F, T), None, (F, T)]),
        ([[2, 2], [1, 1, 3], None, [0]], "indices", [(F, F, T), (F, T, F, T), None, (T, F)]),
        (
            [[[0, 1, 0], [0, 1, 1]], [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], [], [[0, 1]]],
            "annotators",
            [(F, T, T), (T, F, F, F), None, (F, T)],
        ),
        ([[[2, 6]], [[2, 6], [13, 17]], [], [[0, 5]]], "spans", [(F, T, F), (F, T, F, T), None, (T, F)]),
        (
            [{"start": 2, "end": 3}, [{"start": 6, "end": 9}], {}, {"start": [0, 6], "end": [5, 7]}],
            "spans",
            [(F, T, F), (F, T, T, F), None, (T, T)],
        ),
        (
            [
                [[{"start_token": 1, "end_token": 3, "docid": "x"}]],
                [[{"start_token": 0, "end_token": 1}], [{"start_token": 3, "end_token": 4}]],
                [],
                [{"start_token": 0, "end_token": 2}],
            ],
            "tokens",
            [(F, T, T), (T, F, F, T), None, (T, T)],
        ),
        (
            [["Fine"], ["dull long", "film"], None, ["quite", "in"]],
            "phrases",
            [(F, T, F), (F, T, T, T), None, (T, T)],
        ),
        (["fine film", "dull; FILM", "", "quite, fine"], "phrases", [(F, T, T), (F, T, F, T), None, (T, T)]),
        (
            ["a **fine** film", "a **dull, long** film", "what a mess", "qui<mark>te fi</mark>ne"],
            "marks",
            [(F, T, F), (F, T, T, F), (F, F, F), (T, T)],
        ),
        (["a [fine] film", "", "[what a] mess", "*quite* fine"], "marks", [(F, T, F), None, (T, T, F), (T, F)]),
    ],
)
def test_rationales_in_every_form(
    cells: list[object], form: str, expected: list[tuple[bool, ...] | None], tmp_path: Path
) -> None:
    rows = [{"text": text, "rationale": cell} for text, cell in zip(TEXTS, cells, strict=True)]
    columns, splits = read(write(tmp_path, "a.jsonl", rows))
    assert (columns.rationale, columns.rationale_form) == ("rationale", form)
    assert [example.rationale for example in splits.test] == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[0, 2, 0], [0, 0, 0, 2], None, [1, 1]], [(F, T, F), (F, F, F, T), None, (T, T)]),
        (["[0, 2, 0]", "[0, 0, -1, 3]", "", "0 2"], [(F, T, F), (F, F, F, T), None, (F, T)]),
        (
            [[[0, 3, 0], [0, 0, 1]], [[0, 0, 0, 2]], None, [[1, 1], [0, 0], [0, 2]]],
            [(F, T, T), (F, F, F, T), None, (F, T)],
        ),
        ([[3, 1, 2], [4, 3, 2, 1], None, [2, 1]], [(T, T, T), (T, T, T, T), None, (T, T)]),
    ],
)
def test_grades_of_words_are_not_taken_for_word_numbers(
    cells: list[object], expected: list[tuple[bool, ...] | None], tmp_path: Path
) -> None:
    rows = [{"text": text, "rationale": cell} for text, cell in zip(TEXTS, cells, strict=True)]
    path = write(tmp_path, "a.jsonl", rows)
    for column in (None, "rationale"):
        message = refusal(path, chosen=TableColumns(rationale=column))
        assert "--rationale-form" in message
        assert "line 1" in message
    columns, splits = read(path, chosen=TableColumns(rationale_form="grades"))
    assert columns.rationale_form == "grades"
    assert [example.rationale for example in splits.test] == expected
    assert columns.assumptions == (), "the user said so"


@pytest.mark.parametrize(
    "cells", [["0", "1", "1", "0"], [0, 1, 1, 0], [T, F, F, T], ["2", "1", "0", "1"], [1.0, 0.0, 1, 0]]
)
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_one_number_per_row_marks_no_words_unless_its_form_is_named(
    cells: list[object], kind: str, tmp_path: Path
) -> None:
    rows = [{"text": text, "rationale": cell} for text, cell in zip(TEXTS, cells, strict=True)]
    numbers = [int(float(str(cell).replace("True", "1").replace("False", "0"))) for cell in cells]
    table = "".join(f'"{text}",{number}\n' for text, number in zip(TEXTS, numbers, strict=True))
    path = write(tmp_path, f"a.{kind}", rows if kind == "jsonl" else f"text,rationale\n{table}")
    columns, splits = read(path)
    assert (columns.rationale, columns.unused) == (None, ("rationale",))
    assert [example.rationale for example in splits.test] == [None] * 4
    assert "--rationale-form" in refusal(path, chosen=TableColumns(rationale="rationale"))
    _, splits = read(path, chosen=TableColumns(rationale_form="indices"))
    assert [example.rationale for example in splits.test] == [
        tuple(word == number for word in range(len(text.split()))) for text, number in zip(TEXTS, numbers, strict=True)
    ]


@pytest.mark.parametrize(
    ("texts", "cells", "form"),
    [
        (["a b", "c d"], [[0, 1], [0, 1]], "flags"),
        (["a fine film", "a dull long film"], [[[0, 2]], [[2, 3]]], "spans"),
        (["a fine film", "a dull long film"], [[0, 2], [2, 3]], "indices"),
    ],
)
def test_a_form_beside_another_that_fits_is_called_an_assumption(
    texts: list[str], cells: list[object], form: str, tmp_path: Path
) -> None:
    rows = [{"text": text, "rationale": cell} for text, cell in zip(texts, cells, strict=True)]
    columns, _ = read(write(tmp_path, "a.jsonl", rows))
    assert columns.rationale_form == form
    (assumption,) = columns.assumptions
    assert "'rationale'" in assumption
    assert "--rationale-form" in assumption
    columns, _ = read(write(tmp_path, "a.jsonl", rows), chosen=TableColumns(rationale_form=form))
    assert (columns.rationale_form, columns.assumptions) == (form, ())


@pytest.mark.parametrize("form", ["flags", "annotators", "grades", "indices", "spans", "tokens", "phrases", "marks"])
@pytest.mark.parametrize(
    "cell",
    [
        [],
        [[]],
        [5],
        [[1, 2, 3]],
        [-1],
        "x",
        ["x"],
        {"start": 0, "end": 1},
        [{"start_token": 0, "end_token": 1}],
        7,
        True,
    ],
)
def test_a_named_form_reads_the_rows_or_refuses_one(form: str, cell: object, tmp_path: Path) -> None:
    rows: Rows = [{"text": "a fine film", "rationale": cell}, {"text": "a dull film", "rationale": None}]
    with suppress(UserError):
        read(write(tmp_path, "a.jsonl", rows), chosen=TableColumns(rationale="rationale", rationale_form=form))


def test_an_unknown_form_of_rationales_is_refused() -> None:
    with pytest.raises(UserError, match="indices"):
        TableColumns(rationale_form="numbers")


HEADLESS = ["'a fine film', '1'", "--text-column", "--label-column"]


@pytest.mark.parametrize(
    ("name", "content", "outputs", "expected"),
    [
        ("a.csv", "text,is_train\na b,1\nc d,0\n", SENTIMENT, ["--label-column"]),
        ("a.csv", "text,label\na b,1\nc d,2\n", ("x", "y", "z"), ["'1' is y"]),
        ("a.csv", "text,label\na b,negotiation\nc d,posting\n", ("neg", "pos"), ["'negotiation' is neg"]),
        ("a.csv", "text,label\na b,1\nc d,2\n", SENTIMENT, ["'1' is NEGATIVE"]),
        ("a.csv", "a fine film,1\nbad film,0\ngood film,1\n", SENTIMENT, HEADLESS),
        ("a.csv", "text,label\na b,1\nc d,0\n", SENTIMENT, []),
        ("a.csv", "text,label\na b,POSITIVE\nc d,negative\n", SENTIMENT, []),
        ("a.jsonl", '{"x": "a b c"}\n{"x": "d e f"}\n', SENTIMENT, ["--text-column"]),
        ("a.csv", "src,mt,da\na b,c d,0.5\ne f,g h,-2\n", (), ["--label-column"]),
    ],
)  # fmt: skip
def test_what_is_assumed_about_columns_and_labels_is_listed(
    name: str, content: str, outputs: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    columns, _ = read(write(tmp_path, name, content), outputs)
    assert len(columns.assumptions) == len(expected)
    assert all(word in line for word, line in zip(expected, columns.assumptions, strict=True))
    chosen = TableColumns(text=columns.text, second_text=columns.second_text, label=columns.label)
    named, _ = read(write(tmp_path, name, content), outputs, chosen)
    certain = columns.matching in ("name", "index", "number", "none")
    assert len(named.assumptions) == (0 if certain else 1), "columns that the user names are not assumed"


def test_rationales_of_pairs_cover_both_parts(tmp_path: Path) -> None:
    pairs = [{"premise": "a b", "hypothesis": "c d e"}, {"premise": "f", "hypothesis": "g"}]
    for cells, expected in {
        ((0, 1, 0, 0, 1), (1, 0)): [(F, T, F, F, T), (T, F)],
        ((1, 1), (0,)): [(T, T, F, F, F), (F, F)],
        ((4, 2), (1,)): [(F, F, T, F, T), (F, T)],
        (("e", "a"), ("f",)): [(T, F, F, F, T), (T, F)],
    }.items():
        rows = [{**pair, "evidence": list(cell)} for pair, cell in zip(pairs, cells, strict=True)]
        assert [example.rationale for example in read(write(tmp_path, "a.jsonl", rows))[1].test] == expected


def test_phrases_that_are_not_in_the_text_are_counted(tmp_path: Path) -> None:
    rows = [{"text": text, "rationale": [text.split()[-1]]} for text in TEXTS] + [{"text": "other", "rationale": ["x"]}]
    _, splits = read(write(tmp_path, "a.jsonl", rows))
    assert splits.notes["rationales whose words are not in the text"] == 1
    assert splits.test[-1].rationale is None


def test_a_column_of_free_text_is_no_rationale(tmp_path: Path) -> None:
    rows = [{"text": text, "evidence": "because I say so"} for text in TEXTS]
    path = write(tmp_path, "a.jsonl", rows)
    columns, _ = read(path)
    assert (columns.rationale, columns.unused) == (None, ("evidence",))
    assert "marks no words" in refusal(path, chosen=TableColumns(rationale="evidence"))


# HateXplain and ERASER


def post(number: int, labels: Sequence[str], marks: Sequence[Sequence[int]]) -> dict[str, object]:
    annotators = [{"label": label, "annotator_id": number, "target": ["None"]} for number, label in enumerate(labels)]
    tokens = ["you", "are", f"<user{number}>", "fools"]
    return {"post_id": f"{number}_gab", "annotators": annotators, "rationales": marks, "post_tokens": tokens}


POSTS = [
    post(0, ["hatespeech", "hatespeech", "normal"], [[0, 0, 0, 1], [0, 1, 1, 1]]),
    post(1, ["offensive", "hatespeech", "offensive"], [[1, 0, 0, 1], [0, 0, 0, 1], [0, 1, 0, 1]]),
    post(2, ["normal", "normal", "offensive"], [[0, 0, 0, 1]]),
    post(3, ["normal", "offensive", "hatespeech"], [[0, 0, 0, 1], [0, 0, 0, 1]]),
    post(4, ["offensive", "offensive", "offensive"], [[0, 0, 1, 1], [0, 1], [0, 1, 1, 0]]),
]
MARKS = [(F, T, T, T), (F, F, F, T), None, None, (F, T, T, T)]
LABELS = [0, 2, 1, None, 2]


def hub_form(row: Mapping[str, object]) -> dict[str, object]:
    """A row of the hub: annotators as lists, labels as numbers."""
    annotators = row["annotators"]
    assert isinstance(annotators, list)
    numbers = [("hatespeech", "normal", "offensive").index(annotator["label"]) for annotator in annotators]
    rest = {name: value for name, value in row.items() if name not in ("post_id", "annotators")}
    return {"id": row["post_id"], "annotators": {"label": numbers, "annotator_id": [1, 2, 3]}, **rest}


@pytest.mark.parametrize("form", ["own", "indented", "jsonl", "hub"])
def test_hatexplain_is_read_as_it_is_published(form: str, tmp_path: Path) -> None:
    whole = {str(row["post_id"]): row for row in POSTS}
    path = {
        "own": lambda: write(tmp_path, "dataset.json", json.dumps(whole)),
        "indented": lambda: write(tmp_path, "dataset.json", json.dumps(whole, indent=2)),
        "jsonl": lambda: write(tmp_path, "posts.jsonl", POSTS),
        "hub": lambda: write(tmp_path, "hub.jsonl", [hub_form(row) for row in POSTS]),
    }[form]()
    columns, splits = read(path, ("hate speech", "normal", "offensive"))
    assert (columns.layout, columns.matching) == ("hatexplain", "name")
    assert [example.uid for example in splits.test] == [row["post_id"] for row in POSTS]
    assert [example.label for example in splits.test] == LABELS
    assert [example.rationale for example in splits.test] == MARKS
    assert splits.test[0].parts == ("you are <user0> fools",)
    assert splits.notes["lists of marks with a wrong length, left out"] == 1


def test_hatexplain_fits_a_model_with_two_classes(tmp_path: Path) -> None:
    path = write(tmp_path, "dataset.json", json.dumps({str(row["post_id"]): row for row in POSTS}))
    _, splits = read(path, ("NORMAL", "ABUSIVE"))
    assert [example.label for example in splits.test] == [1, 1, 0, None, 1]


def test_eraser_annotations_bring_their_documents(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    write(tmp_path / "docs", "one.txt", "a fine film\nbut long")
    write(tmp_path / "docs", "two.txt", "dull")
    rows = [
        {"annotation_id": name, "classification": label, "query": "What is it?", "evidences": evidences}
        for name, label, evidences in (
            ("one.txt", "POS", [[{"docid": "one.txt", "start_token": 1, "end_token": 3}]]),
            ("two.txt", "NEG", []),
        )
    ]
    path = write(tmp_path, "val.jsonl", rows)
    columns, splits = read(path)
    assert (columns.layout, columns.second_text) == ("eraser", None)  # one question for all is not a part of the text
    assert [(example.uid, example.label, example.rationale) for example in splits.test] == [
        ("one.txt", 1, (F, T, T, F, F)),
        ("two.txt", 0, None),
    ]
    table = EvaluationTable(str(path), columns)
    before = table.digest(tmp_path)
    write(tmp_path / "docs", "two.txt", "dull indeed")
    assert table.digest(tmp_path) != before
    rows[1]["query"] = "Why?"
    columns, splits = read(write(tmp_path, "test.jsonl", rows))
    assert splits.test[0].parts == ("a fine film\nbut long", "What is it?")
    rows[1]["annotation_id"] = "../val.jsonl"
    assert "no document" in refusal(write(tmp_path, "bad.jsonl", rows))


# JSON files


@pytest.mark.parametrize(
    "value",
    [
        [{"text": "a b", "label": 1}, {"text": "c", "label": 0}],
        {"data": [{"text": "a b", "label": 1}, {"text": "c", "label": 0}], "version": "1"},
        {"text": ["a b", "c"], "label": [1, 0]},
        {"text": {"0": "a b", "1": "c"}, "label": {"0": 1, "1": 0}},
        {"x": {"text": "a b", "label": 1}, "y": {"text": "c", "label": 0}},
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_json_files_of_every_usual_shape_are_tables(value: object, indent: int | None, tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", json.dumps(value, indent=indent))
    rows = read_rows(path)
    assert [(row.value("text"), row.value("label")) for row in rows] == [("a b", 1), ("c", 0)]
    assert [row.location for row in rows] == [f"{path}, row 1", f"{path}, row 2"]
    zipped = read_rows(write(tmp_path, "a.json.gz", gzip.compress(json.dumps(value).encode())))
    assert [row.values for row in zipped] == [row.values for row in rows]


def test_json_lines_in_a_json_file_stay_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '{"text": "a b"}\n\n{"text": "c"}\n')
    assert [(row.line, row.value("text")) for row in read_rows(path)] == [(1, "a b"), (3, "c")]
    assert read_json(write(tmp_path, "one.json", '{"text": "a b"}\n')) == {"text": "a b"}


# Hostile inputs

FLAGS = [{"text": text, "label": 1, "rationale": [0] * len(text.split())} for text in TEXTS]
BAD_ROWS: Mapping[str, tuple[Rows, str]] = {
    "flags too short": ([*FLAGS, {"text": "a b c", "rationale": [0, 1]}], "has 2 entries, but the text has 3 words"),
    "flags too long": ([*FLAGS, {"text": "a b", "rationale": [0, 0, 1]}], "line 5: the rationale has 3 entries"),
    "a flag of 7": ([*FLAGS, {"text": "a b", "rationale": [[0, 1], [7, 1]]}], "line 5: the rationale has the entry 7"),
    "index beyond the text": ([{"text": "a b", "rationale": [5]}], "word 5, but the text has 2 words"),
    "negative index": ([{"text": "a b", "rationale": [-1]}], "word -1, but the text has 2 words"),
    "span beyond the text": ([{"text": "a b", "rationale": [{"start": 0, "end": 9}]}], "the text has 3 characters"),
    "span backwards": ([{"text": "a b", "rationale": [{"start": 3, "end": 1}]}], "has the span [3, 1]"),
    "span without end": ([{"text": "a b", "rationale": [{"start": 3}]}], "no whole numbers 'start' and 'end'"),
    "token span beyond": ([{"text": "a", "rationale": [{"start_token": 0, "end_token": 2}]}], "has 1 words"),
    "a mixture": ([*FLAGS, {"text": "a b", "rationale": "b"}], "mixes numbers and string"),
    "deep lists": ([{"text": "a b", "rationale": [[[[1]]]]}], "neither a list of numbers"),
    "half numbers": ([{"text": "a b", "rationale": [0.5, 1]}], "neither a list of numbers"),
    "a number as text": ([{"text": "a b"}, {"text": "c"}, {"text": 5}], "line 3: column 'text' holds 5, not a text"),
    "half a character": ([{"text": "a \ud800 b"}, {"text": "c d"}], "ud800"),
    "too many phrases": ([{"text": "a b", "rationale": ["a"] * 1001}], "1001 phrases"),
    "post of numbers": ([{"post_tokens": [1], "annotators": []}], "post_tokens is [1]"),
    "annotators of nothing": ([{"post_tokens": ["a"], "annotators": 3}], "annotators is 3"),
    "annotator without label": ([{"post_tokens": ["a"], "annotators": [{}]}], "the label None"),
    "marks of words": ([{**POSTS[0], "rationales": [["a"]]}], "rationales has ['a']"),
    "marks that are no list": ([{**POSTS[0], "rationales": 5}], "rationales is 5"),
    "marks that never fit": (
        [{**row, "rationales": [[1]], "post_id": str(n)} for n, row in enumerate(POSTS * 3)],
        "has 1 entries, but the post has 4 words",
    ),
    "unknown label": ([{"text": "a b", "label": "cat"}, {"text": "c", "label": "NEGATIVE"}], "do not match"),
    "too many labels": ([{"text": f"a {n}", "label": n} for n in range(9)], "do not match the 2 outputs"),
    "no text": ([{"text": "", "label": 1}, {"text": " ", "label": 0}], "--text-column"),
    "numbers only": ([{"n": 1, "label": 1}], "--text-column"),
    "many columns": ([{f"c{n}": 1 for n in range(1001)}], "more than 1000 different columns"),
}


@pytest.mark.parametrize("name", list(BAD_ROWS))
def test_bad_rows_end_in_one_line(name: str, tmp_path: Path) -> None:
    rows, word = BAD_ROWS[name]
    outputs = ("hatespeech", "normal", "offensive") if "post_tokens" in rows[0] else SENTIMENT
    assert word in refusal(write(tmp_path, "a.jsonl", rows), outputs)


BAD_FILES: Mapping[str, tuple[str, str | bytes, str]] = {
    "open quote in a list": ("a.csv", 'text,rationale\na b,"[0, 1"\nc d,"[1, 0]"\n', "mixes"),
    "code in a list": ("b.csv", 'text,rationale\na b,"[open(1), 1]"\nc d,"[1, 0]"\n', "mixes"),
    "endless list": ("c.csv", f"text,rationale\na b,\"{'[' * (1 << 20) + '1'}\"\n", "more than 1048576 characters"),
    "deep list": ("d.csv", f"text,rationale\na b,\"{'[' * 5000 + ']' * 5000}\"\nc d,\"[1]\"\n", "rationale"),
    "no JSON": ("e.json", '{"text": ', "not JSON"),
    "list of numbers": ("f.json", "[1, 2]", "row 1: not a JSON object"),
    "a word": ("g.json", '"text"', "not a JSON object"),
    "nothing": ("h.json", "null", "no rows"),
    "empty": ("i.json", "", "no rows"),
    "deep JSON": ("j.json", "[" * 200_000, "nested too deeply"),
    "long number": ("k.json", "[{\"text\": " + "9" * 5000 + "}]", "too many digits"),
    "latin": ("l.json", '[{"text": "caf\xe9"}]'.encode("latin-1"), "not UTF-8"),
    "label that is not a number": ("m.csv", "src,mt,score\na b,c d,high\ne f,g h,low\n", "does not hold numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_FILES))
def test_bad_files_end_in_one_line(name: str, tmp_path: Path) -> None:
    file, content, word = BAD_FILES[name]
    assert word in refusal(write(tmp_path, file, content), () if file == "m.csv" else SENTIMENT)


def test_a_json_file_is_bounded_like_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINE_SIZE >= 1 << 20
    monkeypatch.setattr("heedful.data.io.MAX_LINE_SIZE", 100)
    assert "longer than 100" in refusal(write(tmp_path, "a.json", json.dumps([{"text": "a b"}] * 20, indent=1)))


def test_an_id_column_that_is_not_one(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id,text\n1,a b\n1,c d\n")
    assert read(path)[0].unused == ("id",)
    assert "line 3" in refusal(path, chosen=TableColumns(uid="id"))
    assert "line 2" in refusal(write(tmp_path, "b.csv", "id,text\n,a b\n1,c d\n"), chosen=TableColumns(uid="id"))


def test_parquet_lists_are_rationales(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    marks = pyarrow.array([[False, True, False], [True, False]])
    parquet.write_table(pyarrow.table({"text": ["a fine film", "dull film"], "rationales": marks}), path)
    assert [example.rationale for example in read(path)[1].test] == [(F, T, F), (T, F)]


def test_numbers_of_the_hub_are_matched_by_the_names_that_they_stand_for(tmp_path: Path) -> None:
    names = ["entailment", "neutral", "contradiction"]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    rows = {"text": ["a b", "c d", "e f"], "label": [0, 1, 2]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    outputs = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
    columns, splits = read(tmp_path / "a.parquet", outputs)
    assert (columns.matching, [example.label for example in splits.test]) == ("name", [2, 1, 0])
    columns, splits = read(tmp_path / "a.parquet", ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert (columns.matching, [example.label for example in splits.test]) == ("index", [0, 1, 2])


CELLS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["a", "a b", "**a** b", "[1]", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["start", "end", "x"]), inner),
    max_leaves=5,
)
NAMES = ["text", "label", "rationale", "id", "post_tokens", "annotators", "rationales"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.sampled_from(NAMES), CELLS), min_size=1, max_size=6))
def test_any_objects_are_a_table_or_refused(rows: list[dict[str, object]], tmp_path: Path) -> None:
    path = write(tmp_path, "any.jsonl", [{"text": "a b"}, *rows])
    with suppress(UserError):
        read(path)
