"""Pages for looking up texts, as text: what is stored is what is shown, whatever the words are and the disk lacks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.store.recipe import Json
from heedful.store.workspace import Workspace
from heedful.report.collecting import collect_texts
from heedful.report.gathering import write_report
from heedful.report.lookup import explorer_html, write_explorers
from heedful.report.packing import ALPHABET, encode_weights, texts_json
from heedful.report.shelves import natural_sort_key, group_by_model
from heedful.report.texts import ExplanationRow, ExplorerText, ExplorerTexts, TokenWeights
from tests import stored
from tests.stored import ATTENTION, COMMENT, GRADIENT, HOSTILE, SCORES, TEXTS, attributed, films, shelve

PALE = ExplanationRow("attention")


def texts_in(root: Path) -> ExplorerTexts:
    """The texts of the only subject of a workspace."""
    [shelf] = group_by_model(Workspace(root).entries())
    return collect_texts(shelf)


def decoded(peak: float, codes: str) -> list[float]:
    """A literal twin of the page's decoder."""
    found, rest = [], codes
    while rest:
        if rest[0] in ".~":
            found.append(0.0 if rest[0] == "." else float("nan"))
            rest = rest[1:]
        else:
            step = ALPHABET.index(rest[0]) * 64 + ALPHABET.index(rest[1]) - 2048
            found.append(peak * step / 2047)
            rest = rest[2:]
    return found


def text(units: tuple[str, ...], values: tuple[float, ...] = ()) -> ExplorerText:
    weights = TokenWeights(np.asarray(values or (1.0,) * len(units)))
    return ExplorerText("t", units, 0, 0, 0.5, None, (), (weights,))


def data_of(document: str) -> Any:
    """What the page's script would read."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', document, re.S)
    assert found
    return json.loads(found[1])


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), max_size=40))
def test_a_packed_weight_is_off_by_at_most_a_four_thousandth_of_the_heaviest(values: list[float]) -> None:
    peak = max((abs(value) for value in values), default=0.0)
    found = decoded(*encode_weights(np.asarray(values, float)))
    assert len(found) == len(values)
    assert all(abs(a - b) <= peak * (1 / 4094 + 1e-5) for a, b in zip(found, values, strict=True))


def test_undefined_and_infinite_weights_are_shown_as_undefined() -> None:
    found = decoded(*encode_weights(np.array([0.5, float("nan"), -0.5, float("inf"), 0.0])))
    assert found == pytest.approx([0.5, float("nan"), -0.5, float("nan"), 0.0], nan_ok=True)


def test_every_stored_row_stands_in_the_page_to_a_thousandth(tmp_path: Path) -> None:
    content = data_of(explorer_html(texts_in(films(tmp_path))))
    names = [row["name"] for row in content["rows"]]
    assert names == [
        "attention",
        "other weights, exact, epsilon 0.05",
        "other weights, exact, epsilon 0.01",
        "gradient",
        "leave one out",
        "other weights, search, epsilon 0.05",
    ]
    assert len(content["texts"]) == 3
    for uid, *_, rows in content["texts"]:
        signed = [value * (-1) ** place for place, value in enumerate(SCORES[str(uid)])]
        last = [0.0] * (len(signed) - 1) + [1.0]
        expected = [SCORES[str(uid)], last, last, signed, SCORES[str(uid)], last]
        for row, values in zip(rows, expected, strict=True):
            assert decoded(row[0], row[1]) == pytest.approx(values, abs=1e-3)
        assert rows[1][2:] == pytest.approx([0.1 * len(signed), 0.6, 0.0123, int(uid != "t-2")])


def test_symbols_that_cannot_be_scored_are_not_shown_and_uids_stand_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    found = texts_in(films(tmp_path))
    assert {each.uid: each.units for each in found.texts} == TEXTS
    assert [each.uid for each in found.texts] == ["t-2", f"t-3 {HOSTILE}", "t-10"]
    assert natural_sort_key("t-" + "9" * 5000) > natural_sort_key("t-2")


def test_numbers_stand_beside_the_text_and_are_missing_where_they_were_not_stored(tmp_path: Path) -> None:
    found = texts_in(films(tmp_path))
    assert found.figures == ("largest attention", "median change when shuffled")
    assert {each.uid: each.figures for each in found.texts} == {
        "t-10": (0.5, 0.3),
        "t-2": (0.7, 0.02),
        f"t-3 {HOSTILE}": (0.25, None),
    }


class Elements(HTMLParser):
    """The names of all elements, as a browser without script would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)


