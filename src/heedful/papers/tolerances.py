"""The tolerances and bands in which our numbers were expected before they were measured.

Chapters and the ledger read this one table, `published_tables/expected.json`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

from pydantic import TypeAdapter

from heedful.papers import published
from heedful.papers.published import CellName
from heedful.table_view import Band, Comparison

NO_TOLERANCE = "no tolerance was fixed"
ANY = ("*",)


@dataclass(frozen=True)
class Limit:
    """Where our number was expected, or why it is not judged.

    Args:
        tolerance: the largest acceptable difference from the published number.
        band: where the number was expected, in place of a tolerance.
        minus: the method whose number is subtracted before the band applies; empty for none.
        source: the check of our specification that fixed it.
        reason: why the number is not judged; empty if it is.
    """

    tolerance: float | None = None
    band: Band | None = None
    minus: str = ""
    source: str = ""
    reason: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether a number can be inside or outside."""
        return self.tolerance is not None or self.band is not None

    def compare(self, ours: float | None, printed: float | None, reference: float | None = None) -> Comparison:
        """Our number beside the published one; `reference` is our number of the method `minus`."""
        band = self.band
        if band is not None and self.minus:
            band = None if reference is None else Band(band.low + reference, band.high + reference)
        return Comparison(ours, printed, self.tolerance, band=band)


@dataclass(frozen=True)
class ToleranceRule:
    """A tolerance or a band for all cells that fit, or the reason why they are not judged.

    Args:
        name: by which a chapter finds the tolerance that its note states.
        trial: patterns, as are corpus, encoder, attention, metric and method.
        minus: the band is for the difference from this method, and holds where the published difference is inside.
        smallest_lambda: bound of the adversary's lambda; the print is bounded likewise.
    """

    trial: tuple[str, ...]
    name: str = ""
    corpus: tuple[str, ...] = ANY
    encoder: tuple[str, ...] = ANY
    attention: tuple[str, ...] = ANY
    metric: tuple[str, ...] = ANY
    method: tuple[str, ...] = ANY
    tolerance: float | None = None
    low: float = -math.inf
    high: float = math.inf
    minus: str = ""
    reason: str = ""
    smallest_lambda: float = -math.inf
    largest_lambda: float = math.inf
    smallest_print: float = -math.inf
    largest_print: float = math.inf

    @property
    def band(self) -> Band | None:
        """The band, if the rule has one."""
        return None if math.isinf(self.low) and math.isinf(self.high) else Band(self.low, self.high)

    def fits(self, cell: CellName, printed: float) -> bool:
        """Whether the rule is about this cell."""
        patterns = (self.trial, self.corpus, self.encoder, self.attention, self.metric, self.method)
        if not all(_matches(name, choices) for name, choices in zip(cell[1:-1], patterns, strict=True)):
            return False
        if not self.smallest_print <= printed <= self.largest_print:
            return False
        if math.isinf(self.smallest_lambda) and math.isinf(self.largest_lambda):
            return True
        return self.smallest_lambda <= published.lambda_of(cell.method) <= self.largest_lambda


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class ExpectedNumber:
    """A band for one number, or for its difference from that of another method, on additive attention."""

    what: str
    corpus: str
    trial: str
    encoder: str
    metric: str
    method: str = ""
    subset: str = ""
    minus: str = ""
    low: float = -math.inf
    high: float = math.inf

    @property
    def band(self) -> Band:
        """Where the number was expected."""
        return Band(self.low, self.high)


@dataclass(frozen=True)
class Expectations:
    """What our specification expected of one paper.

    Args:
        source: the check of the specification that fixed it.
        checks: bands for single numbers.
        cells: rules for all published cells; the first that fits counts.
    """

    source: str = ""
    checks: tuple[ExpectedNumber, ...] = ()
    cells: tuple[ToleranceRule, ...] = ()

    def tolerance(self, name: str) -> float:
        """The tolerance of the rule with this name."""
        (value,) = (rule.tolerance for rule in self.cells if rule.name == name)
        assert value is not None
        return value


@cache
def expectations(paper: str) -> Expectations:
    """What was expected of a paper; nothing where the specification has nothing."""
    content = published.published_json("expected").get(paper, {})
    return TypeAdapter(Expectations).validate_python(content)


@cache
def find_rule(cell: CellName, printed: float) -> Limit:
    """The limit of a cell by the rules for kinds of cells, which chapters show; an empty one if none fits."""
    expected = expectations(cell.paper)
    for rule in expected.cells:
        if rule.fits(cell, printed):
            limit = Limit(rule.tolerance, rule.band, rule.minus, expected.source, rule.reason)
            if rule.minus and rule.band is not None:
                theirs = _sibling(cell, rule.minus)
                if theirs is None or rule.band.verdict(printed - theirs) != "inside":
                    return Limit(reason="the printed number is outside the band as well")
            return limit if limit.is_judged else replace(limit, source="")
    return Limit()


def find_limit(cell: CellName, printed: float) -> Limit:
    """The tolerance of a cell, else the band of a single check, else the reason why it is not judged."""
    limit = find_rule(cell, printed)
    if limit.is_judged or limit.reason:
        return limit
    expected = expectations(cell.paper)
    for check in expected.checks:
        about = (check.corpus, check.trial, check.encoder, "additive", check.metric, check.method, check.subset)
        if about == (cell.corpus, cell.trial, *cell[3:]) and not check.minus:
            return Limit(band=check.band, source=expected.source)
    return Limit(reason=NO_TOLERANCE)


def _sibling(cell: CellName, method: str) -> float | None:
    """The published number of another method in the same table."""
    return published.find_published(cell.trial, cell.model, cell.paper)[1].get((cell.metric, method, cell.subset))
