"""The page as text: complete, well formed, closed to the network and safe against markup in data."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heedful.figures import SERIES_COLORS, Axis, Bars, Figure, Heatmap, Lines, Series, Violin
from heedful.report.explorer import explorer_parts
from heedful.report.html import display_table, write_atomically
from heedful.report.page import (
    Chapter,
    Facet,
    Link,
    Page,
    Section,
    page_parts,
    section_facets,
    verdict_badges,
)
from heedful.report.text_table import ScoreCell, ScoreColumn, TextMetric, TextRow, TextTable
from heedful.results import Finding, Verdict
from heedful.table_view import Band, Comparison, TableView
from heedful.types import UserError
from tests.tabs import UNBROKEN, launched, opened

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
    findings=(
        Finding(Verdict.NOT_SUPPORTED, "gradient"),
        Finding(Verdict.SUPPORTED),
        Finding(Verdict.NOT_SUPPORTED, "lime"),
    ),
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


def page_html(page: Page) -> str:
    return "".join(page_parts(page))


def chapter_html(
    sections: tuple[Section, ...], tables: tuple[TableView, ...] = (), figures: tuple[Figure, ...] = ()
) -> str:
    """A report with one chapter."""
    return page_html(Page("r", papers=(Chapter("c", "c", "q", sections, tables, figures),)))


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(page_html(PAGE))


def write_page(folder: Path, page: Page = PAGE) -> Path:
    return write_atomically(page_parts(page), folder / "index.html")


def style() -> str:
    return resources.files("heedful.report").joinpath("templates", "style.css").read_text(encoding="utf-8")


def test_the_page_has_one_h1_and_no_heading_skips_a_level(reader: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_table_has_a_caption_and_every_heading_cell_a_scope(reader: Reader) -> None:
    assert len(reader.named("table")) == len(reader.named("caption")) == 11
    assert {cell.get("scope") for cell in reader.named("th")} == {"col", "colgroup", "row"}


def test_ids_are_unique_and_every_link_and_label_finds_its_target(reader: Reader) -> None:
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in reader.named("a")]
    assert len(links) == 9
    labels = [name for _, a in reader.elements for name in a.get("aria-labelledby", "").split()]
    references = [a["href"] for a in reader.named("use")] + re.findall(r"url\((#[^)]+)\)", str(reader.elements))
    assert {name.removeprefix("#") for name in [*links, *labels, *references]} <= set(ids)


def test_the_page_says_everything_it_was_given(reader: Reader) -> None:
    said = " ".join(reader.texts)
    parts = "A lead.|runs|A paper|Is it so?|Permutation|Shuffling must matter.|A paper, section 4|It hardly matters."
    parts += "|supported|not supported|gradient|lime|Words still matter."
    parts += "|Scores|Note.|Text 7|predicted positive|Bars|Chosen on the test split.|SST|863"
    assert [text for text in parts.split("|") if text not in said] == []


def test_a_section_leads_to_its_texts_or_says_why_it_cannot() -> None:
    linked = replace(SECTION, texts=(Link("seed <0>", "texts/a.html"),), texts_note="Not stored.")
    without = replace(SECTION, texts_note="Not stored.")
    documents = [chapter_html((section,)) for section in (linked, without)]
    assert [("Not stored." in text, "in the folder <code>texts</code>" in text) for text in documents] == [
        (False, True),
        (True, False),
    ]
    assert '<a href="texts/a.html" dir="auto">seed &lt;0&gt;</a>' in documents[0]


def test_a_sections_long_table_is_folded_and_a_short_one_is_not() -> None:
    def written(count: int) -> str:
        table = TableView("Pairs", ("pair", "tau"), tuple((f"pair {place}", 0.5) for place in range(count)))
        return chapter_html((replace(SECTION, tables=(table,)),))

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
def test_markup_in_data_is_escaped_everywhere(text: str) -> None:
    def elements(word: str) -> list[str]:
        table = TableView(word, (word, "n", "x"), ((word, 1, word), (word, 2, Comparison(1.5, 2.0))), word)
        heatmap = Heatmap(word, (word, "b"), (Series(word, (0.5, 0.1)),), word)
        lines = Lines(word, Axis(word), Axis(word), ((Series(word, (1.0,)), Series(word, (1.0,))),) * 2)
        findings = (Finding(Verdict.UNDECIDED, word, reason=word),)
        section = Section(
            word, word, word, word, {word: word}, findings, word, word, (table,), (lines,), (heatmap,), (word,)
        )
        page = Page(word, word, {word: word}, (Chapter(word, word, word, (section,)),))
        reader = Reader(page_html(page))
        assert sum(word in text for text in reader.texts) > 20
        return [tag for tag, _ in reader.elements]

    assert elements(text) == elements(re.sub(r"\S", "p", text))


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_page(tmp_path / "a" / "deep")
    assert first == tmp_path / "a" / "deep" / "index.html"
    assert first.read_bytes() == write_page(tmp_path / "b").read_bytes()
    assert [path.name for path in first.parent.iterdir()] == ["index.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match="choose another folder"):
        write_page(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    (tmp_path / "index.html").mkdir()
    with pytest.raises(UserError, match="choose another folder"):
        write_page(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "index.html"]


def test_characters_that_no_file_can_carry_are_replaced(tmp_path: Path) -> None:
    path = write_page(tmp_path, Page("a\x00b\ud800c"))
    assert "<title>a\ufffdb\ufffdc</title>" in path.read_text(encoding="utf-8")


def test_a_page_with_twenty_long_texts_stays_below_a_megabyte() -> None:
    weights = tuple(np.random.default_rng(0).dirichlet(np.ones(150)).tolist())
    texts = tuple(Heatmap(f"t{n}", ("word",) * 150, (Series("attention", weights),) * 2) for n in range(20))
    assert len(chapter_html((replace(SECTION, heatmaps=texts),)).encode()) < 1e6


def test_two_hundred_sections_with_a_violin_and_a_text_fit_into_nine_megabytes() -> None:
    rng = np.random.default_rng(0)
    groups = tuple(tuple(Series(n, tuple(rng.beta(2, 6, 60).tolist())) for n in ("no", "yes")) for _ in range(4))
    violin = Violin("Median change", Axis("change", (0.0, 1.0)), Axis("largest weight"), ("a", "b", "c", "d"), groups)
    rows = tuple(
        Series(name, tuple(rng.dirichlet(np.ones(37)).tolist())) for name in ("attention", "adversary", "other")
    )
    section = replace(SECTION, figures=(violin,), heatmaps=(Heatmap("t", ("word",) * 37, rows),))
    empty, one = map(chapter_html, ((), (section,)))
    assert 216 * (len(one.encode()) - len(empty.encode())) < 9e6


def theme(dark: bool) -> dict[str, str]:  # noqa: FBT001
    """The colours of one theme, from the `light-dark()` values of the style sheet."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", style())
    return {name: colors[dark] for name, *colors in pairs}


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_series_contrast_with_their_backgrounds(dark: bool) -> None:  # noqa: FBT001
    colors = theme(dark)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for ground in ("paper", "raised", "quiet"):
        assert min(contrast(colors[name], colors[ground]) for name in ("ink", "muted", "link", "accent")) >= 4.5
    assert min(contrast(colors["ink"], colors[shade]) for shade in ("positive", "negative")) >= 4.5
    assert min(contrast(colors[name], colors[f"{name}-ground"]) for name in ("warn", "good", "bad")) >= 4.5
    assert min(contrast(color, colors["paper"]) for color in SERIES_COLORS) >= 3.0


