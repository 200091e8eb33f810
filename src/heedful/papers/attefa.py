"""AtteFa: one number for the faithfulness of attention, on eight synthetic and six real corpora, and its variants.

The number itself is `trials.adversarial_training.attefa`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import torch

from heedful import catalogue
from heedful.data.synthetic import MOCK_CORPORA
from heedful.data.words import Words
from heedful.figures import Axis, Figure, Scatter, Series, Violin
from heedful.measures.intervals import paired_seed_difference, spread_interval
from heedful.measures.rank_correlation import spearman
from heedful.papers import published
from heedful.papers.chapter import (
    ENCODER_NAMES,
    Check,
    Measurement,
    Result,
    additive_results,
    beside_published,
    check_table,
    corpus_size_table,
    distinguish,
    measure_published,
    scatter_series,
    sort_by_corpus,
)
from heedful.papers.claims import Criterion, Evidence, PaperClaim, model_name
from heedful.papers.paper_options import resolve_names
from heedful.papers.published import CellName
from heedful.papers.tolerances import expectations
from heedful.papers.wiegreffe_pinter import (
    BASE_ENCODERS,
    CLASSIFICATION_CORPORA,
    JSD_AXIS,
    TVD_AXIS,
    AdversaryOptions,
    SelectionRule,
    base_model,
    tradeoff_lambdas,
    tradeoff_points,
)
from heedful.results import Statistic, get_statistic, value_of
from heedful.store.recipe import Recipe
from heedful.table_view import Band, Cell, Comparison, TableView
from heedful.trials.adversarial_training import COLLAPSE_MARGIN, HIGH_ATTEFA, LOW_ATTEFA, PAPER_SEEDS, AtteFa
from heedful.trials.performance import Performance
from heedful.types import Splits, Tokenization

_ENCODERS = ("bilstm", "average")
N_BASES = 3
"""Base models that give the noise floor, the attacked one among them."""
_SMALL_TEST_SET = 200
"""With fewer test texts the number is called rough."""


@dataclass(frozen=True)
class AttefaOptions(AdversaryOptions):
    """The options of adversaries; models are BiLSTM and Average unless others are named.

    The paper chooses every epoch on the test split, and so does its command; `heedful attefa`, which measures a user's
    own texts, chooses on the dev split.

    Args:
        n_bases: base models, the attacked one among them; with two or more there is a noise floor.
    """

    known_corpora: ClassVar = {name: catalogue.CORPORA[name] for name in (*MOCK_CORPORA, *CLASSIFICATION_CORPORA)}
    paper_defaults: ClassVar = {"encoders": _ENCODERS, "n_seeds": len(PAPER_SEEDS), "n_bases": N_BASES}

    select: SelectionRule = "paper"
    n_bases: int | None = None

    def recipes(self) -> list[Recipe]:
        """The scores of the base model and its AtteFa on every chosen corpus and encoder."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders or _ENCODERS, BASE_ENCODERS)
        seeds = self.seeds()
        other_bases = PAPER_SEEDS[1 : self.n_bases or min(len(seeds), N_BASES)]
        recipes: list[Recipe] = []
        for corpus in self.chosen_corpora():
            # The mean over a batch, where Wiegreffe & Pinter take the sum.
            training = replace(self.adversary_training(corpus, 80), reduction="mean")
            for encoder in encoders:
                base = base_model(corpus, encoder, self, without_length_limits(corpus.tokenization))
                trial = AtteFa(base, seeds, other_bases, adversary_training=training, start=self.start)
                recipes += [Performance(base), trial]
        return recipes


def without_length_limits(tokenization: Tokenization) -> Tokenization:
    """The same preprocessing for texts of every length: the sizes in the paper are those before any filter."""
    if not isinstance(tokenization, Words):
        return tokenization
    return replace(tokenization, longer_than=None, shorter_than=None)


def data_warnings(splits: Splits, accuracy: float) -> tuple[str, ...]:
    """What a reader of AtteFa on own data must know about the data, one sentence each.

    Args:
        accuracy: the accuracy of the base model on the test split.
    """
    labels = [example.label for example in splits.test]
    majority = max(labels.count(label) for label in set(labels)) / len(labels)
    warnings = []
    if len(labels) < _SMALL_TEST_SET:
        warnings.append(
            f"Only {len(labels)} texts were tested, so the number is rough: another split may give a different one."
        )
    if accuracy <= majority:
        warnings.append(
            f"The base model has an accuracy of {accuracy:.0%}, no more than always predicting the majority class "
            f"({majority:.0%}): it has learned nothing that its attention could explain."
        )
    return tuple(warnings)


