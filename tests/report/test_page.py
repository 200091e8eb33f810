"""The page as text: what it says, that it is well formed, closed to the network and to whatever data may contain."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heedful.figures import Axis, Bars, Heatmap, Lines, Series, Violin
from heedful.types import UserError
from heedful.papers._chapter import Comparison, TableView
from heedful.report.content import Chapter, Link, Page, Section
from heedful.report.heat import heatmap_view, shade_class, token_spacing
from heedful.report.numbers import format_difference, format_number
from heedful.report.page import page_html, write_page
from heedful.report.tables import display_table

TABLE = TableView(
    "Scores", ("corpus", "n", "F1"), (("SST", 863, Comparison(0.81, 0.8)), ("IMDB", 0, Comparison(None, 0.9))), "Note."
)
HEATMAP = Heatmap("Text 7", ("a", "fine", "film"), (Series("attention", (0.1, 0.8, 0.1)),), "predicted positive")
CHART = Bars("Bars", Axis("tau"), ("SST",), (Series("mean", (0.4,)),))
SECTION = Section(
    "permutation",
    "Permutation",
    "Shuffling must matter.",
    source="A paper, section 4",
    about={"corpus": "SST", "seed": 3, "n": 863},
    interpretation="It hardly matters.",
    limits="Words still matter.",
    tables=(TABLE,),
    figures=(CHART, CHART, HEATMAP),
    heatmaps=(HEATMAP,),
    warnings=("Chosen on the test split.",),
)
PAGE = Page(
    "Report", "A lead.", {"workspace": "runs"}, (Chapter("jw", "A paper", "Is it so?", (SECTION, SECTION), (TABLE,)),)
)
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Elements in order with their attributes, and the texts; stops at elements closed out of order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"} and data.strip():
            self.texts.append(data.strip())

    def named(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(page_html(PAGE))


def style() -> str:
    return resources.files("heedful.report").joinpath("style.css").read_text(encoding="utf-8")


def test_numbers_have_three_significant_digits_and_a_real_minus() -> None:
    shown = {
        0.12345: "0.123",
        0.9996: "1.00",
        -0.05: "−0.0500",
        999.4: "999",
        999.6: "1000",
        12345.6: "12\u202f346",
        -2e-7: "−2.00 × 10⁻⁷",
        math.inf: "∞",
        -math.inf: "−∞",
        0.0: "0",
    }
    assert {value: format_number(value) for value in shown} == shown
    assert format_number(np.int64(5)) == format_number(5) == "5"  # type: ignore[arg-type]
    assert (format_number(True), format_number(False)) == ("yes", "no")


def test_a_difference_is_as_precise_as_the_larger_number() -> None:
    assert format_difference(0.0345, 0.34) == "−0.305"
    assert format_difference(12.34, 12.0) == "+0.3"
    assert format_difference(0.34000001, 0.34) == "0"
    assert format_difference(3034, 3030) == "+4"
    assert format_difference(math.nan, 0.3) == format_difference(0.3, None) == ""


def test_published_numbers_stand_beside_ours_with_the_difference() -> None:
    shown = display_table(TABLE)
    assert [(h.name, h.span) for h in shown.headings] == [("corpus", 1), ("n", 1), ("F1", 3)]
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["SST", "863", "0.810", "0.800", "+0.010"],
        ["IMDB", "0", "undefined (n=0)", "0.900", "–"],
    ]
    assert [cell.kind for cell in shown.rows[1][2:]] == ["missing", "published", "difference"]


def test_a_column_without_any_published_number_stays_one_column() -> None:
    shown = display_table(TableView("t", ("name", "value", "spread"), (("a", Comparison(0.5, None), ""), ("b", Comparison(1.0, None), 0.1))))
    assert [(h.span, h.kind) for h in shown.headings] == [(1, "text"), (1, "number"), (1, "number")]
    assert [[cell.text for cell in row] for row in shown.rows] == [["a", "0.500", ""], ["b", "1.00", "0.100"]]


def test_cells_that_are_no_pairs_fill_the_three_columns_of_a_pair() -> None:
    shown = display_table(TableView("t", ("name", "value"), (("a", Comparison(0.5, 0.5)), ("b", "none"), ("c", None))))
    assert [[cell.text for cell in row[1:]] for row in shown.rows] == [
        ["0.500", "0.500", "0"],
        ["none", "–", "–"],
        ["undefined", "–", "–"],
    ]


def test_a_tolerance_is_judged_in_words() -> None:
    pairs = (Comparison(0.34, 0.32, 0.02), Comparison(0.3, 0.34, 0.02), Comparison(None, 0.34, 0.02), Comparison(0.4, None, 0.02))
    shown = display_table(TableView("t", ("name", "tau"), tuple((str(place), pair) for place, pair in enumerate(pairs))))
    assert [part.text for part in shown.headings[1].parts] == ["ours", "published", "difference", "within ±0.02"]
    assert [row[4].text for row in shown.rows] == ["inside", "outside", "–", "–"]
    assert [row[4].kind for row in shown.rows] == ["inside", "outside", "judged", "judged"]
    assert shown.tally == "Inside the tolerance: 1 of 2."


def test_tolerances_that_differ_stand_with_their_verdicts() -> None:
    pairs = (Comparison(0.5, 0.25, 0.25), Comparison(0.5, 0.25, 0.125), Comparison(0.5, 0.5), "none", 2.0)
    shown = display_table(TableView("t", ("name", "tau"), tuple(("a", cell) for cell in pairs)))
    assert shown.headings[1].parts[-1].text == "within tolerance"
    assert [row[4].text for row in shown.rows] == ["inside ±0.25", "outside ±0.125", "–", "–", "–"]
    assert {len(row) for row in shown.rows} == {5}


def test_without_a_tolerance_or_without_print_nothing_is_judged() -> None:
    assert display_table(TABLE).tally == ""
    alone = display_table(TableView("t", ("name", "tau"), (("a", Comparison(0.5, None, 0.1)),)))
    assert ([h.span for h in alone.headings], alone.tally) == ([1, 1], "")


def test_a_row_of_the_wrong_length_is_refused_with_the_tables_name() -> None:
    with pytest.raises(ValueError, match="'Scores': 1 cells under 2 columns"):
        TableView("Scores", ("a", "b"), (("x",),))


def test_shades_are_twentieths_of_the_heaviest_weight_of_the_row() -> None:
    view = heatmap_view(Heatmap("t", ("a", "b", "c", "d"), (Series("r", (0.4, -0.2, 0.0, math.nan)),)))
    strip = view.strips[0]
    assert [token.shade for token in strip.head] == ["p20", "n10", "", "u"]
    assert [token.weight for token in strip.head] == ["0.400", "−0.200", "0", "undefined"]
    assert (strip.peak, strip.is_signed) == ("0.400", True)
    assert shade_class(0.0, 0.0) == ""


def test_every_shade_that_can_occur_has_a_rule_in_the_style_sheet() -> None:
    rules = style()
    names = {shade_class(sign * step / 20, 1.0) for sign in (1, -1) for step in range(1, 21)}
    assert len(names) == 40
    for name in names:
        ground, level = re.findall(rf":is\([^)]*\.{name}\b[^)]*\) {{ (background: [^;]+|--level: [\d.]+);", rules)
        assert ground.startswith(f"background: rgb(var(--{'positive' if name[0] == 'p' else 'negative'})")
        assert level == f"--level: {int(name[1:]) / 20:g}"


def test_words_stand_apart_and_pieces_of_words_together() -> None:
    assert "".join(gap + text for gap, text in token_spacing(("it", "##s", "##", "##a", "end"))) == "its ##a end"
    assert "".join(gap + text for gap, text in token_spacing(("▁so", "me", "▁text", "."))) == "some text."
    assert "".join(gap + text for gap, text in token_spacing(("plain", "words", "."))) == "plain words ."


def test_a_long_text_is_folded_and_nothing_of_it_is_lost() -> None:
    units = tuple(f"w{n}" for n in range(200))
    view = heatmap_view(Heatmap("t", units, (Series("r", (0.1,) * 200),)))
    strip = view.strips[0]
    assert (len(strip.head), len(strip.rest)) == (90, 110)
    assert tuple(token.text for token in strip.head + strip.rest) == units
    assert len(view.numbers.rows) == 200


def test_rows_over_one_text_are_folded_at_the_same_word() -> None:
    rows = tuple(Series(name, (0.1,) * 200) for name in ("attention", "adversarial attention", "gradient"))
    view = heatmap_view(Heatmap("t", ("word",) * 200, rows))
    assert (view.more, view.is_short) == (110, False)
    reader = Reader(
        page_html(
            Page(
                "r",
                papers=(
                    Chapter(
                        "c", "c", "q", (replace(SECTION, heatmaps=(), figures=(Heatmap("t", ("word",) * 200, rows),)),)
                    ),
                ),
            )
        )
    )
    assert [a["class"] for a in reader.named("div") if a.get("class", "").startswith("strips")] == ["strips beside"] * 2
    assert [reader.texts.count(row.name) for row in rows] == [3, 3, 3]
    assert reader.texts.count("110 more units") == 1


def test_a_short_text_has_its_rows_below_each_other_and_a_lone_row_stands_alone() -> None:
    assert heatmap_view(Heatmap("t", ("a", "b"), (Series("r", (0.1, 0.2)),))).is_short
    pair = replace(HEATMAP, rows=HEATMAP.rows * 2)
    reader = Reader(page_html(Page("r", papers=(Chapter("c", "c", "q", (replace(SECTION, figures=(pair,)),)),))))
    kinds = [a["class"] for a in reader.named("div") if a.get("class", "").startswith("strips")]
    assert kinds == ["strips aligned", "strips"]


def test_weights_that_do_not_fit_their_units_are_refused() -> None:
    with pytest.raises(ValueError, match="1 weights for 2 units"):
        heatmap_view(Heatmap("t", ("a", "b"), (Series("r", (0.1,)),)))


def test_the_page_has_one_h1_and_no_heading_skips_a_level(reader: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_table_has_a_caption_and_every_heading_cell_a_scope(reader: Reader) -> None:
    assert len(reader.named("table")) == len(reader.named("caption")) == 7
    assert {cell.get("scope") for cell in reader.named("th")} == {"col", "colgroup", "row"}


def test_ids_are_unique_and_every_link_and_label_finds_its_target(reader: Reader) -> None:
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in reader.named("a")]
    assert len(links) == 5
    labels = [name for _, a in reader.elements for name in a.get("aria-labelledby", "").split()]
    references = [a["href"] for a in reader.named("use")] + re.findall(r"url\((#[^)]+)\)", str(reader.elements))
    assert {name.removeprefix("#") for name in [*links, *labels, *references]} <= set(ids)


def test_the_page_says_everything_it_was_given(reader: Reader) -> None:
    said = " ".join(reader.texts)
    given = "A lead.|runs|A paper|Is it so?|Permutation|Shuffling must matter.|A paper, section 4|It hardly matters."
    given += "|Words still matter.|Scores|Note.|Text 7|predicted positive|Bars|Chosen on the test split.|SST|863"
    assert [text for text in given.split("|") if text not in said] == []


def test_a_section_leads_to_its_texts_or_says_why_it_cannot() -> None:
    linked = replace(SECTION, texts=(Link("seed <0>", "texts/a.html"),), texts_note="Not stored.")
    without = replace(SECTION, texts_note="Not stored.")
    documents = [page_html(Page("r", papers=(Chapter("c", "c", "q", (each,)),))) for each in (linked, without)]
    assert [("Not stored." in text, "in the folder <code>texts</code>" in text) for text in documents] == [
        (False, True),
        (True, False),
    ]
    assert '<a href="texts/a.html" dir="auto">seed &lt;0&gt;</a>' in documents[0]


def test_a_sections_long_table_is_folded_and_a_short_one_is_not() -> None:
    def written(count: int) -> str:
        table = TableView("Pairs", ("pair", "tau"), tuple((f"pair {place}", 0.5) for place in range(count)))
        return page_html(replace(PAGE, papers=(Chapter("jw", "A paper", "Why?", (replace(SECTION, tables=(table,)),), ()),)))

    assert '<details class="long"><summary>Pairs: 41 rows</summary>' in written(41)
    assert "pair 40" in written(41)
    assert "Pairs: 40 rows" not in written(40)


def test_a_heat_map_among_the_figures_is_set_as_text(reader: Reader) -> None:
    assert len(reader.named("svg")) == 4
    assert [a["title"] for a in reader.named("span") if a.get("class") == "p20"] == ["0.800"] * 4


def test_the_policy_admits_the_pages_own_style_and_script_and_nothing_else(reader: Reader) -> None:
    policy = next(a["content"] for a in reader.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    text = page_html(PAGE)
    hashes = {
        tag: base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        for tag, content in re.findall(r"<(style|script)>(.*?)</\1>", text, re.S)
    }
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_the_page_has_no_style_attribute_no_handler_and_no_address(reader: Reader) -> None:
    names = {name for _, attributes in reader.elements for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    assert "src" not in names
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page_html(PAGE)))
    assert addresses == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style>", "{{ 7*7 }}"]
)
def test_markup_in_data_is_text_wherever_it_stands(text: str) -> None:
    def elements(word: str) -> list[str]:
        table = TableView(word, (word, "n", "x"), ((word, 1, word), (word, 2, Comparison(1.5, 2.0))), word)
        heatmap = Heatmap(word, (word, "b"), (Series(word, (0.5, 0.1)),), word)
        lines = Lines(word, Axis(word), Axis(word), ((Series(word, (1.0,)), Series(word, (1.0,))),) * 2)
        section = Section(word, word, word, word, {word: word}, word, word, (table,), (lines,), (heatmap,), (word,))
        page = Page(word, word, {word: word}, (Chapter(word, word, word, (section,)),))
        reader = Reader(page_html(page))
        assert sum(word in text for text in reader.texts) > 20
        return [tag for tag, _ in reader.elements]

    assert elements(text) == elements(re.sub(r"\S", "p", text))


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_page(PAGE, tmp_path / "a" / "deep")
    assert first == tmp_path / "a" / "deep" / "index.html"
    assert first.read_bytes() == write_page(PAGE, tmp_path / "b").read_bytes()
    assert [path.name for path in first.parent.iterdir()] == ["index.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match=r"cannot write the report to .*index\.html: .*; choose another folder"):
        write_page(PAGE, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    (tmp_path / "index.html").mkdir()
    with pytest.raises(UserError, match="choose another folder"):
        write_page(PAGE, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "index.html"]


def test_an_empty_workspace_gets_the_next_command_to_type() -> None:
    reader = Reader(page_html(Page("Report", next_command="heedful demo --planted")))
    assert "heedful demo --planted" in reader.texts
    assert reader.named("nav") == []


def test_characters_that_no_file_can_carry_are_replaced(tmp_path: Path) -> None:
    path = write_page(Page("a\x00b\ud800c"), tmp_path)
    assert "<title>a\ufffdb\ufffdc</title>" in path.read_text(encoding="utf-8")


def test_a_page_with_twenty_long_texts_stays_below_a_megabyte() -> None:
    weights = tuple(np.random.default_rng(0).dirichlet(np.ones(150)).tolist())
    texts = tuple(Heatmap(f"t{n}", ("word",) * 150, (Series("attention", weights),) * 2) for n in range(20))
    assert len(page_html(Page("r", papers=(Chapter("c", "c", "q", (replace(SECTION, heatmaps=texts),)),))).encode()) < 1e6


def test_two_hundred_sections_with_a_violin_and_a_text_fit_into_eight_megabytes() -> None:
    rng = np.random.default_rng(0)
    groups = tuple(tuple(Series(n, tuple(rng.beta(2, 6, 60).tolist())) for n in ("no", "yes")) for _ in range(4))
    violin = Violin("Median change", Axis("change", (0.0, 1.0)), Axis("largest weight"), ("a", "b", "c", "d"), groups)
    rows = tuple(
        Series(name, tuple(rng.dirichlet(np.ones(37)).tolist())) for name in ("attention", "adversary", "other")
    )
    section = replace(SECTION, figures=(violin,), heatmaps=(Heatmap("t", ("word",) * 37, rows),))
    empty, one = (page_html(Page("r", papers=(Chapter("c", "c", "q", some),))) for some in ((), (section,)))
    assert 216 * (len(one.encode()) - len(empty.encode())) < 8e6


def variables(selector: str) -> dict[str, str]:
    block = style().split(f"{selector} {{", 1)[1].split("}", 1)[0]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", block))


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) for n in (1, 3, 5)] if colour[0] == "#" else [int(v) for v in colour.split()]
    linear = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_dark_theme_is_the_same_by_preference_and_by_button() -> None:
    chosen = variables(':root[data-theme="dark"]')
    assert chosen == variables(':root:not([data-theme="light"])')
    assert set(chosen) == set(variables(":root"))


@pytest.mark.parametrize("theme", [":root", ':root[data-theme="dark"]'])
def test_inks_and_series_can_be_told_from_their_grounds(theme: str) -> None:
    known = variables(theme)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for ground in ("paper", "raised", "quiet"):
        assert min(contrast(known[ink], known[ground]) for ink in ("ink", "muted", "link", "accent")) >= 4.5
    assert min(contrast(known["ink"], known[shade]) for shade in ("positive", "negative")) >= 4.5
    assert contrast(known["warn"], known["warn-ground"]) >= 4.5
    assert min(contrast(known[f"series-{n}"], known["paper"]) for n in range(8)) >= 3.0