def test_verdicts_are_grouped_with_their_methods() -> None:
    badges = verdict_badges(SECTION.findings)
    assert [(badge.symbol, badge.verdict.value, badge.details) for badge in badges] == [
        ("✓", "supported", ()),
        ("✗", "not supported", ("gradient", "lime")),
    ]
    [undecided] = verdict_badges([Finding(Verdict.UNDECIDED, "lime", reason="too few texts")])
    assert undecided.details == ("lime: too few texts",)


def test_the_verdict_comes_before_the_claim_and_its_symbol_is_in_the_contents(reader: Reader) -> None:
    text = page_html(PAGE)
    assert text.index('class="badges"') < text.index('class="claim"')
    contents = text[text.index("<nav") : text.index("</nav>")]
    assert contents.count('class="mark ') == 4


def test_the_verdicts_of_every_trial_come_before_all_tables() -> None:
    text = page_html(PAGE)
    front = text[text.index('id="verdicts"') : text.index('class="paper')]
    assert "<table" not in text[: text.index('class="paper')]
    counted = re.findall(r'class="mark (\w+)"><span aria-hidden="true">(.)</span> ([a-z ]+[a-z])( × \d)?', front)
    assert counted == [("supported", "✓", "supported", " × 2"), ("not_supported", "✗", "not supported", " × 4")]
    assert re.findall(r'href="(#[^"]+)"', front) == ["#at-jw", "#at-permutation", "#at-permutation-2"]
    assert 'id="verdicts"' not in chapter_html(MANY)


