"""The pages of an audit: the answer first, a page of evidence per question, and everything as files beside them.

Every page is self-contained and needs neither network nor script. All strings are plain text and escaped when a page is
rendered. Pages are rendered before the first file is written, and the answer page is written last.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from heedful.figures import Axis, Chart, Heatmap, ImageGrid, IntervalPoint, Intervals, Matrix, PatchScores, Series
from heedful.papers._chapter import Cell, TableView
from heedful.report.charts import png_pixels, svg, svg_file
from heedful.report.explorer import patch_grid
from heedful.report.heatmap import HeatmapView, heatmap_view
from heedful.report.html import HtmlDocument, check_report_folder, format_number, write_atomically
from heedful.report.page import SYMBOLS, Link
from heedful.store.csv_text import csv_text
from heedful.terminal import print_table
from heedful.trials._trial import Verdict

if TYPE_CHECKING:  # `Audit.to_html` imports this module
    from heedful.audits.audit_result import Answer, Audit, FailureExample, Measurement, MethodAudit

FAITHFUL, AGREES, ATTENTION = "faithful", "agrees", "attention"
CHARTS = "charts"
"""Folder of the charts as SVG files beside the pages."""
VERDICT_COLORS = (
    (Verdict.SUPPORTED.value, "#189a58"),
    (Verdict.NOT_SUPPORTED.value, "#d9485f"),
    (Verdict.UNDECIDED.value, "#858c99"),
    ("control", "#858c99"),
)
DECISION_SYMBOLS = {"SHOW": "✓", "NOT_ALONE": "◐", "MISLEADING": "!", "HIDE": "✗"}
DECISION_CLASSES = {"SHOW": "supported", "NOT_ALONE": "partial", "MISLEADING": "not_supported", "HIDE": "not_supported"}
_TERMINAL_STYLES = {"supported": "good", "not_supported": "bad", "partial": "partial"}
SHARE_AXIS = Axis("% of the achievable")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_STYLES = ("style.css", "audit.css")
_ANSWER = HtmlDocument("audit_answer.html", _STYLES, ("frame.js",))
_QUESTION = HtmlDocument("audit_question.html", _STYLES, ("frame.js",))
_SUMMARY = HtmlDocument("audit_summary.html", (), ())


@dataclass(frozen=True)
class QuestionText:
    """What a page says about its question, whatever came out.

    Args:
        label: heading of the column in the verdict matrix.
        question: what was asked, in words.
        measured: what the number is.
        null: what it is compared with.
        rule: how the verdict follows from the number.
        limits: what the verdict does not mean.
        axis: label of the chart.
        limit: the number that decides; NaN where several do.
    """

    label: str
    question: str
    measured: str
    null: str
    rule: str
    limits: str
    axis: str
    limit: float = math.nan


QUESTIONS: Mapping[str, QuestionText] = {
    FAITHFUL: QuestionText(
        label="faithful",
        question="Does the prediction depend on the words that the explanation names?",
        measured=(
            "The words that the explanation ranks highest are deleted, or all others are; the number is how much the "
            "prediction changes. Each value is placed between random scores (0 %) and the best explanation that a "
            "search found for the same text and measure (100 %). The search is greedy with a beam, so 100 % is a lower "
            "bound of what is achievable."
        ),
        null="Random scores on the same texts, text by text.",
        rule=(
            "Supported if the method is better than random scores on every measure that counts, under every way of "
            "deletion: paired tests, adjusted over methods (Holm). Not supported if it is worse on one of them, or "
            "clearly below 10 % of the achievable. Tier 1 holds the best method and all that paired tests (Holm) do "
            "not place 5 % of the achievable or more below it; tier 2 the same of the rest."
        ),
        limits=(
            "A text without some of its words is no text that the model was trained on, so part of a change may come "
            "from the deletion itself: that is why two ways of deletion must agree. A faithful explanation of a wrong "
            "prediction names the words that misled the model."
        ),
        axis="% of the achievable",
    ),
    "model-dependent": QuestionText(
        label="depends on the model",
        question="Does the explanation change when the model is another?",
        measured=(
            "The weights of the model are replaced by random ones, and the same texts are explained again. The number "
            "is 1 minus the rank correlation of the two explanations: 0 if nothing changed, 1 if they are unrelated, "
            "more if they are opposed."
        ),
        null="No change.",
        rule="Supported if the mean change is clearly above 0.5 (Holm over methods), not supported if it is not above.",
        limits="An explanation that changes with the model may still be wrong; one that does not change must be.",
        axis="change under the randomised model",
        limit=0.5,
    ),
    "stable": QuestionText(
        label="stable",
        question="Is the explanation the same when nothing that matters has changed?",
        measured=(
            "Rank correlation of the explanations of a text before and after a tiny change that keeps the prediction "
            "(a full stop, two letters swapped); where the method draws random numbers, with another seed as well."
        ),
        null="Two unrelated orders have correlation 0.",
        rule="Supported if the mean is clearly above 0.7 (Holm over methods), not supported if it is not above.",
        limits="A constant explanation is perfectly stable. Stability counts only together with faithfulness.",
        axis="rank correlation",
        limit=0.7,
    ),
    "complete": QuestionText(
        label="complete",
        question="Do the scores add up to what they claim to explain?",
        measured=(
            "Some methods promise that the scores of a text sum to the difference between the output and that of an "
            "empty text. The number is how much of that difference the scores miss."
        ),
        null="None: the method's own promise is the standard.",
        rule="Supported if the mean error is at most 5 %. Methods without such a promise are not asked.",
        limits="Scores can add up and still be given to the wrong words.",
        axis="completeness error",
        limit=0.05,
    ),
    AGREES: QuestionText(
        label="agrees",
        question="Does it rank the words as the other methods do?",
        measured="Mean rank correlation with the other methods on the same texts, controls left out.",
        null="Random scores have correlation 0 with everything.",
        rule="Supported if the mean is clearly above 0 (Holm over methods). No decision rests on this question.",
        limits="Methods may agree because they are built alike, and all be wrong. Agreement alone decides nothing.",
        axis="mean rank correlation with the others",
        limit=0.0,
    ),
    "plausible": QuestionText(
        label="plausible",
        question="Does it name the words that people name?",
        measured=(
            "How well the scores tell the words that people marked from the others (AUC), on texts where the model is "
            "right: where it is wrong, the words that people name are not the reason for its prediction."
        ),
        null="Random scores have AUC 0.5.",
        rule="Supported if the mean AUC is clearly above 0.5 (Holm over methods), not supported if it is not above.",
        limits=(
            "People find plausible what they would have said themselves. Plausible and not faithful is the dangerous "
            "case: it looks right but is not."
        ),
        axis="AUC of the marked words",
        limit=0.5,
    ),
    "teaches": QuestionText(
        label="teaches",
        question="Does it help somebody to predict what the model will do?",
        measured=(
            "A student model is trained to predict what the model predicts, with and without the explanations. The "
            "number is what the explanations add to its agreement with the model on new texts."
        ),
        null="The same student without explanations.",
        rule="Supported if the interval of the gain lies above 0.",
        limits="The student is a network; people may learn from other things.",
        axis="gain of the student",
        limit=0.0,
    ),
    ATTENTION: QuestionText(
        label="attention",
        question="May the attention weights of this model be read as reasons?",
        measured="Findings about the weights themselves, whatever method makes a heat-map of them.",
        null="Stated with each of them.",
        rule="These findings give no verdict of their own; they explain the verdicts on methods that use attention.",
        limits=(
            "That other weights would give the same prediction does not mean that the model ignores its own: it means "
            "that the weights do not single out one reason."
        ),
        axis="value",
    ),
}
ATTENTION_MEASURES = {
    "permut": (
        "permutation",
        "How much the prediction changes when the weights are given to other words at random. Near 0: it hardly "
        "matters which word gets which weight.",
    ),
    "different": (
        "adversary",
        "How different other weights can be while the prediction stays the same. Near 1: very different weights would "
        "have given the same prediction. Of a transformer, the weights of the token that the prediction is read from, "
        "in the last layer.",
    ),
    "special": (
        "special tokens",
        "Special tokens are no words of the text: what falls on them is not in any heat-map of words.",
    ),
    "first": (
        "first token",
        "Many models park attention that they do not need on the first token; a heat-map cannot tell it from a reason.",
    ),
    "uniform": (
        "necessity",
        "What the model loses when all words get the same weight. Near 0: attention is not needed.",
    ),
}
"""A short name and the meaning of a finding about attention, by a part of its name."""


@dataclass(frozen=True)
class VerdictCell:
    """One cell of the verdict matrix, a link to its evidence."""

    word: str
    symbol: str
    style: str
    number: str
    address: str


@dataclass(frozen=True)
class MethodView:
    """One method for the templates."""

    audit: MethodAudit
    anchor: str
    decision: str
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
class AnswerView:
    """The answer to one question about one method, as text."""

    answer: Answer
    anchor: str
    symbol: str
    style: str
    number: str
    control: bool
    is_optimised: bool


@dataclass(frozen=True)
class ChartView:
    """A chart and the address of its SVG file."""

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
    for name in QUESTIONS:
        charts = question_charts(audit, name)
        addresses = [f"{CHARTS}/{name}-{number}.svg" for number in range(1, len(charts) + 1)]
        files |= {address: svg_file(chart) for address, chart in zip(addresses, charts, strict=True)}
        files[page_name(name)] = question_html(audit, name, texts)
    files |= download_files(audit)
    files["index.html"] = answer_html(audit, texts)
    for name, content in files.items():
        write_atomically(content if isinstance(content, bytes) else [content], folder / name)
    own = re.compile(f"({'|'.join(map(re.escape, QUESTIONS))})-[0-9]+\\.svg")
    for path in sorted((folder / CHARTS).glob("*.svg")):
        if own.fullmatch(path.name) and f"{CHARTS}/{path.name}" not in files:
            path.unlink(missing_ok=True)
    return folder / "index.html"


def page_name(question: str) -> str:
    """The file of the page of a question."""
    return f"{question}.html"


def download_files(audit: Audit) -> dict[str, str | bytes]:
    """The numbers of the audit as files, by name."""
    methods, measurements = audit.to_frame(), audit.measurements_frame()
    buffer = io.BytesIO()
    measurements.to_parquet(buffer, index=False)
    return {
        "audit.json": audit.to_json() + "\n",
        "methods.csv": csv_text(methods),
        "methods.tex": latex_table(audit),
        "measurements.csv": csv_text(measurements),
        "measurements.parquet": buffer.getvalue(),
    }


def summary_html(audit: Audit) -> str:
    """The answer and the table of methods as a fragment for notebooks."""
    values = {"audit": audit, "methods": _method_views(audit), "labels": _labels()}
    return "".join(_SUMMARY.render(values))


def print_audit(audit: Audit) -> None:
    """Print the answer, a row per method and the caution."""
    rows = []
    for view in _method_views(audit):
        style = "quiet" if view.audit.control else _TERMINAL_STYLES.get(view.style, "")
        doubts = [
            f"{cell.symbol} {answer.question.value.partition('-')[0]}"
            for cell, answer in zip(view.cells, view.audit.answers, strict=True)
            if cell.style in ("not_supported", "undecided") and not view.audit.control
        ]
        decision = f"{view.symbol} {view.decision}".strip()
        cells = (
            view.audit.name,
            decision,
            view.share.replace(" %)", ")"),
            view.seconds.removesuffix(" per text"),
            ", ".join(doubts),
        )
        rows.append([(cell, style) for cell in cells])
    columns = ("method", "decision", "of the achievable", "per text", "✗ not so, ? undecided")
    untested = [QUESTIONS[name].label if name in QUESTIONS else name for name in audit.untested]
    notes = [f"Caution: {audit.caution}", certainty(audit)]
    notes += [f"Not tested: {', '.join(untested)}."] if untested else []
    print_table(audit.sentence, columns, rows, notes)


def answer_html(audit: Audit, texts: str = "") -> str:
    """The answer page."""
    methods = _method_views(audit)
    by_name = {each.audit.name: each for each in methods}
    unsure = [
        (each, QUESTIONS[answer.question.value].label, page_name(answer.question.value), answer)
        for each in methods
        for answer in each.audit.answers
        if answer.verdict is Verdict.UNDECIDED and not each.audit.control
    ]
    chart = share_chart(audit)
    values = {
        "title": f"Which explanations of {audit.model.name} may be shown?",
        "audit": audit,
        "current": "index.html",
        "pages": _page_links(texts, audit.data.noun),
        "labels": _labels(),
        "sentence": sentence,
        "about": _about(audit),
        "understood": _understood(audit),
        "recommended": [by_name[name] for name in audit.recommended],
        "other": [each for each in methods if _decided(each) == "NOT_ALONE"],
        "refused": [each for each in methods if _decided(each) in ("MISLEADING", "HIDE")],
        "methods": [each for each in methods if not each.audit.control],
        "controls": [each for each in methods if each.audit.control],
        "methods_view": methods_table(audit),
        "chart_view": ChartView(chart, Markup(svg(chart, "shares")), f"{CHARTS}/{FAITHFUL}-1.svg"),
        "failures": [_failure_view(each, texts) for each in methods if each.audit.failure is not None],
        "unsure": unsure,
        "untested": {QUESTIONS[name].label if name in QUESTIONS else name: why for name, why in audit.untested.items()},
        "certainty": certainty(audit),
        "downloads": _downloads(),
        "provenance": _provenance(audit),
    }
    return "".join(_ANSWER.render(values))


def question_html(audit: Audit, name: str, texts: str = "") -> str:
    """The page of one question, or of the findings about attention."""
    charts = question_charts(audit, name)
    views = [
        # Safe: the text in a chart is escaped.
        ChartView(chart, Markup(svg(chart, f"chart-{number}")), f"{CHARTS}/{name}-{number}.svg")
        for number, chart in enumerate(charts, 1)
    ]
    rows = [each for each in _all_measurements(audit) if each.question == name]
    values = {
        "title": QUESTIONS[name].question,
        "audit": audit,
        "current": page_name(name),
        "pages": _page_links(texts, audit.data.noun),
        "text": QUESTIONS[name],
        "sentence": sentence,
        "charts": views[:1],
        "parts": views[1:],
        "answers": _answer_views(audit, name),
        "badges": _verdict_summary(audit, name),
        "findings": _attention_findings(audit) if name == ATTENTION else [],
        "numbers": measurement_table(rows),
        "untested": sentence(audit.untested.get(name, "")),
        "struck": audit.struck if name == FAITHFUL else {},
        "certainty": certainty(audit),
        "is_faithful": name == FAITHFUL,
        "is_attention": name == ATTENTION,
        "optimised": {each.name: each.optimised_for for each in audit.methods if each.optimised_for},
        "provenance": _provenance(audit),
    }
    return "".join(_QUESTION.render(values))


def certainty(audit: Audit) -> str:
    """How sure the intervals are, and why looking again costs nothing."""
    times = {1: "once", 2: "twice"}.get(audit.look, f"{audit.look} times")
    power = str(audit.look).translate(_SUPERSCRIPTS)
    return (
        f"{format_number(audit.data.texts)} of {format_number(audit.data.rows)} {audit.data.noun} were audited, drawn "
        f"at random (seed {audit.seed}) in proportion to the predicted classes; all methods saw the same ones. This "
        f"audit has been looked at {times}. The tests of a look err with probability .05/2{power} = "
        f"{0.05 / 2**audit.look:.3g} at most, all looks together with .05, however often the audit goes on: looking "
        f"again costs nothing later. Intervals are at level {100 * audit.level:.4g} %."
    )


def share_chart(audit: Audit) -> Intervals:
    """Faithfulness of each method as a share of the achievable; the colour is the tier."""
    points = tuple(
        IntervalPoint(
            f"{each.name} *" if each.optimised_for else each.name,
            "control" if each.control else f"tier {each.tier}" if each.tier else "no tier",
            100 * each.achievable,
            100 * each.achievable_low,
            100 * each.achievable_high,
        )
        for each in audit.methods
    )
    references = (("random scores", 0.0), ("best found by search", 100.0))
    return Intervals(
        "Faithfulness as a share of the achievable", SHARE_AXIS, points, references, (("control", "#858c99"),)
    )


def question_charts(audit: Audit, name: str) -> list[Chart]:
    """The charts of a question, the most important one first."""
    charts: list[Chart] = []
    if name == FAITHFUL:
        charts += [share_chart(audit)] if any(math.isfinite(each.achievable) for each in audit.methods) else []
    elif name == ATTENTION:
        points = tuple(
            IntervalPoint(_attention_text(row.measure)[0], row.method, row.value, row.low, row.high, row.null)
            for row in audit.attention
        )
        return [Intervals("What is known about the attention weights", Axis("value"), points)] if points else []
    else:
        charts += _verdict_charts(audit, name)
    if name == AGREES and audit.pairs:
        charts.append(pair_matrix(audit.pairs))
    pairs = set(audit.pairs)
    groups: dict[str, list[Measurement]] = {}
    for row in _all_measurements(audit):
        if row.question == name and row not in pairs and math.isfinite(row.value):
            groups.setdefault(row.measure, []).append(row)
    # One group without subsets is the chart of the verdicts itself.
    several = {measure: own for measure, own in groups.items() if any(row.subset for row in own) or len(groups) > 1}
    return [*charts, *(_measure_chart(audit, name, measure, own) for measure, own in several.items())]


def _verdict_charts(audit: Audit, name: str) -> list[Chart]:
    """The answers to one question as points whose colour and marker are the verdict."""
    points = [
        IntervalPoint(
            each.name, "control" if each.control else answer.word, answer.value, answer.low, answer.high, answer.null
        )
        for each in audit.methods
        for answer in each.answers
        if answer.question.value == name and math.isfinite(answer.value)
    ]
    text = QUESTIONS[name]
    colors = tuple(pair for pair in VERDICT_COLORS if any(point.series == pair[0] for point in points))
    references = (("limit", text.limit),) if math.isfinite(text.limit) else ()
    return [Intervals(text.question, Axis(text.axis), tuple(points), references, colors)] if points else []


def _measure_chart(audit: Audit, name: str, measure: str, rows: Sequence[Measurement]) -> Intervals:
    """One measure for all methods; the colour is the subset, for instance the way of deletion."""
    is_share = name == FAITHFUL
    factor = 100.0 if is_share else 1.0
    optimised = {each.name for each in audit.methods if measure in each.optimised_for}
    points = tuple(
        IntervalPoint(
            f"{row.method} *" if row.method in optimised else row.method,
            " ".join(filter(None, (row.subset or "all", "(struck out)" if row.struck else ""))),
            factor * row.value,
            factor * row.low,
            factor * row.high,
            math.nan if is_share else row.null,
        )
        for row in rows
    )
    if is_share:
        references = (("random scores", 0.0), ("best found", 100.0))
        return Intervals(f"{measure}: share of the achievable", SHARE_AXIS, points, references)
    return Intervals(measure, Axis(QUESTIONS[name].axis), points)


def pair_matrix(pairs: Sequence[Measurement]) -> Matrix:
    """Rank correlations of each two methods."""
    values: dict[tuple[str, str], float] = {}
    for row in pairs:
        values[row.method, row.subset] = values[row.subset, row.method] = row.value
    names = tuple(dict.fromkeys(name for pair in values for name in pair))
    values |= {(name, name): 1.0 for name in names}
    cells = tuple(tuple(values.get((one, other)) for other in names) for one in names)
    return Matrix("Rank correlation of each two methods", names, names, cells)


def methods_table(audit: Audit) -> TableView:
    """The table that a user wants, one row per method."""
    columns = (
        "method", "decision", "faithful: % of the achievable", "tier", "change under the randomised model",
        "plausible where the model is right", "stable", "seconds per text", "reason",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for each in audit.methods:
        values = {answer.question.value: answer.value for answer in each.answers}
        rows.append(
            (
                f"{each.name} (control)" if each.control else each.name,
                "" if each.decision is None else each.decision.value,
                _share(each),
                str(each.tier) if each.tier else "",
                _blank(values["model-dependent"]),
                _blank(values["plausible"]),
                _blank(values["stable"]),
                _blank(each.seconds),
                sentence(each.reason),
            )
        )
    return TableView("One row per method", columns, tuple(rows))


def measurement_table(rows: Sequence[Measurement]) -> TableView:
    """All measurements of a question."""
    columns = ("method", "measure", "on", "value", "from", "to", "null", "p", "texts", "struck out")
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        numbers = [_blank(value) for value in (row.value, row.low, row.high, row.null, row.p_value)]
        cells.append((row.method, row.measure, row.subset, *numbers, row.n, row.struck))
    return TableView("All numbers of this page", columns, tuple(cells), "p: adjusted over methods (Holm).")


def latex_table(audit: Audit) -> str:
    """The table of methods in LaTeX, without packages."""
    lines = [
        r"\begin{tabular}{lrrrrl}",
        r"\hline",
        r"method & faithful (\% of achievable) & model change & plausible & s per text & decision \\",
        r"\hline",
    ]
    for each in audit.methods:
        values = {answer.question.value: answer.value for answer in each.answers}
        cells = [
            each.name,
            _share(each),
            *(format_brief(value) for value in (values["model-dependent"], values["plausible"], each.seconds)),
            "control" if each.decision is None else each.decision.value,
        ]
        lines.append(" & ".join(map(escape_latex, cells)) + r" \\")
    texts = f"{audit.model.name} on {audit.data.name}, {audit.data.texts} texts, intervals at {100 * audit.level:.4g} %"
    return "\n".join([f"% {escape_latex(texts)}", *lines, r"\hline", r"\end{tabular}", ""])


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--",
    "\u202f": "\\,", "\u00a0": "~", "<": r"\textless{}", ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in "[]*"},  # after the end of a row these would be arguments
}  # fmt: skip


def escape_latex(text: str) -> str:
    r"""The text on one line with everything escaped that LaTeX would read as a command.

    >>> escape_latex("a_b & 50 %\n\\input{x}")
    'a\\_b \\& 50 \\% \\textbackslash{}input\\{x\\}'
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def method_anchors(names: Sequence[str]) -> dict[str, str]:
    """A unique anchor for each method.

    >>> list(method_anchors(["lime", "Lime!", "λ"]).values())
    ['m-lime', 'm-lime-2', 'm-method']
    """
    taken: dict[str, str] = {}
    for name in names:
        stem = "m-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "method")
        options = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        taken[name] = next(each for each in options if each not in taken.values())
    return taken


