"""What the chapters of all papers are made of: results, tables with published numbers beside ours, and bands.

The report builds one `Result` for each trial on each model from the workspace index and passes them to the papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from heedful.figures import Figure, Heatmap, Series
from heedful.papers import published
from heedful.papers.published import CellName, NumberKey
from heedful.papers.tolerances import Limit, expectations, find_limit, find_rule
from heedful.results import SUMMARY_COLUMNS, Statistic
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Json
from heedful.table_view import Band, Cell, Comparison, TableView
from heedful.training.trainer import TRAINING_LOSS

ENCODER_NAMES = {"bilstm": "BiLSTM", "average": "Average", "gru": "GRU", "convolution": "Convolution"}
"""Display names of encoders; Wiegreffe & Pinter call the token-wise one MLP, AtteFa calls it Perceptron."""


@dataclass(frozen=True)
class CorpusStatistics:
    """Sizes of a corpus as one model was trained on it.

    Args:
        sizes: examples per class of each split; one number per split for regression.
        vocabulary: number of known words; None where unknown.
        mean_length: mean number of tokens of the test texts; None where the trial stored no lengths.
    """

    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    vocabulary: int | None = None
    mean_length: float | None = None

    def total(self, split: str) -> int | None:
        """The number of examples of a split; None where unknown."""
        return sum(self.sizes[split]) if split in self.sizes else None

    def numbers(self) -> dict[NumberKey, float]:
        """All sizes that are known under the names of published ones."""
        known: dict[NumberKey, float | None] = {
            ("vocabulary", "", ""): self.vocabulary,
            ("mean_length", "", ""): self.mean_length,
            **{(split, "", ""): self.total(split) for split in self.sizes},
            **{
                (split, "", f"class {number}"): count
                for split, counts in self.sizes.items()
                for number, count in enumerate(counts)
            },
        }
        return {key: float(number) for key, number in known.items() if number is not None}


@dataclass(frozen=True)
class Measurement:
    """Our number of a published cell.

    Args:
        value: the mean over seeds; None where it is undefined.
        std: the standard deviation over seeds; None for a single one.
        seeds: the number of seeds.
        n: observations behind it; None where that has no meaning.
        reference: our number of the method that is subtracted before a band applies.
    """

    value: float | None
    std: float | None = None
    seeds: int = 1
    n: float | None = None
    reference: float | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """One trial on one model, its seeds combined.

    Args:
        trial: short name of the trial, for instance "agreement".
        paper: name of the paper whose chapter shows it.
        summary: tidy rows with the columns of `combine_seeds`.
        n_seeds: the number of summaries that were combined.
        entries: index entries of the trial's artefacts, one per seed.
        settings: plain settings of the trial, the same for all seeds.
        recipe: every setting of the trial and its models, from `flat_settings`; empty where it is not stored.
        embeddings: name of the word embeddings; empty for models without any, and where the name is not shown.
        quick: trained on a sample with short trainings; not comparable with published numbers.
        remark: what distinguishes this run from another one with the same label, see `distinguish`.
    """

    trial: str
    paper: str
    corpus: str
    encoder: str
    attention: str
    summary: pd.DataFrame
    n_seeds: int = 1
    entries: tuple[IndexEntry, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)
    recipe: Mapping[str, Json] = field(default_factory=dict)
    embeddings: str = ""
    quick: bool = False
    remark: str = ""
    corpus_statistics: CorpusStatistics = CorpusStatistics()

    @property
    def label(self) -> str:
        """The corpus, and what distinguishes two runs on it: quick versions, word embeddings, other settings."""
        vectors = f"{self.embeddings} vectors" if self.embeddings else ""
        remarks = [*filter(None, ("quick" if self.quick else "", vectors, self.remark))]
        return f"{self.corpus} ({', '.join(remarks)})" if remarks else self.corpus

    @property
    def measure(self) -> str:
        """The measure of an agreement trial, and its unit and tokens where they are not the default."""
        words = [str(self.settings.get("measure") or "kendall")]
        words += ["by word"] if self.settings.get("level") == "word" else []
        words += ["with special tokens"] if self.settings.get("special_tokens") is True else []
        return " ".join(words)

    @cached_property
    def published(self) -> Mapping[NumberKey, float]:
        """The published numbers of this trial on this corpus and model by (metric, method, subset)."""
        return self.find_published(self.trial)[1]

    @property
    def published_note(self) -> str:
        """How the published numbers were made; empty where there are none."""
        return self.find_published(self.trial)[0]

    def find_published(self, trial: str) -> tuple[str, Mapping[NumberKey, float]]:
        """How the numbers of a trial were made, and what is published about this corpus, model and protocol."""
        if self.quick:
            return "", {}
        about = {"corpus": self.corpus, "encoder": self.encoder, "attention": self.attention, "measure": self.measure}
        return published.find_published(trial, about, self.paper, {**self.settings, **self.recipe})

    def published_sizes(self, paper: str) -> Mapping[NumberKey, float]:
        """What a paper published about the corpus; nothing for a quick version, which has a part of it."""
        return {} if self.quick else published.published_sizes(paper, self.corpus)

    @property
    def protocol_differences(self) -> list[str]:
        """The settings of the published protocol that this result does not have; empty if it has all."""
        return published.protocol_differences(self.trial, self.paper, {**self.settings, **self.recipe})

    @property
    def is_transformer(self) -> bool:
        """Whether the model has self-attention; its encoder has the name of a folder, which may be any."""
        return self.attention == "self"

    @property
    def is_bilstm(self) -> bool:
        """Whether the encoder is a BiLSTM."""
        return self.encoder == "bilstm" and not self.is_transformer

    @property
    def model_label(self) -> str:
        """The label of the corpus and the encoder."""
        name = self.encoder if self.is_transformer else ENCODER_NAMES.get(self.encoder, self.encoder)
        return f"{self.label}, {name}"

    @property
    def short_label(self) -> str:
        """The label of the corpus, and the encoder unless it is a BiLSTM, the default of most papers."""
        return self.label if self.is_bilstm else self.model_label

    @cached_property
    def _statistics(self) -> dict[NumberKey, Statistic]:
        columns = (self.summary[name].tolist() for name in SUMMARY_COLUMNS)
        return {(row[0], row[1], row[2]): Statistic(*row) for row in zip(*columns, strict=True)}

    def statistic(self, metric: str, method: str = "", subset: str = "") -> Statistic | None:
        """A row of the summary; None if there is none."""
        return self._statistics.get((metric, method, subset))

    def value(self, metric: str, method: str = "", subset: str = "") -> float | None:
        """A number of the summary; None if it is missing or undefined."""
        row = self.statistic(metric, method, subset)
        return None if row is None or math.isnan(row.value) else row.value

    def methods(self, metric: str) -> list[str]:
        """The methods that have this metric, in the order of the summary."""
        return list(dict.fromkeys(self.summary.loc[self.summary["metric"] == metric, "method"]))

    def subsets(self, metric: str, method: str = "") -> list[str]:
        """The subsets for which a method has this metric, in the order of the summary."""
        rows = (self.summary["metric"] == metric) & (self.summary["method"] == method)
        return list(dict.fromkeys(self.summary.loc[rows, "subset"]))

    def compare(self, metric: str, method: str = "", subset: str = "") -> Comparison:
        """Our number beside the published one, not judged; quick versions have none."""
        return Comparison(self.value(metric, method, subset), self.published.get((metric, method, subset)))

    def judge(self, metric: str, method: str = "", subset: str = "", *, trial: str = "") -> Comparison:
        """Our number beside the published one with the tolerance of that cell; quick versions have neither.

        Args:
            trial: under which the number was published, where that differs from the name of our trial.
        """
        cell = self.cell_name(metric, method, subset, trial=trial)
        numbers = self.find_published(trial)[1] if trial else self.published
        number = numbers.get((metric, method, subset))
        if number is None:
            return Comparison(self.value(metric, method, subset), None)
        return self.compare_with(cell, number, find_rule(cell, number))

    def compare_with(self, cell: CellName, printed: float, limit: Limit) -> Comparison:
        """Our number of a published cell beside it and within its limit."""
        reference = self.value(cell.metric, limit.minus, cell.subset) if limit.minus else None
        return limit.compare(self.value(cell.metric, cell.method, cell.subset), printed, reference)

    def cell_name(self, metric: str, method: str = "", subset: str = "", *, trial: str = "") -> CellName:
        """The name of the published cell that this number of ours stands beside."""
        encoder = published.published_encoder(self.encoder, self.attention)
        return CellName(self.paper, trial or self.trial, self.corpus, encoder, self.attention, metric, method, subset)

    def measurement(self, metric: str, method: str = "", subset: str = "", *, minus: str = "") -> Measurement | None:
        """A number of the summary with its spread over seeds; None if there is none."""
        row = self.statistic(metric, method, subset)
        if row is None:
            return None
        std, seeds = self._spreads[metric, method, subset]
        reference = self.value(metric, minus, subset) if minus else None
        value, n, spread = (None if math.isnan(number) else number for number in (row.value, row.n, std))
        return Measurement(value, spread, max(1, int(seeds)), n, reference)

    @cached_property
    def _spreads(self) -> dict[NumberKey, tuple[float, float]]:
        """Standard deviation over seeds and number of seeds by metric, method and subset."""
        if "std" not in self.summary:
            return dict.fromkeys(self._statistics, (math.nan, 1.0))
        columns = (self.summary[name].tolist() for name in (*SUMMARY_COLUMNS[:3], "std", "seeds"))
        return {(row[0], row[1], row[2]): (row[3], row[4]) for row in zip(*columns, strict=True)}

    def table(self) -> pd.DataFrame:
        """The rows of the trial over all seeds, read from disk."""
        return pd.concat([entry.load().table for entry in self.entries], ignore_index=True)


PRINTED_TABLES: Mapping[str, tuple[str, ...]] = {"agreement": ("agreement-table-2",)}
"""Names under which numbers of a trial are published beside that of the trial."""


def measure_published(result: Result) -> dict[CellName, Measurement]:
    """Our number of every published cell that stands beside a result, the sizes of its corpus among them."""
    measured: dict[CellName, Measurement] = {}
    for trial in (result.trial, *PRINTED_TABLES.get(result.trial, ())):
        for key, printed in result.find_published(trial)[1].items():
            name = result.cell_name(*key, trial=trial)
            if number := result.measurement(*key, minus=find_limit(name, printed).minus):
                measured[name] = number
    # Other trials may have read a part of the test texts only, whose mean length is another one.
    sizes = result.corpus_statistics.numbers() if result.trial == "performance" else {}
    corpus = published.published_corpus(result.corpus)
    for key in result.published_sizes(result.paper):
        if key in sizes:
            measured[CellName(result.paper, "corpus", corpus, "", "", *key)] = Measurement(sizes[key])
    return measured


def flat_settings(recipe: Json, path: str = "") -> dict[str, Json]:
    """The settings of a stored recipe by their dotted paths.

    >>> flat_settings({"seeds": [1, 2], "subject": {"training": {"epochs": 8}}})
    {'seeds': [1, 2], 'subject.training.epochs': 8}
    """
    parts: Iterable[tuple[object, Json]] = ()
    if isinstance(recipe, dict):
        parts = recipe.items()
    elif isinstance(recipe, list) and any(isinstance(value, dict | list) for value in recipe):
        parts = enumerate(recipe)
    else:
        return {path: recipe}
    flat: dict[str, Json] = {}
    for name, value in parts:
        flat |= flat_settings(value, f"{path}.{name}".removeprefix("."))
    return flat


def distinguish(results: Sequence[Result]) -> list[Result]:
    """The results, with a remark wherever two runs of a trial would have the same label.

    The remark is the first setting that all of them have differently, or all differing ones.
    """
    runs: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        runs.setdefault((result.trial, result.model_label, result.attention), []).append(result)
    remarks: dict[int, str] = {}
    for rivals in runs.values():
        if len(rivals) > 1:
            remarks |= {id(result): remark for result, remark in zip(rivals, _remarks(rivals), strict=True)}
    return [replace(result, remark=remarks[id(result)]) if id(result) in remarks else result for result in results]


def _remarks(rivals: Sequence[Result]) -> list[str]:
    """A remark for each of several runs, all different."""
    settings = [{**result.settings, **result.recipe} for result in rivals]
    known = dict.fromkeys(path for setting in settings for path in setting)
    paths = [path for path in known if not path.endswith("type")]
    # How epochs are selected says most; the parts of other recipes that follow from it come later.
    paths.sort(key=lambda path: (not path.startswith("subject.training.selection"), "selection" not in path))
    columns = {path: [published.setting_label(path, setting.get(path)) for setting in settings] for path in paths}
    differing = [labels for labels in columns.values() if len(set(labels)) > 1]
    for labels in differing:
        if len(set(labels)) == len(rivals):
            return labels
    joined = [", ".join(labels) for labels in zip(*differing, strict=True)]
    if len(set(joined)) == len(rivals):
        return joined
    return [f"run {number}" for number, _ in enumerate(rivals, start=1)]


TRAINED_PARTS = {"subject.training": "models", "adversary_training": "adversaries", "arms.0.1.0.training": "students"}
"""Where a trial's recipe has the settings of a training, and what is trained by them."""