PUBLISHED_ENCODERS = ("bilstm", "average")
SEED_TABLES = "attefa-seeds"
"""Under which tables 4 and 5 are published."""
RANK_CORRELATION_BAND = Band(high=-0.5)
"""Check 14 asks for a rank correlation "clearly negative", which is read as this; published: -.98."""
FIGURE_2_CORPORA = ("anemia", "sst", "imdb", "diabetes")
_METRICS = {"attefa": "AtteFa", "tvd": "TVD", "jsd": "JSD", "f1": "F1", "epoch": "epoch"}


def tables(results: Sequence[Result]) -> tuple[TableView, ...]:
    """Tables 1 to 5, and the bands of our specification."""
    chosen = _select(results)
    note = "As in the paper, texts are counted before any filter by length; mean lengths are those of the test split."
    base_rows = tuple((result.model_label, result.judge("base_f1")) for result in chosen)
    tolerance = expectations("attefa").tolerance("base f1")
    base_note = f"F1 of class 1. Inside: within {tolerance}, half the width of the band expected for SST's base model."
    band_note = "Bands of our specification (check 14), set from the paper before our runs and not adjusted since."
    return (
        corpus_size_table(results, chosen, "attefa", note),
        TableView("Table 2: the base models", ("corpus and encoder", "F1"), base_rows, base_note),
        _table_3(chosen),
        _seed_table("Table 4: synthetic corpora, seed by seed", [result for result in chosen if _is_synthetic(result)]),
        _seed_table("Table 5: real corpora, seed by seed", [result for result in chosen if not _is_synthetic(result)]),
        check_table(
            "What was expected on SST and on synthetic corpora", "attefa", chosen, band_note, _further_checks(chosen)
        ),
    )


def _select(results: Sequence[Result]) -> list[Result]:
    """Our AtteFa results in the paper's order of corpora, BiLSTM first."""
    order = list(ENCODER_NAMES)
    chosen = distinguish([result for result in results if (result.trial, result.attention) == ("attefa", "additive")])
    chosen.sort(key=lambda result: order.index(result.encoder) if result.encoder in order else len(order))
    return sort_by_corpus(chosen, tuple(AttefaOptions.known_corpora))


def _is_synthetic(result: Result) -> bool:
    return result.corpus.startswith("mock-")


def _table_3(chosen: Sequence[Result]) -> TableView:
    """Means and population standard deviations over adversaries; collapse and floor are not in the paper."""
    rows: list[tuple[Cell, ...]] = []
    for result in chosen:
        for metric, title in _METRICS.items():
            rows.append((result.model_label, title, result.judge(metric), result.compare(f"population_std_{metric}")))
        rows += [(result.model_label, name, Comparison(result.value(name), None), "") for name in ("collapse", "floor")]
    note = (
        "Means over adversaries with population standard deviations, as in the paper. Collapse: AtteFa of a constant "
        "prediction. Floor: AtteFa of independent base models against each other. A tolerance is half the width of "
        "the specification's band; cells without a two-sided band and quick versions have none."
    )
    columns = ("corpus and encoder", "number", "mean", "standard deviation")
    return TableView("Table 3: AtteFa", columns, tuple(rows), note)


def _adversary_rows(result: Result) -> pd.DataFrame:
    """The rows of adversaries, without those of other base models."""
    table = result.table()
    return table[table["kind"] == "adversary"]


def _published_seed_rows(result: Result) -> list[dict[str, float]]:
    """The published adversaries of a result; none if it was made by another protocol."""
    return published.attefa_seed_rows(result.corpus, result.encoder) if result.published else []


def _seed_table(caption: str, chosen: Sequence[Result]) -> TableView:
    """A row per adversary."""
    rows: list[tuple[Cell, ...]] = []
    for result in chosen:
        theirs = {int(row["seed"]): row for row in _published_seed_rows(result)}
        for _, row in _adversary_rows(result).iterrows():
            cells: list[Cell] = []
            for metric in _METRICS:
                value = int(row[metric]) if metric == "epoch" else float(row[metric])
                cells += [value, theirs.get(int(row["seed"]), {}).get(metric, "")]
            name = f"{row['seed']:.0f} against {row['base']:.0f}"
            rows.append((result.model_label, name, *cells, float(row["collapse"])))
    note = "A seed draws other random numbers in the authors' code, so compare the spread, not the rows."
    numbers = [column for title in _METRICS.values() for column in (title, "published")]
    return TableView(caption, ("corpus and encoder", "adversary", *numbers, "collapse"), tuple(rows), note)


