"""Tables and figures over all corpora of a paper: what Jain & Wallace print as tables 1 and 2 and figures 6 to 8.

`Told` is what tables of every paper are made of, `beside` sets the published number beside ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from heedful import printed
from heedful.core.figures import Axis, Bars, Figure, Series
from heedful.core.workspace import Json
from heedful.report.content import Cell, Pair, TableView

TAU_TOLERANCE = 0.1
SHARE_TOLERANCE = 0.13
SCORE_TOLERANCE = 0.02
"""How far a new run may be from print: three runs of the authors differ by .02 in F1, the bands of our specification
for tau are about .1 wide on either side, those for significant shares .13."""

DATASETS = {
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

_TABLE_2 = {
    "grad_bilstm": ("bilstm", "attention~gradient", "gradient, BiLSTM"),
    "grad_average": ("average", "attention~gradient", "gradient, average"),
    "loo_bilstm": ("bilstm", "attention~leave-one-out", "leave-one-out, BiLSTM"),
}
_STATISTICS = {"mean": ("mean", TAU_TOLERANCE), "std": ("std", TAU_TOLERANCE), "sig": ("significant", SHARE_TOLERANCE)}
_EXCESS = "gradient~leave-one-out over attention~"


ENCODERS = {"bilstm": "BiLSTM", "average": "Perceptron", "gru": "GRU", "convolution": "Convolution"}
"""Encoders as people call them; the second and third paper call the token-wise one MLP."""


@dataclass(frozen=True)
class Told:
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
    facts: Mapping[str, float]
    vectors: str = ""
    rows: pd.DataFrame | None = None
    quick: bool = False
    paper: str = ""
    measure: str = "kendall"
    recipe: Mapping[str, Json] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The corpus, and what tells two runs on it apart: that one is quick, and the vectors."""
        apart = [*(["quick"] if self.quick else []), *([f"{self.vectors} vectors"] if self.vectors else [])]
        return f"{self.corpus} ({', '.join(apart)})" if apart else self.corpus

    @property
    def published(self) -> Mapping[str, float]:
        """What print has for this trial on this corpus and model."""
        about = {"corpus": self.corpus, "encoder": self.encoder, "attention": self.attention, "measure": self.measure}
        return printed.published(self.trial, about, self.paper)

    def tolerance(self, given: float | None) -> float | None:
        """The tolerance, unless this is a quick version, which is not to be judged."""
        return None if self.quick else given


def beside(each: Told, name: str, tolerance: float | None = None) -> Pair:
    """Our number of this name beside the published one; quick versions are not judged."""
    return Pair(known(each, name), each.published.get(name), each.tolerance(tolerance))


def tables(told: Sequence[Told]) -> tuple[TableView, ...]:
    """Tables 1 and 2, as far as there is something to tell."""
    found = (_table_1(told), _table_2(told))
    return tuple(table for table in found if table.rows)


def _table_1(told: Sequence[Told]) -> TableView:
    """Sizes and scores, of the BiLSTM with additive attention."""
    print_rows = {
        row["dataset"].replace("20 Newsgroups", "20News").removesuffix(" (MIMIC)"): row
        for row in printed.table("jw_table1")
    }
    rows: list[tuple[Cell, ...]] = []
    for each in _of(told, "performance", "bilstm"):
        row = print_rows.get(DATASETS.get(each.corpus, ""), {})
        score = each.summary.get("f1", each.summary.get("accuracy"))
        rows.append(
            (
                each.label,
                Pair(whole(each.facts.get("vocabulary")), row.get("vocab")),
                Pair(each.facts.get("length"), row.get("avg_len")),
                Pair(whole(each.facts.get("train")), _total(row.get("train"))),
                Pair(whole(each.facts.get("test")), _total(row.get("test"))),
                Pair(score, row.get("perf"), each.tolerance(SCORE_TOLERANCE)),
            )
        )
    columns = ("corpus", "vocabulary", "mean length", "training examples", "test examples", "F1 or accuracy")
    note = (
        "Print counts the words of all splits and, for some corpora, the corpus before it was filtered; ours are what "
        "was trained on. F1 of class 1 where there are two classes, else accuracy."
    )
    return TableView("Table 1: corpora, and BiLSTM with additive attention", columns, tuple(rows), note)


