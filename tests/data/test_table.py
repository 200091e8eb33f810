"""The user's own data: every kind of file reads alike, and every mistake gets one line with place and remedy."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import datasets
import pandas as pd
import pytest

from heedful.data.columns import DetectedColumns, TableColumns, detect_columns
from heedful.data.hub_datasets import HubDataset, SavedDataset
from heedful.data.splitting import normalized_content
from heedful.data.table import ASSUMED, COLUMNS, EvaluationTable, Table
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.testing.checks import check_corpus
from heedful.types import SPLITS, Splits, UserError

TOPICS = ("bread", "a door", "the moon", "rust", "two cats", "a slow bus", "mint", "paper", "old snow", "a bell")
ROWS = [
    {"text": f'{opening}, {topic} is "{verdict}"', "label": verdict}
    for opening in ("today", "sometimes")
    for topic in TOPICS
    for verdict in ("fine", "poor")
]


def _csv(path: Path, separator: str = ",") -> None:
    pd.DataFrame(ROWS).to_csv(path, index=False, sep=separator)


def _jsonl(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")


def _zipped(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode()))


def _saved(path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "rows.csv": _csv,
    "rows.tsv": lambda path: _csv(path, "\t"),
    "rows.jsonl": _jsonl,
    "rows.jsonl.gz": _zipped,
    "rows.parquet": lambda path: pd.DataFrame(ROWS).to_parquet(path),
    "rows": _saved,
}


def user_corpus(path: Path) -> Table | SavedDataset:
    return SavedDataset(str(path)) if path.is_dir() else Table(str(path))


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_file_gives_the_same_splits(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / kind)
    corpus = user_corpus(tmp_path / kind)
    splits = corpus.read(tmp_path)
    assert corpus.name == "rows"
    assert splits.task == BinaryClassification()
    assert splits.class_names == ("fine", "poor")
    assert check_corpus(corpus, tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [28, 6, 6]
    assert all(Counter(example.label for example in splits[split])[0] == len(splits[split]) // 2 for split in SPLITS)
    _csv(tmp_path / "reference.csv")
    reference = Table(str(tmp_path / "reference.csv")).read(tmp_path)
    for split in SPLITS:
        assert [(e.parts, e.label) for e in splits[split]] == [(e.parts, e.label) for e in reference[split]]


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    for kind in ("rows.csv", "rows"):
        path = tmp_path / kind
        KINDS[kind](path)
        corpus = user_corpus(path)
        before = corpus.digest(tmp_path)
        assert user_corpus(path).digest(tmp_path) == before
        file = path if path.is_file() else next(path.glob("*.arrow"))
        file.write_bytes(file.read_bytes() + b"x,fine\n")
        assert corpus.digest(tmp_path) != before


def table(tmp_path: Path, text: str, reading: TableColumns | None = None, name: str = "mine.csv") -> Splits:
    (tmp_path / name).write_bytes(text.encode())
    return Table(str(tmp_path / name), reading or TableColumns()).read(tmp_path)


def lines(*labels: str) -> str:
    return "text,label\n" + "".join(f"words number {n},{label}\n" for n, label in enumerate(labels))


GOOD = lines(*(["yes", "no"] * 5))

COMPLAINTS: dict[str, tuple[str, TableColumns, str]] = {
    "missing column": (GOOD, TableColumns(text="review"), "'review' .--text-column.*'text', 'label'"),
    "missing label column": (GOOD, TableColumns(label="stars"), "'stars' .--label-column.*'text', 'label'"),
    "missing second column": (GOOD, TableColumns(second_text="question"), "'question' .--second-column"),
    "no label column": (GOOD, TableColumns(label="none"), "--label-column"),
    "two texts": ("text,review,label\na b,c d,x\ne f,g h,y\n", TableColumns(), "'text' or 'review'.*--text-column"),
    "two labels": ("text,label,class\na b,x,1\nc d,y,1\n", TableColumns(), "'label' or 'class'.*--label-column"),
    "flags of other words": (
        "text,label,rationale\na b,x,[0 1 0]\nc d e,y,[1 1 0]\nf g,x,[0 0]\nh i,y,[0 0]\n",
        TableColumns(),
        "line 2.*3 entries.*2 words",
    ),
    "empty file": ("", TableColumns(), r"mine\.csv: the file is empty or has no rows"),
    "header only": ("text,label\n", TableColumns(), r"mine\.csv: the file is empty or has no rows"),
    "empty text": (GOOD + " ,no\n", TableColumns(), r"line 12: the text in column 'text' is empty"),
    "no label": (GOOD + "more words,\n", TableColumns(), r"line 12: no label in column 'label'"),
    "one class": (lines("yes", "yes", "yes"), TableColumns(), "'label' are 'yes'"),
    "duplicate id": (
        "text,label,key\na b,x,7\nc d,y,8\ne f,x,7\n",
        TableColumns(uid="key"),
        r"line 4: the id '7' of .*mine\.csv, line 2",
    ),
    "no id": ("text,label,key\na b,x,7\nc d,y,\n", TableColumns(uid="key"), r"line 3: no id in column 'key'"),
    "too many fields": (GOOD + "one, two,no\n", TableColumns(), r"line 12: 3 fields, but the header has 2"),
    "open quote": (GOOD + '"one,no\n', TableColumns(), r"line 1[23]: unexpected end of data; check the quotes"),
    "column twice": ("text,text\na,b\n", TableColumns(), r"line 1: two columns are called 'text'"),
    "few rows of a class": (
        lines("yes", "no", "no", "no"),
        TableColumns(),
        r"class 'yes' has 1 different texts, but at least 3 are needed",
    ),
    "words for regression": (
        lines("0.5", "good"),
        TableColumns(task="regression"),
        r"line 3: the label 'good' is not a number",
    ),
    "infinite": (lines("0.5", "inf"), TableColumns(task="regression"), r"line 3: the label 'inf' is not a number"),
    "constant": (lines("0.5", "0.5"), TableColumns(task="regression"), "'label' are '0.5'"),
    "unknown class": (GOOD, TableColumns(classes=("no", "maybe")), "'yes', 'no'.*no, maybe"),
}


@pytest.mark.parametrize("name", list(COMPLAINTS))
def test_bad_data_gets_one_line_with_file_line_and_remedy(name: str, tmp_path: Path) -> None:
    text, reading, complaint = COMPLAINTS[name]
    with pytest.raises(UserError, match=complaint) as error:
        table(tmp_path, text, reading)
    assert "\n" not in str(error.value)
    assert "mine.csv" in str(error.value)


def test_a_quoted_line_break_does_not_shift_the_line_numbers(tmp_path: Path) -> None:
    text = 'text,label\n"one\ntwo\nthree",yes\n,no\n'
    with pytest.raises(UserError, match="line 5: the text in column 'text' is empty"):
        table(tmp_path, text)
    with pytest.raises(UserError, match="line 4: the text in column 'text' is empty"):
        table(tmp_path, 'text,"a long\nname",label\nwords,x,yes\n,y,no\n')


def test_a_wrong_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("text,label\nplain,a\ncafé,b\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.csv, line 3: not UTF-8 \(byte 0xe9\).*iconv"):
        Table(str(tmp_path / "latin.csv")).read(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    assert len(table(tmp_path, "\ufeff" + GOOD).train) > 0


def test_a_very_long_text_is_read_whole(tmp_path: Path) -> None:
    splits = table(tmp_path, GOOD + f"{'long ' * 60_000},no\n")
    assert max(len(str(e.parts[0])) for split in SPLITS for e in splits[split]) == 299_999


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (
            "bad.jsonl",
            '{"text": "a", "label": 1}\n{"text": \n',
            r"bad\.jsonl, line 2: not JSON",
        ),
        ("bad.jsonl", '{"text": "a", "label": 1}\n["a"]\n', r"line 2: not a JSON object"),
        (
            "bad.jsonl",
            '{"text": 5, "label": 1}\n{"text": "b", "label": 2}\n{"text": "c", "label": 2}\n',
            r"line 1: column 'text' holds 5, not a text",
        ),
        ("bad.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n{"text": "c"}\n', r"line 3: .*'label'"),
        ("bad.parquet", "no parquet", r"bad\.parquet: not a Parquet file"),
        ("bad.xlsx", "spread", r"bad\.xlsx: unknown file type.*\.csv, \.json, \.jsonl"),
        ("bad.csv.gz", "no gzip", r"bad\.csv\.gz: unreadable"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        table(tmp_path, content, name=name)


def test_a_path_that_is_not_there_names_both_places(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.csv: no such file"):
        Table("absent.csv").read(tmp_path)


def test_given_files_are_kept_apart_and_new_labels_in_them_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text("text,label\nfresh words,no\nwords number 3,no\n")
    (tmp_path / "c.csv").write_text("text,label\nother words,perhaps\n")
    splits = Table("a.csv", dev="b.csv", test="b.csv").read(tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [10, 2, 2]
    assert [example.uid for example in splits.test] == ["test-2", "test-3"]
    assert splits.notes["test texts that are also in train"] == 1
    with pytest.raises(UserError, match=r"c\.csv, line 2: the label 'perhaps' is not one of 'no', 'yes'"):
        Table("a.csv", dev="b.csv", test="c.csv").read(tmp_path)


def test_real_numbers_mean_regression_and_the_notes_say_so(tmp_path: Path) -> None:
    splits = table(tmp_path, lines(*(f"{n / 4}" for n in range(12))))
    assert splits.task == Regression()
    assert splits.class_names == ()
    assert "continuous" in str(splits.notes["task"])
    assert {example.label for split in SPLITS for example in splits[split]} == {n / 4 for n in range(12)}


def test_whole_numbers_are_classes_in_numeric_order(tmp_path: Path) -> None:
    splits = table(tmp_path, lines(*(["10", "9", "2"] * 4)))
    assert (splits.task, splits.class_names) == (MulticlassClassification(3), ("2", "9", "10"))
    many = table(tmp_path, lines(*(str(n) for n in range(60))), name="many.csv")
    assert many.task == Regression()
    intents = table(tmp_path, lines(*[str(n % 25) for n in range(100)]), name="intents.csv")
    assert intents.task == MulticlassClassification(25)


def test_a_float_column_of_whole_numbers_and_booleans_are_classes(tmp_path: Path) -> None:
    for name, values, classes in (("f", [1.0, 0.0] * 5, ("0", "1")), ("b", [True, False] * 5, ("false", "true"))):
        frame = pd.DataFrame({"text": [f"text {n}" for n in range(10)], "label": values})
        frame.to_parquet(tmp_path / f"{name}.parquet")
        assert Table(str(tmp_path / f"{name}.parquet")).read(tmp_path).class_names == classes


def test_pairs_ids_and_class_order_can_be_chosen(tmp_path: Path) -> None:
    text = "p,q,v,key\n" + "".join(f"one {n},two {n},{'ab'[n % 2]},k{n}\n" for n in range(10))
    splits = table(tmp_path, text, TableColumns(text="p", second_text="q", label="v", uid="key", classes=("b", "a")))
    example = splits.train[0]
    assert splits.class_names == ("b", "a")
    assert example.parts == (f"one {example.uid[1:]}", f"two {example.uid[1:]}")
    assert example.label == (int(example.uid[1:]) + 1) % 2


def test_columns_are_detected_and_rationales_read_as_for_an_audit(tmp_path: Path) -> None:
    rows = "".join(f"p{n},one {n},two {n},{'ab'[n % 2]},{n % 2},two\n" for n in range(10))
    splits = table(tmp_path, "id,premise,hypothesis,label,label_index,evidence\n" + rows)
    assert str(splits.notes[COLUMNS]).split(", ") == [
        "text premise", "second text hypothesis", "label label", "rationale evidence", "id id",
    ]  # fmt: skip
    example = splits.train[0]
    assert (example.parts, example.uid[0]) == ((f"one {example.uid[1:]}", f"two {example.uid[1:]}"), "p")
    assert example.rationale == (False, False, True, False)
    assert ASSUMED not in splits.notes
    assumed = table(tmp_path, "said,mood\n" + "".join(f"word {n} here,{'ab'[n % 2]}\n" for n in range(10)))
    assert assumed.class_names == ("a", "b")
    assert all(option in str(assumed.notes[ASSUMED]) for option in ("--text-column", "--label-column"))


def test_files_of_splits_may_count_their_rows_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = "".join(f"{n},words {name} {n},{'xy'[n % 2]}\n" for n in range(6))
        (tmp_path / f"{name}.csv").write_text(f"idx,text,label\n{rows}")
    splits = Table("a.csv", dev="b.csv", test="b.csv").read(tmp_path)
    assert [splits[split][1].uid for split in SPLITS] == ["train-1", "dev-1", "test-1"]


def test_equal_texts_are_in_one_split_and_conflicting_labels_are_counted(tmp_path: Path) -> None:
    text = lines(*(["yes", "no"] * 10)) + "WORDS  number 4,yes\nwords number 5 ,no\nwords number 6,no\n"
    splits = table(tmp_path, text)
    texts = [{normalized_content(example) for example in splits[split]} for split in SPLITS]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    assert splits.notes["texts with conflicting labels"] == 1


def test_dev_and_test_are_15_of_100_texts_each_and_another_seed_gives_other_splits(tmp_path: Path) -> None:
    text = lines(*(["yes", "no"] * 100))
    usual = table(tmp_path, text)
    assert [len(usual[split]) for split in SPLITS] == [140, 30, 30]
    assert table(tmp_path, text, TableColumns(seed=4)).test != usual.test


def test_a_saved_dataset_keeps_its_class_order_and_loses_unlabelled_splits(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])})
    train = datasets.Dataset.from_dict({"text": [f"t {n}" for n in range(10)], "label": [0, 1] * 5}, features=features)
    hidden = datasets.Dataset.from_dict({"text": ["u", "v"], "label": [-1, -1]}, features=features)
    folder = tmp_path / "set"
    datasets.DatasetDict(train=train, validation=train.select([0, 1]), test=hidden).save_to_disk(str(folder))
    splits = SavedDataset(str(folder)).read(tmp_path)
    assert splits.class_names == ("pos", "neg")
    assert splits.notes["test split left out, it has no labels"] == 2
    assert len(splits.dev) == 2
    assert [example.label for example in splits.dev] == [0, 1]
    with pytest.raises(UserError, match=r"set \(train\): .*'review'.*'text', 'label'"):
        SavedDataset(str(folder), TableColumns(text="review")).read(tmp_path)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UserError, match="not a folder that datasets' save_to_disk wrote"):
        SavedDataset(str(tmp_path / "plain")).read(tmp_path)


def test_a_hub_dataset_is_named_after_its_repository_and_configuration() -> None:
    assert HubDataset("somebody/some-set").name == "some-set"
    assert HubDataset("glue", "sst2").name == "glue-sst2"


def test_an_unreachable_hub_gives_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"no-owner/no-dataset: could not be loaded from the hub .* save_to_disk"):
        HubDataset("no-owner/no-dataset").read(tmp_path)


WRONG: Mapping[str, tuple[Callable[[], object], str]] = {
    "a table of nothing": (lambda: Table(None), "path"),  # type: ignore[arg-type]
    "a table of a number": (lambda: Table(3), "path"),  # type: ignore[arg-type]
    "a table of bytes": (lambda: Table(b"a.csv"), "path"),  # type: ignore[arg-type]
    "columns of a name": (lambda: Table("a.csv", "text"), "columns"),  # type: ignore[arg-type]
    "a list as dev": (lambda: Table("a.csv", dev=["b.csv"]), "dev"),  # type: ignore[arg-type]
    "a number as label": (lambda: TableColumns(label=1), "label"),  # type: ignore[arg-type]
    "a list of classes": (lambda: TableColumns(classes=["a", "b"]), "classes"),  # type: ignore[arg-type]
    "a number of classes": (lambda: TableColumns(classes=2), "classes"),  # type: ignore[arg-type]
    "a text of classes": (lambda: TableColumns(classes="ab"), "classes"),  # type: ignore[arg-type]
    "classes of numbers": (lambda: TableColumns(classes=(0, 1)), "classes[0]"),  # type: ignore[arg-type]
    "a class twice": (lambda: TableColumns(classes=("a", "a")), "'a'"),
    "a seed of text": (lambda: TableColumns(seed="1"), "seed"),  # type: ignore[arg-type]
    "a seed of True": (lambda: TableColumns(seed=True), "seed"),
    "an unknown task": (lambda: TableColumns(task="ranking"), "ranking"),  # type: ignore[arg-type]
    "a task of a list": (lambda: TableColumns(task=["auto"]), "task"),  # type: ignore[arg-type]
    "no folder": (lambda: SavedDataset(None), "folder"),  # type: ignore[arg-type]
    "no repository": (lambda: HubDataset(None), "repository"),  # type: ignore[arg-type]
    "a number as revision": (lambda: HubDataset("a/b", revision=1), "revision"),  # type: ignore[arg-type]
    "no evaluation table": (lambda: EvaluationTable(None, DetectedColumns("text")), "path"),  # type: ignore[arg-type]
    "no evaluation columns": (lambda: EvaluationTable("a.csv", None), "columns"),  # type: ignore[arg-type]
    "no texts": (lambda: EvaluationTable("a.csv", DetectedColumns("text"), limit=0), "limit"),
    "a limit of text": (lambda: EvaluationTable("a.csv", DetectedColumns("text"), limit="9"), "limit"),  # type: ignore[arg-type]
    "columns of nothing": (lambda: detect_columns(None), "path"),  # type: ignore[arg-type]
    "columns of nobody": (lambda: detect_columns("~nosuch/x.csv"), "~nosuch/x.csv"),
    "a name as outputs": (lambda: detect_columns("a.csv", outputs="ab"), "outputs"),  # type: ignore[arg-type]
    "outputs of numbers": (lambda: detect_columns("a.csv", outputs=(0, 1)), "output 0"),  # type: ignore[arg-type]
    "a table of nobody": (lambda: Table("~nosuch/x.csv").read(Path()), "~nosuch/x.csv"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_arguments_are_one_line_that_names_them(name: str) -> None:
    make, word = WRONG[name]
    with pytest.raises(UserError) as error:
        make()
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_is_as_good_as_its_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"some words {number},{number % 2}\n" for number in range(60)))
    corpus = Table(path)
    assert corpus.name == "t"
    assert corpus.read(tmp_path).test == Table(str(path)).read(tmp_path).test


@pytest.mark.parametrize("column", ["label", "id", "absent"])
def test_a_huge_cell_or_name_is_not_repeated_in_the_message(column: str, tmp_path: Path) -> None:
    huge = "x" * 10_000
    header = huge if column == "absent" else column
    path = tmp_path / "t.csv"
    path.write_text(f"text,{header}\n" + "".join(f"some words {number},{huge}\n" for number in range(60)))
    uid = "id" if column == "id" else None
    label = None if column == "id" else "label"
    with pytest.raises(UserError) as error:
        Table(str(path), TableColumns(label=label, uid=uid)).read(tmp_path)
    assert len(str(error.value)) < len(str(path)) + 300