MANY = tuple(
    Section(
        f"{trial}-{corpus}", f"{trial} {corpus}", "c", about={"corpus": corpus, "encoder": "BiLSTM"}, experiment=trial
    )
    for corpus in ("sst", "imdb", "agnews")
    for trial in ("permutation", "adversarial")
)


def test_many_sections_are_selected_by_what_distinguishes_them() -> None:
    facets, picks = section_facets(MANY)
    assert facets == (Facet("corpus", ("sst", "imdb", "agnews")), Facet("experiment", ("permutation", "adversarial")))
    named = [tuple(facet.options[n] for facet, n in zip(facets, some, strict=True)) for some in picks]
    assert named == [(section.about["corpus"], section.experiment) for section in MANY]
    bare = replace(MANY[0], about={"corpus": 7}, experiment="")
    assert [facet.options[-1] for facet in section_facets((*MANY[1:], bare))[0]] == ["7", "not stated", "not stated"]


def test_few_sections_and_equal_sections_have_no_facets() -> None:
    assert section_facets(MANY[:4])[0] == section_facets((MANY[0],) * 9)[0] == ()
    assert Reader(chapter_html(MANY[:4])).named("select") == []


def test_a_long_chapter_has_short_names_in_its_contents() -> None:
    twice = (*MANY, replace(MANY[0], anchor="again", about={**MANY[0].about, "limit": 500}))
    page = chapter_html(twice)
    names = re.findall(r'<li><a href="#at-(?:permu|adver|again)[^>]*>(.*?)</a>', page)
    assert names[1] == "sst · BiLSTM <small>adversarial</small>"
    assert names[6] == "sst · BiLSTM <small>permutation · BiLSTM · limit\u00a0500</small>"
    reader = Reader(page)
    picks = [a["data-picks"] for a in reader.named("section") if "data-picks" in a]
    assert picks == ["0 0", "0 1", "1 0", "1 1", "2 0", "2 1", "0 0"]
    assert [("hidden" in a) for a in reader.named("div") if a.get("class") == "browse"] == [True]


def test_tables_and_figures_of_a_chapter_are_linked_from_the_contents() -> None:
    page = chapter_html(MANY, (TABLE, TABLE), (HEATMAP, CHART))
    reader = Reader(page)
    anchors = ["at-c-scores", "at-c-scores-2", "at-c-text-7", "at-c-bars"]
    assert [a["href"][1:] for a in reader.named("a") if a["href"].startswith("#at-c-")] == anchors
    found = {a["id"]: a["class"] for a in reader.named("figure") if "id" in a}
    assert found == dict(zip(anchors, ("table", "table", "heat", "chart"), strict=True))


