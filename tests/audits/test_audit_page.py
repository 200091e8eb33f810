"""The pages of an audit: the verdicts and numbers of its answers, links that lead somewhere, hostile names as text."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import markdown_it
import pandas as pd
import pytest

from heedful.audits.audit_page import CHART_FOLDER, answer_html, question_html
from heedful.audits.audit_result import Audit, MethodAudit
from heedful.audits.audit_tables import (
    COLUMN_QUESTIONS,
    THRESHOLD_LABELS,
    decisions_table,
    download_files,
    escape_latex,
    thresholds_table,
)
from heedful.audits.evidence_charts import pair_matrix, share_chart
from heedful.audits.model_card import escape_markdown, model_card
from heedful.audits.questions import CHANCE_AUC, QUESTIONS, TOPICS
from heedful.audits.verdict_rules import THRESHOLDS
from heedful.figures import Intervals
from heedful.formatting import page_text
from heedful.references import REFERENCES
from heedful.results import Decision, Verdict
from heedful.types import UserError
from tests.audits.sample_audit import SAMPLES, sample_audit
from tests.stored import COMMENT, HOSTILE
from tests.tabs import LEAST_CONTRAST, UNBROKEN, launched, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AUDIT = sample_audit()
VOID = {"meta", "link", "br", "path", "rect", "i"}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and all its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th") and self.cells:
            self.cells[-1].append("")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.cells and self.cells[-1]:
            self.cells[-1][-1] += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def hostile_audit(name: str) -> Audit:
    """The audit with the same hostile text in every place that a file or a model can name."""
    one = AUDIT.methods[-5]
    assert one.failure is not None
    answers = tuple(
        replace(answer, method=name, reason=name, evidence=rows)
        for answer in one.answers
        for rows in [tuple(replace(row, method=name, metric=name, subset=name) for row in answer.evidence)]
    )
    words = (name, *one.failure.words[1:])
    failure = replace(one.failure, uid=name, predicted=name, words=words, sentence=name, other_method=name)
    method = replace(one, name=name, reason=name, answers=answers, failure=failure, optimized_for=(name,))
    return replace(
        AUDIT,
        model=replace(AUDIT.model, name=name, source=name, outputs=(name, name), architecture=name),
        data=replace(
            AUDIT.data,
            name=name,
            source=name,
            columns={name: name},
            classes={name: 3},
            notes=(name,),
            assumptions=(name,),
        ),
        methods=(method, *AUDIT.methods),
        other_thresholds=tuple(
            replace(each, decisions={name: Decision.SHOW, **each.decisions}) for each in AUDIT.other_thresholds
        ),
        attention=tuple(replace(row, metric=name, method=name) for row in AUDIT.attention),
        pairs=tuple(replace(row, subset=name) for row in AUDIT.pairs[:2]),
        struck={name: name},
        untested={name: name, "teaches": name},
        recommended=(name, *AUDIT.recommended),
        sentence=name,
        caution=name,
        caption=name,
        versions={name: name},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    assert AUDIT.to_html(folder) == folder / "index.html"
    return folder


def test_every_question_has_a_page_and_every_link_leads_to_a_file_and_an_anchor(folder: Path) -> None:
    pages = {path.name: Elements(path.read_text(encoding="utf-8")) for path in folder.glob("*.html")}
    assert {*pages} == {"index.html", *(f"{name}.html" for name in TOPICS)}
    ids = {name: [a["id"] for _, a in page.found if "id" in a] for name, page in pages.items()}
    for name, page in pages.items():
        assert max(Counter(ids[name]).values()) == 1, name
        for link in page.named("a"):
            parts = urlsplit(link["href"])
            target = unquote(parts.path) or name
            assert (folder / target).is_file(), (name, link)
            if parts.fragment:
                assert parts.fragment in ids[target], (name, link)


def test_the_matrix_has_the_verdict_of_every_method_on_every_question(folder: Path) -> None:
    matrix = (folder / "index.html").read_text(encoding="utf-8").split('<table class="matrix">')[1].split("</table>")[0]
    rows = [[cell.strip() for cell in row] for row in Elements(matrix).cells if len(row) > 1]
    by_name = {row[0]: row for row in rows}
    assert [row[0] for row in rows] == ["method", *SAMPLES]
    symbols = {"supported": "✓", "not supported": "✗", "undecided": "?", "not tested": "–"}
    for method in AUDIT.methods:
        decision, *cells = by_name[method.name][1:]
        assert ("control" if method.decision is None else method.decision.value) in decision
        for answer, cell in zip(method.answers, cells, strict=True):
            assert " ".join(cell.split()).startswith(f"{symbols[answer.verdict.value]} {answer.verdict.value}"), (
                method.name,
                cell,
            )


def test_the_answer_page_holds_the_answer_the_order_and_what_is_open() -> None:
    page = Elements(answer_html(AUDIT))
    for text in (AUDIT.sentence, AUDIT.caution, AUDIT.caption, "78 % (73 to 83 %)", "about 740 texts", "twice"):
        assert text in page.text
    names = [page.text.index(f" {name} ") for name in AUDIT.recommended]
    assert names == sorted(names)
    assert "97.5 %" in page.text
    assert "0.0125" in page.text
    stopped = Elements(answer_html(replace(AUDIT, finished=False, recommended=()))).text
    assert "was stopped" in stopped
    assert "No method may be shown" in stopped


def test_the_answer_page_says_what_other_thresholds_would_decide() -> None:
    assert {*THRESHOLD_LABELS} == {field.name for field in fields(THRESHOLDS)}
    rows = {row[0]: row[1:] for row in thresholds_table(AUDIT).rows}
    assert [*rows] == [label for label, _ in THRESHOLD_LABELS.values()]
    changed = [row for row in rows.values() if any("no change" not in str(cell) for cell in row[1:])]
    assert changed == [
        ("10 %", "5 % → no change", "20 % → not to be shown: raw-attention"),
        ("0.70", "0.35 → may be shown: lime", "0.85 → no change"),
    ]
    assert "0.35 → may be shown: lime" in Elements(answer_html(AUDIT)).text
    table = decisions_table(AUDIT)
    [lime] = [row for row in table.rows if row[0] == "lime"]
    assert lime[1:] == ("not alone",) * 11 + ("may be shown",) + ("not alone",) * 3
    assert "other_thresholds" not in answer_html(replace(AUDIT, other_thresholds=()))


def test_the_example_shows_both_explanations_and_underlines_the_highest_words() -> None:
    page = Elements(answer_html(AUDIT, "texts/a.html"))
    hits = [a for a in page.named("span") if "hit" in a.get("class", "").split()]
    assert len(hits) == 2 * 3  # two methods fail, three words each
    assert {a["title"] for a in hits} == {"0.950"}
    assert "texts/a.html#review-17" in {a["href"] for a in page.named("a")}


def test_the_verdict_of_each_method_is_on_the_page_of_its_question() -> None:
    page = Elements(question_html(AUDIT, "model-dependent")).text
    assert re.search(r"gradient-norm \? undecided 0\.40 \(0\.34 to 0\.46\); null 0; 212 texts", page)
    faithful = Elements(question_html(AUDIT, "faithful")).text
    assert "optimizes comprehensiveness" in faithful
    assert "flip (masked)" in faithful
    assert "Simulability needs training" in Elements(question_html(AUDIT, "teaches")).text


def test_a_page_says_after_its_picture_what_was_done_and_who_has_shown_what() -> None:
    for name, topic in TOPICS.items():
        text = question_html(AUDIT, name)
        page = Elements(text).text
        places = [page.index(" ".join(part.split())) for part in (topic.measured, topic.null, topic.rule, topic.limits)]
        assert places == sorted(places), name
        if topic.charts(AUDIT):
            assert text.index("<svg") < text.index("What was measured"), name
        for key in topic.references:
            reference = REFERENCES[key]
            for part in (f"{reference.authors} ({reference.year})", reference.title, reference.where, reference.arxiv):
                assert part in page, (name, key)


def test_the_rules_on_the_pages_have_the_limits_of_the_code() -> None:
    limits = {
        "faithful": f"{THRESHOLDS.least_share:.0%}".replace("%", " %"),
        "model-dependent": str(THRESHOLDS.model_change),
        "stable": str(THRESHOLDS.stable_correlation),
        "complete": f"{THRESHOLDS.complete_error:.0%}".replace("%", " %"),
        "plausible": str(CHANCE_AUC),
    }
    for name, limit in limits.items():
        assert limit in TOPICS[name].rule, name
    assert f"{THRESHOLDS.tier_margin:.0%}".replace("%", " %") in TOPICS["faithful"].rule


def test_charts_hold_the_numbers_of_the_answers() -> None:
    chart = share_chart(AUDIT)
    assert [point.label for point in chart.points][:2] == ["integrated-gradients", "leave-one-out *"]
    assert [point.value for point in chart.points] == pytest.approx([100 * each.share for each in SAMPLES.values()])
    assert dict(chart.references) == {"random scores": 0.0, "best found by search": 100.0}
    [verdicts] = TOPICS["model-dependent"].charts(AUDIT)
    assert isinstance(verdicts, Intervals)
    assert verdicts.references == (("limit", 0.5),)
    by_series = Counter(point.series for point in verdicts.points)
    assert by_series == {"supported": 7, "undecided": 1, "not supported": 1, "control": 3}
    deletions = [chart for chart in TOPICS["faithful"].charts(AUDIT)[1:] if isinstance(chart, Intervals)]
    assert [chart.title.partition(":")[0] for chart in deletions] == ["comprehensiveness", "sufficiency", "flip"]
    assert {point.series for point in deletions[2].points} == {"removed", "masked (struck out)"}
    starred = {(point.label, point.series) for chart in deletions for point in chart.points if "*" in point.label}
    assert starred == {("leave-one-out *", "removed")}
    assert TOPICS["teaches"].charts(AUDIT) == []


def test_the_chart_of_a_further_measure_has_its_own_axis() -> None:
    def with_excess(method: MethodAudit) -> MethodAudit:
        answers = [
            replace(each, evidence=(*each.evidence, replace(each.evidence[0], metric="excess")))
            if each.question == "model-dependent"
            else each
            for each in method.answers
        ]
        return replace(method, answers=tuple(answers))

    audit = replace(AUDIT, methods=tuple(map(with_excess, AUDIT.methods)))
    first, second = (chart for chart in TOPICS["model-dependent"].charts(audit) if isinstance(chart, Intervals))
    assert (second.title, second.x.label) == ("excess", "excess")
    assert first.x.label == TOPICS["model-dependent"].axis


def test_pairs_are_a_symmetric_matrix() -> None:
    matrix = pair_matrix(AUDIT.pairs)
    place = matrix.columns.index("lime")
    assert matrix.values[0][place] == matrix.values[place][0] == pytest.approx(0.78 * 0.66, abs=1e-3)
    assert [row[number] for number, row in enumerate(matrix.values)] == [1.0] * 9


def test_downloads_hold_the_same_numbers(folder: Path) -> None:
    assert Audit.from_json((folder / "audit.json").read_text(encoding="utf-8")) == AUDIT
    methods = pd.read_csv(folder / "methods.csv", keep_default_na=False, na_values={"completeness": ""})
    assert methods["faithfulness"].tolist() == AUDIT.to_frame()["faithfulness"].tolist()
    parquet = pd.read_parquet(folder / "measurements.parquet")
    pd.testing.assert_frame_equal(parquet, AUDIT.measurements_frame())
    csv = pd.read_csv(folder / "measurements.csv")
    assert csv["value"].tolist() == pytest.approx(parquet["value"].tolist())
    hostile = replace(AUDIT, methods=tuple(replace(each, name=f"={each.name}") for each in AUDIT.methods))
    table = pd.read_csv(io.StringIO(str(download_files(hostile)["methods.csv"])))
    assert table["method"].tolist() == [f"'={each.name}" for each in AUDIT.methods]
    tex = (folder / "methods.tex").read_text(encoding="utf-8").splitlines()
    rows = [line.removesuffix(r" \\").split(" & ") for line in tex if line.endswith(r"\\")]
    assert {len(row) for row in rows} == {len(COLUMN_QUESTIONS) + 4}
    assert rows[1][:2] == ["integrated-gradients", r"78 \% (73 to 83 \%)"]
    assert len(list((folder / CHART_FOLDER).glob("*.svg"))) == sum(
        len(topic.charts(AUDIT)) for topic in TOPICS.values()
    )


@pytest.mark.parametrize("name", [HOSTILE, COMMENT, '" onload="alert(1)', "{{ 7 * 7 }}", "\ud800\x1b[2J"])
def test_hostile_names_stay_text(name: str, tmp_path: Path) -> None:
    audit = hostile_audit(name)
    audit.to_html(tmp_path, "texts/a.html")
    for path in tmp_path.glob("*.html"):
        page = Elements(path.read_text(encoding="utf-8"))
        assert (len(page.named("script")), len(page.named("style")), page.named("img")) == (1, 1, [])
        assert not [a for _, a in page.found if any(key.startswith("on") or key == "style" for key in a)]
        assert " ".join(page_text(name).split()) in page.text
    fragment = Elements(audit._repr_html_())
    assert not fragment.named("script")
    assert not fragment.named("img")


def test_every_page_is_closed_to_the_network(folder: Path) -> None:
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        page = Elements(text)
        [policy] = [a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
        assert "default-src 'none'" in policy
        for kind in ("style", "script"):
            [content] = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.S)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not [a for _, a in page.found if "src" in a]


def test_a_folder_that_cannot_be_written_keeps_its_page(tmp_path: Path) -> None:
    page = AUDIT.to_html(tmp_path)
    before = page.read_bytes()
    (tmp_path / "faithful.html").unlink()
    (tmp_path / "faithful.html").mkdir()
    (tmp_path / "faithful.html" / "mine").touch()
    with pytest.raises(UserError, match=r"faithful\.html"):
        replace(AUDIT, sentence="Another answer.").to_html(tmp_path)
    assert page.read_bytes() == before


def test_charts_of_an_earlier_audit_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    AUDIT.to_html(tmp_path)
    mine = tmp_path / CHART_FOLDER / "mine.svg"
    mine.touch()
    replace(AUDIT, attention=()).to_html(tmp_path)
    assert mine.exists()
    assert not (tmp_path / CHART_FOLDER / "attention-1.svg").exists()


def plain(markdown: str) -> str:
    """The text that a Markdown parser shows; fails at markup that no name may add."""
    parser = markdown_it.MarkdownIt("commonmark").enable("table")
    tokens = [inner for token in parser.parse(markdown) for inner in (token, *(token.children or ()))]
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "strong_open", "hr", "fence"}
    return " ".join("".join(f"{token.content}\n" for token in tokens if token.type == "text").split())


MARKUP = (HOSTILE, COMMENT, "*a* _b_ `c` [x](http://x.y) ![i](j)", "a | b", "# h", "- l", "1. n", "> q", "&lt;")


@pytest.mark.parametrize("name", [*MARKUP, "a\n\n---\nb"])
def test_markdown_shows_names_literally(name: str) -> None:
    model_card(hostile_audit(f"{name}\ud800")).encode()
    assert plain(escape_markdown(name)) == " ".join(name.split())
    assert plain(f"- {escape_markdown(f'x {name}')}") == " ".join(f"x {name}".split())
    rows = re.findall(r"^\|.*\|$", model_card(hostile_audit(name)), re.M)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(COLUMN_QUESTIONS) + 5}
    plain(model_card(hostile_audit(name)).replace("`heedful audit`", ""))


def test_the_card_has_the_answer_and_the_numbers() -> None:
    card = model_card(AUDIT)
    assert escape_markdown(AUDIT.sentence) in card
    [row] = [line.split(" | ") for line in card.splitlines() if line.startswith("| integrated-gradients")]
    assert {"may be shown", "✓ 78 % (73 to 83 %)", "✓ 0.92", "✓ 0.93", "✓ 0.004", "✓ 0.71"} < {*row}
    assert "random 0 %" in card


def test_the_terminal_shows_the_answer_and_every_method(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    hostile = replace(AUDIT, caution="\x1b[2J red")
    hostile.show()
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    blocks = {block.split()[0]: block for block in re.split(r"\n(?=\S)", shown) if block.split()}
    assert "✓ may be shown" in blocks["integrated-gradients"]
    assert "78 % (73 to 83 %)" in blocks["integrated-gradients"]
    assert "✗ not supported: stable" in blocks["lime"]
    assert re.search(r"\? undecided:.* model", blocks["gradient-norm"])
    assert "✗" not in blocks["random"]


def test_latex_reads_no_command_in_a_name() -> None:
    escaped = escape_latex("\\input{x}[y]*~^ 5 % # $ & _")
    assert not re.search(r"(?<!\\)[&%$#_]|\\(?!text|[&%$#_{}])", escaped.replace("$-$", ""))
    assert "\\input" not in escaped


def test_an_audit_without_numbers_still_has_its_pages(tmp_path: Path) -> None:
    nan = float("nan")
    empty = tuple(
        replace(
            each,
            answers=tuple(replace(answer, verdict=Verdict.NOT_TESTED, evidence=()) for answer in each.answers),
            achievable=nan,
            achievable_low=nan,
            achievable_high=nan,
            seconds=nan,
            failure=None,
        )
        for each in AUDIT.methods
    )
    audit = replace(AUDIT, methods=empty, attention=(), pairs=(), recommended=(), caption="")
    assert "No method may be shown" in audit.to_html(tmp_path).read_text(encoding="utf-8")
    assert not list((tmp_path / CHART_FOLDER).glob("faithful*"))
    assert len(pd.read_parquet(io.BytesIO((tmp_path / "measurements.parquet").read_bytes()))) == 0
    assert Verdict.SUPPORTED.value not in audit.to_frame().to_csv()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.mark.browser
@pytest.mark.slow
def test_a_cell_leads_to_its_evidence_by_mouse_and_by_keyboard(browser: Browser, folder: Path) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    tab, faults = opened(context, (folder / "index.html").as_uri())
    assert tab.locator(".answer").bounding_box()["y"] < 300  # type: ignore[index]
    assert tab.locator(".supported-edge .name").first.bounding_box()["y"] < 800  # type: ignore[index]
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    cell = tab.locator('.matrix a[href="stable.html#m-lime"]')
    cell.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/stable.html#m-lime")
    assert tab.locator("li:target h3").inner_text() == "lime"
    assert tab.locator("li:target .pill").first.inner_text().strip() == "✗ not supported"
    tab.go_back()
    tab.locator(".refused-edge a", has_text="See where it fails").first.click()
    assert tab.locator("article:target h3").inner_text().startswith("raw-attention")
    assert [fault for fault in faults if not fault.startswith("file:")] == []
    context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_pages_fit_a_phone_and_paper_and_can_be_read_in_both_themes(browser: Browser, tmp_path: Path) -> None:
    hostile_audit(UNBROKEN).to_html(tmp_path)
    pages = {("light", 360): ("index", "faithful"), ("dark", 1200): ("index", "agrees")}
    for (scheme, width), names in pages.items():
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        for name in names:
            tab, faults = opened(context, (tmp_path / f"{name}.html").as_uri())
            tab.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            count, contrast, *where = tab.evaluate(LEAST_CONTRAST)
            assert count > 20
            assert contrast >= 4.5, (name, scheme, where)
            assert faults == []
            tab.close()
        context.close()
    tab, _ = opened(browser.new_context(viewport={"width": 740, "height": 1000}), (tmp_path / "index.html").as_uri())
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 740
    assert not tab.locator("nav.pages").is_visible()
    assert tab.locator(".matrix").is_visible()
    assert len(tab.pdf()) > 10_000


@pytest.mark.browser
@pytest.mark.slow
def test_everything_is_there_without_scripts(browser: Browser, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab, _ = opened(context, (folder / "index.html").as_uri())
    assert tab.locator(".matrix td.cell").count() == len(SAMPLES) * (len(QUESTIONS) + 1)
    assert tab.locator("svg").count() == 1
    tab.locator("#methods > details > summary").click()
    assert tab.get_by_text("One row per method", exact=True).first.is_visible()
    context.close()
