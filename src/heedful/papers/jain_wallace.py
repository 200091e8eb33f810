"""Attention is not Explanation (Jain & Wallace 2019): 72 combinations of corpus, encoder and attention.

Where the paper's text and its released code differ, the recipes follow the code, which made the published tables; a
comment names the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import ClassVar

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.embeddings import RandomEmbeddings
from heedful.figures import Axis, Bars, Figure, Histogram, Series, Violin
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average, BiLSTM, Convolution
from heedful.models.input_forms import QuestionAnswering, SingleInput
from heedful.papers.chapter import (
    ENCODER_NAMES,
    Result,
    SectionExtras,
    beside_published,
    distinguish,
    sort_by_corpus,
    subtract,
)
from heedful.papers.claims import (
    Criterion,
    Evidence,
    PaperClaim,
    cautious_difference,
    mean_over_texts,
    model_name,
    share_of_texts,
)
from heedful.papers.paper_options import EmbeddingOptions, resolve_names
from heedful.papers.published import published_distributions
from heedful.papers.tolerances import expectations
from heedful.results import Statistic, get_statistic, value_of
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Recipe
from heedful.table_view import Cell, Comparison, TableView
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_attention import FAR_JSD, AdversarialAttention, Solver
from heedful.trials.agreement import Agreement
from heedful.trials.performance import Performance
from heedful.trials.permutation import LARGE_CHANGE, SMALL_CHANGE, Permutation
from heedful.types import Corpus

_TEXT_CORPORA = ("sst", "imdb", "adr", "20news", "agnews", "diabetes", "anemia")
QUESTION_CORPORA = ("babi-1", "babi-2", "babi-3", "cnn", "snli")
"""Corpora with a second text: a question, or SNLI's hypothesis."""
_ENCODERS = ("bilstm", "convolution", "average")
LEFT_OUT = "leave-one-out(distribution)"
EPSILONS = (0.05, 0.01)
"""The text says .01; the code that drew figures 4 and 5 has .05."""
SOLVERS: tuple[Solver, ...] = ("exact", "search")
_QUICK_EPOCHS = 3
QUICK_LIMIT = 200
TABLE_2 = "agreement-table-2"
"""Under which the printed digits of table 2 are published."""


