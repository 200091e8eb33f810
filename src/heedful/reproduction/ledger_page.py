"""The ledger as a page: shares inside, print against ours as pictures, misses with their causes, and every cell."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from heedful.figures import Axis, Scatter, Series
from heedful.papers import PAPERS
from heedful.papers.claims import CLAIMS_NOTE, ClaimRow
from heedful.report.charts import svg
from heedful.report.html import HtmlDocument, write_atomically
from heedful.reproduction.cell_run import Experiment, read_experiments
from heedful.reproduction.claim_records import ClaimRecord, claim_rows, read_claims
from heedful.reproduction.ledger import LedgerRecord, share_inside

_DOCUMENT = HtmlDocument("ledger.html", ("style.css", "ledger.css"), ("frame.js",))
_NOT_DRAWN = ("corpus",)
"""Published under this name are sizes, which have no common scale with other numbers."""
UNEXPLAINED = "no cause shown yet"


@dataclass(frozen=True)
class CellRow:
    """One published number on the page, with the experiments about it."""

    record: LedgerRecord
    experiments: tuple[Experiment, ...]

    @property
    def ours(self) -> float | None:
        """Our number; None if it was not run or is undefined."""
        return None if self.record.ours is None else self.record.ours.value

    @property
    def limit(self) -> str:
        """The tolerance or band, in words."""
        if self.record.tolerance is not None:
            return f"±{self.record.tolerance:g}"
        band = self.record.limit.band
        return "" if band is None else f"{band}{f' beyond {self.record.minus}' * bool(self.record.minus)}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """How our number was made, as far as it is recorded."""
        run, ours = self.record.run, self.record.ours
        if run is None or ours is None:
            return []
        known = {
            "seeds": ours.seeds,
            "standard deviation": None if ours.std is None else f"{ours.std:.2g}",
            "n": None if ours.n is None else f"{ours.n:g}",
            "embeddings": run.embeddings,
            "minutes": run.minutes,
            "date": run.date,
            "commit": run.commit,
            "data": run.data,
            "heedful": run.heedful,
            "torch": run.torch,
            "artefacts": ", ".join(run.artefacts),
        }
        return [(name, str(value)) for name, value in known.items() if value is not None]

    @property
    def why(self) -> str:
        """Why it is not judged or was not run, or what caused a miss."""
        return self.cause if self.record.verdict == "outside" else self.record.obstacle or self.record.reason

    @property
    def cause(self) -> str:
        """The causes that experiments show."""
        return "; ".join(dict.fromkeys(experiment.cause for experiment in self.experiments)) or UNEXPLAINED


@dataclass(frozen=True)
class CellTable:
    """The cells of one published table or figure."""

    title: str
    rows: tuple[CellRow, ...]

    @property
    def count(self) -> str:
        """How many cells there are, and what became of them."""
        counts = Counter(row.record.verdict for row in self.rows)
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


@dataclass(frozen=True)
class PaperLedger:
    """What the page shows of one paper."""

    name: str
    title: str
    share: str
    claims: tuple[ClaimRow, ...]
    chart: Scatter | None
    misses: tuple[CellRow, ...]
    tables: tuple[CellTable, ...]


def write_ledger_page(records: Mapping[str, Sequence[LedgerRecord]], ledger: Path, page: Path) -> Path:
    """Write the page of a ledger; returns its path."""
    return write_atomically(ledger_page(records, read_experiments(ledger), read_claims(ledger)), page)


def ledger_page(
    records: Mapping[str, Sequence[LedgerRecord]],
    experiments: Sequence[Experiment] = (),
    claims: Sequence[ClaimRecord] = (),
) -> Iterator[str]:
    """The page as one HTML document, part by part."""
    papers = [_paper_ledger(name, rows, experiments, claims) for name, rows in records.items()]
    everything = [row for paper in papers for table in paper.tables for row in table.rows]
    numbers = itertools.count(1)
    values = {
        "title": "Every published number, and ours",
        "papers": papers,
        "claims_note": CLAIMS_NOTE,
        "chart": _scatter("All papers: published numbers against ours", everything),
        "draw": lambda chart: Markup(svg(chart, f"chart-{next(numbers)}")),  # safe: the text in a chart is escaped
    }
    return _DOCUMENT.render(values)


def _paper_ledger(
    name: str, records: Sequence[LedgerRecord], experiments: Sequence[Experiment], claims: Sequence[ClaimRecord]
) -> PaperLedger:
    rows = [
        CellRow(record, tuple(one for one in experiments if one.explains(record.id)) if record.ours else ())
        for record in records
    ]
    tables: dict[str, list[CellRow]] = {}
    for row in rows:
        tables.setdefault(row.record.table, []).append(row)
    title = PAPERS[name].title
    return PaperLedger(
        name,
        title,
        share_inside(records),
        claim_rows(name, claims),
        _scatter(f"{title}: published numbers against ours", rows),
        tuple(row for row in rows if row.record.verdict in ("outside", "undefined")),
        tuple(CellTable(table, tuple(cells)) for table, cells in sorted(tables.items())),
    )


def _scatter(title: str, rows: Sequence[CellRow]) -> Scatter | None:
    """One point per cell by verdict, misses by cause, and dotted lines; None if there are no points.

    The lines are the diagonal and the most frequent tolerance on either side of it.
    """
    clouds: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        record = row.record
        if row.ours is None or record.name.trial in _NOT_DRAWN or max(abs(row.ours), abs(record.print)) > 1:
            continue
        name = row.cause if record.verdict == "outside" else str(record.verdict)
        clouds.setdefault(name, []).append((record.print, row.ours))
    if not clouds:
        return None
    order = ("not judged", "powerless", "inside")
    clouds = {name: clouds[name] for name in (*order, *sorted(clouds.keys() - set(order))) if name in clouds}
    low = min(0.0, *(min(point) for cloud in clouds.values() for point in cloud))
    lines = {"equal": 0.0}
    tolerances = Counter(row.record.tolerance for row in rows if row.record.tolerance and row.ours is not None)
    if tolerances:
        ((width, _),) = tolerances.most_common(1)
        lines |= {f"{width:g} above": width, f"{width:g} below": -width}
    series = [(Series("", xs), Series(name, ys)) for name, xs, ys in _diagonals(lines, low)]
    for name, cloud in clouds.items():
        xs, ys = zip(*cloud, strict=True)
        series.append((Series("", xs), Series(name, ys)))
    limits = (low, 1.0)
    return Scatter(title, Axis("published", limits), Axis("ours", limits), tuple(series), frozenset(lines))


def _diagonals(lines: Mapping[str, float], low: float) -> Iterator[tuple[str, tuple[float, ...], tuple[float, ...]]]:
    """Lines at these heights above the diagonal, between `low` and 1 on both axes."""
    for name, shift in lines.items():
        xs = (max(low, low - shift), min(1.0, 1.0 - shift))
        yield name, xs, tuple(x + shift for x in xs)