def training_rules(result: Result) -> dict[str, tuple[str, str, str]]:
    """For what a trial trained: which epoch was kept, of how many at most, and with what patience."""
    rules: dict[str, tuple[str, str, str]] = {}
    for path, name in TRAINED_PARTS.items():
        if f"{path}.selection.split" in result.recipe:
            rule = _selection_rule(result.recipe, f"{path}.selection", is_student=name == "students")
            epochs, patience = (result.recipe.get(f"{path}.{key}") for key in ("epochs", "patience"))
            rules[name] = (rule, str(epochs), "none" if patience is None else str(patience))
    return rules


def _selection_rule(recipe: Mapping[str, Json], path: str, *, is_student: bool) -> str:
    """The epoch that was kept, in words."""
    split, metric, first = (recipe.get(f"{path}.{name}") for name in ("split", "metric", "first_epoch"))
    score = "agreement with the teacher" if is_student else "score (ROC-AUC of two classes)"
    rule = {
        None: f"best {score} on {split}",
        "roc_auc": f"best ROC-AUC on {split}",
        "deception": f"lowest adversarial loss on {split}",
        TRAINING_LOSS: "lowest training loss",
    }.get(metric if metric is None else str(metric), f"best {metric} on {split}")
    return f"{rule}, from epoch {first} on" if isinstance(first, int) and first > 1 else rule


