"""The numbers of an audit as text: tables, the terminal, LaTeX, and files for download."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from heedful.audits.questions import ATTENTION_FINDINGS, QUESTIONS, TOPICS
from heedful.audits.topics import VERDICTS
from heedful.audits.verdict_rules import FAITHFUL, WayShare
from heedful.formatting import format_number, format_share, join_names, more_minutes
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.report.page import SYMBOLS
from heedful.results import Decision, Finding, Statistic, Verdict
from heedful.store.csv_text import csv_text
from heedful.table_view import Cell, TableView
from heedful.terminal import TableRow, print_table

if TYPE_CHECKING:  # `Audit.to_html` imports this module
    from heedful.audits.audit_result import Audit, MethodAudit, OtherThreshold, WordUse

DECISION_STYLES = {
    None: ("", "untested", "quiet"),
    Decision.SHOW: ("✓", "supported", "good"),
    Decision.NOT_ALONE: ("◐", "partial", "partial"),
    Decision.BEATEN: ("↓", "partial", "partial"),
    Decision.UNDECIDED: ("?", "undecided", "quiet"),
    Decision.MISLEADING: ("!", "not_supported", "bad"),
    Decision.HIDE: ("✗", "not_supported", "bad"),
}
"""Symbol, CSS class and style in the terminal; None for a control."""
COLUMN_QUESTIONS = tuple(question for question in QUESTIONS if question.column)
"""The questions whose number is in the table of methods."""
DOWNLOADS = (
    ("audit.json", "everything, as heedful reads it back"),
    ("methods.csv", "one row per method"),
    ("methods.tex", "the same as a LaTeX table"),
    ("measurements.csv", "every number with its interval and its control"),
    ("measurements.parquet", "the same as Parquet"),
)
THRESHOLD_LABELS = {
    "least_share": ("faithful, holds under infill: share of the achievable that must be exceeded", True),
    "tier_margin": ("tiers: lead of the better tier, as a share of the achievable", True),
    "lead": ("another is better: lead of the most faithful method, as a share of the achievable", True),
    "model_change": ("depends on the model: change under random weights that must be exceeded", False),
    "model_excess": ("depends on the model: this change beyond that under another seed and a tiny edit", False),
    "stable_correlation": ("stable: rank correlation that must be exceeded", False),
    "complete_error": ("complete: share of the output that the scores may miss", True),
}
"""What each threshold is, by its field of `Thresholds`, and whether it is shown in percent."""
WAYS = {
    "delete": "deleted",
    "mask": "replaced by mask tokens",
    "unk": "replaced by unknown tokens",
    "pad": "replaced by padding",
    "zero": "replaced by zero vectors",
    "infill": "replaced by words of other texts",
}
"""What each way of removal does to words."""
LEAST_PERCENT = 0.005
"""Smaller shares would be rounded to none."""
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def print_audit(audit: Audit) -> None:
    """Print the answer, what it rests on, a row per method with the reason of its decision, and the caution."""
    columns = ("method", "decision", "of the achievable", "per text")
    notes = [
        f"Caution: {audit.caution}",
        "Of the achievable: random scores are 0 %, the best explanation that a search found is 100 %; intervals in "
        "parentheses.",
        certainty(audit),
    ]
    print_table(
        (audit.sentence, basis(audit)), columns, [_terminal_row(audit, method) for method in audit.methods], notes
    )


def _terminal_row(audit: Audit, method: MethodAudit) -> TableRow:
    symbol, _, style = DECISION_STYLES[method.decision]
    cells = (
        method.name,
        f"{symbol} {decision_text(method)}".strip(),
        share_text(method),
        f"{format_brief(method.seconds)} s" if math.isfinite(method.seconds) else "",
    )
    if method.control:
        return TableRow(cells, style)
    # Of a method that may be shown, its faithfulness is in its row already.
    is_plain = method.decision is Decision.SHOW and method.reason == method.answer(FAITHFUL).reason
    reason = () if is_plain else (decision_reason(audit, method),)
    doubts = [
        f"{SYMBOLS[verdict]} {verdict.value}: {', '.join(labels)}"
        for verdict in (Verdict.NOT_SUPPORTED, Verdict.UNDECIDED)
        if (labels := [TOPICS[each.question].label for each in method.answers if each.verdict is verdict])
    ]
    return TableRow(cells, style, (*reason, *(["; ".join(doubts)] if doubts else [])))


def decision_reason(audit: Audit, method: MethodAudit) -> str:
    """Why a method has its decision, and about how many more minutes would decide where that is known."""
    minutes = audit.minutes_to_decide(method)
    return sentence(method.reason) + ("" if minutes is None else f" Deciding this takes about {more_minutes(minutes)}.")


def untested_labels(audit: Audit) -> dict[str, str]:
    """What was not tested, by its heading, with the reason."""
    return {TOPICS[name].label if name in TOPICS else name: reason for name, reason in audit.untested.items()}


def basis(audit: Audit) -> str:
    """What the answer rests on: texts, methods, what the model did not see and what was not tested."""
    data, truncated = audit.data, audit.model.truncated
    methods = sum(not method.control for method in audit.methods)
    lines = [
        f"Tested on {format_number(data.texts)} of {format_number(data.rows)} {data.noun} with {methods} "
        f"method{'' if methods == 1 else 's'}."
    ]
    if VERDICTS in audit.untested:
        lines.append(f"No verdicts yet: {sentence(audit.untested[VERDICTS])}")
    if data.added:
        lines.append(
            f"{format_number(data.added)} of them are of rarely predicted classes and count for these classes only."
        )
    if data.segmented:
        segmented = f"{format_number(data.segmented)} of these {format_number(data.texts)} {data.noun}"
        segmented = f"All {data.noun}" if data.segmented == data.texts else segmented
        verb = "was" if data.segmented == 1 else "were"
        lines.append(f"{segmented} {verb} explained by {data.feature}s of several words, not word by word.")
    if truncated > 0:
        share = format_share(truncated) if truncated >= LEAST_PERCENT else "Fewer than 1 %"
        lines.append(f"{share} of the texts are longer than the model reads and were cut off.")
    if untested := [label for label in untested_labels(audit) if label != VERDICTS]:
        lines.append(f"Not tested: {', '.join(untested)}.")
    return " ".join(lines)


def certainty(audit: Audit) -> str:
    """How sure the intervals are, and what another evaluation costs."""
    times = {1: "once", 2: "twice"}.get(audit.look, f"{audit.look} times")
    power = str(audit.look).translate(_SUPERSCRIPTS)
    data = audit.data
    added = f", and {format_number(data.added)} more of rarely predicted classes" if data.added else ""
    rarity = math.floor(1 / _unseen_share(audit))
    unseen = (
        f" A kind of {data.noun[:-1]} that is rarer than one in {rarity} may be missing from them: the tests allow for "
        f"failures on such {data.noun}, the intervals do not."
    )
    return (
        f"{format_number(data.texts - data.added)} of {format_number(data.rows)} {data.noun} were audited, drawn "
        f"at random (seed {audit.seed}) in proportion to the predicted classes{added}; all methods saw the same "
        f"ones. This audit has been evaluated {times}. The tests of each question err with probability .05/2{power} = "
        f"{0.05 / 2**audit.look:.3g} at most in an evaluation, and with .05 in all evaluations together, however often "
        f"the audit goes on; so each further one needs stronger evidence. Intervals, in parentheses, have level "
        f"{100 * audit.level:.4g} % for {data.noun} like these.{unseen if rarity > 1 else ''}"
    )


def _unseen_share(audit: Audit) -> float:
    """The share of a kind of text of which the audited ones hold none with the error probability of the tests."""
    texts = max(1, audit.data.texts - audit.data.added)
    return float(1 - math.pow((1 - audit.level) / 2, 1 / texts))


def use_text(audit: Audit, use: WordUse) -> str:
    """In how many texts a word is ranked first, or is in the segment that is."""
    prediction = " and this prediction" if use.predicted else ""
    texts = f"{use.first} of {use.texts} {audit.data.noun} with this word{prediction}"
    if not use.by_chance:
        return f"ranked first in {texts}"
    return f"in the {audit.data.feature} ranked first in {texts} ({use.by_chance:.1f} by chance)"


def methods_table(audit: Audit) -> TableView:
    """The table that a user wants, one row per method."""
    columns = (
        "method", "decision", "faithful: % of the achievable", "tier",
        *(question.column for question in COLUMN_QUESTIONS), "seconds per text", "reason",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            f"{method.name} (control)" if method.control else method.name,
            "" if method.decision is None else method.decision.value,
            share_text(method),
            str(method.tier) if method.tier else "",
            *(format_cell(method.answer(question.name).statistic.value) for question in COLUMN_QUESTIONS),
            format_cell(method.seconds),
            decision_reason(audit, method),
        )
        for method in audit.methods
    ]
    return TableView("One row per method", columns, tuple(rows))


def classes_table(audit: Audit) -> TableView:
    """A row per predicted class: its texts and the faithfulness of each method on them."""
    methods = [method for method in audit.methods if not method.control]
    classes = list(dict.fromkeys(label for method in methods for label in method.by_class))
    rows: list[tuple[Cell, ...]] = [
        (label, audit.data.classes.get(label, 0), *(_class_cell(method.by_class[label]) for method in methods))
        for label in classes
    ]
    note = (
        f"% of the achievable with its interval, and whether the method is faithful on these {audit.data.noun} alone; "
        f"a class needs {MIN_EXAMPLES} {audit.data.noun} for a verdict. The classes share the error of the tests."
    )
    return TableView(
        "By predicted class", ("predicted", audit.data.noun, *(method.name for method in methods)), tuple(rows), note
    )


def _class_cell(answer: Finding) -> str:
    """The verdict on a class, and the share with its interval."""
    row = answer.statistic
    interval = format_share(row.low, row.high)
    share = format_share(row.value) + (f" ({interval})" if interval else "")
    return f"{SYMBOLS[answer.verdict]} {share or answer.verdict.value}"


def thresholds_table(audit: Audit) -> TableView:
    """A row per threshold: the decisions that a lower and a higher one would change."""
    by_name: dict[str, list[OtherThreshold]] = {}
    for other in audit.other_thresholds:
        by_name.setdefault(other.name, []).append(other)
    rows: list[tuple[Cell, ...]] = [
        (THRESHOLD_LABELS[name][0], format_threshold(name, others[0].used), *(_changes(audit, each) for each in others))
        for name, others in by_name.items()
    ]
    return TableView("What would be decided instead", ("threshold", "used", "if lower", "if higher"), tuple(rows))


def _changes(audit: Audit, other: OtherThreshold) -> str:
    """The value that was tried, and the changed decisions with their methods."""
    by_decision: dict[Decision, list[str]] = {}
    for name, decision in audit.changed_decisions(other).items():
        by_decision.setdefault(decision, []).append(name)
    changes = [f"{decision.value}: {join_names(names)}" for decision, names in by_decision.items()]
    return f"{format_threshold(other.name, other.value)} → {'; '.join(changes) or 'no change'}"


def decisions_table(audit: Audit) -> TableView:
    """The decision on every method with every threshold that was tried."""
    tried = audit.other_thresholds
    columns = ("method", "as used", *(f"{each.name} {format_threshold(each.name, each.value)}" for each in tried))
    rows: list[tuple[Cell, ...]] = [
        (method.name, decision_text(method), *(each.decisions[method.name].value for each in tried))
        for method in audit.methods
        if not method.control
    ]
    return TableView("All decisions", columns, tuple(rows))


def format_threshold(name: str, value: float) -> str:
    """A threshold in percent if it is a share.

    >>> format_threshold("tier_margin", 0.025), format_threshold("model_change", 0.75)
    ('2.5 %', '0.75')
    """
    _, is_share = THRESHOLD_LABELS[name]
    return f"{100 * value:.3g} %" if is_share else f"{value:.2f}"


def statistic_table(audit: Audit, name: str) -> TableView:
    """All statistics of a page."""
    columns = ("method", "measure", "on", "value", "from", "to", "null", "p", "texts", "struck out")
    cells: list[tuple[Cell, ...]] = []
    for row in audit.statistics(name):
        numbers = [format_cell(value) for value in (row.value, row.low, row.high, row.null, row.p_value)]
        metric = ATTENTION_FINDINGS.measure(row).label if name == ATTENTION_FINDINGS.name else row.metric
        texts = "" if math.isnan(row.n) else int(row.n)
        cells.append((row.method, metric, row.subset, *numbers, texts, audit.struck_reason(row)))
    return TableView("All numbers of this page", columns, tuple(cells), "p: adjusted over methods (Holm).")


def ways_table(audit: Audit) -> TableView:
    """Faithfulness and tier of each method under each way of removing words."""
    ways = list(dict.fromkeys(way.share.subset for method in audit.methods for way in method.by_way))
    rows: list[tuple[Cell, ...]] = []
    for method in audit.methods:
        shares = {way.share.subset: way for way in method.by_way}
        own = [way for way in ways if any(map(method.optimizes, _rows_of_way(method, way)))]
        cells = [_way_cell(shares[way]) if way in shares else "" for way in ways]
        name = f"{method.name} (control)" if method.control else method.name
        rows.append((name, *cells, ", ".join(own)))
    note = (
        "% of the achievable, with its interval and the tier. No method optimizes infill, where words of other texts "
        "take the place of those removed; 100 % is the best order known there."
    )
    return TableView("By way of removal", ("method", *ways, "itself optimizes"), tuple(rows), note)


def _rows_of_way(method: MethodAudit, way: str) -> list[Statistic]:
    """The measures of faithfulness of a method under one way of removal."""
    return [row for row in method.answer(FAITHFUL).evidence if row.subset == way]


def _way_cell(way: WayShare) -> str:
    """The share with its interval, and the tier."""
    interval = format_share(way.share.low, way.share.high)
    text = format_share(way.share.value) + (f" ({interval})" if interval else "")
    return f"{text}, tier {way.tier}" if way.tier else text


def distance_sentence(audit: Audit) -> str:
    """How far each way of removal leads from real texts; empty if that was not measured."""
    if not audit.distances:
        return ""
    noun, first = audit.data.noun, audit.distances[0]
    shares = [
        f"{format_share(row.value)} ({format_share(row.low, row.high)}) when words are {way}"
        for row in audit.distances
        for way in [WAYS.get(row.subset, row.subset)]
    ]
    return (
        f"With half of their words removed, this share of the {first.n:.0f} {noun} lies farther from the nearest real "
        f"{noun[:-1]} (in the last hidden state) than {format_share(1 - first.null)} of real {noun} do: "
        f"{', '.join(shares)}. With nothing removed it would be {format_share(first.null)}."
    )


def latex_table(audit: Audit) -> str:
    """The table of methods in LaTeX, without packages."""
    headings = (
        "method",
        "faithful (% of achievable)",
        *(each.column for each in COLUMN_QUESTIONS),
        "s per text",
        "decision",
    )
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 2)}l}}",
        r"\hline",
        " & ".join(map(escape_latex, headings)) + r" \\",
        r"\hline",
    ]
    for method in audit.methods:
        values = [method.answer(question.name).statistic.value for question in COLUMN_QUESTIONS]
        numbers = [format_brief(value) for value in (*values, method.seconds)]
        cells = [method.name, share_text(method), *numbers, decision_text(method)]
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


def decision_text(method: MethodAudit) -> str:
    """The decision in words."""
    return "control" if method.decision is None else method.decision.value


def share_text(method: MethodAudit) -> str:
    """Faithfulness as a share of the achievable, with its interval."""
    interval = format_share(method.achievable_low, method.achievable_high)
    return format_share(method.achievable) + (f" ({interval})" if interval else "")


def statistic_text(row: Statistic) -> str:
    """Value, interval, null and number of texts."""
    null = [f"null {format_brief(row.null)}"] if math.isfinite(row.null) else []
    texts = [f"{row.n:.0f} texts"] if math.isfinite(row.n) else []
    return "; ".join([format_interval(row.value, row.low, row.high), *null, *texts])


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


def format_cell(value: float) -> str:
    """The number, and an empty cell where it is undefined."""
    return format_brief(value) if math.isfinite(value) else ""


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    >>> sentence("no method beats it"), sentence("")
    ('No method beats it.', '')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")