@dataclass(frozen=True)
class JainWallaceOptions(EmbeddingOptions):
    """Corpora, encoders, attentions and seeds of the paper, and the number of test examples.

    Args:
        error: standard error of the median change of a text, in place of 100 permutations.
        without_control: leave out the attention of another seed, a control that the paper lacks; with one seed it is
            half of all trainings.
    """

    known_corpora: ClassVar = {name: catalogue.CORPORA[name] for name in _TEXT_CORPORA + QUESTION_CORPORA}
    paper_defaults: ClassVar = {"encoders": _ENCODERS, "attentions": tuple(catalogue.ATTENTIONS), "n_seeds": 1}

    encoders: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    limit: int | None = None
    error: float | None = None
    without_control: bool = False

    def recipes(self) -> list[Recipe]:
        """Every trial on every chosen corpus, encoder, attention and seed."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders, _ENCODERS)
        attentions = resolve_names("attention", self.attentions, tuple(catalogue.ATTENTIONS))
        n_seeds = 1 if self.quick else self.n_seeds or 1
        limit = min(self.limit or QUICK_LIMIT, QUICK_LIMIT) if self.quick else self.limit
        models = [
            jain_wallace_model(corpus, encoder, attention, self)
            for corpus in self.chosen_corpora()
            for encoder in encoders
            for attention in attentions
        ]
        # With one seed, a second training is the other seed; with several, each is compared with its successor.
        pairs = [(seed, (seed + 1) % max(2, n_seeds)) for seed in range(n_seeds)]
        return [
            trial
            for model in models
            for seed, other_seed in pairs
            for trial in jain_wallace_trials(
                replace(model, seed=seed),
                None if self.without_control else replace(model, seed=other_seed),
                limit,
                self.error,
            )
        ]


def jain_wallace_model(corpus: Corpus, encoder: str, attention: str, options: JainWallaceOptions) -> TrainedModel:
    """One of the paper's models, with the sizes and training of the released code."""
    has_question = corpus.name in QUESTION_CORPORA or options.has_pairs
    is_babi = corpus.name.startswith("babi")
    used = options.training_corpus(corpus)
    training = options.adapt_training(_training(corpus, has_question=has_question), used)
    # Only bAbI has random embeddings in the paper, drawn as PyTorch does; the other corpora have fastText.
    random_babi = is_babi and options.embeddings_name(corpus) == "random"
    width = 32 if is_babi else 128
    # The text says 64 filters and a ReLU projection to 256; the code that made table 2 has 32 filters and tanh to 128.
    encoders = {"bilstm": BiLSTM(width), "convolution": Convolution(width // 4), "average": Average(width)}
    return TrainedModel(
        corpus=used,
        tokenization=corpus.tokenization,
        architecture=Attentive(
            encoders[encoder],
            catalogue.ATTENTIONS[attention](),
            input_format=QuestionAnswering() if has_question else SingleInput(),
        ),
        training=replace(training, epochs=min(training.epochs, _QUICK_EPOCHS)) if options.quick else training,
        objective=Supervised(balance_classes=not has_question),
        embeddings=RandomEmbeddings(corpus.embedding_dim, std=1.0) if random_babi else options.word_embeddings(corpus),
    )


def _training(corpus: Corpus, *, has_question: bool) -> Training:
    if not has_question:
        return Training()
    is_babi = corpus.name.startswith("babi")
    batch_size = 50 if is_babi else 90 if corpus.name == "cnn" else 128
    selection = EpochSelection(metric="accuracy", first_epoch=2)
    return Training(100 if is_babi else 25, batch_size, Adam(no_decay=()), selection, reduction="mean")


def single_model_trials(subject: ModelRecipe, limit: int | None = None) -> list[Recipe]:
    """The trials of the paper that need one model only, with the first solver and epsilon."""
    trials = jain_wallace_trials(subject, None, limit)
    others = [trial for trial in trials if isinstance(trial, AdversarialAttention)][1:]
    return [trial for trial in trials if trial not in others]


def jain_wallace_trials(
    subject: ModelRecipe, other_seed_model: ModelRecipe | None, limit: int | None = None, error: float | None = None
) -> list[Recipe]:
    """All trials of the paper on one model.

    Attention of another seed (`other_seed_model`) is a control that the paper lacks.
    """
    methods = (RawAttention(), Gradient(), LeaveOneOut("distribution"))
    return [
        Performance(subject),
        Permutation(subject, limit=limit, error=error),
        Agreement(subject, methods, other_seed_model=other_seed_model, limit=limit),
        *(
            AdversarialAttention(subject, epsilon, solver=solver, limit=limit)
            for solver, epsilon in product(SOLVERS, EPSILONS)
        ),
        AttributionTable(subject, RawAttention(), limit=limit),
    ]


def tables(results: Sequence[Result]) -> tuple[TableView, ...]:
    """Tables 1 and 2."""
    return _table_1(results), _table_2(results)


def _select(results: Sequence[Result], trial: str, encoder: str) -> list[Result]:
    """Results on this paper's models: those of other papers were trained by other rules."""
    wanted = ("jain-wallace", trial, encoder, "additive", "kendall")
    about = attrgetter("paper", "trial", "encoder", "attention", "measure")
    chosen = [result for result in results if about(result) == wanted]
    return sort_by_corpus(distinguish(chosen), tuple(JainWallaceOptions.known_corpora))


def _table_1(results: Sequence[Result]) -> TableView:
    rows: list[tuple[Cell, ...]] = []
    for result in _select(results, "performance", "bilstm"):
        theirs, statistics = result.published_sizes("jain-wallace"), result.corpus_statistics
        metric = "accuracy" if result.value("f1") is None else "f1"
        ours = {
            "vocabulary": statistics.vocabulary,
            "mean_length": statistics.mean_length,
            "train": statistics.total("train"),
            "test": statistics.total("test"),
        }
        sizes = [Comparison(number, theirs.get((metric, "", ""))) for metric, number in ours.items()]
        score = result.judge(metric)
        rows.append((result.label, *sizes, score, theirs.get(("score", "", ""), "")))
    columns = ("corpus", "vocabulary", "mean length", "training examples", "test examples", "F1 or accuracy", "printed")
    note = (
        "The paper counts the words of all splits and, for some corpora, the corpus before filtering; our numbers are "
        "those of our training data. F1 of class 1 for two classes, otherwise accuracy. The published scores beside "
        "ours are those of the authors' models behind table 2, whose epochs were selected on dev like ours; the scores "
        "printed in table 1 are those of earlier models, whose epochs were selected on test."
    )
    return TableView("Table 1: corpora, and BiLSTM with additive attention", columns, tuple(rows), note)


def _table_2(results: Sequence[Result]) -> TableView:
    """The paper's table 2: a row per corpus and class, a column per measure, encoder and statistic that we have."""
    columns = [
        (method, encoder, metric)
        for method, encoder in (("gradient", "bilstm"), ("gradient", "average"), (LEFT_OUT, "bilstm"))
        for metric in ("mean", "std", "significant")
    ]
    cells: dict[tuple[str, str], dict[tuple[str, str, str], Comparison]] = {}
    for result in (*_select(results, "agreement", "bilstm"), *_select(results, "agreement", "average")):
        for metric, pair, subset in result.find_published(TABLE_2)[1]:
            row = cells.setdefault((result.label, subset.removeprefix("class ") or "overall"), {})
            number = result.judge(metric, pair, subset, trial=TABLE_2)
            row[pair.removeprefix("attention~"), result.encoder, metric] = number
    shown = [column for column in columns if any(column in row for row in cells.values())]
    rows = tuple((*key, *(row.get(column, "") for column in shown)) for key, row in cells.items())
    tau, share = map(expectations("jain-wallace").tolerance, ("tau", "share"))
    note = (
        f"Kendall's tau-b with attention, by predicted class. Inside: within {tau} (means) or "
        f"{share} (shares of significant taus) of the published number. Standard deviations are not judged."
    )
    return TableView(
        "Table 2: attention and other measures",
        ("corpus", "class", *(metric for _, _, metric in shown)),
        rows,
        note,
        ("", "", *(f"{method}, {ENCODER_NAMES[encoder]}" for method, encoder, _ in shown)),
    )


def figures(results: Sequence[Result]) -> tuple[Figure, ...]:
    """Figures 6 to 8: differences of mean correlations by corpus; quick versions are left out."""
    comparable = [result for result in results if not result.quick]
    bilstm = {result.label: result for result in _select(comparable, "agreement", "bilstm")}
    average = {result.label: result for result in _select(comparable, "agreement", "average")}
    numbers: dict[str, dict[str, Comparison]] = {}
    for title, method in (
        ("Figure 6: leave-one-out agrees more with gradients than with attention", LEFT_OUT),
        ("Figure 7: gradients agree more with leave-one-out than with attention", "gradient"),
    ):
        pair = f"gradient~{LEFT_OUT} over attention~{method}"
        numbers[title] = {label: result.compare("excess", pair) for label, result in bilstm.items()}
    title = "Figure 8: attention agrees more with leave-one-out where the encoder is token-wise"
    numbers[title] = {}
    for label in (label for label in bilstm if label in average):
        one, other = (runs[label].compare("mean", f"attention~{LEFT_OUT}") for runs in (average, bilstm))
        numbers[title][label] = Comparison(subtract(one.ours, other.ours), subtract(one.published, other.published))
    return _difference_bars(numbers)


def _difference_bars(numbers: Mapping[str, Mapping[str, Comparison]]) -> tuple[Bars, ...]:
    """Bars by title and label, all on one axis, so that lengths can be compared across figures."""
    shown = {
        title: {label: number for label, number in bars.items() if number.ours is not None}
        for title, bars in numbers.items()
    }
    ends = [
        value
        for bars in shown.values()
        for number in bars.values()
        for value in (number.ours, number.published)
        if value is not None and math.isfinite(value)
    ]
    margin = 0.05 * (max([0.0, *ends]) - min([0.0, *ends]))
    limits = (min([0.0, *(end - margin for end in ends)]), max([0.0, *(end + margin for end in ends)]))
    axis = Axis("mean difference of tau", limits)
    return tuple(
        Bars(
            title,
            axis,
            tuple(bars),
            beside_published([number.ours for number in bars.values()], [number.published for number in bars.values()]),
        )
        for title, bars in shown.items()
        if bars
    )


def beside_distribution(result: Result, figure: Figure) -> Figure:
    """The figure of a trial with the published distribution of the same numbers, where the protocol is the same."""
    if not isinstance(figure, Histogram | Violin) or not result.published:
        return figure
    theirs = published_distributions(result.corpus, result.encoder, result.attention)
    if isinstance(figure, Violin):
        return replace(figure, published=theirs.quartiles.get(figure.source, ()))
    classes = theirs.shares.get(figure.source, ())
    names = [f"published, class {number}" for number in range(len(classes))] if len(classes) > 1 else ["published"]
    fitting = [shares for shares in classes if len(shares) == figure.bins]
    return replace(figure, published=tuple(map(Series, names, fitting)))


def section(result: Result, entries: Sequence[IndexEntry]) -> SectionExtras:
    """What trained adversaries of the same model reach, for a trial that chooses weights freely for each text."""
    if result.trial != "adversarial-attention" or not result.entries:
        return SectionExtras()
    subject = result.entries[0].link("subject")
    rows: list[tuple[Cell, ...]] = []
    for entry in entries:
        if entry.kind != "trial" or (trial := entry.facts.get("trial")) not in ("adversarial-tradeoff", "attefa"):
            continue
        if entry.link("subject") != subject:
            continue
        summary = entry.load().summary
        methods = summary.loc[summary["metric"] == "lambda", "method"] if trial == "adversarial-tradeoff" else [""]
        for method in methods:
            name = f"trained adversary, {method}" if method else "trained adversaries of AtteFa, mean"
            # The papers' TVD is half the total variation.
            rows.append((name, value_of(summary, "jsd", method), 2 * value_of(summary, "tvd", method)))
    if not rows:
        return SectionExtras()
    table = result.entries[0].load().table
    free = (
        f"free weights for each text ({result.settings['solver']})",
        float(table["epsilon_max"].mean()),
        float(table["change"].mean()),
    )
    columns = ("attention", "mean divergence (JSD)", "mean change of output (0 to 1)")
    note = (
        "Free weights are chosen for each text separately, with a change of at most epsilon; a trained adversary is a "
        "single model for all texts, including those that it was not trained on."
    )
    return SectionExtras((TableView("Trained adversaries beside free weights", columns, (free, *rows), note),))


WEAK_TAU = 0.5
"""Densities of the paper are centered around this tau or below it, which it calls modest."""
_PAIR = f"attention~{LEFT_OUT}"
_NEEDED_TAU = "agreement of a BiLSTM's attention with gradients and leave-one-out"


def _agreements(results: Sequence[Result]) -> list[Result]:
    """Agreement trials on BiLSTMs."""
    about = attrgetter("trial", "encoder", "measure")
    return distinguish([result for result in results if about(result) == ("agreement", "bilstm", "kendall")])


def _measure_taus(method: str) -> Callable[[Sequence[Result]], Evidence]:
    """The mean agreement of a BiLSTM's attention with a method."""

    def measure(results: Sequence[Result]) -> Evidence:
        return {
            model_name(result): (mean_over_texts(result, "mean", f"attention~{method}", std="std"),)
            for result in _agreements(results)
        }

    return measure


def _measure_excess(results: Sequence[Result]) -> Evidence:
    """How much more leave-one-out agrees with gradients than with a BiLSTM's attention."""
    pair = f"gradient~{LEFT_OUT} over attention~{LEFT_OUT}"
    return {
        model_name(result): (mean_over_texts(result, "excess", pair, std="excess_std"),)
        for result in _agreements(results)
    }


def _measure_encoder_gaps(results: Sequence[Result]) -> Evidence:
    """How much more attention agrees with leave-one-out in a token-wise model than in a BiLSTM on the same corpus.

    Of several runs on a model, that on most texts counts.
    """
    numbers: dict[str, dict[tuple[str, str], Statistic]] = {"average": {}, "bilstm": {}}
    for result in results:
        if result.trial == "agreement" and result.measure == "kendall" and result.encoder in numbers:
            key, row = (result.label, result.attention), mean_over_texts(result, "mean", _PAIR, std="std")
            known = numbers[result.encoder].setdefault(key, row)
            numbers[result.encoder][key] = max(known, row, key=attrgetter("n"))
    average, bilstm = numbers.values()
    return {
        ", ".join(key): (cautious_difference(average[key], bilstm[key], "difference"),)
        for key in average
        if key in bilstm
    }


def _measure_permutations(results: Sequence[Result]) -> Evidence:
    chosen = [result for result in results if (result.trial, result.encoder) == ("permutation", "bilstm")]
    return {model_name(result): (get_statistic(result.summary, "median_change"),) for result in distinguish(chosen)}


def _measure_adversaries(results: Sequence[Result]) -> Evidence:
    """The share of texts with a distant attention, at the epsilon of the figures and by the exact solver if it ran."""
    best: dict[tuple[str, str], Result] = {}
    for result in results:
        about = (result.trial, result.encoder, result.value("epsilon"))
        if about == ("adversarial-attention", "bilstm", EPSILONS[0]):
            key = (result.label, result.attention)
            is_exact = result.settings.get("solver") == "exact"
            best[key] = result if is_exact else best.get(key, result)
    return {model_name(result): (share_of_texts(result, "far"),) for result in best.values()}


CLAIMS = (
    PaperClaim(
        "weak-gradients",
        "In BiLSTMs, attention agrees only weakly with gradients.",
        "section 4.1, table 2",
        {"mean": Criterion("the mean tau of attention and gradients", "below", WEAK_TAU)},
        _measure_taus("gradient"),
        _NEEDED_TAU,
        "most",
    ),
    PaperClaim(
        "weak-leave-one-out",
        "In BiLSTMs, attention agrees only weakly with leaving out words.",
        "section 4.1, table 2",
        {"mean": Criterion("the mean tau of attention and leave-one-out", "below", WEAK_TAU)},
        _measure_taus(LEFT_OUT),
        _NEEDED_TAU,
        "most",
    ),
    PaperClaim(
        "token-wise-agrees-more",
        "Attention agrees better with leaving out words if the encoder reads each word by itself.",
        "section 4.1, figure 8",
        {"difference": Criterion("the mean tau of the average encoder minus that of the BiLSTM", "above", 0.0)},
        _measure_encoder_gaps,
        "agreement on one corpus with the BiLSTM and the average encoder",
    ),
    PaperClaim(
        "gradients-agree-more",
        "In BiLSTMs, leaving out words agrees better with gradients than with attention.",
        "section 4.1, figure 6",
        {"excess": Criterion("the mean gain of tau of gradients over attention", "above", 0.0)},
        _measure_excess,
        _NEEDED_TAU,
        "most",
    ),
    PaperClaim(
        "permutation-is-harmless",
        "Permuting the attention weights of a BiLSTM often leaves its output nearly as it was.",
        "section 4.2.1, figure 3",
        {"median_change": Criterion("the median change of the output", "below", SMALL_CHANGE, LARGE_CHANGE)},
        _measure_permutations,
        "permuted attention of a BiLSTM",
        "most",
    ),
    PaperClaim(
        "distant-attention-exists",
        "For most texts, very different attention would give a BiLSTM's prediction as well.",
        "section 4.2.2, figure 4",
        {"far": Criterion(f"the share of texts with a JSD of {FAR_JSD} or more", "above", 0.5)},
        _measure_adversaries,
        f"adversarial attention of a BiLSTM with epsilon {EPSILONS[0]}",
        "most",
    ),
)
