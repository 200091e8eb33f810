"""Tables and figures over all corpora of a paper: what Jain & Wallace print as tables 1 and 2 and figures 6 to 8.

`Told` is what tables of every paper are made of, `beside` sets the published number beside ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from heedful.figures import Axis, Bars, Figure, Series
from heedful.papers import published
from heedful.papers._chapter import Cell, Comparison, TableView
from heedful.store.recipe import Json

TAU_TOLERANCE = 0.1
SHARE_TOLERANCE = 0.13
SCORE_TOLERANCE = 0.02
"""How far a new run may be from print: three runs of the authors differ by .02 in F1, the bands of our specification
for tau are about .1 wide on either side, those for significant shares .13."""

DATASET_NAMES = {
    "sst": "SST",
    "imdb": "IMDB",
    "adr": "ADR Tweets",
    "agnews": "AG News",
    "20news": "20News",
    "diabetes": "Diabetes",
    "anemia": "Anemia",
    "cnn": "CNN",
    "babi-1": "bAbI 1",
    "babi-2": "bAbI 2",
    "babi-3": "bAbI 3",
    "snli": "SNLI",
}
"""The paper's names, in the order of its figures 6 to 8."""

_TABLE_2_COLUMNS = {
    "grad_bilstm": ("bilstm", "attention~gradient", "gradient, BiLSTM"),
    "grad_average": ("average", "attention~gradient", "gradient, average"),
    "loo_bilstm": ("bilstm", "attention~leave-one-out", "leave-one-out, BiLSTM"),
}
_TABLE_2_STATISTICS = {
    "mean": ("mean", TAU_TOLERANCE),
    "std": ("std", TAU_TOLERANCE),
    "sig": ("significant", SHARE_TOLERANCE),
}
_EXCESS_PREFIX = "gradient~leave-one-out over attention~"


ENCODER_NAMES = {"bilstm": "BiLSTM", "average": "Perceptron", "gru": "GRU", "convolution": "Convolution"}
"""Encoders as people call them; the second and third paper call the token-wise one MLP."""


@dataclass(frozen=True)
class ResultRow:
    """The mean over seeds of a trial's summary, and what it was about.

    Args:
        facts: sizes of the subject's corpus: `train`, `dev`, `test`, by class `train.0` and so on, `vocabulary`,
            and the mean `length` of test texts where the trial stored lengths.
        rows: the trial's rows, where tables are made of them.
        quick: measured on a sample with short trainings: never judged by print.
        paper: the one that it is told under, whose numbers stand beside it.
        measure: the trial's measure, where it has one to choose.
        recipe: what the trial was asked to do, where tables tell its parts by it.
    """

    trial: str
    corpus: str
    encoder: str
    attention: str
    summary: Mapping[str, float]
    corpus_statistics: Mapping[str, float]
    embeddings: str = ""
    table: pd.DataFrame | None = None
    quick: bool = False
    paper: str = ""
    measure: str = "kendall"
    recipe: Mapping[str, Json] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The corpus, and what tells two runs on it apart: that one is quick, and the vectors."""
        apart = [*(["quick"] if self.quick else []), *([f"{self.embeddings} vectors"] if self.embeddings else [])]
        return f"{self.corpus} ({', '.join(apart)})" if apart else self.corpus

    @property
    def published(self) -> Mapping[str, float]:
        """What print has for this trial on this corpus and model."""
        about = {"corpus": self.corpus, "encoder": self.encoder, "attention": self.attention, "measure": self.measure}
        return published.published_numbers(self.trial, about, self.paper)

    def tolerance(self, given: float | None) -> float | None:
        """The tolerance, unless this is a quick version, which is not to be judged."""
        return None if self.quick else given


def compare_to_published(each: ResultRow, name: str, tolerance: float | None = None) -> Comparison:
    """Our number of this name beside the published one; quick versions are not judged."""
    return Comparison(summary_value(each, name), each.published.get(name), each.tolerance(tolerance))


def jain_wallace_tables(told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """Tables 1 and 2, as far as there is something to tell."""
    found = (_table_1(told), _table_2(told))
    return tuple(table for table in found if table.rows)


def _table_1(told: Sequence[ResultRow]) -> TableView:
    """Sizes and scores, of the BiLSTM with additive attention."""
    print_rows = {
        row["dataset"].replace("20 Newsgroups", "20News").removesuffix(" (MIMIC)"): row
        for row in published.published_table("jw_table1")
    }
    rows: list[tuple[Cell, ...]] = []
    for each in _select_results(told, "performance", "bilstm"):
        row = print_rows.get(DATASET_NAMES.get(each.corpus, ""), {})
        score = each.summary.get("f1", each.summary.get("accuracy"))
        rows.append(
            (
                each.label,
                Comparison(round_count(each.corpus_statistics.get("vocabulary")), row.get("vocab")),
                Comparison(each.corpus_statistics.get("length"), row.get("avg_len")),
                Comparison(round_count(each.corpus_statistics.get("train")), _total_size(row.get("train"))),
                Comparison(round_count(each.corpus_statistics.get("test")), _total_size(row.get("test"))),
                Comparison(score, row.get("perf"), each.tolerance(SCORE_TOLERANCE)),
            )
        )
    columns = ("corpus", "vocabulary", "mean length", "training examples", "test examples", "F1 or accuracy")
    note = (
        "Print counts the words of all splits and, for some corpora, the corpus before it was filtered; ours are what "
        "was trained on. F1 of class 1 where there are two classes, else accuracy."
    )
    return TableView("Table 1: corpora, and BiLSTM with additive attention", columns, tuple(rows), note)


def _table_2(told: Sequence[ResultRow]) -> TableView:
    """Every cell of the paper's table 2 that we have, one per row."""
    rows: list[tuple[Cell, ...]] = []
    names = {name: corpus for corpus, name in DATASET_NAMES.items()}
    for row in published.published_table("jw_table2"):
        for key, (encoder, pair, label) in _TABLE_2_COLUMNS.items():
            for each in _select_results(told, "agreement", encoder):
                if each.corpus == names[row["dataset"]]:
                    rows += _table_2_cells(each, row, key, (pair, label))
    note = (
        f"Kendall's tau-b with attention, by predicted class. Inside: within {TAU_TOLERANCE} (means and deviations) or "
        f"{SHARE_TOLERANCE} (significant shares) of print."
    )
    return TableView("Table 2: attention and other measures", ("cell", "class", "value"), tuple(rows), note)


