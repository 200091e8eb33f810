"""The papers as functions that give back recipes: `papers.jain_wallace(Choice(...))`.

Where a paper's text and its released code differ, the code is followed, because it made the published tables; the
difference is named in a comment.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.core.types import Corpus, UserError
from heedful.core.workspace import Recipe
from heedful.data.batching import Words
from heedful.data.packaged import RottenTomatoes
from heedful.data.planted import Mock
from heedful.data.vectors import PackagedGlove, RandomVectors
from heedful.models.attention import Additive
from heedful.models.encoders import BiLSTM
from heedful.models.pooled import Pooled
from heedful.papers import attefa
from heedful.papers.choosing import Choice, Selecting, vectors_named
from heedful.papers.jain import JAIN_WALLACE, attention_battery, examined, jain_wallace, jain_wallace_subject
from heedful.papers.own import found_vectors
from heedful.papers.scaffold import SCAFFOLD, scaffold
from heedful.papers.scaffold_schools import described
from heedful.papers.song import DISAGREEMENT, disagreement
from heedful.papers.wiegreffe import WIEGREFFE_PINTER, wiegreffe_pinter
from heedful.recipes.fit import Adam, Fit
from heedful.recipes.subject import Subject

__all__ = [
    "PAPERS",
    "Choice",
    "Paper",
    "Selecting",
    "attefa",
    "attention_battery",
    "demo",
    "disagreement",
    "examined",
    "jain_wallace",
    "jain_wallace_subject",
    "recipes",
    "scaffold",
    "vectors_named",
    "wiegreffe_pinter",
]


@dataclass(frozen=True)
class Paper:
    """A publication: its name in full, its question in plain words, its recipes and its corpora."""

    title: str
    question: str
    recipes: Callable[[Choice], list[Recipe]]
    corpora: tuple[str, ...]


def demo(*, planted: bool = False) -> list[Recipe]:
    """A small BiLSTM on real film reviews (or on planted text), examined."""
    if planted:
        corpus: Corpus = Mock(informative=2, strength=3.0, shortest=10, longest=30, train=2000, dev=300, test=500)
        fit = Fit(epochs=4, optimiser=Adam(rate=0.005))
        subject = Subject(corpus, Words(), Pooled(BiLSTM(32), Additive()), fit, vectors=RandomVectors(50))
    else:
        plan = Pooled(BiLSTM(64), Additive())
        words = Words(tokeniser="space", min_documents=2)
        subject = Subject(RottenTomatoes(), words, plan, Fit(epochs=6), vectors=PackagedGlove())
    return examined(subject)


PAPERS: Mapping[str, Paper] = {
    "jain-wallace": Paper(
        "Attention is not Explanation (Jain & Wallace 2019)",
        "Do attention weights tell why a model predicts what it predicts, or would other weights do as well?",
        jain_wallace,
        JAIN_WALLACE,
    ),
    "wiegreffe-pinter": Paper(
        "Attention is not not Explanation (Wiegreffe & Pinter 2019)",
        "Is attention needed at all, does it carry over to another model, and can a model be trained to attend "
        "elsewhere?",
        wiegreffe_pinter,
        WIEGREFFE_PINTER,
    ),
    "attefa": Paper(
        "AtteFa: one number for the faithfulness of attention",
        "How much of its predictions must a model give up to attend elsewhere?",
        attefa.attefa,
        attefa.CORPORA,
    ),
    "disagreement": Paper(
        "A Song of (Dis)agreement (Neely et al. 2022)",
        "Do explanations agree with each other, does the model depend on the words that they name, and which of them "
        "find words that are known to decide?",
        disagreement,
        DISAGREEMENT,
    ),
    "scaffold": Paper(
        "Learning to Scaffold (Fernandes et al. 2022)",
        "Do explanations help a student to answer as its teacher does, can one learn to explain so that they do, and "
        "are such explanations those that people would give?",
        scaffold,
        SCAFFOLD,
    ),
}


def recipes(what: str, choice: Choice, data: Path) -> list[Recipe]:
    """The recipes of a paper by name, or of a Python file; corpora that are not there are an error when named."""
    if what in PAPERS:
        return _present(what, replace(choice, found=found_vectors(data), data=data), data)
    if what.endswith(".py"):
        return _from_file(Path(what))
    raise UserError(f"there is no paper {what!r}; choose one of {', '.join(PAPERS)}, or name a Python file")


def _present(name: str, choice: Choice, data: Path) -> list[Recipe]:
    """The paper's recipes on the corpora that are in the data folder, or on exactly those that were asked for."""
    if choice.corpora:
        found = PAPERS[name].recipes(choice)
        for corpus in choice.corpora:
            described(corpus).digest(data)
        return found
    there = [corpus for corpus in PAPERS[name].corpora if _is_there(described(corpus), data)]
    if not there:
        raise UserError(
            f"none of the paper's corpora is in the folder {data}; set HEEDFUL_DATA, or run 'heedful fetch CORPUS'"
        )
    return PAPERS[name].recipes(replace(choice, corpora=tuple(there)))


def _is_there(corpus: Corpus, data: Path) -> bool:
    try:
        corpus.digest(data)
    except UserError:
        return False
    return True


_OWN_FILES: set[str] = set()
"""Names under which users' files were imported; another file of that name may take its place."""


def _from_file(path: Path) -> list[Recipe]:
    """What the function `recipes()` of the user's own file gives."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if path.stem in sys.modules and path.stem not in _OWN_FILES:
        raise UserError(f"{path.name} has the name of a module that is already in use; give the file another name")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Worker processes must be able to import the file by its name, and the file its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    _OWN_FILES.add(path.stem)
    spec.loader.exec_module(module)
    function = vars(module).get("recipes")
    if not callable(function):
        raise UserError(f"{path} has no function recipes(); write one that gives back a list of recipes")
    found = list(function())
    if not found or not all(isinstance(recipe, Recipe) for recipe in found):
        raise UserError(f"recipes() in {path} must give back a list of recipes, at least one")
    return found