def _table_2(told: Sequence[Told]) -> TableView:
    """Every cell of the paper's table 2 that we have, one per row."""
    rows: list[tuple[Cell, ...]] = []
    names = {name: corpus for corpus, name in DATASETS.items()}
    for row in printed.table("jw_table2"):
        for key, (encoder, pair, label) in _TABLE_2.items():
            for each in _of(told, "agreement", encoder):
                if each.corpus == names[row["dataset"]]:
                    rows += _cells(each, row, key, (pair, label))
    note = (
        f"Kendall's tau-b with attention, by predicted class. Inside: within {TAU_TOLERANCE} (means and deviations) or "
        f"{SHARE_TOLERANCE} (significant shares) of print."
    )
    return TableView("Table 2: attention and other measures", ("cell", "class", "value"), tuple(rows), note)


def _cells(
    each: Told, row: Mapping[str, Mapping[str, float]], key: str, what: tuple[str, str]
) -> list[tuple[Cell, ...]]:
    pair, label = what
    group = str(row["class"])
    place = pair if group == "Overall" else f"{pair}.class_{group}"
    return [
        (
            f"{each.label}: {label}, {name}",
            group,
            Pair(known(each, f"{name}.{place}"), row[key][theirs], each.tolerance(tolerance)),
        )
        for theirs, (name, tolerance) in _STATISTICS.items()
    ]


def figures(told: Sequence[Told]) -> tuple[Figure, ...]:
    """Figures 6, 7 and 8: differences of mean correlations, a bar per corpus, print beside ours; no quick versions."""
    found: list[Figure] = []
    told = [each for each in told if not each.quick]
    bilstm = {each.corpus: each for each in _of(told, "agreement", "bilstm")}
    average = {each.corpus: each for each in _of(told, "agreement", "average")}
    for title, name, key in (
        ("Figure 6: leave-one-out agrees more with gradients than with attention", "leave-one-out", "loo"),
        ("Figure 7: gradients agree more with leave-one-out than with attention", "gradient", "grad"),
    ):
        ours = {corpus: known(each, f"excess.{_EXCESS}{name}") for corpus, each in bilstm.items()}
        found += _bars(title, ours, printed.recomputed(f"grad_loo_minus_attn_{key}"))
    both = bilstm.keys() & average.keys()
    pair = "mean.attention~leave-one-out"
    ours = {corpus: difference(known(average[corpus], pair), known(bilstm[corpus], pair)) for corpus in both}
    title = "Figure 8: attention agrees more with leave-one-out where the encoder reads word by word"
    return (*found, *_bars(title, ours, printed.recomputed("attn_loo_average_minus_bilstm")))


def _bars(title: str, ours: Mapping[str, float | None], print_values: Mapping[str, float]) -> Iterable[Bars]:
    known = [corpus for corpus in DATASETS if ours.get(corpus) is not None]
    if not known:
        return
    mine = tuple(float(ours[corpus] or 0.0) for corpus in known)
    theirs = tuple(print_values.get(DATASETS[corpus], float("nan")) for corpus in known)
    yield Bars(title, Axis("mean difference of tau"), tuple(known), (Series("ours", mine), Series("published", theirs)))


def _of(told: Sequence[Told], trial: str, encoder: str) -> list[Told]:
    wanted = (trial, encoder, "additive", "kendall")
    chosen = [each for each in told if (each.trial, each.encoder, each.attention, each.measure) == wanted]
    order = list(DATASETS)
    return sorted(chosen, key=lambda each: order.index(each.corpus) if each.corpus in order else len(order))


def known(each: Told, name: str) -> float | None:
    """The number of this name; None where it is missing or undefined."""
    value = each.summary.get(name)
    return None if value is None or value != value else value


def difference(one: float | None, other: float | None) -> float | None:
    """`one - other`; None where one of them is."""
    return None if one is None or other is None else one - other


def whole(value: float | None) -> float | None:
    """A count, to be shown as one."""
    return None if value is None else round(value)


def _total(sizes: Sequence[int] | None) -> float | None:
    return None if sizes is None else sum(sizes)
