"""What "Learning to Scaffold" printed, in our scale, and which of its cells cannot be taken at their word.

Simulability stands in tables 1 (IMDB), 3 (CIFAR-100), 5 and 7 (MLQE-PE), plausibility in tables 2 and 6. Rows are known
by how a recipe describes an explanation, not by what somebody called it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations

from heedful.store.recipe import Json

NO_EXPLAINER, ALL_LAYERS, LAST_LAYER, SMAT = (
    "No Explainer",
    "Attention (all layers)",
    "Attention (last layer)",
    "Attention (SMaT)",
)
INTEGRATED_GRADIENTS, GRADIENT_NORM = "Integrated Gradients", "Gradient L2"
ROWS_BY_METHOD = {
    "GradientNorm": GRADIENT_NORM,
    "InputXGradient": "Gradient x Input",
    "IntegratedGradients": INTEGRATED_GRADIENTS,
}
"""Print's rows by the class of our method."""
ROW_LABELS = {
    GRADIENT_NORM: "gradient norm",
    "Gradient x Input": "gradient x input",
    INTEGRATED_GRADIENTS: "integrated gradients",
    ALL_LAYERS: "attention, all layers",
    LAST_LAYER: "attention, last layer",
}
"""What we call print's rows."""
ORACLE_ROWS = {"best-layer (oracle)": "Attention (best layer)*", "best-head (oracle)": "Attention (best head)*"}
NORMALIZER_NAMES = {"sparsemax": "sparsemax", "softmax": "softmax", "entmax15": "1.5-entmax", "none": "none"}
"""Print's names of what makes weights of phi, by ours."""
PUBLISHED_CORPORA: Mapping[str, int] = {"imdb": 1, "imdb-raw": 1, "cifar100": 3, "mlqe": 5}
"""Corpora that print has, and its table."""
SIMILAR_CORPORA: Mapping[str, int] = {"sst": 1, "rotten-tomatoes": 1, "cifar10": 3, "fashion-mnist": 3, "digits": 3}
"""Corpora with the same kind of task as one that print has; single language pairs are part of print's."""
PUBLISHED_MODELS = {
    1: "IMDB with ELECTRA-small",
    3: "CIFAR-100 with ViT-B/16",
    5: "MLQE-PE, six language pairs, with XLM-R",
}


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over five seeds: shares of equal answers, or correlations."""

    median: float
    q25: float
    q75: float

    @property
    def is_consistent(self) -> bool:
        """Whether the median lies between its quartiles, as every median does."""
        return self.q25 <= self.median <= self.q75


PublishedCells = Mapping[str, Mapping[str, Spread]]
"""By print's row and column."""


def simulability_table_number(corpus: str) -> int | None:
    """The table of simulability that has this corpus or one of the same kind; None where there is none.

    >>> simulability_table_number("imdb-raw"), simulability_table_number("sst"), simulability_table_number("mlqe-en-de"), simulability_table_number("loudest")
    (1, 1, 5, None)
    """
    return PUBLISHED_CORPORA.get(corpus, SIMILAR_CORPORA.get(corpus, 5 if corpus.startswith("mlqe-") else None))


@cache
def published_simulability(number: int) -> PublishedCells:
    """Table 1, 3, 5 or 7; percentages as shares."""
    whole = _read_table(number)
    scale = 100.0 if "%" in str(whole["metric"]) else 1.0
    return {
        row: {
            column: Spread(*(float(cell[name]) / scale for name in ("median", "q25", "q75")))
            for column, cell in cells.items()
        }
        for row, cells in whole["values"].items()
    }


def nearest_column(number: int, size: int) -> str:
    """The column of a table whose class is nearest in size, by ratio.

    >>> nearest_column(1, 500), nearest_column(1, 150), nearest_column(3, 5000)
    ('500', '500', '4500')
    """
    columns = published_simulability(number)[NO_EXPLAINER]
    return min(columns, key=lambda column: max(int(column) / size, size / int(column)))


def published_plausibility(corpus: str, part: str) -> dict[str, float]:
    """Areas by print's row: table 2 for film reviews, table 6 for translations, a language pair or all; else none."""
    if corpus == "eraser-movies" and not part:
        return {row: float(value) for row, value in _read_table(2)["values"].items()}
    side = {"source": "src", "target": "tgt"}.get(part)
    if side is None or not corpus.startswith("mlqe"):
        return {}
    pair = corpus.removeprefix("mlqe").lstrip("-").upper() or "OVERALL"
    return {row: float(cells[pair][side]) for row, cells in _read_table(6)["values"].items() if pair in cells}


