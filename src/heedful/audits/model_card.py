"""The answer of an audit as a section of a Hugging Face model card: Markdown without HTML, links or scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heedful.audits.audit_tables import (
    COLUMN_QUESTIONS,
    basis,
    certainty,
    format_brief,
    sentence,
    share_text,
    untested_labels,
)
from heedful.audits.verdict_rules import FAITHFUL
from heedful.formatting import format_share, page_text
from heedful.report.page import SYMBOLS
from heedful.results import Finding, Verdict

if TYPE_CHECKING:
    from heedful.audits.audit_result import Audit, MethodAudit

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$@^])")
_BLOCK_START = re.compile(r"^([-+=]|[0-9]+(?=[.)]))")


def model_card(audit: Audit) -> str:
    """A section with the answer, the table of methods, the caution and what was not tested."""
    model, data = escape_markdown(audit.model.name), escape_markdown(audit.data.name)
    shown = [each for each in audit.methods if not each.control]
    controls = [each for each in audit.methods if each.control]
    parts = [
        "## Which explanations of this model may be shown",
        f"{escape_markdown(audit.sentence)} {escape_markdown(basis(audit))}",
        f"> {escape_markdown(audit.caution)}",
        _table(shown),
        "Faithful: share of what the best explanation that a search found achieves (100 %), above random scores (0 %). "
        + " ".join(f"{sentence(f'{question.label}: {question.meaning}')}" for question in COLUMN_QUESTIONS),
    ]
    if controls:
        reached = ", ".join(f"{escape_markdown(each.name)} {format_share(each.achievable) or '–'}" for each in controls)
        parts.append(f"Negative controls: {reached} of the achievable.")
    if audit.caption:
        parts += ["Caption for a heat-map:", f"> {escape_markdown(audit.caption)}"]
    parts.append(f"How sure: {escape_markdown(certainty(audit))}")
    if audit.data.assumptions:
        parts.append("Assumed about the data: " + "; ".join(map(escape_markdown, audit.data.assumptions)) + ".")
    struck = [f"{measure} ({why})" for measure, why in audit.struck.items()]
    if struck:
        parts.append("Measures that do not count on this data: " + "; ".join(map(escape_markdown, struck)) + ".")
    if audit.untested:
        lines = [f"- {escape_markdown(f'{name}: {sentence(why)}')}" for name, why in untested_labels(audit).items()]
        parts += ["Not tested:", "\n".join(lines)]
    versions = escape_markdown(", ".join(f"{name} {version}" for name, version in audit.versions.items()))
    parts.append(
        f"Audit of {model} on {data} (model {audit.model.digest[:12]}, data {audit.data.digest[:12]}, seed {audit.seed}"
        f"{', ' + escape_markdown(audit.date) if audit.date else ''}) with `heedful audit`; {versions}."
    )
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    r"""The text on one line, with everything escaped that Markdown would read as markup, a link or HTML.

    >>> escape_markdown("a_b <c>\n# d"), escape_markdown("- www.x.org"), escape_markdown("1. x&y")
    ('a\\_b \\<c\\> \\# d', '\\- www\\.x.org', '1\\. x&amp;y')
    """
    line = _SPECIAL.sub(r"\\\1", " ".join(page_text(text).split()).replace("&", "&amp;"))
    line = line.replace("://", ":\\/\\/")
    line = re.sub(r"(?i)\b(www)\.", r"\1\\.", line)
    return _BLOCK_START.sub(lambda start: f"\\{start[1]}" if start[1] in "-+=" else f"{start[1]}\\", line)


def _table(methods: Sequence[MethodAudit]) -> str:
    head = ("method", "decision", "faithful", *(question.label for question in COLUMN_QUESTIONS), "s per text")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for method in methods:
        answers = {answer.question: answer for answer in method.answers}
        cells = [
            escape_markdown(method.name),
            "" if method.decision is None else method.decision.value,
            f"{_symbol(answers[FAITHFUL])} {share_text(method) or '–'}",
            *(
                f"{_symbol(answers[each.name])} {format_brief(answers[each.name].statistic.value)}"
                for each in COLUMN_QUESTIONS
            ),
            format_brief(method.seconds),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _symbol(answer: Finding) -> str:
    return "" if answer.verdict is Verdict.NOT_TESTED else SYMBOLS[answer.verdict]