def selection_table(results: Sequence[Result]) -> TableView:
    """How the epochs of a chapter's models were chosen, and whether as in the published protocol."""
    rows: dict[tuple[str, ...], dict[str, None]] = {}
    for result in results:
        rules = {path: value for path, value in result.recipe.items() if "training" in path}
        differing = ", ".join(published.protocol_differences(result.trial, result.paper, rules))
        for name, rule in training_rules(result).items():
            known = "quick version" if result.quick else "as published" if published.has_protocol(result.paper) else "–"
            key = (name, *rule, f"published: {differing}" if differing else known)
            rows.setdefault(key, {}).setdefault(result.label)
    columns = ("trained", "corpora", "selected epoch", "max epochs", "patience", "protocol")
    cells = tuple((name, ", ".join(labels), *rest) for (name, *rest), labels in rows.items())
    note = "From the stored settings of each training run. Published numbers are shown only for their own protocol."
    return TableView("How epochs were selected", columns, cells, note)


@dataclass(frozen=True)
class SectionExtras:
    """What a paper adds to the section of one result."""

    tables: tuple[TableView, ...] = ()
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()


def find_attributions(entries: Iterable[IndexEntry], subject: str | None, method: str) -> pd.DataFrame | None:
    """The stored test attributions of a method on a model, those of most texts; None if there are none."""
    matches = [
        entry
        for entry in entries
        if entry.kind == "attributions"
        and (entry.link("subject"), entry.facts["method"], entry.settings["split"]) == (subject, method, "test")
    ]
    largest = max(reversed(matches), key=lambda entry: float(str(entry.settings["limit"] or "inf")), default=None)
    return None if largest is None else largest.load().table


