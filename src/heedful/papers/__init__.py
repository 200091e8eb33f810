"""Five papers: the recipes that reproduce each, its published numbers, and its chapter in the report.

`PAPERS[name].options(corpora=("sst",)).recipes()` gives the recipes of a paper, also on a table of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heedful import catalogue
from heedful.data.embeddings import PackagedGloveEmbeddings, RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.data.text_corpora import RottenTomatoes
from heedful.data.words import Words
from heedful.figures import Figure
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.names import choose_name
from heedful.papers import (
    _scaffold_chapter,
    _scaffold_claims,
    attefa,
    disagreement,
    jain_wallace,
    published,
    wiegreffe_pinter,
)
from heedful.papers.attefa import AttefaOptions
from heedful.papers.chapter import Measurement, Result, SectionExtras, flat_settings, measure_published, selection_table
from heedful.papers.claims import PaperClaim, claim_table
from heedful.papers.disagreement import DisagreementOptions
from heedful.papers.jain_wallace import JainWallaceOptions, single_model_trials
from heedful.papers.paper_options import PaperOptions, UserData
from heedful.papers.published import CellName
from heedful.papers.scaffold import ScaffoldOptions
from heedful.papers.wiegreffe_pinter import WiegreffePinterOptions
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Artefact, Json, Recipe, canonical_json, plain_settings
from heedful.table_view import TableView
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.trials.trial import Trial
from heedful.types import UserError

__all__ = ["PAPERS", "Paper", "PaperOptions", "UserData", "assign_papers", "demo", "find_paper", "paper_recipes"]

_SHARED_TRIALS = frozenset({"performance", "agreement"})
"""Trials that several papers have; they are shown with the paper whose model they examine."""


@dataclass(frozen=True)
class Paper:
    """A publication: its question, its options and recipes, and its chapter in the report.

    Args:
        build_tables: tables over all corpora, from the results of this paper.
        build_figures: figures over all corpora.
        claims: what the paper claims, with the rules that decide it.
        section: what is added to the section of one result of this chapter, given all index entries.
        beside_distribution: a figure of a trial of this chapter with what the paper published of the same numbers.
        measure: our numbers of the published cells that stand beside a result.
        sources: where this paper has trials of earlier papers, by the name of the trial.
        shown_trials: trials of other papers that are shown here if they examine a model of this paper.
        has_own_models: whether its models differ from those of all other papers.
        has_transformers: whether transformers are among its models.
        labels_embeddings: whether labels always name the word embeddings.
    """

    name: str
    title: str
    question: str
    options: type[PaperOptions]
    build_tables: Callable[[Sequence[Result]], tuple[TableView, ...]]
    build_figures: Callable[[Sequence[Result]], tuple[Figure, ...]]
    claims: tuple[PaperClaim, ...]
    section: Callable[[Result, Sequence[IndexEntry]], SectionExtras] = lambda result, entries: SectionExtras()
    beside_distribution: Callable[[Result, Figure], Figure] = lambda result, figure: figure
    measure: Callable[[Result], dict[CellName, Measurement]] = measure_published
    sources: Mapping[str, str] = field(default_factory=dict)
    shown_trials: frozenset[str] = _SHARED_TRIALS
    has_own_models: bool = False
    has_transformers: bool = False
    labels_embeddings: bool = False

    def tables(self, results: Sequence[Result]) -> tuple[TableView, ...]:
        """Tables of the chapter, from the results of the whole workspace."""
        selected, embeddings = self._select(results)
        ours = [result for result in selected if result.paper == self.name]
        claims, rules = claim_table(self.claims, ours), selection_table(ours)
        tables = [table for table in (claims, *self.build_tables(selected), rules) if table.rows]
        note = f" Word embeddings: {embeddings}." if embeddings else ""
        return tuple(replace(table, note=table.note + note) for table in tables)

    def figures(self, results: Sequence[Result]) -> tuple[Figure, ...]:
        """Figures of the chapter, from the results of the whole workspace."""
        return self.build_figures(self._select(results)[0])

    def _select(self, results: Sequence[Result]) -> tuple[list[Result], str]:
        """The results that this chapter may use, and the embeddings that all of them share and labels omit."""
        papers = [name for name, paper in PAPERS.items() if not paper.has_own_models]
        chosen = [result for result in results if result.paper in ([self.name] if self.has_own_models else papers)]
        names = {result.embeddings for result in chosen if not PAPERS[result.paper].labels_embeddings}
        if self.labels_embeddings or len(names) != 1:
            return chosen, ""
        return [replace(result, embeddings="") for result in chosen], names.pop()


PAPERS: Mapping[str, Paper] = {
    paper.name: paper
    for paper in (
        Paper(
            "jain-wallace",
            "Attention is not Explanation (Jain & Wallace 2019)",
            "Do attention weights explain a model's predictions, or would other weights give the same predictions?",
            JainWallaceOptions,
            jain_wallace.tables,
            jain_wallace.figures,
            jain_wallace.CLAIMS,
            jain_wallace.section,
            jain_wallace.beside_distribution,
            labels_embeddings=True,
        ),
        Paper(
            "wiegreffe-pinter",
            "Attention is not not Explanation (Wiegreffe & Pinter 2019)",
            "Is attention needed at all, is it useful to another model, and can a model be trained to attend "
            "elsewhere?",
            WiegreffePinterOptions,
            wiegreffe_pinter.tables,
            wiegreffe_pinter.figures,
            wiegreffe_pinter.CLAIMS,
            wiegreffe_pinter.section,
        ),
        Paper(
            "attefa",
            "AtteFa: one number for the faithfulness of attention",
            "How much of its predictions must a model give up to attend elsewhere?",
            AttefaOptions,
            attefa.tables,
            attefa.figures,
            attefa.CLAIMS,
            measure=attefa.measure,
        ),
        Paper(
            "disagreement",
            "A Song of (Dis)agreement (Neely et al. 2022)",
            "Do explanations agree with each other, does the model depend on the words that they name, and which "
            "explanations find words that are known to decide?",
            DisagreementOptions,
            disagreement.tables,
            disagreement.figures,
            disagreement.CLAIMS,
            sources=disagreement.SOURCES,
            shown_trials=_SHARED_TRIALS | {"uniform-baseline"},
            has_own_models=True,
            has_transformers=True,
        ),
        Paper(
            "scaffold",
            "Learning to Scaffold (Fernandes et al. 2022)",
            "Do explanations help a student to predict what its teacher predicts, can they be learned for that "
            "purpose, and do learned explanations agree with those of people?",
            ScaffoldOptions,
            _scaffold_chapter.tables,
            _scaffold_chapter.figures,
            _scaffold_claims.CLAIMS,
            _scaffold_chapter.section,
            measure=_scaffold_chapter.measure,
            shown_trials=frozenset({"performance"}),
            has_own_models=True,
            has_transformers=True,
        ),
    )
}


def find_paper(name: str) -> Paper:
    """The paper with this name."""
    remedy = f"choose from {', '.join(PAPERS)}, or name a Python file"
    return PAPERS[choose_name("paper", name, PAPERS, remedy=remedy)]


def trial_result(trial: Trial, artefact: Artefact, paper: str) -> Result:
    """The result of one trial of a run, to compare it with what a paper published.

    Args:
        paper: the paper that is reproduced; its numbers are compared only where the protocol is the same.
    """
    facts = trial.describe()
    corpus, encoder, attention = (str(facts.get(name) or "") for name in ("corpus", "encoder", "attention"))
    return Result(
        trial=trial.name,
        paper=paper,
        corpus=corpus,
        encoder=encoder,
        attention=attention,
        summary=artefact.summary,
        settings=plain_settings(trial),
        recipe=flat_settings(canonical_json(trial, None)),
        quick=bool(facts.get("quick")),
    )


def assign_papers(
    trials: Sequence[IndexEntry], recipes: Mapping[str, Mapping[str, Json]] | None = None
) -> dict[str, str]:
    """The paper whose chapter shows each trial, by artefact name.

    Trials that several papers have are shown with the paper whose model was examined: one with the training of that
    paper, else with most of its trials, so that a single trial of another paper takes nothing along.

    Args:
        recipes: the flat recipes of trials by group, as far as they are known.
    """
    papers = {entry.name: str(entry.facts["paper"]) for entry in trials if entry.facts["paper"] in PAPERS}
    examined: dict[str | None, dict[str, str]] = {}
    for entry in trials:
        if entry.name in papers:
            examined.setdefault(entry.link("subject"), {})[str(entry.facts["trial"])] = papers[entry.name]
    for entry in trials:
        kinds, recipe = examined.get(entry.link("subject"), {}), (recipes or {}).get(entry.group, {})
        homes = {paper for trial, paper in kinds.items() if trial not in _SHARED_TRIALS}
        paper_name, trial = str(entry.facts["paper"]), str(entry.facts["trial"])
        candidates = [
            name for name in PAPERS if name in homes and (name == paper_name or trial in PAPERS[name].shown_trials)
        ]
        if candidates:
            attention = str(entry.facts.get("attention") or "")
            papers[entry.name] = max(
                candidates, key=lambda name: _model_likeness(PAPERS[name], attention, kinds.keys(), recipe)
            )
    return papers


def _model_likeness(
    paper: Paper, attention: str, trials: Collection[str], recipe: Mapping[str, Json]
) -> tuple[float, ...]:
    """How well a model fits a paper: whether it was trained by its rules, and how many of its trials it has."""
    is_possible = paper.has_transformers or attention != "self"
    has_rules = is_possible and not published.protocol_differences("", paper.name, recipe)
    known = {name for name, trial in catalogue.TRIALS.items() if trial.paper == paper.name} | paper.shown_trials
    count = len(known & set(trials))
    return has_rules, count, count / len(known)


def paper_recipes(options: PaperOptions) -> list[Recipe]:
    """The recipes of a paper on the user's data, on the named corpora, or on those that are in the data folder."""
    if options.user_data is not None or options.data_dir is None:
        return options.recipes()
    if options.corpora:
        recipes = options.recipes()
        for corpus in options.chosen_corpora():
            corpus.digest(options.data_dir)  # UserError if it is missing
        return recipes
    available = options.available_corpora()
    if not available:
        raise UserError(
            f"none of the paper's corpora is in {options.data_dir}; set HEEDFUL_DATA, or run 'heedful fetch CORPUS'"
        )
    recipes = replace(options, corpora=tuple(available)).recipes()
    missing = options.missing_corpora()
    if missing and set(available) <= set(options.generated_corpora()):
        raise UserError(
            f"{', '.join(missing)}: not in the data folder {options.data_dir}; set HEEDFUL_DATA, run 'heedful fetch "
            f"CORPUS', or choose what needs no data: --only {' --only '.join(available)}"
        )
    return recipes


def demo_model(*, synthetic: bool = False) -> TrainedModel:
    """A small BiLSTM with attention, on real film reviews or on synthetic text."""
    architecture = Attentive(BiLSTM(32 if synthetic else 64), Additive())
    if synthetic:
        corpus = Mock(informative=2, strength=3.0, shortest=10, longest=30, train=2000, dev=300, test=500)
        training = Training(epochs=4, optimizer=Adam(lr=0.005))
        return TrainedModel(corpus, Words(), architecture, training, embeddings=RandomEmbeddings(50))
    words = Words(tokenizer="space", min_documents=2)
    embeddings = PackagedGloveEmbeddings()
    return TrainedModel(RottenTomatoes(), words, architecture, Training(epochs=6), embeddings=embeddings)


def demo(*, synthetic: bool = False) -> list[Recipe]:
    """The trials of Jain & Wallace on the model of the demo."""
    return single_model_trials(demo_model(synthetic=synthetic))