def test_markup_in_words_uids_and_classes_stays_text(tmp_path: Path) -> None:
    document = explorer_html(texts_in(films(tmp_path)))
    names = Elements(document).names
    assert (names.count("script"), names.count("img"), names.count("style")) == (2, 0, 1)
    assert document.count("</script") == 2
    assert COMMENT not in document
    content = data_of(document)
    assert content["classes"] == ["bad", f"good {HOSTILE}"]
    assert content["texts"][1][:2] == [f"t-3 {HOSTILE}", f"dull {COMMENT} &amp; café"]


@given(st.lists(st.text(max_size=6), max_size=6))
def test_whatever_the_units_are_the_block_cannot_be_left_and_gives_them_back(units: list[str]) -> None:
    named = ExplorerTexts({}, (), (PALE,), (), (text(tuple(f"x{unit}" for unit in units)),))
    block = texts_json(named)
    assert not set("<>&\u2028\u2029") & set(block)
    found = json.loads(block)["texts"][0][1]
    words = found.split(" ") if isinstance(found, str) else found
    kept = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
    assert words == [kept.sub("\ufffd", f"x{unit}") for unit in units]


def test_pieces_of_words_stand_together() -> None:
    found = json.loads(texts_json(ExplorerTexts({}, (), (PALE,), (), (text(("play", "##ing", "well")),))))["texts"][0]
    assert found[1:3] == ["play ing well", [1]]


def test_a_second_part_starts_where_it_started_before_symbols_were_left_out(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "uid": ["q"],
            "units": [["<sos>", "mary", "left", "<eos>", "<sos>", "where", "?"]],
            "scores": [[0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]],
            "scored": [[False, True, True, False, False, True, True]],
            "segments": [[0, 0, 0, 0, 1, 1, 1]],
        }
    )
    shelve(tmp_path, {"type": "Attributed", "method": ATTENTION}, table)
    [found] = texts_in(tmp_path).texts
    assert found.units[found.second_start] == "where"
    assert (found.predicted, found.probability, found.label) == (None, None, None)