def rows_by_uid(table: pd.DataFrame) -> dict[str, pd.Series]:
    """The rows of a table by the uid of their examples."""
    return {str(row["uid"]): row for _, row in table.iterrows()}


def class_names(entries: Iterable[IndexEntry], subject: str | None) -> list[str]:
    """The class names of a model; empty for regression, and if the model is not stored."""
    names = [entry.load(tensors=False).notes.get("classes") for entry in entries if entry.name == subject]
    return [str(name) for name in names[0]] if names and isinstance(names[0], list) else []


def class_name(number: float, classes: Sequence[str]) -> str:
    """The name of a class, or its number where it has no name."""
    return classes[int(number)] if int(number) < len(classes) else f"class {int(number)}"


def prediction_text(row: pd.Series, classes: Sequence[str]) -> str:
    """The predicted class with its probability, or the predicted number.

    >>> prediction_text(pd.Series({"predicted": 1, "probability": 0.93}), ["negative", "positive"])
    'positive (0.93)'
    """
    probability = f"{row['probability']:.2f}".replace("-", "\N{MINUS SIGN}")
    return f"{class_name(row['predicted'], classes)} ({probability})"


def weights_by_unit(row: pd.Series, column: str, count: int) -> list[float]:
    """A weight for each of `count` units from a column with the weights of the units in `units`; 0 for all others."""
    weights = dict(zip(row["units"], row[column], strict=True))
    return [float(weights.get(unit, 0.0)) for unit in range(count)]