def _table_2_cells(
    each: ResultRow, row: Mapping[str, Mapping[str, float]], key: str, what: tuple[str, str]
) -> list[tuple[Cell, ...]]:
    pair, label = what
    group = str(row["class"])
    place = pair if group == "Overall" else f"{pair}.class_{group}"
    return [
        (
            f"{each.label}: {label}, {name}",
            group,
            Comparison(summary_value(each, f"{name}.{place}"), row[key][theirs], each.tolerance(tolerance)),
        )
        for theirs, (name, tolerance) in _TABLE_2_STATISTICS.items()
    ]


def jain_wallace_figures(told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """Figures 6, 7 and 8: differences of mean correlations, a bar per corpus, print beside ours; no quick versions."""
    found: list[Figure] = []
    told = [each for each in told if not each.quick]
    bilstm = {each.corpus: each for each in _select_results(told, "agreement", "bilstm")}
    average = {each.corpus: each for each in _select_results(told, "agreement", "average")}
    for title, name, key in (
        ("Figure 6: leave-one-out agrees more with gradients than with attention", "leave-one-out", "loo"),
        ("Figure 7: gradients agree more with leave-one-out than with attention", "gradient", "grad"),
    ):
        ours = {corpus: summary_value(each, f"excess.{_EXCESS_PREFIX}{name}") for corpus, each in bilstm.items()}
        found += _difference_bars(title, ours, published.recomputed_figure(f"grad_loo_minus_attn_{key}"))
    both = bilstm.keys() & average.keys()
    pair = "mean.attention~leave-one-out"
    ours = {
        corpus: subtract(summary_value(average[corpus], pair), summary_value(bilstm[corpus], pair)) for corpus in both
    }
    title = "Figure 8: attention agrees more with leave-one-out where the encoder reads word by word"
    return (*found, *_difference_bars(title, ours, published.recomputed_figure("attn_loo_average_minus_bilstm")))


def _difference_bars(title: str, ours: Mapping[str, float | None], print_values: Mapping[str, float]) -> Iterable[Bars]:
    known = [corpus for corpus in DATASET_NAMES if ours.get(corpus) is not None]
    if not known:
        return
    mine = tuple(float(ours[corpus] or 0.0) for corpus in known)
    theirs = tuple(print_values.get(DATASET_NAMES[corpus], float("nan")) for corpus in known)
    yield Bars(title, Axis("mean difference of tau"), tuple(known), (Series("ours", mine), Series("published", theirs)))


def _select_results(told: Sequence[ResultRow], trial: str, encoder: str) -> list[ResultRow]:
    wanted = (trial, encoder, "additive", "kendall")
    chosen = [each for each in told if (each.trial, each.encoder, each.attention, each.measure) == wanted]
    order = list(DATASET_NAMES)
    return sorted(chosen, key=lambda each: order.index(each.corpus) if each.corpus in order else len(order))


def summary_value(each: ResultRow, name: str) -> float | None:
    """The number of this name; None where it is missing or undefined."""
    value = each.summary.get(name)
    return None if value is None or value != value else value


def subtract(one: float | None, other: float | None) -> float | None:
    """`one - other`; None where one of them is."""
    return None if one is None or other is None else one - other


def round_count(value: float | None) -> float | None:
    """A count, to be shown as one."""
    return None if value is None else round(value)


def _total_size(sizes: Sequence[int] | None) -> float | None:
    return None if sizes is None else sum(sizes)
