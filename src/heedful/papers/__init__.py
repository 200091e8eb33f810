"""The papers as functions that give back recipes: `papers.jain_wallace(Choice(...))`.

Where a paper's text and its released code differ, the code is followed, because it made the published tables; the
difference is named in a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.data.embeddings import PackagedGloveEmbeddings, RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.data.text_corpora import RottenTomatoes
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.papers import attefa
from heedful.papers._options import PaperOptions, embeddings_by_name
from heedful.papers.attefa import find_embeddings
from heedful.papers.disagreement import DISAGREEMENT_CORPORA, disagreement_recipes
from heedful.papers.jain_wallace import (
    JAIN_WALLACE_CORPORA,
    jain_wallace_recipes,
    single_model_trials,
)
from heedful.papers.scaffold import SCAFFOLD_CORPORA, find_corpus, scaffold_recipes
from heedful.papers.wiegreffe_pinter import WIEGREFFE_PINTER_CORPORA, wiegreffe_pinter_recipes
from heedful.store.recipe import Recipe
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.types import Corpus, UserError

__all__ = [
    "PAPERS",
    "Paper",
    "PaperOptions",
    "demo",
    "embeddings_by_name",
    "find_paper",
    "find_recipes",
    "single_model_trials",
]


@dataclass(frozen=True)
class Paper:
    """A publication: its title, its question in plain words, its recipes and its corpora.

    Args:
        options: the dataclass of its options; the command refuses options that are not among its fields.
    """

    title: str
    question: str
    recipes: Callable[[PaperOptions], list[Recipe]]
    corpora: tuple[str, ...]
    options: type[PaperOptions] = PaperOptions


def demo(*, synthetic: bool = False) -> list[Recipe]:
    """A small BiLSTM on real film reviews (or on planted text), examined."""
    if synthetic:
        corpus: Corpus = Mock(informative=2, strength=3.0, shortest=10, longest=30, train=2000, dev=300, test=500)
        fit = Training(epochs=4, optimizer=Adam(lr=0.005))
        subject = TrainedModel(corpus, Words(), Attentive(BiLSTM(32), Additive()), fit, embeddings=RandomEmbeddings(50))
    else:
        plan = Attentive(BiLSTM(64), Additive())
        words = Words(tokenizer="space", min_documents=2)
        subject = TrainedModel(RottenTomatoes(), words, plan, Training(epochs=6), embeddings=PackagedGloveEmbeddings())
    return single_model_trials(subject)


PAPERS: Mapping[str, Paper] = {
    "jain-wallace": Paper(
        "Attention is not Explanation (Jain & Wallace 2019)",
        "Do attention weights tell why a model predicts what it predicts, or would other weights do as well?",
        jain_wallace_recipes,
        JAIN_WALLACE_CORPORA,
    ),
    "wiegreffe-pinter": Paper(
        "Attention is not not Explanation (Wiegreffe & Pinter 2019)",
        "Is attention needed at all, does it carry over to another model, and can a model be trained to attend "
        "elsewhere?",
        wiegreffe_pinter_recipes,
        WIEGREFFE_PINTER_CORPORA,
    ),
    "attefa": Paper(
        "AtteFa: one number for the faithfulness of attention",
        "How much of its predictions must a model give up to attend elsewhere?",
        attefa.attefa_recipes,
        attefa.ATTEFA_CORPORA,
    ),
    "disagreement": Paper(
        "A Song of (Dis)agreement (Neely et al. 2022)",
        "Do explanations agree with each other, does the model depend on the words that they name, and which of them "
        "find words that are known to decide?",
        disagreement_recipes,
        DISAGREEMENT_CORPORA,
    ),
    "scaffold": Paper(
        "Learning to Scaffold (Fernandes et al. 2022)",
        "Do explanations help a student to answer as its teacher does, can one learn to explain so that they do, and "
        "are such explanations those that people would give?",
        scaffold_recipes,
        SCAFFOLD_CORPORA,
    ),
}


def find_paper(name: str) -> Paper:
    """The paper with this name."""
    if name not in PAPERS:
        raise UserError(f"there is no paper {name!r}; choose one of {', '.join(PAPERS)}, or name a Python file")
    return PAPERS[name]


def find_recipes(name: str, options: PaperOptions, data: Path) -> list[Recipe]:
    """The recipes of a paper; a corpus that was named and is not in the data folder is an error."""
    find_paper(name)
    return _recipes_on_available_corpora(
        name, replace(options, available_embeddings=find_embeddings(data), data=data), data
    )


def _recipes_on_available_corpora(name: str, options: PaperOptions, data: Path) -> list[Recipe]:
    """The paper's recipes on the corpora that are in the data folder, or on exactly those that were asked for."""
    if options.corpora:
        found = PAPERS[name].recipes(options)
        for corpus in options.corpora:
            find_corpus(corpus).digest(data)
        return found
    there = [corpus for corpus in PAPERS[name].corpora if _is_available(find_corpus(corpus), data)]
    if not there:
        raise UserError(
            f"none of the paper's corpora is in the folder {data}; set HEEDFUL_DATA, or run 'heedful fetch CORPUS'"
        )
    return PAPERS[name].recipes(replace(options, corpora=tuple(there)))


def _is_available(corpus: Corpus, data: Path) -> bool:
    try:
        corpus.digest(data)
    except UserError:
        return False
    return True