def token_heatmap(title: str, text: pd.Series, scores: Mapping[str, Sequence[float]], caption: str) -> Heatmap:
    """A heat-map of the scored tokens of a row of an attribution table, with one row per name in `scores`."""
    kept = [position for position, scored in enumerate(text["scored"]) if scored]
    rows = tuple(Series(name, tuple(float(values[position]) for position in kept)) for name, values in scores.items())
    return Heatmap(title, tuple(str(text["units"][position]) for position in kept), rows, caption)


def sort_by_corpus(results: Iterable[Result], corpora: Sequence[str]) -> list[Result]:
    """Results in the paper's order of corpora; corpora that it does not have come last."""
    order = {corpus: rank for rank, corpus in enumerate(corpora)}
    return sorted(results, key=lambda result: order.get(result.corpus, len(order)))


def corpus_size_table(results: Sequence[Result], chosen: Sequence[Result], paper: str, note: str) -> TableView:
    """Table 1 of Wiegreffe & Pinter or AtteFa: examples by split and class, and the mean length of test texts.

    Args:
        results: all results; performance trials have the lengths of texts.
        chosen: those whose corpora are shown.
    """
    known = [result for result in results if result.corpus_statistics.mean_length is not None]
    lengths = {(result.corpus, result.quick): result.corpus_statistics.mean_length for result in known}
    rows: dict[tuple[str, str], tuple[Cell, ...]] = {}
    for result in chosen:
        theirs, statistics = result.published_sizes(paper), result.corpus_statistics
        length = statistics.mean_length or lengths.get((result.corpus, result.quick))
        numbers: dict[NumberKey, float | None] = {
            (split, "", f"class {number}"): count
            for split in ("train", "test")
            for number, count in enumerate(statistics.sizes.get(split, ())[:2])
        }
        for key, ours in {**numbers, ("mean_length", "", ""): length}.items() if numbers else ():
            what = ", ".join(filter(None, key)) if key in numbers else "mean length, test"
            rows.setdefault((result.label, what), (result.label, what, Comparison(ours, theirs.get(key))))
    return TableView("Table 1: corpora", ("corpus", "what", "number"), tuple(rows.values()), note)


def scatter_series(
    curves: Mapping[str, Sequence[tuple[float | None, float | None]]],
) -> tuple[tuple[Series, Series], ...]:
    """Named points for a scatter plot; undefined points and empty series are left out."""
    defined = {name: [(x, y) for x, y in points if x is not None and y is not None] for name, points in curves.items()}
    return tuple(
        (Series(name, tuple(x for x, _ in points)), Series(name, tuple(y for _, y in points)))
        for name, points in defined.items()
        if points
    )


def beside_published(
    ours: Iterable[float | None], theirs: Iterable[float | None], name: str = ""
) -> tuple[Series, Series]:
    """Our numbers and the published ones as two series; what is undefined is not drawn."""
    mine, printed = (tuple(math.nan if value is None else value for value in values) for values in (ours, theirs))
    return Series(f"{name}ours", mine), Series(f"{name}published", printed)


def subtract(one: float | None, other: float | None) -> float | None:
    """`one - other`; None where one of them is."""
    return None if one is None or other is None else one - other


Check = tuple[str, float | None, Band]
"""What was expected, our number, and its band."""


def additive_results(results: Iterable[Result]) -> dict[tuple[str, str, str], Result]:
    """A result of each corpus, trial and encoder with additive attention, without quick versions.

    Of several, the first that was made by the published protocol, else the first.
    """
    best: dict[tuple[str, str, str], Result] = {}
    for result in sorted(results, key=lambda result: len(result.protocol_differences)):
        if result.attention == "additive" and not result.quick:
            best.setdefault((result.corpus, result.trial, result.encoder), result)
    return best


def check_table(
    caption: str, paper: str, results: Sequence[Result], note: str, further: Iterable[Check] = ()
) -> TableView:
    """The paper's checks in `expected.json` and further ones, and how many numbers are inside their bands."""
    additive, checks = additive_results(results), dict[str, tuple[float | None, Band]]()
    for check in expectations(paper).checks:
        if result := additive.get((check.corpus, check.trial, check.encoder)):
            value = result.value(check.metric, check.method, check.subset)
            if check.minus:
                value = subtract(value, result.value(check.metric, check.minus, check.subset))
            checks.setdefault(check.what, (value, check.band))
    every: list[Check] = [*((what, *check) for what, check in checks.items()), *further]
    rows = tuple((what, value, str(band), band.verdict(value)) for what, value, band in every)
    met = sum(row[-1] == "inside" for row in rows)
    return TableView(caption, ("check", "ours", "band", "verdict"), rows, f"Inside: {met} of {len(rows)}. {note}")
