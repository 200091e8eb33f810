"""The pages of an audit: the answer first, a page of evidence per question, and everything as files beside them.

Every page is self-contained and needs neither network nor script. All strings are plain text and escaped when a page is
rendered. Pages are rendered before the first file is written, and the answer page is written last.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from heedful.audits.audit_tables import (
    DECISION_STYLES,
    DOWNLOADS,
    basis,
    certainty,
    classes_table,
    decision_reason,
    decision_text,
    decisions_table,
    distance_sentence,
    download_files,
    format_brief,
    methods_table,
    sentence,
    share_text,
    statistic_table,
    statistic_text,
    thresholds_table,
    untested_labels,
    use_text,
    ways_table,
)
from heedful.audits.evidence_charts import share_chart
from heedful.audits.questions import ATTENTION_FINDINGS, QUESTIONS, TOPICS
from heedful.audits.topics import Question
from heedful.audits.verdict_rules import FAITHFUL, more_texts
from heedful.figures import Chart, Heatmap, ImageGrid, PatchScores, Series
from heedful.formatting import format_number, format_share
from heedful.references import REFERENCES
from heedful.report.charts import png_pixels, svg, svg_file
from heedful.report.heatmap import HeatmapView, heatmap_view
from heedful.report.html import HtmlDocument, check_report_folder, write_atomically
from heedful.report.page import SYMBOLS, Link
from heedful.report.text_table import patch_grid
from heedful.results import Decision, Finding, Verdict, group_by_verdict

if TYPE_CHECKING:  # `Audit.to_html` imports this module
    from heedful.audits.audit_result import Audit, FailureExample, MethodAudit

CHART_FOLDER = "charts"
"""Folder of the charts as SVG files beside the pages."""
_STYLES = ("style.css", "heatmap.css", "audit.css")
_ANSWER = HtmlDocument("audit_answer.html", _STYLES, ("frame.js",))
_QUESTION = HtmlDocument("audit_question.html", _STYLES, ("frame.js",))
_SUMMARY = HtmlDocument("audit_summary.html", (), ())


@dataclass(frozen=True)
class VerdictCell:
    """The answer to one question about one method, in brief and in full, with the address of its evidence."""

    answer: Finding
    symbol: str
    style: str
    number: str
    numbers: str
    address: str
    needed: str


@dataclass(frozen=True)
class MethodView:
    """One method for the templates."""

    audit: MethodAudit
    anchor: str
    decision: str
    reason: str
    symbol: str
    style: str
    share: str
    seconds: str
    cells: tuple[VerdictCell, ...]


@dataclass(frozen=True)
class FailureView:
    """The example that shows why an explanation must not be shown."""

    method: MethodView
    heatmap: HeatmapView | None
    picture: ChartView | None
    address: str


@dataclass(frozen=True)
class ChartView:
    """A chart and the address of its SVG file; empty if there is none."""

    figure: Chart
    image: Markup
    address: str


def write_pages(audit: Audit, folder: Path, texts: str = "") -> Path:
    """Write all pages and downloads into the folder; the answer page, whose path is returned, last.

    Args:
        texts: address of the explorer of texts relative to the folder; empty if there is none.
    """
    check_report_folder(folder)
    files: dict[str, str | bytes] = {}
    for name, topic in TOPICS.items():
        charts = enumerate(topic.charts(audit), start=1)
        files |= {_chart_address(name, number): svg_file(chart) for number, chart in charts}
        files[page_name(name)] = question_html(audit, name, texts)
    files |= download_files(audit)
    files["index.html"] = answer_html(audit, texts)
    for name, content in files.items():
        write_atomically(content if isinstance(content, bytes) else [content], folder / name)
    written_by_audits = re.compile(f"({'|'.join(map(re.escape, TOPICS))})-[0-9]+\\.svg")
    for path in sorted((folder / CHART_FOLDER).glob("*.svg")):
        if written_by_audits.fullmatch(path.name) and f"{CHART_FOLDER}/{path.name}" not in files:
            path.unlink(missing_ok=True)
    return folder / "index.html"


def page_name(question: str) -> str:
    """The file of the page of a question."""
    return f"{question}.html"


def _chart_address(question: str, number: int) -> str:
    return f"{CHART_FOLDER}/{question}-{number}.svg"


def summary_html(audit: Audit) -> str:
    """The answer and the table of methods as a fragment for notebooks."""
    values = {"audit": audit, "basis": basis(audit), "methods": _method_views(audit), "questions": QUESTIONS}
    return "".join(_SUMMARY.render(values))


def answer_html(audit: Audit, texts: str = "") -> str:
    """The answer page."""
    methods = _method_views(audit)
    by_name = {method.audit.name: method for method in methods}
    unsure = {
        question.label: [
            (method, cell)
            for method in methods
            for cell in method.cells
            if cell.answer.question == question.name
            and cell.answer.verdict is Verdict.UNDECIDED
            and not method.audit.control
        ]
        for question in QUESTIONS
    }
    chart = share_chart(audit)
    values = {
        "title": f"Which explanations of {audit.model.name} may be shown?",
        "audit": audit,
        "current": "index.html",
        "pages": _page_links(texts, audit.data.noun),
        "questions": [(question, page_name(question.name)) for question in QUESTIONS],
        "sentence": sentence,
        "basis": basis(audit),
        "level": f"{100 * audit.level:.4g} %",
        "about": _about(audit),
        "understood": _understood(audit),
        "recommended": [by_name[name] for name in audit.recommended],
        "other": [
            (decision, DECISION_STYLES[decision][0], members)
            for decision in (Decision.NOT_ALONE, Decision.BEATEN, Decision.UNDECIDED)
            if (members := [method for method in methods if method.audit.decision is decision])
        ],
        "refused": [each for each in methods if each.audit.decision in (Decision.MISLEADING, Decision.HIDE)],
        "methods": [each for each in methods if not each.audit.control],
        "controls": [each for each in methods if each.audit.control],
        "methods_view": methods_table(audit),
        # Safe: the text in a chart is escaped.
        "chart_view": ChartView(chart, Markup(svg(chart, "shares")), _chart_address(FAITHFUL, 1)),
        "failures": [_failure_view(each, texts) for each in methods if each.audit.failure is not None],
        "word_use": [(use, use_text(audit, use)) for use in audit.word_use],
        "by_class": classes_table(audit) if any(method.by_class for method in audit.methods) else None,
        "thresholds": thresholds_table(audit) if audit.other_thresholds else None,
        "decisions": decisions_table(audit),
        "unsure": {label: members for label, members in unsure.items() if members},
        "optimized": _optimized(audit),
        "untested": untested_labels(audit),
        "certainty": certainty(audit),
        "downloads": DOWNLOADS,
        "effects": {
            row.subset or "all predictions": statistic_text(replace(row, null=math.nan)) for row in audit.effects
        },
        "no_effect": max((row.null for row in audit.effects), default=math.nan),
        "provenance": _provenance(audit),
    }
    return "".join(_ANSWER.render(values))


def question_html(audit: Audit, name: str, texts: str = "") -> str:
    """The page of one question, or of the findings about attention."""
    topic = TOPICS[name]
    views = [
        # Safe: the text in a chart is escaped.
        ChartView(chart, Markup(svg(chart, f"chart-{number}")), _chart_address(name, number))
        for number, chart in enumerate(topic.charts(audit), 1)
    ]
    is_faithful = name == FAITHFUL
    values = {
        "title": topic.title,
        "audit": audit,
        "current": page_name(name),
        "pages": _page_links(texts, audit.data.noun),
        "topic": topic,
        "references": [REFERENCES[key] for key in topic.references],
        "sentence": sentence,
        "charts": views[:1],
        "parts": views[1:],
        "answers": [
            (method, cell) for method in _method_views(audit) for cell in method.cells if cell.answer.question == name
        ],
        "badges": _verdict_summary(audit, name) if isinstance(topic, Question) else [],
        "findings": _attention_findings(audit) if topic is ATTENTION_FINDINGS else [],
        "numbers": statistic_table(audit, name),
        "untested": sentence(audit.untested.get(name, "")),
        "struck": audit.struck if is_faithful else {},
        "certainty": certainty(audit),
        "is_faithful": is_faithful,
        "has_limit": isinstance(topic, Question) and math.isfinite(topic.limit),
        "level": f"{100 * audit.level:.4g} %",
        "optimized": _optimized(audit),
        "ways": ways_table(audit) if is_faithful and any(method.by_way for method in audit.methods) else None,
        "distance": distance_sentence(audit) if is_faithful else "",
        "provenance": _provenance(audit),
    }
    return "".join(_QUESTION.render(values))


def method_anchors(names: Sequence[str]) -> dict[str, str]:
    """A unique anchor for each method.

    >>> list(method_anchors(["lime", "Lime!", "λ"]).values())
    ['m-lime', 'm-lime-2', 'm-method']
    """
    taken: dict[str, str] = {}
    for name in names:
        stem = "m-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "method")
        options = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        taken[name] = next(option for option in options if option not in taken.values())
    return taken


def _page_links(texts: str, noun: str) -> list[Link]:
    links = [Link("Answer", "index.html")]
    links += [Link(topic.label.capitalize(), page_name(name)) for name, topic in TOPICS.items()]
    return [*links, Link(noun.capitalize(), texts)] if texts else links


def _method_views(audit: Audit) -> list[MethodView]:
    anchors = method_anchors([method.name for method in audit.methods])
    views = []
    for method in audit.methods:
        symbol, style, _ = DECISION_STYLES[method.decision]
        cells = tuple(
            VerdictCell(
                answer,
                *_verdict_style(answer.verdict),
                _short(answer, question),
                _number_text(method, answer),
                f"{page_name(question.name)}#{anchors[method.name]}",
                more_texts(answer.texts_needed, audit.data.texts - audit.data.added, audit.data.noun)
                if answer.texts_needed
                else "",
            )
            for question in QUESTIONS
            for answer in [method.answer(question.name)]
        )
        seconds = f"{format_brief(method.seconds)} s per text" if math.isfinite(method.seconds) else ""
        views.append(
            MethodView(
                method,
                anchors[method.name],
                decision_text(method),
                decision_reason(audit, method),
                symbol,
                style,
                share_text(method),
                seconds,
                cells,
            )
        )
    return views


def _verdict_style(verdict: Verdict) -> tuple[str, str]:
    """Symbol and CSS class."""
    return SYMBOLS[verdict], "untested" if verdict is Verdict.NOT_TESTED else verdict.name.lower()


def _short(answer: Finding, question: Question) -> str:
    """The number of a cell."""
    value = answer.statistic.value
    if not math.isfinite(value):
        return ""
    return format_share(value) if question.is_share else format_brief(value)


def _verdict_summary(audit: Audit, name: str) -> list[tuple[str, str, str, str]]:
    """Symbol, CSS class and word of each verdict that occurs, with the methods; controls are left out."""
    methods = [method for method in audit.methods if not method.control]
    names = group_by_verdict((method.answer(name).verdict, method.name) for method in methods)
    return [
        (*_verdict_style(verdict), verdict.value, ", ".join(listed))
        for verdict, listed in names.items()
        if listed and verdict is not Verdict.NOT_TESTED
    ]


def _number_text(method: MethodAudit, answer: Finding) -> str:
    """Value, interval, control and number of texts."""
    if not math.isfinite(answer.statistic.value):
        return ""
    if answer.question == FAITHFUL:
        tier = [f"tier {method.tier}"] if method.tier else []
        return "; ".join([f"{share_text(method)} of the achievable", *tier, f"{answer.statistic.n:.0f} texts"])
    return statistic_text(answer.statistic)


def _attention_findings(audit: Audit) -> list[tuple[str, str, str]]:
    """Name, number and meaning of each finding about attention."""
    measures = [(row, ATTENTION_FINDINGS.measure(row)) for row in audit.attention]
    return [(measure.label, statistic_text(row), measure.meaning) for row, measure in measures]


def _failure_view(view: MethodView, texts: str) -> FailureView:
    failure = view.audit.failure
    assert failure is not None
    rows = [Series(view.audit.name, failure.scores)]
    if failure.other_method:
        rows.append(Series(failure.other_method, failure.other_scores))
    highest = ", ".join(f"“{failure.words[word]}”" for word in failure.highest if word < len(failure.words))
    caption = f"predicted {failure.predicted} (output {format_brief(failure.probability)}); ranked highest: {highest}"
    caption = "; ".join((caption, *view.audit.tags.limits))
    # Words are whole: a space before each of them keeps what looks like the mark of a tokenizer.
    figure = Heatmap(f"Text {failure.uid}:", tuple(f" {word}" for word in failure.words), tuple(rows), caption)
    address = f"{texts}#{quote(failure.uid, safe='')}" if texts else ""
    if failure.image:
        return FailureView(view, None, _image_view(failure, rows, f"image-{view.anchor}"), address)
    return FailureView(view, heatmap_view(figure, failure.highest), None, address)


def _image_view(failure: FailureExample, rows: Sequence[Series], prefix: str) -> ChartView:
    """The image, and the scores of its patches by each method."""
    grid = patch_grid(failure.words)
    maps = [PatchScores(tuple(map(tuple, np.reshape(row.values, grid).tolist()))) for row in rows]
    title = f"{failure.uid}, predicted {failure.predicted} ({format_brief(failure.probability)})"
    names = ("image", *(row.name for row in rows))
    figure = ImageGrid(title, ("",), names, ((png_pixels(failure.image), *maps),))
    return ChartView(figure, Markup(svg(figure, prefix)), "")  # safe: the text in a chart is escaped


def _optimized(audit: Audit) -> dict[str, tuple[str, ...]]:
    """By method, the measures that it optimizes itself."""
    return {method.name: method.optimized_for for method in audit.methods if method.optimized_for}


def _about(audit: Audit) -> dict[str, str]:
    """Model and data in one line."""
    data = audit.data
    labeled = f"{format_share(data.accuracy)} of {format_number(data.labeled)} labeled {data.noun}"
    accuracy = {"accuracy": labeled} if math.isfinite(data.accuracy) else {}
    return {"model": audit.model.name, "data": data.name, **accuracy}


def _understood(audit: Audit) -> dict[str, str]:
    """What the audit understood of the model and the data."""
    model, data = audit.model, audit.data
    reading = {
        "unknown words": format_share(model.unknown_words) or "unknown",
        "texts cut off": format_share(model.truncated) or "unknown",
    }
    return {
        "model": model.source,
        "architecture": model.architecture,
        "outputs": ", ".join(model.outputs) or "a number",
        "tokenizer": model.tokenizer,
        **({} if data.noun == "images" else reading),
        "data": data.source,
        "columns": "; ".join(f"{role}: {column}" for role, column in data.columns.items()),
        f"{data.noun} audited": f"{format_number(data.texts)} of {format_number(data.rows)}",
        "predicted": ", ".join(f"{count} {name}" for name, count in data.classes.items()),
        "accuracy": format_share(data.accuracy) or "no labels",
        "texts with marked words": format_number(data.rationales),
    }


def _provenance(audit: Audit) -> dict[str, str]:
    return {
        **({"date": audit.date} if audit.date else {}),
        **audit.versions,
        "seed": str(audit.seed),
        "time spent": f"{format_number(audit.seconds / 60)} minutes",
        "model digest": audit.model.digest[:12],
        "data digest": audit.data.digest[:12],
    }
