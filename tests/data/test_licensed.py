"""Loaders for a user's own copy of MIMIC-III and the ADR tweets, on invented files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from heedful.data.licensed import ADRTweets, Anemia, Diabetes
from heedful.types import SPLITS, UserError


def _mimic(data: Path, codes: dict[int, list[str]]) -> Path:
    folder = data / "mimic"
    folder.mkdir()
    notes: list[tuple[int | None, str, str, str, str]] = [
        (number, "2101-01-01", "Discharge summary", "Report", f"Patient {number} of [**Hospital 7**] walked....")
        for number in codes
    ]
    notes += [
        (min(codes), "2101-03-01", "Discharge summary", "Addendum", "second addendum"),
        (min(codes), "2101-02-01", "Discharge summary", "Addendum", "first addendum"),
        (min(codes), "2101-01-01", "Nursing", "Report", "not a summary"),
        (None, "2101-01-01", "Discharge summary", "Report", "no admission"),
    ]
    columns = ["HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT"]
    # The addenda come first in the file: the report must nevertheless open the text.
    frame = pd.DataFrame(notes[::-1], columns=columns)
    frame["HADM_ID"] = frame["HADM_ID"].astype("Int64")
    frame.assign(ROW_ID=range(len(frame))).to_csv(folder / "NOTEEVENTS.csv", index=False)
    rows = [(number, code) for number, held in codes.items() for code in held]
    pd.DataFrame(rows, columns=["HADM_ID", "ICD9_CODE"]).to_csv(folder / "DIAGNOSES_ICD.csv.gz", index=False)
    return folder


def test_diabetes_reads_listed_admissions_report_first_then_addenda_by_date(tmp_path: Path) -> None:
    codes = {100 + n: ["25000"] if n % 2 else ["25001", "4019"] for n in range(9)}
    folder = _mimic(tmp_path, codes)
    for split, members in zip(SPLITS, ([100, 101, 102, 999], [103, 104], [105, 106]), strict=True):
        (folder / f"{split}_50_hadm_ids.csv").write_text("\n".join(map(str, members)))
    splits = Diabetes().read(tmp_path)
    assert [(example.uid, example.label) for example in splits.train] == [
        ("hadm-100", 0),
        ("hadm-101", 1),
        ("hadm-102", 0),
    ]
    assert splits.train[0].parts == ("Patient 100 of <DE> walked. first addendum second addendum",)
    assert (len(splits.dev), len(splits.test)) == (2, 2)
    assert splits.notes == {"listed admissions without a discharge summary": 1}
    assert splits.class_names == ("no diabetes", "diabetes")
    before = Diabetes().digest(tmp_path)
    (folder / "dev_50_hadm_ids.csv").write_text("103\n")
    assert Diabetes().digest(tmp_path) != before


def test_anemia_is_acute_or_chronic_never_both_and_acute_is_one(tmp_path: Path) -> None:
    kinds = [["2851"], ["28521"], ["2851", "28529"], ["4019"]]
    _mimic(tmp_path, {200 + n: kinds[n % 4] for n in range(80)})
    splits = Anemia().read(tmp_path)
    everything = [example for split in SPLITS for example in splits[split]]
    assert {int(example.uid[5:]) % 4 for example in everything} == {0, 1}
    assert all(example.label == (int(example.uid[5:]) % 4 == 0) for example in everything)
    assert [len(splits[split]) for split in SPLITS] == [27, 5, 8]
    assert Counter(example.label for example in splits.test) == {0: 4, 1: 4}
    assert splits.class_names == ("chronic", "acute")


@pytest.mark.parametrize("corpus", [Diabetes(), Anemia(), ADRTweets()], ids=lambda c: c.name)
def test_a_missing_copy_is_named(corpus: Diabetes, tmp_path: Path) -> None:
    with pytest.raises(UserError) as complaint:
        corpus.read(tmp_path)
    assert str(tmp_path) in str(complaint.value)
    assert "\n" not in str(complaint.value)


def test_a_wrong_mimic_table_and_a_wrong_list_are_named(tmp_path: Path) -> None:
    folder = _mimic(tmp_path, {1: ["25000"], 2: ["4019"]})
    for split in SPLITS:
        (folder / f"{split}_50_hadm_ids.csv").write_text("1\nHADM_ID\n")
    with pytest.raises(UserError, match=r"train_50_hadm_ids\.csv, line 2: 'HADM_ID' is not an admission id"):
        Diabetes().read(tmp_path)
    (folder / "NOTEEVENTS.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"NOTEEVENTS\.csv: not the MIMIC-III table with columns HADM_ID"):
        Anemia().read(tmp_path)


def _tweets(data: Path, rows: list[str]) -> None:
    (data / "adr").mkdir()
    (data / "adr" / "tweets.csv").write_text("text,label,split\n" + "\n".join(rows), encoding="utf-8")


def test_tweets_keep_their_test_rows_and_dev_is_held_out_from_train(tmp_path: Path) -> None:
    rows = [f"Zolaxin made me dizzy {n},{n % 2},{'test' if n < 4 else 'train'}" for n in range(24)]
    _tweets(tmp_path, rows)
    splits = ADRTweets().read(tmp_path)
    assert splits.test[1].parts == ("Zolaxin made me dizzy 1",)
    assert splits.test[1].label == 1
    assert [len(splits[split]) for split in SPLITS] == [17, 3, 4]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            ["fine,1,train", "fine,1,valid"],
            r"tweets\.csv, line 3: split 'valid' is not one of train, test",
        ),
        (["fine,yes,train"], r"line 2: label 'yes' is not one of 0, 1"),
        (["fine,1,train", "also,0,train"], r"at least two train and two test rows"),
    ],
)
def test_tweets_with_strange_columns_are_refused(rows: list[str], complaint: str, tmp_path: Path) -> None:
    _tweets(tmp_path, rows)
    with pytest.raises(UserError, match=complaint):
        ADRTweets().read(tmp_path)