@pytest.mark.browser
@pytest.mark.slow
def test_long_names_neither_widen_the_page_nor_a_column(tmp_path: Path) -> None:
    word = UNBROKEN
    table = TableView(word, (word, "n", word), ((word, 1, 0.5), (word, 2, Comparison(1.5, 2.0))), word)
    heatmap = Heatmap(word, (word, "b"), (Series(word, (0.5, 0.1)), Series(word, (0.5, -0.1))), word)
    lines = Lines(word, Axis(word), Axis(word), ((Series(word, (1.0, 2.0)), Series(word, (1.0, 2.0))),) * 2)
    bars = Bars(word, Axis(word), (word, word), (Series(word, (0.4, 0.2)), Series(word, (0.1, 0.2))))
    section = Section(
        word,
        word,
        word,
        word,
        dict.fromkeys(("corpus", "encoder", "attention", word), word),
        (Finding(Verdict.UNDECIDED, word, reason=word), Finding(Verdict.SUPPORTED, word)),
        word,
        word,
        (table,),
        (lines, bars),
        (heatmap,),
        (word,),
        word,
        (Link(word, "texts/a.html"),),
    )
    sections = (section, *(replace(section, about={"corpus": f"{word}{place}"}) for place in range(5)))
    page = write_page(
        tmp_path, Page(word, word, {word: word}, (Chapter(word, word, word, sections, (table,)),), (word,))
    )
    row = ScoreColumn(word, word)
    weights = ScoreCell(np.array([0.5, -0.1]))
    text = TextRow(word, (word, "b"), (), 0, 0, 0.5, 1, (0.1,), (weights, weights))
    data = TextTable(
        {"corpus": word, "encoder": word},
        (word, word),
        (row, replace(row, name=f"{word}!")),
        (TextMetric(word, word),),
        texts=(text,),
    )
    write_atomically(explorer_parts(data, (Link(word, "b.html"),)), tmp_path / "texts" / "a.html")
    with launched() as browser:
        for width in (380, 1200):
            for path in (page, tmp_path / "texts" / "a.html"):
                tab, faults = opened(browser.new_context(viewport={"width": width, "height": 800}), path.as_uri())
                for fold in tab.locator("details:not([open]) > summary").all():
                    if fold.is_visible():
                        fold.click()
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, (path.name, width)
                widest = tab.evaluate(
                    "Math.max(...[...document.querySelectorAll('th, td')].map((e) => e.offsetWidth / e.colSpan))"
                )
                assert widest <= max(450, width / 2), (path.name, width)
                assert faults == []


def test_only_numbers_that_could_miss_are_counted_as_inside_and_every_miss_is_marked() -> None:
    cells = (
        Comparison(0.34, 0.32, 0.1),  # inside
        Comparison(0.02, 0.05, 0.1),  # inside, but so would be 0
        Comparison(0.20, 0.05, 0.1),  # a miss all the same
        Comparison(0.34, 0.32),  # no tolerance
        Comparison(0.60, 0.59, band=Band(high=0.7)),
        Comparison(0.82, 0.59, band=Band(high=0.7)),
        Comparison(None, 0.59, 0.1),
        Comparison(0.34, None, 0.1),
    )
    shown = display_table(TableView("", ("row", "number"), tuple((str(row), cell) for row, cell in enumerate(cells))))
    kinds = [row[-1].kind for row in shown.rows]
    assert kinds == ["inside", "judged", "outside", "judged", "inside", "outside", "published", "published"]
    assert re.findall(r"\d+", shown.tally) == ["2", "4", "2"]


def test_a_wide_table_has_the_published_number_and_the_judgement_in_the_cell_of_ours() -> None:
    cells = (Comparison(0.34, 0.32, 0.1), Comparison(0.5, 0.3, 0.1), Comparison(0.2, 0.21), Comparison(0.2, None))
    table = TableView(
        "",
        ("row", "a", "b", "c", "d"),
        (("first", *cells), ("second", "", *cells[1:])),
        groups=("", "x", "x", "y", "y"),
    )
    shown = display_table(table)
    assert not shown.is_compared
    assert [(cell.text, cell.kind, cell.below) for cell in shown.rows[0]] == [
        ("first", "text", ""),
        ("0.340", "inside", "0.320"),
        ("0.500", "outside", "0.300"),
        ("0.200", "ours", "0.210"),
        ("0.200", "number", ""),
    ]
    assert re.findall(r"\d+", shown.tally) == ["1", "3"]
    assert shown.groups == (("", 1), ("x", 2), ("y", 2))
    assert [heading.hint[-4:] for heading in shown.headings] == ["", "±0.1", "±0.1", "", ""]
    assert "0.320" in Reader(chapter_html((SECTION,), (table,))).texts