@cache
def _read_table(number: int) -> dict[str, dict]:  # type: ignore[type-arg]
    text = files("heedful").joinpath("published", f"smat_table{number}.json").read_text(encoding="utf-8")
    found: dict[str, dict] = json.loads(text)  # type: ignore[type-arg]
    return found


def explanation_row(explanation: Mapping[str, Json]) -> str:
    """Print's row for an explanation as a recipe describes it; empty where print has none.

    >>> explanation_row({"type": "AttentionExplanation", "map_source": {"type": "HeadMaps", "layer": -1}})
    'Attention (last layer)'
    """
    kind, bank, method = explanation["type"], explanation.get("map_source"), explanation.get("method")
    if kind == "NoExplanation":
        return NO_EXPLAINER
    if isinstance(method, dict):
        return method_row(method)
    if not isinstance(bank, dict) or bank["type"] != "HeadMaps" or explanation.get("learn_temperature"):
        return ""
    if kind == "LearnedExplanation":
        return SMAT if bank["layer"] is None else ""
    return _static_attention_row(bank) if kind == "AttentionExplanation" else ""


def method_row(method: Mapping[str, Json]) -> str:
    """Print's row for an attribution method as a recipe describes it; empty where print has none."""
    if method["type"] == "StaticAttention":
        return _static_attention_row(method)
    return ROWS_BY_METHOD.get(str(method["type"]), "") if method.get("order", 2) == 2 else ""


def _static_attention_row(described: Mapping[str, Json]) -> str:
    layer = described["layer"]
    return ALL_LAYERS if layer is None else LAST_LAYER if layer == -1 else ""


@dataclass(frozen=True)
class Doubt:
    """Why cells of print cannot be taken at their word.

    Args:
        cells: rows and columns; an empty column is the whole row, no cells at all the whole table.
    """

    table: int
    cells: tuple[tuple[str, str], ...]
    reason: str


def is_doubtful(number: int, row: str, column: str = "") -> bool:
    """Whether there is a doubt about this cell."""
    cells = [cell for each in table_doubts(number) for cell in each.cells]
    return (row, column) in cells or (row, "") in cells


@cache
def table_doubts(number: int) -> tuple[Doubt, ...]:
    """What is wrong with a table as far as can be told from print and from the code behind it."""
    found = [*_inconsistent_cells(number), *_duplicate_cells(number)] if number in (1, 3, 5, 7) else []
    if number in (1, 2, 3, 5, 6):
        why = "not integrated gradients: the code took gradients on the first 2 to 9 % of the path only"
        found.append(Doubt(number, ((INTEGRATED_GRADIENTS, ""),), why))
    return (*found, *(Doubt(number, ((row, ""),) if row else (), why) for row, why in _KNOWN_DOUBTS.get(number, ())))


def _inconsistent_cells(number: int) -> Iterator[Doubt]:
    for row, cells in published_simulability(number).items():
        for column, cell in cells.items():
            if not cell.is_consistent:
                yield Doubt(number, ((row, column),), "the median lies outside its own quartiles, which cannot be")


def _duplicate_cells(number: int) -> Iterator[Doubt]:
    """Cells of different rows with the same three numbers; print cuts digits off instead of rounding."""
    cells = {(row, column): cell for row, own in published_simulability(number).items() for column, cell in own.items()}
    for (one, first), (other, second) in combinations(cells.items(), 2):
        if one[0] != other[0] and _is_close(first, second, LAST_DIGIT_SLACK):
            why = "the same three numbers but for the last digit: most likely one is a copy of the other"
            yield Doubt(number, (one, other), why)


LAST_DIGIT_SLACK = 0.000101
"""One in the last printed digit (of percentages and of correlations), and the slack of binary numbers."""


def _is_close(one: Spread, other: Spread, slack: float) -> bool:
    pairs = ((one.median, other.median), (one.q25, other.q25), (one.q75, other.q75))
    return all(abs(a - b) <= slack for a, b in pairs)


_KNOWN_DOUBTS: Mapping[int, tuple[tuple[str, str], ...]] = {
    1: ((GRADIENT_NORM, "medians half-way between possible values: this row seems to have an even number of seeds"),),
    2: (("", "reviews were cut after 256 pieces, and evidence behind the cut was dropped"),),
    5: (
        (
            GRADIENT_NORM,
            "its script had half the batch of the others at the same rate: probably not comparable with them",
        ),
        ("", "the text says that gradients always harm students; the row of Gradient L2 says otherwise"),
    ),
    6: (
        ("", "the text says that SMaT is on par or better on all pairs; it is not on RU-EN and NE-EN"),
        ("", "best layer and best head were chosen anew in each column, with the answer known"),
    ),
    7: (("", "the caption says accuracy; the numbers are correlations"),),
}
"""What is known from text and code, by row; without one it is about the whole table."""