def measure(result: Result) -> dict[CellName, Measurement]:
    """Our numbers of the published cells that stand beside a result, each adversary of tables 4 and 5 among them."""
    measured = measure_published(result)
    printed = result.find_published(SEED_TABLES)[1] if result.trial == "attefa" else {}
    rows = _adversary_rows(result).to_dict("records") if printed else []
    by_seed = {f"seed {row['seed']:.0f}": row for row in rows}
    for metric, method, seed in printed:
        if seed in by_seed:
            name = result.cell_name(metric, method, seed, trial=SEED_TABLES)
            measured[name] = Measurement(float(by_seed[seed][metric]))
    return measured


def figures(results: Sequence[Result]) -> tuple[Figure, ...]:
    """Figure 1 for real corpora, the same for synthetic ones, and figure 2 for each of its corpora."""
    chosen = _select(results)
    real, synthetic = ([result for result in chosen if _is_synthetic(result) == kind] for kind in (False, True))
    titles = {"Figure 1: AtteFa over adversaries": real, "Synthetic corpora: AtteFa over adversaries": synthetic}
    violins = [_attefa_violin(title, several) for title, several in titles.items() if several]
    bilstm = [result for result in real if result.encoder == "bilstm" and result.corpus in FIGURE_2_CORPORA]
    return (*violins, *(_divergence_scatter(result, results) for result in bilstm))


def _attefa_violin(title: str, chosen: Sequence[Result]) -> Violin:
    """AtteFa of every adversary of the paper's encoders, ours and published."""
    groups: dict[str, dict[str, Series]] = {}
    for result in chosen:
        if result.encoder in PUBLISHED_ENCODERS:
            theirs = [row["attefa"] for row in _published_seed_rows(result)]
            ours = _adversary_rows(result)["attefa"].astype(float)
            for series in beside_published(ours, theirs, f"{ENCODER_NAMES[result.encoder]}, "):
                groups.setdefault(result.label, {}).setdefault(series.name, series)
    names = [f"{ENCODER_NAMES[encoder]}, {whose}" for encoder in PUBLISHED_ENCODERS for whose in ("ours", "published")]
    rows = [tuple(group.get(name, Series(name, ())) for name in names) for group in groups.values()]
    # Rows of violins go up.
    return Violin(title, Axis("AtteFa", (0.0, 1.0)), Axis("corpus"), tuple(groups)[::-1], tuple(rows)[::-1])


def _divergence_scatter(result: Result, results: Sequence[Result]) -> Scatter:
    """Wiegreffe & Pinter's curves, and the adversaries of this paper at their far end."""
    curves: dict[str, list[tuple[float | None, float | None]]] = {}
    for other in results:
        same = (other.corpus, other.encoder, other.quick) == (result.corpus, result.encoder, result.quick)
        if other.trial == "adversarial-tradeoff" and same:
            curves["lambdas, ours"] = tradeoff_points(other, tradeoff_lambdas(other))
    if result.published:
        curves["lambdas, published"] = [(jsd, tvd) for _, _, tvd, jsd in published.published_tradeoff(result.corpus)]
    defined = _adversary_rows(result)[["jsd", "tvd"]].dropna()
    curves["AtteFa, ours"] = [(float(jsd), float(tvd)) for jsd, tvd in defined.itertuples(index=False)]
    curves["AtteFa, published"] = [(row["jsd"], row["tvd"]) for row in _published_seed_rows(result)]
    title = f"Figure 2, {result.model_label}: adversaries in the plane of attention and output"
    joined = frozenset({"lambdas, ours", "lambdas, published"})
    return Scatter(title, JSD_AXIS, TVD_AXIS, scatter_series(curves), joined)


