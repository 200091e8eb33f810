"""The papers as functions that give back recipes.

Where a paper's text and its released code differ, the code is followed, because it made the published tables; the
difference is named in a comment.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.gradient import Gradient
from heedful.core.types import Corpus, UserError
from heedful.core.workspace import Recipe
from heedful.data.batching import Words
from heedful.data.packaged import RottenTomatoes
from heedful.data.planted import Mock
from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors, WordVectors
from heedful.models.attention import Additive
from heedful.models.encoders import Average, BiLSTM, Convolution, Encoder
from heedful.models.pooled import Pooled
from heedful.models.shapes import Asked, OneText
from heedful.recipes.attributed import Attributed
from heedful.recipes.fit import Adam, Fit, Select
from heedful.recipes.objectives import Supervised
from heedful.recipes.subject import Subject
from heedful.trials.adversary import Adversary, Solver
from heedful.trials.agreement import Agreement
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation


@dataclass(frozen=True)
class Choice:
    """Which part of a paper to run; empty tuples mean all that the paper has.

    Args:
        vectors: "auto", "random", "packaged", a name in the data folder, or a file.
        found: the vectors that "auto" stands for, as far as the data folder has some.
    """

    corpora: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    seeds: int = 1
    limit: int | None = None
    vectors: str = "auto"
    quick: bool = False
    found: str = "random"

    def vectors_for(self, corpus: str) -> str:
        """The vectors of a corpus: "auto" is random for bAbI, as in the paper, and else what the data folder has."""
        if self.vectors != "auto":
            return self.vectors
        return "random" if corpus.startswith("babi") else self.found


@dataclass(frozen=True)
class Paper:
    """A publication: its name in full, its question in plain words, and its recipes."""

    title: str
    question: str
    recipes: Callable[[Choice], list[Recipe]]


QUESTIONS = ("babi-1", "babi-2", "babi-3", "cnn")
PAIRS = ("snli",)
TEXTS = ("sst", "imdb", "20news", "agnews")
JAIN_WALLACE = TEXTS + QUESTIONS + PAIRS
EPSILONS = (0.05, 0.01)
SOLVERS: tuple[Solver, ...] = ("exact", "search")
QUICK_EPOCHS = 3
QUICK_LIMIT = 200


def jain_wallace(choice: Choice) -> list[Recipe]:
    """Every trial of "Attention is not Explanation" on every chosen corpus, encoder, attention and seed."""
    chosen = _quick(choice) if choice.quick else choice
    corpora = _chosen("corpus", chosen.corpora, JAIN_WALLACE)
    encoders = _chosen("encoder", chosen.encoders, ("bilstm", "convolution", "average"))
    attentions = _chosen("attention", chosen.attentions, ("additive", "dot"))
    subjects = [
        jain_wallace_subject(corpus, encoder, attention, chosen.vectors_for(corpus), quick=chosen.quick)
        for corpus in corpora
        for encoder in encoders
        for attention in attentions
    ]
    # With one seed a second training serves as the other one; with several each has its successor.
    others = [(seed, (seed + 1) % max(2, chosen.seeds)) for seed in range(chosen.seeds)]
    return [
        trial
        for subject in subjects
        for seed, other in others
        for trial in attention_battery(replace(subject, seed=seed), replace(subject, seed=other), chosen.limit)
    ]


def examined(subject: Subject, limit: int | None = None) -> list[Recipe]:
    """The trials of one subject that need no other one."""
    methods = (RawAttention(), Gradient(), LeaveOneOut())
    return [
        Performance(subject),
        Permutation(subject, limit=limit),
        Agreement(subject, methods, limit=limit),
        Adversary(subject, limit=limit),
        Attributed(subject, RawAttention(), limit=limit),
    ]


def attention_battery(subject: Subject, other: Subject, limit: int | None = None) -> list[Recipe]:
    """Everything of the paper on one subject: also the paper's own search at both of its thresholds, exact at .01.

    The text says epsilon .01, the code that drew figures 4 and 5 has .05; both are run. Attention of another seed is
    the calibration that the paper lacks.

    Args:
        other: the same subject with another seed.
    """
    methods = (RawAttention(), Gradient(), LeaveOneOut())
    return [
        Performance(subject),
        Permutation(subject, limit=limit),
        Agreement(subject, methods, other=other, limit=limit),
        *(Adversary(subject, epsilon, solver=solver, limit=limit) for solver in SOLVERS for epsilon in EPSILONS),
        Attributed(subject, RawAttention(), limit=limit),
    ]


def _quick(choice: Choice) -> Choice:
    return replace(choice, seeds=1, limit=min(choice.limit or QUICK_LIMIT, QUICK_LIMIT))


def jain_wallace_subject(corpus: str, encoder: str, attention: str, vectors: str, *, quick: bool = False) -> Subject:
    """One of the paper's models, with the released code's sizes and training."""
    asked = corpus in QUESTIONS + PAIRS
    fit = _jain_wallace_fit(corpus)
    if quick:
        fit = replace(fit, epochs=min(fit.epochs, QUICK_EPOCHS))
    described = catalogue.CORPORA[corpus]
    return Subject(
        corpus=described,
        batching=described.batching,
        model=Pooled(
            _jain_wallace_encoder(encoder, corpus),
            catalogue.ATTENTIONS[attention](),
            shape=Asked() if asked else OneText(),
        ),
        fit=fit,
        objective=Supervised(weighted=not asked),
        vectors=_jain_wallace_vectors(corpus, vectors),
    )


def _jain_wallace_vectors(corpus: str, name: str) -> WordVectors:
    width = catalogue.CORPORA[corpus].width
    # bAbI alone has random vectors in the paper, as PyTorch starts them; elsewhere the paper has fastText.
    if corpus.startswith("babi") and name == "random":
        return RandomVectors(width, deviation=1.0)
    return vectors_named(name, width)


def _jain_wallace_encoder(encoder: str, corpus: str) -> Encoder:
    small = corpus.startswith("babi")
    # The text says 64 filters and a ReLU projection to 256; the code that made table 2 has 32 filters and tanh to 128.
    sizes: dict[str, Encoder] = {
        "bilstm": BiLSTM(32 if small else 128),
        "convolution": Convolution(8 if small else 32),
        "average": Average(32 if small else 128),
    }
    return sizes[encoder]


def _jain_wallace_fit(corpus: str) -> Fit:
    if corpus in TEXTS:
        return Fit()
    batch = 50 if corpus.startswith("babi") else {"snli": 128, "cnn": 90}[corpus]
    epochs = 100 if corpus.startswith("babi") else 25
    return Fit(epochs, batch, Adam(undecayed=()), Select(by="accuracy", first=2), reduction="mean")


def vectors_named(name: str, width: int) -> WordVectors:
    """Word vectors by the name that a user gives: random, packaged, a name in the data folder, or a file."""
    if name == "random":
        return RandomVectors(width)
    return PackagedGlove() if name == "packaged" else FileVectors(name)


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
    ),
}


def recipes(what: str, choice: Choice, data: Path) -> list[Recipe]:
    """The recipes of a paper by name, or of a Python file; corpora that are not there are an error when named."""
    if what in PAPERS:
        return _present(what, replace(choice, found=_found_vectors(data)), data)
    if what.endswith(".py"):
        return _from_file(Path(what))
    raise UserError(f"there is no paper {what!r}; choose one of {', '.join(PAPERS)}, or name a Python file")


def _found_vectors(data: Path) -> str:
    """The largest file of vectors in the data folder, as the papers had pretrained ones; else random."""
    found = sorted((data / "vectors").glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
    return found[-1].stem if found else "random"


def _present(name: str, choice: Choice, data: Path) -> list[Recipe]:
    """The paper's recipes on the corpora that are in the data folder, or on exactly those that were asked for."""
    if choice.corpora:
        found = PAPERS[name].recipes(choice)
        for corpus in choice.corpora:
            catalogue.CORPORA[corpus].digest(data)
        return found
    there = [corpus for corpus in JAIN_WALLACE if _is_there(catalogue.CORPORA[corpus], data)]
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


def _chosen(kind: str, wanted: Sequence[str], all_of_them: Sequence[str]) -> tuple[str, ...]:
    for name in wanted:
        if name not in all_of_them:
            raise UserError(f"there is no {kind} {name!r} in this paper; choose from {', '.join(all_of_them)}")
    return tuple(wanted) or tuple(all_of_them)