def test_the_same_workspace_gives_the_same_bytes(tmp_path: Path) -> None:
    films(tmp_path / "w")
    films(tmp_path / "w", seed=1)
    files = [
        {path.name: path.read_bytes() for path in write_explorers(group_by_model(Workspace(tmp_path / "w").entries()), folder)}
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 2


def test_the_newest_revision_is_shown_and_of_it_the_one_on_most_texts(tmp_path: Path) -> None:
    recipe: dict[str, Json] = {"type": "Attributed", "split": "test", "method": ATTENTION}
    for revision, limit, count in ((1, None, 3), (2, 1, 1), (2, 2, 2)):
        shelve(tmp_path, {**recipe, "revision": revision, "limit": limit}, attributed().head(count))
    assert len(texts_in(tmp_path).texts) == 2


def test_methods_that_differ_in_an_option_are_told_apart_by_it(tmp_path: Path) -> None:
    for method in (ATTENTION, GRADIENT, {**GRADIENT, "cut": False}):
        shelve(tmp_path, {"type": "Attributed", "split": "test", "method": method}, attributed())
    assert [row.name for row in texts_in(tmp_path).rows] == ["attention", "gradient, cut no", "gradient, cut yes"]


def test_attention_comes_from_the_adversary_where_no_attribution_has_it(tmp_path: Path) -> None:
    shelve(tmp_path, {"type": "Attributed", "split": "test", "method": GRADIENT}, attributed(-1.0))
    shelve(tmp_path, {"type": "Adversary", "solver": "search", "epsilon": 0.05}, stored.adversary())
    found = texts_in(tmp_path)
    assert [(row.name, row.is_shown) for row in found.rows] == [
        ("attention", True),
        ("gradient", True),
        ("other weights, search, epsilon 0.05", True),
    ]
    weights = {each.uid: each.weights[0] for each in found.texts}
    assert all(w is not None and w.values.tolist() == list(SCORES[uid]) for uid, w in weights.items())


def test_a_row_of_other_units_is_left_out_and_a_text_without_a_row_keeps_the_others(tmp_path: Path) -> None:
    shelve(tmp_path, {"type": "Attributed", "split": "test", "method": ATTENTION}, attributed())
    wrong = attributed().head(2)
    wrong["scores"] = [[0.5, 0.5], wrong["scores"][1]]
    shelve(tmp_path, {"type": "Attributed", "split": "test", "method": GRADIENT}, wrong)
    found = {each.uid: [weights is not None for weights in each.weights] for each in texts_in(tmp_path).texts}
    assert found == {"t-10": [True, False], "t-2": [True, True], f"t-3 {HOSTILE}": [True, False]}


def test_attributions_without_words_give_no_page_but_those_with_words_do(tmp_path: Path) -> None:
    bare = attributed().drop(columns="units")
    shelve(tmp_path / "w", {"type": "Attributed", "split": "test", "method": ATTENTION}, bare)
    [shelf] = group_by_model(Workspace(tmp_path / "w").entries())
    assert shelf.attributions == ()
    assert write_explorers([shelf], tmp_path / "report") == ()
    shelve(tmp_path / "w", {"type": "Attributed", "split": "test", "method": GRADIENT}, attributed())
    [path] = write_explorers(group_by_model(Workspace(tmp_path / "w").entries()), tmp_path / "report")
    assert [row["name"] for row in data_of(path.read_text())["rows"]] == ["gradient"]


def test_texts_of_two_splits_get_two_pages(tmp_path: Path) -> None:
    for split in ("test", "dev"):
        shelve(tmp_path, {"type": "Attributed", "split": split, "method": ATTENTION}, attributed())
    addresses = [shelf.address for shelf in group_by_model(Workspace(tmp_path).entries())]
    hexadecimal = addresses[0][-17:-5]
    assert addresses == [
        f"texts/films-bilstm-additive-seed-0-{hexadecimal}.html",
        f"texts/films-bilstm-additive-seed-0-dev-{hexadecimal}.html",
    ]


def test_pages_lead_to_the_same_texts_under_other_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        films(tmp_path / "w", seed=seed)
    paths = write_explorers(group_by_model(Workspace(tmp_path / "w").entries()), tmp_path / "report")
    for path, other in (paths, paths[::-1]):
        links = re.findall(r'<a class="other" href="([^"]*)"', path.read_text(encoding="utf-8"))
        assert links == [other.name]


def test_pages_of_subjects_that_are_gone_are_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    [old] = write_explorers(group_by_model(Workspace(films(tmp_path / "one")).entries()), tmp_path / "report")
    foreign = [old.with_name("notes.html"), old.with_name("mine-0123456789ab.html")]
    for path in foreign:
        path.write_text("<p>mine</p>")
    [new] = write_explorers(group_by_model(Workspace(films(tmp_path / "two", seed=1)).entries()), tmp_path / "report")
    assert sorted(old.parent.iterdir()) == sorted([new, *foreign])


def test_a_limit_and_a_missing_adversary_are_said(tmp_path: Path) -> None:
    notes: dict[str, Json] = {"about": stored.ABOUT, "n": 3, "of": 700}
    recipe: dict[str, Json] = {"type": "Attributed", "method": ATTENTION, "subject": stored.SUBJECT}
    stored.seal(tmp_path, recipe, attributed(), notes)
    remarks = " ".join(texts_in(tmp_path).remarks)
    assert "3 of 700 texts" in remarks
    assert "its trial has not run" in remarks


def test_without_a_script_the_first_twenty_texts_are_there_with_their_weights(tmp_path: Path) -> None:
    found = texts_in(films(tmp_path))
    many = replace(found, texts=tuple(replace(found.texts[2], uid=f"t-{n}") for n in range(25)))
    [without] = re.findall(r"<noscript>(.*?)</noscript>", explorer_html(many), re.S)
    assert "first 20 of 25 texts" in without
    assert re.findall(r'<strong dir="auto">(t-\d+)</strong>', without) == [f"t-{n}" for n in range(20)]
    assert '<span class="p20" title="0.500">fine</span>' in without


def test_a_weight_costs_two_letters_and_a_zero_one() -> None:
    units = tuple(f"w{n}" for n in range(400))
    attention, other = (1 / 400,) * 400, (1.0,) + (0.0,) * 399
    sizes = [len(texts_json(ExplorerTexts({}, (), (PALE,), (), (text(units, values),)))) for values in (attention, other)]
    assert sizes[0] - sizes[1] == pytest.approx(399, abs=10)
    assert sizes[0] < len(" ".join(units)) + 2 * 400 + 200


def test_a_workspace_without_texts_gets_no_folder_for_them(tmp_path: Path) -> None:
    assert not (write_report(Workspace(tmp_path), tmp_path / "report").parent / "texts").exists()