def _further_checks(chosen: Sequence[Result]) -> Iterable[Check]:
    """Collapse on mock-1, and comparisons of the encoders, seed by seed, and of the corpora."""
    by_corpus = {(corpus, encoder): result for (corpus, _, encoder), result in additive_results(chosen).items()}
    if result := by_corpus.get(("mock-1", "average")):
        # Equal to a collapse within the margin of the trial's own verdict.
        collapse = result.value("collapse")
        low = 0.55 if collapse is None else min(0.55, collapse * (1 - COLLAPSE_MARGIN))
        yield "mock-1, Average: AtteFa (high, or that of its own collapse)", result.value("attefa"), Band(low)
    for corpus in ("mock-1", "mock-2", "mock-5", "mock-10"):
        bilstm, average = by_corpus.get((corpus, "bilstm")), by_corpus.get((corpus, "average"))
        if bilstm is not None and average is not None:
            paired = _pair_by_seed(bilstm, average)
            gap = float((paired["attefa"] - paired["attefa_other"]).max())
            what = f"{corpus}: AtteFa of BiLSTM minus that of Average, the largest of {len(paired)} seeds"
            yield what, gap, Band(high=0.0)
    correlation, count = _rank_correlation(by_corpus)
    if correlation is not None:
        what = f"Average: rank correlation of AtteFa with informative words, {count} synthetic corpora"
        yield what, correlation, RANK_CORRELATION_BAND


def _pair_by_seed(first: Result, other: Result) -> pd.DataFrame:
    """The adversaries of two results with the same seeds, those of the second with the suffix "_other"."""
    return _adversary_rows(first).merge(_adversary_rows(other), on="seed", suffixes=("", "_other"))


def _rank_correlation(by_corpus: Mapping[tuple[str, str], Result]) -> tuple[float | None, int]:
    """Of AtteFa with the number of informative words, which grows from corpus to corpus, and the number of corpora."""
    values = [
        by_corpus[corpus, "average"].value("attefa") for corpus in MOCK_CORPORA if (corpus, "average") in by_corpus
    ]
    if len(values) <= 3 or None in values:
        return None, len(values)
    order, scores = torch.arange(len(values), dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
    return float(spearman(order.unsqueeze(0), scores.unsqueeze(0)).value), len(values)


def _measure_encoder_gaps(results: Sequence[Result]) -> Evidence:
    """AtteFa of the token-wise model minus that of the BiLSTM on the same corpus, paired by seed."""
    chosen = _select(results)
    average = {result.label: result for result in chosen if result.encoder == "average"}
    evidence = {}
    for result in chosen:
        if result.encoder == "bilstm" and result.label in average:
            paired = _pair_by_seed(average[result.label], result)
            gap = paired_seed_difference(paired["attefa"].tolist(), paired["attefa_other"].tolist())
            evidence[result.label] = (Statistic("difference", "", "", *gap, len(paired)),)
    return evidence


def _measure_trend(results: Sequence[Result]) -> Evidence:
    """The rank correlation over synthetic corpora."""
    by_corpus = {(corpus, encoder): result for (corpus, _, encoder), result in additive_results(results).items()}
    correlation, count = _rank_correlation(by_corpus)
    return {} if correlation is None else {"synthetic corpora": (Statistic("spearman", value=correlation, n=count),)}


def _measure_real_corpora(results: Sequence[Result]) -> Evidence:
    """AtteFa of BiLSTMs on real corpora with its interval over adversaries."""
    evidence = {}
    for result in _select(results):
        if result.encoder == "bilstm" and not _is_synthetic(result):
            row = get_statistic(result.summary, "attefa")
            _, low, high = spread_interval(row.value, value_of(result.summary, "sample_std_attefa"), row.n)
            evidence[model_name(result)] = (replace(row, low=low, high=high),)
    return evidence


CLAIMS = (
    PaperClaim(
        "context-is-less-faithful",
        "Attention on top of a BiLSTM is less faithful than on top of an encoder that reads each word by itself.",
        "section 6.1, table 3",
        {"difference": Criterion("AtteFa of the average encoder minus that of the BiLSTM", "above", 0.0)},
        _measure_encoder_gaps,
        "AtteFa with the BiLSTM and the average encoder on one corpus",
    ),
    PaperClaim(
        "more-sources-less-faithful",
        "The more words of a text decide its class, the less faithful is attention.",
        "section 6.2, table 3",
        {
            "spearman": Criterion(
                "the rank correlation of AtteFa with informative words", "at most", RANK_CORRELATION_BAND.high
            )
        },
        _measure_trend,
        "AtteFa with the average encoder on four synthetic corpora or more",
    ),
    PaperClaim(
        "real-corpora-unfaithful",
        "On real corpora, the attention of a BiLSTM is hardly faithful.",
        "section 6.3, table 3",
        {"attefa": Criterion("AtteFa of the BiLSTM", "below", LOW_ATTEFA, HIGH_ATTEFA)},
        _measure_real_corpora,
        "AtteFa with the BiLSTM on a real corpus",
        "most",
    ),
)