def format_share(low: float, high: float | None = None) -> str:
    """A share in whole percent, or the interval of one; empty where undefined.

    >>> format_share(0.784), format_share(-0.01, 0.09), format_share(float("nan"))
    ('78 %', '−1 to 9 %', '')
    """
    ends = [low] if high is None else [low, high]
    if not all(map(math.isfinite, ends)):
        return ""
    return " to ".join(f"{round(100 * each)}".replace("-", "−") for each in ends) + " %"


def _share(each: MethodAudit) -> str:
    interval = format_share(each.achievable_low, each.achievable_high)
    return format_share(each.achievable) + (f" ({interval})" if interval else "")


def format_brief(value: float) -> str:
    """Two decimals, or two significant digits of a small number; a dash where undefined.

    >>> [format_brief(value) for value in (0.9234, -0.5, 12.345, -0.00423, -1e-16, 0.0, float("nan"))]
    ['0.92', '−0.50', '12.35', '−0.0042', '0.00', '0', '–']
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    is_small = 0.00005 <= abs(value) < 0.0995
    text = f"{value:.2g}" if is_small else f"{value:.2f}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


def format_interval(value: float, low: float, high: float) -> str:
    """The value and its interval, where it has one."""
    if not math.isfinite(low) or not math.isfinite(high):
        return format_brief(value)
    return f"{format_brief(value)} ({format_brief(low)} to {format_brief(high)})"


def _blank(value: float) -> str:
    """The number, and an empty cell where it is undefined."""
    return format_brief(value) if math.isfinite(value) else ""


def _decided(each: MethodView) -> str:
    return "" if each.audit.decision is None else each.audit.decision.name


def _labels() -> list[tuple[str, str, str]]:
    """Label, file and question of each column of the verdict matrix."""
    return [(text.label, page_name(name), text.question) for name, text in QUESTIONS.items() if name != ATTENTION]


def _page_links(texts: str, noun: str) -> list[Link]:
    links = [Link("Answer", "index.html")]
    links += [Link(text.label.capitalize(), page_name(name)) for name, text in QUESTIONS.items()]
    return [*links, Link(noun.capitalize(), texts)] if texts else links


def _all_measurements(audit: Audit) -> Iterator[Measurement]:
    """Every measurement once, wherever the audit holds it."""
    own = (row for each in audit.methods for answer in each.answers for row in answer.measurements)
    yield from dict.fromkeys(itertools.chain(audit.measurements, audit.attention, audit.pairs, own))


def _method_views(audit: Audit) -> list[MethodView]:
    anchors = method_anchors([each.name for each in audit.methods])
    views = []
    for each in audit.methods:
        name = "" if each.decision is None else each.decision.name
        cells = tuple(
            VerdictCell(
                answer.word,
                *_verdict_style(answer.verdict),
                _short(answer),
                f"{page_name(answer.question.value)}#{anchors[each.name]}",
            )
            for answer in each.answers
        )
        views.append(
            MethodView(
                each,
                anchors[each.name],
                "control" if each.decision is None else each.decision.value,
                DECISION_SYMBOLS.get(name, ""),
                DECISION_CLASSES.get(name, "untested"),
                _share(each),
                f"{format_brief(each.seconds)} s per text" if math.isfinite(each.seconds) else "",
                cells,
            )
        )
    return views


def _verdict_style(verdict: Verdict | None) -> tuple[str, str]:
    """Symbol and CSS class."""
    return ("–", "untested") if verdict is None else (SYMBOLS[verdict], verdict.name.lower())


def _short(answer: Answer) -> str:
    """The number of a cell."""
    if not math.isfinite(answer.value):
        return ""
    return format_share(answer.value) if answer.question.value == FAITHFUL else format_brief(answer.value)


def _answer_views(audit: Audit, name: str) -> list[AnswerView]:
    anchors = method_anchors([each.name for each in audit.methods])
    views = []
    for each in audit.methods:
        for answer in each.answers:
            if answer.question.value == name:
                symbol, style = _verdict_style(answer.verdict)
                number = _number_text(each, answer)
                optimised = name == FAITHFUL and bool(each.optimised_for)
                views.append(AnswerView(answer, anchors[each.name], symbol, style, number, each.control, optimised))
    return views


def _verdict_summary(audit: Audit, name: str) -> list[tuple[str, str, str, str]]:
    """Symbol, CSS class and word of each verdict that occurs, with the methods; controls are left out."""
    found = []
    for verdict in Verdict:
        names = [
            each.name
            for each in audit.methods
            for answer in each.answers
            if answer.question.value == name and answer.verdict is verdict and not each.control
        ]
        if names:
            found.append((*_verdict_style(verdict), verdict.value, ", ".join(names)))
    return found


def _number_text(each: MethodAudit, answer: Answer) -> str:
    """Value, interval, control and number of texts."""
    if not math.isfinite(answer.value):
        return ""
    if answer.question.value == FAITHFUL:
        tier = [f"tier {each.tier}"] if each.tier else []
        return "; ".join([f"{_share(each)} of the achievable", *tier, f"{answer.n} texts"])
    parts = [format_interval(answer.value, answer.low, answer.high)]
    parts += [f"null {format_brief(answer.null)}"] if math.isfinite(answer.null) else []
    return "; ".join([*parts, f"{answer.n} texts"])


def _attention_findings(audit: Audit) -> list[tuple[str, str, str]]:
    """Name, number and meaning of each finding about attention."""
    found = []
    for row in audit.attention:
        number = format_interval(row.value, row.low, row.high)
        if math.isfinite(row.null):
            number += f"; null {format_brief(row.null)}"
        name = " ".join(filter(None, (row.measure, row.subset)))
        found.append((name, f"{number}; {row.n} texts", _attention_text(row.measure)[1]))
    return found


def _attention_text(measure: str) -> tuple[str, str]:
    """Short name and meaning."""
    return next((text for part, text in ATTENTION_MEASURES.items() if part in measure), (measure, ""))


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    >>> sentence("no method beats it"), sentence("")
    ('No method beats it.', '')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


def _failure_view(view: MethodView, texts: str) -> FailureView:
    failure = view.audit.failure
    assert failure is not None
    rows = [Series(view.audit.name, failure.scores)]
    if failure.other_method:
        rows.append(Series(failure.other_method, failure.other_scores))
    highest = ", ".join(f"“{failure.words[place]}”" for place in failure.highest if place < len(failure.words))
    caption = f"predicted {failure.predicted} ({format_brief(failure.probability)}); ranked highest: {highest}"
    # Words are whole: a space before each of them keeps what looks like the mark of a tokenizer.
    figure = Heatmap(failure.uid, tuple(f" {word}" for word in failure.words), tuple(rows), caption)
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


def _about(audit: Audit) -> dict[str, str]:
    """Model and data in one line."""
    data = audit.data
    found = {"model": audit.model.name, "data": data.name}
    found[data.noun] = f"{format_number(data.texts)} of {format_number(data.rows)}"
    if math.isfinite(data.accuracy):
        found["accuracy"] = format_share(data.accuracy)
    return found


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


def _downloads() -> list[tuple[str, str]]:
    return [
        ("audit.json", "everything, as heedful reads it back"),
        ("methods.csv", "one row per method"),
        ("methods.tex", "the same as a LaTeX table"),
        ("measurements.csv", "every number with its interval and its control"),
        ("measurements.parquet", "the same as Parquet"),
    ]
