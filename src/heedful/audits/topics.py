"""What a page of an audit is, and what a question is that is asked of every method.

The questions themselves are in `questions`; a question of your own derives from `Question`, or from `MeanQuestion` if
its verdict follows from the mean of one number per text.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from heedful.audits.evidence import block_range
from heedful.audits.evidence_charts import measure_charts, verdict_chart
from heedful.audits.external_attributions import ExternalAttributions
from heedful.audits.verdict_rules import MeanScale, Rules, Thresholds
from heedful.figures import Chart
from heedful.formatting import order_of_magnitude
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.results import Finding, Statistic
from heedful.store.recipe import Recipe
from heedful.types import Method

if TYPE_CHECKING:  # both import this module
    from heedful.audits.audit_result import Audit
    from heedful.audits.work_list import AuditPlan, FinishedWork

VERDICTS = "verdicts"
"""What an audit of too few texts for any verdict lists as not tested, with the minutes that would decide."""
SIDE_TEXTS = 20
"""The first texts, of which explanations are computed again: with random weights, and after an edit."""
SIDE_STRIDE = 3
"""Of later texts, explanations are computed again for one block in so many."""
MADE_ELSEWHERE = "its scores were made elsewhere and cannot be computed again"


class Role(Enum):
    """What the answer to a question means for the decision on a method."""

    REQUIRED = "a method that fails must not be shown, and one that is undecided must not be shown yet"
    DESIRED = "a method that fails must not be shown alone"
    APPEARANCE = "a method that passes, but fails what is required, looks right and is not"
    INFORMATION = "no decision rests on it"


class Topic:
    """A page of an audit, with the work behind it.

    Class variables:
        name: the word in file names, in tables and in `--require`.
        label: heading of the column in the verdict matrix.
        title: what was asked, in words.
        measured: what the number is.
        null: what it is compared with.
        rule: how the verdict follows from the number.
        limits: what the verdict does not mean.
        references: keys of `REFERENCES`, the most important first.
        axis: label of the chart.
        cost: seconds of its own recipes, as a share of the seconds that the search for the best explanation takes.
        optional: kinds of its recipes of which some may fail; of others a failure ends the question for the method.
        texts: it is asked of the first texts, so many of them that represent the data, and of every third block of the
            others; infinity asks it of all.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    title: ClassVar[str]
    measured: ClassVar[str]
    null: ClassVar[str]
    rule: ClassVar[str]
    limits: ClassVar[str]
    references: ClassVar[tuple[str, ...]] = ()
    axis: ClassVar[str]
    cost: ClassVar[float] = 0.0
    optional: ClassVar[tuple[type[Recipe], ...]] = ()
    texts: ClassVar[float] = math.inf

    def is_asked(self, block: int, first: float) -> bool:
        """Whether it is asked of the texts of a block; `first` texts of the sample hold as many as it is asked of."""
        return block_range(block).start < first or block % SIDE_STRIDE == SIDE_STRIDE - 1

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        """What must be computed for a block of texts, each with the method it is for, or "" for none."""
        yield from ()

    def untested(self, work: FinishedWork) -> dict[str, str]:
        """What was not tested for any method, with the reason and the remedy."""
        return {}

    @abstractmethod
    def statistics(self, audit: Audit) -> tuple[Statistic, ...]:
        """Every number behind the page."""

    @abstractmethod
    def charts(self, audit: Audit) -> list[Chart]:
        """The charts of the page, the most important one first."""


class Question(Topic):
    """What an audit asks of every method.

    Class variables:
        role: what the answer means for the decision.
        limit: the number that decides in an audit; NaN where several do.
        is_share: whether the number is a share of the achievable, which is shown in percent.
        recomputes: whether it needs other scores than those of the texts, which scores made elsewhere do not have.
        column: heading of the number in the table of methods, other than `name`; empty leaves it out.
        meaning: what this number is, in a few words.
    """

    role: ClassVar[Role] = Role.INFORMATION
    limit: ClassVar[float] = math.nan
    is_share: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    column: ClassVar[str] = ""
    meaning: ClassVar[str] = ""

    def read(self, work: FinishedWork) -> pd.DataFrame:
        """The numbers from the finished work: a row per text and a column per method."""
        return pd.DataFrame()

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        """Why there are no numbers for a method; empty if there should be some."""
        return MADE_ELSEWHERE if self.recomputes and isinstance(method, ExternalAttributions) else ""

    def threshold(self, thresholds: Thresholds) -> float:
        """The number that decides with these thresholds; 0 where none of them does."""
        return self.limit if math.isfinite(self.limit) else 0.0

    def thresholds_used(self, thresholds: Thresholds) -> tuple[float, ...]:
        """The numbers of these thresholds that the answers depend on."""
        return (self.threshold(thresholds),)

    def in_all_texts(self, answers: dict[str, Finding], rules: Rules) -> dict[str, Finding]:
        """The answers with the texts that are needed in all, where only some are asked or have a number."""
        asked = rules.evidence.asked.get(self.name, 0)
        if rules.is_early or math.isinf(self.texts):
            return answers
        return {
            name: replace(answer, texts_needed=texts_in_all(answer.texts_needed, int(answer.statistic.n), asked, self))
            if answer.texts_needed and answer.evidence
            else answer
            for name, answer in answers.items()
        }

    @abstractmethod
    def answers(self, rules: Rules) -> dict[str, Finding]:
        """The verdict on every method."""

    def statistics(self, audit: Audit) -> tuple[Statistic, ...]:
        return tuple(row for method in audit.methods for row in method.answer(self.name).evidence)

    def charts(self, audit: Audit) -> list[Chart]:
        return [*verdict_chart(audit, self), *measure_charts(audit, self)]


class MeanQuestion(Question):
    """A question whose verdict follows from the mean of a method's column: clearly above the limit or not.

    Class variables:
        metric: name of the number.
        chance: what a method without merit reaches.
        lowest: no number is lower; `highest`: none is higher.
        reason: the answer in words, with `{value}` for the mean.
    """

    metric: ClassVar[str]
    chance: ClassVar[float] = 0.0
    lowest: ClassVar[float] = 0.0
    highest: ClassVar[float] = 1.0
    reason: ClassVar[str]

    def answers(self, rules: Rules) -> dict[str, Finding]:
        return self.judge(rules, rules.table(self.name))

    def judge(self, rules: Rules, table: pd.DataFrame) -> dict[str, Finding]:
        """The verdict on every method from a column per method."""
        limit = self.threshold(rules.thresholds)
        scale = MeanScale(self.metric, self.lowest, self.highest, limit, self.chance)
        return self.in_all_texts(rules.judge_means(self.name, table, scale, self.reason), rules)


def texts_in_all(needed: int, defined: int, asked: int, question: Question) -> int | None:
    """The texts of an audit in which a question would give so many numbers; None if it gave none so far.

    The result is rounded up to one digit, as it is an order of magnitude.

    Args:
        defined: numbers that it gave for the texts that it was `asked` of.
    """
    if not defined:
        return None
    wanted = needed * max(asked, defined) / defined
    later = max(0.0, wanted - question.texts)
    return order_of_magnitude(max(wanted - later + SIDE_STRIDE * later, MIN_EXAMPLES))
