"""What the papers claim, and whether our results support it by rules that are stated beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from heedful.measures.intervals import share_interval, spread_interval
from heedful.papers.chapter import Result
from heedful.results import Finding, Statistic, Verdict, get_statistic, group_by_verdict
from heedful.table_view import TableView

Relation = Literal["above", "at least", "below", "at most"]
Extent = Literal["all", "most", "some"]
Evidence = Mapping[str, tuple[Statistic, ...]]
"""The statistics that a claim rests on, by the name of the model."""
CLAIMS_CAPTION = "What the paper claims"
CLAIM_VERDICTS = {
    Verdict.SUPPORTED: "true",
    Verdict.NOT_SUPPORTED: "false",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_TESTED: "not tested",
}
"""The verdicts on a claim as readers see them."""
_MOST_SHOWN = 6
"""Models that are named for each verdict; the others are counted."""
_ROUNDING = 1e-9
_EXTENTS = {"all": "for every model", "most": "for more than half of the models", "some": "for at least one model"}
CLAIMS_NOTE = (
    "Claims are decided by rules that were written before the results were read. A model supports a claim if the 95 % "
    "interval of each of its numbers lies on the side that the rule names, contradicts it if an interval lies on the "
    "other side, and is otherwise undecided; a number without an interval decides by itself. Quick versions do not "
    "count."
)


@dataclass(frozen=True)
class Criterion:
    """The side of a bound on which a number must be for a claim to hold.

    Args:
        number: what is measured, in words.
        refuted_from: the value that contradicts the claim, where numbers between it and the bound decide nothing; by
            default there are none.
    """

    number: str
    relation: Relation
    bound: float
    refuted_from: float | None = None

    def __str__(self) -> str:
        between = "" if self.refuted_from is None else f" (contradicted from {self.refuted_from:g} on)"
        bound = f"{self.bound:g}".replace("-", "\N{MINUS SIGN}")
        return f"{self.number} is {self.relation} {bound}{between}"

    @property
    def is_upper(self) -> bool:
        """Whether the number must be small."""
        return self.relation in ("below", "at most")

    def judge(self, statistic: Statistic) -> Verdict:
        """The verdict of a statistic by its interval, or by its value if it has none.

        >>> small = Criterion("tau", "below", 0.5)
        >>> [small.judge(Statistic("tau", value=0.4, low=0.3, high=high)).value for high in (0.45, 0.5)]
        ['supported', 'undecided']
        """
        if math.isnan(statistic.value):
            return Verdict.UNDECIDED
        ends = (statistic.value,) if math.isnan(statistic.low) else (statistic.low, statistic.high)
        if all(self._holds(end) for end in ends):
            return Verdict.SUPPORTED
        return Verdict.NOT_SUPPORTED if all(self._contradicts(end) for end in ends) else Verdict.UNDECIDED

    def margin(self, statistic: Statistic) -> float:
        """How far the less favorable end of the interval is on the right side; negative on the wrong one."""
        end = statistic.high if self.is_upper else statistic.low
        distance = (statistic.value if math.isnan(end) else end) - self.bound
        return -math.inf if math.isnan(distance) else -distance if self.is_upper else distance

    def _holds(self, value: float) -> bool:
        distance = self.bound - value if self.is_upper else value - self.bound
        return distance > 0 if self.relation in ("above", "below") else distance >= -_ROUNDING

    def _contradicts(self, value: float) -> bool:
        if self.refuted_from is None:
            return not self._holds(value)
        return value >= self.refuted_from if self.is_upper else value <= self.refuted_from


@dataclass(frozen=True)
class PaperClaim:
    """One claim of a paper and the rule by which results decide it.

    Args:
        name: a short name, unique within the paper.
        text: the claim in one sentence of ours.
        source: where it is in the paper.
        criteria: where each number must be, by metric.
        measure: the statistics of each model, from results of the paper; NaN where one is missing.
        needed: what must be run to test it.
        extent: for how many of the models it must hold.
    """

    name: str
    text: str
    source: str
    criteria: Mapping[str, Criterion]
    measure: Callable[[Sequence[Result]], Evidence]
    needed: str
    extent: Extent = "all"

    @property
    def rule(self) -> str:
        """When the claim is true, in words."""
        return f"{' and '.join(map(str, self.criteria.values()))}, {_EXTENTS[self.extent]}"

    def find(self, results: Sequence[Result]) -> list[Finding]:
        """A finding for each model with a defined number; quick versions are left out."""
        evidence = self.measure([result for result in results if not result.quick])
        return [
            self.judge_model(model, statistics)
            for model, statistics in evidence.items()
            if not all(math.isnan(statistic.value) for statistic in statistics)
        ]

    def judge_model(self, model: str, statistics: Sequence[Statistic]) -> Finding:
        """The verdict for one model: contradicted by any number, supported only by all, of every metric."""
        verdicts = {self.criteria[statistic.metric].judge(statistic) for statistic in statistics}
        is_complete = self.criteria.keys() <= {statistic.metric for statistic in statistics}
        verdict = Verdict.UNDECIDED
        if Verdict.NOT_SUPPORTED in verdicts:
            verdict = Verdict.NOT_SUPPORTED
        elif is_complete and verdicts == {Verdict.SUPPORTED}:
            verdict = Verdict.SUPPORTED
        return Finding(verdict, model, tuple(statistics), question=self.name)

    def judge(self, findings: Sequence[Finding]) -> Verdict:
        """The verdict over all models; NOT_TESTED without any."""
        count = len(findings)
        if not count:
            return Verdict.NOT_TESTED
        supported, contradicted = (
            sum(finding.verdict is verdict for finding in findings)
            for verdict in (Verdict.SUPPORTED, Verdict.NOT_SUPPORTED)
        )
        # How many models must support the claim, and how many must contradict it.
        needed = {"all": count, "most": count // 2 + 1, "some": 1}[self.extent]
        if supported >= needed:
            return Verdict.SUPPORTED
        return Verdict.NOT_SUPPORTED if contradicted > count - needed else Verdict.UNDECIDED

    def numbers(self, findings: Sequence[Finding]) -> str:
        """Our numbers by verdict: of each model and metric the one that is least in favor of the claim."""
        if not findings:
            return f"none; needed: {self.needed}"
        by_model = {finding.method: self._model_numbers(finding) for finding in findings}
        groups = group_by_verdict((finding.verdict, finding.method) for finding in findings)
        parts = []
        for verdict, models in groups.items():
            shown = "; ".join(f"{model}: {by_model[model]}" for model in models[:_MOST_SHOWN])
            rest = f"; and {len(models) - _MOST_SHOWN} more" if len(models) > _MOST_SHOWN else ""
            several = len(findings) > 1
            heading = f"{CLAIM_VERDICTS[verdict]} for {len(models)} of {len(findings)}: " if several else ""
            parts += [f"{heading}{shown}{rest}."] if models else []
        return " ".join(parts)

    def _model_numbers(self, finding: Finding) -> str:
        weakest: dict[str, Statistic] = {}
        for statistic in finding.evidence:
            criterion, known = self.criteria[statistic.metric], weakest.get(statistic.metric, statistic)
            weakest[statistic.metric] = min(known, statistic, key=criterion.margin)
        return ", ".join(map(_format_statistic, weakest.values()))


@dataclass(frozen=True)
class ClaimRow:
    """A claim as a page shows it."""

    text: str
    source: str
    verdict: str
    rule: str
    numbers: str


def claim_row(claim: PaperClaim, findings: Sequence[Finding]) -> ClaimRow:
    """A claim with its verdict and our numbers."""
    verdict = CLAIM_VERDICTS[claim.judge(findings)]
    return ClaimRow(claim.text, claim.source, verdict, claim.rule, claim.numbers(findings))


def claim_table(claims: Iterable[PaperClaim], results: Sequence[Result]) -> TableView:
    """The claims of a paper with their verdicts; without rows if none was tested.

    Models are named without their word embeddings where a corpus was run with one kind only.
    """
    kinds: dict[str, set[str]] = {}
    for result in results:
        kinds.setdefault(result.corpus, set()).add(result.embeddings)
    named = [result if len(kinds[result.corpus]) > 1 else replace(result, embeddings="") for result in results]
    rows = [claim_row(claim, claim.find(named)) for claim in claims]
    is_tested = any(row.verdict != CLAIM_VERDICTS[Verdict.NOT_TESTED] for row in rows)
    cells = tuple((f"{row.text} ({row.source})", row.verdict, row.rule, row.numbers) for row in rows)
    return TableView(
        CLAIMS_CAPTION, ("claim", "verdict", "true if", "our numbers"), cells if is_tested else (), CLAIMS_NOTE
    )


def model_name(result: Result) -> str:
    """The label of a model, with its attention unless that is additive, the default, or inside a transformer."""
    is_default = result.is_transformer or result.attention == "additive"
    return result.short_label if is_default else f"{result.short_label}, {result.attention}"


def mean_over_texts(result: Result, metric: str, method: str, *, std: str) -> Statistic:
    """A mean over texts with its interval, from the standard deviation that the summary has as another metric."""
    row = get_statistic(result.summary, metric, method)
    spread = get_statistic(result.summary, std, method).value
    _, low, high = spread_interval(row.value, spread, row.n)
    return replace(row, low=low, high=high)


def share_of_texts(result: Result, metric: str) -> Statistic:
    """A share of texts with its interval."""
    row = get_statistic(result.summary, metric)
    _, low, high = share_interval(row.value, row.n)
    return replace(row, low=low, high=high)


def cautious_difference(first: Statistic, second: Statistic, metric: str) -> Statistic:
    """The difference of two numbers, with the outermost differences of their bounds: valid however they are related."""
    value, low, high = first.value - second.value, first.low - second.high, first.high - second.low
    return Statistic(metric, f"{first.method} over {second.method}", first.subset, value, low, high, first.n)


def _format_statistic(statistic: Statistic) -> str:
    value, low, high = (
        f"{number + 0.0:.3f}".replace("-", "\N{MINUS SIGN}")
        for number in (statistic.value, statistic.low, statistic.high)
    )
    if math.isnan(statistic.value):
        return "undefined"
    return value if math.isnan(statistic.low) else f"{value} [{low}, {high}]"
