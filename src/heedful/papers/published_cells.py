"""Every published number of a paper: where it is printed, whether it can be judged, and whether it can be run.

`published_cells("attefa")` gives them in the order of the published tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from heedful.papers import published
from heedful.papers.published import CellName
from heedful.papers.tolerances import NO_TOLERANCE, Limit, find_limit


class CellStatus(Enum):
    """What the ledger can say about a published number."""

    JUDGED = "judged"
    NO_TOLERANCE = "no tolerance"
    NOT_JUDGED = "not judged"
    CANNOT_RUN = "cannot be run"


@dataclass(frozen=True)
class PublishedCell:
    """A published number.

    Args:
        name: paper, trial, model and place in a summary.
        printed: the number.
        table: the table, figure or file in which it is published.
        limit: its tolerance or band and where it was fixed, or why it is not judged.
        obstacle: why it cannot be run here; empty if it can.
    """

    name: CellName
    printed: float
    table: str
    limit: Limit
    obstacle: str = ""

    @property
    def id(self) -> str:
        """A stable readable id, for instance `attefa/attefa/sst/bilstm/additive/tvd`."""
        return str(self.name)

    @property
    def status(self) -> CellStatus:
        """Whether the number can be run and judged."""
        if self.obstacle:
            return CellStatus.CANNOT_RUN
        if self.limit.is_judged:
            return CellStatus.JUDGED
        return CellStatus.NO_TOLERANCE if self.limit.reason == NO_TOLERANCE else CellStatus.NOT_JUDGED


_TABLES: Mapping[tuple[str, str], str] = {
    ("jain-wallace", "corpus"): "Table 1",
    ("jain-wallace", "agreement-table-2"): "Table 2",
    ("jain-wallace", "agreement"): "Figure 2 and released files",
    ("jain-wallace", "performance"): "released files",
    ("jain-wallace", "permutation"): "Figure 3 and released files",
    ("jain-wallace", "adversarial-attention"): "Figures 4 and 5 and released files",
    ("wiegreffe-pinter", "corpus"): "Table 1",
    ("wiegreffe-pinter", "performance"): "Table 2",
    ("wiegreffe-pinter", "uniform-baseline"): "Table 2",
    ("wiegreffe-pinter", "guided-model"): "Table 3",
    ("wiegreffe-pinter", "adversarial-tradeoff"): "Table 5",
    ("attefa", "corpus"): "Table 1",
    ("attefa", "performance"): "Table 2",
    ("attefa", "attefa"): "Table 3",
    ("disagreement", "performance"): "Table 3",
    ("disagreement", "uniform-baseline"): "Table 3",
}
_MIMIC = "licensed data: MIMIC-III needs credentials"
_DATA_OBSTACLES = {
    "diabetes": _MIMIC,
    "anemia": _MIMIC,
    "adr": "licensed data: the tweets cannot be passed on",
    "cnn": "the original question files are not available; derived ones have 1 155 training examples for 380 298",
    "cifar100": "CIFAR-100 is not available here",
}
_SCAFFOLD_OBSTACLES = {
    1: "the weights of ELECTRA-small are not available here",
    4: "needs people who rank images",
    5: "hours: XLM-R base on six language pairs needs a GPU",
    6: "hours: XLM-R base on six language pairs needs a GPU",
    7: "hours: XLM-R base on six language pairs needs a GPU",
}
_TWIN = "the same number as {}, judged there"
_SPREAD = {"q25": "a quartile over five seeds", "q75": "a quartile over five seeds"}
_SIDES = {"src": "source", "tgt": "target"}
SCAFFOLD_CORPORA = {1: "imdb", 3: "cifar100", 5: "mlqe", 7: "mlqe"}
"""The corpus of each table of students of Fernandes et al."""


@cache
def published_cells(paper: str) -> tuple[PublishedCell, ...]:
    """Every published number of a paper, each with its limit and what prevents a run."""
    if paper == "scaffold":
        return tuple(_scaffold_cells())
    return tuple(_named_cell(name, printed) for name, printed in published.all_numbers(paper))


def _named_cell(name: CellName, printed: float) -> PublishedCell:
    limit = find_limit(name, printed)
    if original := judged_twin(name):
        limit = Limit(reason=_TWIN.format(original))
    return PublishedCell(name, printed, _table(name), limit, _DATA_OBSTACLES.get(name.corpus, ""))


def _table(name: CellName) -> str:
    """The table or figure that has the number."""
    match (name.paper, name.trial):
        case ("jain-wallace", "agreement") if name.metric == "excess":
            return "Figure 7" if name.method.endswith("over attention~gradient") else "Figure 6"
        case ("wiegreffe-pinter", "adversarial-tradeoff") if not name.method.startswith("lambda"):
            return "Table 4" if name.metric == "chosen_lambda" else "Table 2"
        case ("attefa", "attefa") if name.metric == "base_f1":
            return "Table 2"
        case ("attefa", "attefa-seeds"):
            return "Table 4" if name.corpus.startswith("mock-") else "Table 5"
        case ("disagreement", "agreement"):
            number = {"attention": 2, "flow": 4}.get(name.method.partition("~")[0], 1)
            number = 2 if name.encoder == "bilstm" else number
            return f"Table {number}" if name.metric == "mean" or number == 4 else f"Table {number + 4}"
    return _TABLES[name.paper, name.trial]


def judged_twin(name: CellName) -> CellName | None:
    """The cell that has the same number in print; None if there is none."""
    match (name.paper, name.trial):
        case ("jain-wallace", "agreement"):
            other = name._replace(trial="agreement-table-2")
        case ("wiegreffe-pinter" | "disagreement", "performance"):
            other = name._replace(trial="uniform-baseline", method="learned")
        case ("wiegreffe-pinter", "adversarial-tradeoff") if name.method == "uniform":
            other = name._replace(trial="uniform-baseline")
        case ("attefa", "performance"):
            other = name._replace(trial="attefa", metric="base_f1")
        case _:
            return None
    numbers = published.find_published(other.trial, other.model, other.paper)[1]
    return other if other.key in numbers else None


def _scaffold_cells() -> Iterator[PublishedCell]:
    """The tables of Fernandes et al.; percentages are shares, as in our summaries."""
    for number, corpus in SCAFFOLD_CORPORA.items():
        metric_trial = "simulability-normalizers" if number == 7 else "simulability"
        for row, columns in published.published_simulability(number).items():
            for column, spread in columns.items():
                for metric, printed in spread._asdict().items():
                    yield _scaffold_cell(number, metric_trial, corpus, metric, row, column, printed)
    for row, printed in published.published_plausibility("eraser-movies", "").items():
        yield _scaffold_cell(2, "plausibility", "eraser-movies", "auc", row, "", printed)
    for row, pairs in published.published_json("scaffold_table6")["values"].items():
        for pair, sides in pairs.items():
            corpus = "mlqe" if pair == "OVERALL" else f"mlqe-{pair.lower()}"
            for side, printed in sides.items():
                yield _scaffold_cell(6, "plausibility", corpus, "auc", row, _SIDES[side], printed)
    for row, rating in published.published_json("scaffold_table4")["values"].items():
        low, _, high = rating["rank"].partition("-")
        ranks = {"rank_low": float(low), "rank_high": float(high or low)}
        for metric, printed in {"trueskill": rating["mu"], "trueskill_sigma": rating["sigma"], **ranks}.items():
            yield _scaffold_cell(4, "study", "cifar100", metric, row, "", printed)


def _scaffold_cell(
    number: int, trial: str, corpus: str, metric: str, row: str, column: str, printed: float
) -> PublishedCell:
    name = CellName("scaffold", trial, corpus, "transformer", "self", metric, row, column)
    limit = Limit(reason=_SPREAD.get(metric, NO_TOLERANCE))
    obstacle = _DATA_OBSTACLES.get(corpus, _SCAFFOLD_OBSTACLES.get(number, ""))
    return PublishedCell(name, printed, f"Table {number}", limit, obstacle)
