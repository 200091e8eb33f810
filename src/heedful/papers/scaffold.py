"""Learning to Scaffold (Fernandes et al. 2022): which explanations teach a student to answer as its teacher does?

Teachers explain in many ways, and in one that is learned so that students learn from it (SMaT). Beyond the paper:
random explanations as the null, rollout, integrated gradients over the whole path (the paper's went 9 % of it), and two
rivals of SMaT: heads mixed by ridge regression on leave-one-out effects, and layers of integrated gradients, mixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful import catalogue
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.layermix import LayerMix
from heedful.attributions.learned import StaticAttention
from heedful.attributions.paths import IntegratedGradients
from heedful.attributions.perturbation import Random
from heedful.attributions.rollout import Rollout
from heedful.core.mixing import Normaliser
from heedful.core.types import Method, UserError
from heedful.core.workspace import Recipe
from heedful.data.corpora import SST, NoLeaves
from heedful.papers.choosing import Choice, chosen, seeded
from heedful.papers.scaffold_schools import IMAGES, PAIRS, PILOT, QUALITY, TEXTS, School, school
from heedful.recipes.attributed import Attributed
from heedful.recipes.banks import HeadBank, LayerBank
from heedful.recipes.explanations import Explanation, Learned, Mixed, Ridged, Static, Unexplained
from heedful.recipes.learned_scores import LearnedScores
from heedful.recipes.pictured import Pictured
from heedful.recipes.scaffolded import Scaffolded
from heedful.recipes.schooling import Schooling
from heedful.recipes.student import Student
from heedful.recipes.subject import Subject
from heedful.recipes.visiting import visiting
from heedful.trials.performance import Performance
from heedful.trials.plausibility import Plausibility
from heedful.trials.simulability import PLAIN, Simulability

MOVIES = "eraser-movies"
ONE_PAIR = "mlqe-ro-en"
"""The language pair that is run unless others are named: the one whose quality models judge best."""
SCAFFOLD = ("sst", "imdb-raw", MOVIES, *IMAGES, ONE_PAIR)
OFFERED = (*SCAFFOLD, "imdb", "mlqe", *(pair for pair in PAIRS if pair != ONE_PAIR))
"""All that may be named; without a name the first ones are run."""
SEEDS = (0, 9, 11, 30, 69)
QUICK_SEEDS = 2
MARKED = 500
"""Texts with rationales that explanations are compared with; integrated gradients of more would take a day."""
NORMALISERS: tuple[Normaliser, ...] = ("sparsemax", "softmax", "entmax15", "none")
"""What makes weights of phi (table 7); the paper's choice comes first."""
SHOWN = 4
"""Images that the report shows."""
SMAT = "SMaT"

# Explained is the logit of the answer, as in the paper.
SLOPE = GradientNorm(output="logit")
PRODUCT = InputXGradient(output="logit")
# The paper's 10 points from a vector of zeros miss more than the whole sum on MiniLM (140 %), 50 from padding .1 %.
PATH = IntegratedGradients(output="logit")
SEEN_PATH = IntegratedGradients(baselines="zero", output="logit")
"""Images have no padding: their reference is a vector of zeros."""
LAYERED = Learned(LayerBank(LayerMix(n_steps=20)), "softmax", temperature=0.5, tempered=True)
SEEN_LAYERED = replace(LAYERED, bank=LayerBank(LayerMix(n_steps=20, baselines="zero")))
METHODS: tuple[Method, ...] = (SLOPE, PRODUCT, PATH, Rollout(), StaticAttention(), StaticAttention(-1))
"""What is compared with rationales, beside SMaT and random scores."""


@dataclass(frozen=True)
class Arm:
    """One way to explain.

    Args:
        beta: how heavily it weighs; None is the paper's, 5 for attention, .2 for gradients.
    """

    name: str
    explanation: Explanation
    beta: float | None = None

    def students(self, school: School, seeds: Sequence[int]) -> tuple[Schooling, ...]:
        """One for each size of the class and each seed."""
        return tuple(self._student(school, size, seed) for size in school.sizes for seed in seeds)

    def _student(self, school: School, size: int, seed: int) -> Schooling:
        room, plan = replace(school.room, size=size), school.plan
        if isinstance(self.explanation, Learned):
            learned = replace(self.explanation, rate=school.rate, pilot=PILOT)
            return Scaffolded(school.teacher, plan, learned, room, self.beta, fit=school.fit, seed=seed)
        return Student(school.teacher, plan, self.explanation, room, self.beta, fit=school.fit, seed=seed)


def scaffold(choice: Choice) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus.

    `choice.encoders` may name "minilm" (if its package is installed) or a folder with a checkpoint; images have a small
    vision transformer. `choice.attentions` are normalisers of SMaT's heads, each an arm of its own (table 7).
    """
    corpora = chosen("corpus", choice.corpora or SCAFFOLD, OFFERED)
    normalisers = [_normaliser(name) for name in choice.attentions] or [NORMALISERS[0]]
    seeds = seeded(SEEDS, choice.seeds or (QUICK_SEEDS if choice.quick else len(SEEDS)))
    homes = [name for name in corpora if name in TEXTS] or (["sst"] if MOVIES in corpora else [])
    schooled = [name for name in corpora if name != MOVIES]
    found: list[Recipe] = []
    for name in dict.fromkeys((*schooled, *homes)):
        for encoder in ("small-vit",) if name in IMAGES else choice.encoders or ("minilm",):
            taught = school(name, encoder, choice)
            arms = _arms(name, normalisers, quick=choice.quick)
            students = [(arm.name, arm.students(taught, seeds)) for arm in arms]
            smat = dict(students)[smat_called(normalisers[0], normalisers)]
            if name in schooled:
                found += [Performance(taught.teacher), Simulability(taught.teacher, tuple(students))]
            if name in IMAGES:
                found += _shown(taught.teacher)
            marked = [_plausible(place, smat, choice) for place in _marked(name, taught.teacher, corpora, choice)]
            # People marked what is wrong and the answer is the quality: a true signed score is negative there.
            found += [*marked, *(replace(each, rank="size") for each in marked if name in QUALITY)]
    return found


def _shown(teacher: Subject) -> list[Recipe]:
    """A few images with the scores of their patches, for figures 4, 7 and 8."""
    return [Pictured(teacher), *(Attributed(teacher, method, limit=SHOWN) for method in (PRODUCT, SEEN_PATH))]


def _normaliser(name: str) -> Normaliser:
    for known in NORMALISERS:
        if known == name:
            return known
    raise UserError(f"there is no normaliser {name!r} of heads in this paper; choose from {', '.join(NORMALISERS)}")


def smat_called(normaliser: Normaliser, normalisers: Sequence[Normaliser]) -> str:
    """The name of SMaT's arm; the normaliser is named where there are several."""
    return SMAT if len(normalisers) == 1 else f"{SMAT}, {normaliser}"


def _arms(corpus: str, normalisers: Sequence[Normaliser], *, quick: bool) -> tuple[Arm, ...]:
    few = (
        Arm(PLAIN, Unexplained()),
        # As heavy as attention, and as peaked as gradient x input: a null that could do harm or good.
        Arm("random", Static(Random(), 0.1), beta=Mixed.beta),
        Arm("gradient x input", Static(PRODUCT, 0.1)),
        Arm("attention", Mixed()),
        Arm("attention, last layer", Mixed(HeadBank(-1))),
        *(Arm(smat_called(each, normalisers), Learned(normaliser=each)) for each in normalisers),
    )
    if quick:
        return few
    # Taking away each word of long reviews costs more than all the rest.
    rival = () if corpus in ("imdb", "imdb-raw") else (Arm("ridge on leave-one-out", Ridged()),)
    return (
        *few,
        Arm("gradient norm", Static(SLOPE)),
        Arm("integrated gradients", Static(SEEN_PATH if corpus in IMAGES else PATH, 0.5)),
        # Shares that add up to 1 are nearly equal after a softmax unless they are made larger.
        Arm("rollout", Static(Rollout(), 0.05), beta=Mixed.beta),
        *rival,
        Arm("SMaT of layers", SEEN_LAYERED if corpus in IMAGES else LAYERED, beta=Static.beta),
    )


def _marked(name: str, teacher: Subject, corpora: Sequence[str], choice: Choice) -> list[Subject]:
    """The teacher wherever people marked words: in its own corpus, in the leaves of SST, among other film reviews."""
    if name in QUALITY:
        return [teacher]
    found: list[Subject] = []
    if name == "sst" and name in corpora and _has_leaves(choice):
        found.append(visiting(teacher, SST(leaves=True)))
    if name in TEXTS and MOVIES in corpora:
        # All splits together, as in the paper: the teacher has seen none.
        found.append(visiting(teacher, catalogue.CORPORA[MOVIES], pooled=True))
    return found


def _has_leaves(choice: Choice) -> bool:
    """Whether the copy in the data folder has leaves, which that of the hub has not; says so where it has none."""
    if choice.data is None:
        return True
    try:
        SST(leaves=True).read(choice.data)
    except NoLeaves:
        warnings.warn(
            "this copy of sst has no tree leaves with their sentiment, so that explanations are not compared there "
            "with what people marked; the Stanford Sentiment Treebank itself has them",
            stacklevel=2,
        )
        return False
    return True


def _plausible(subject: Subject, smat: Sequence[Schooling], choice: Choice) -> Plausibility:
    """Explanations beside people's marks; SMaT is that of the median student of the middle size, as in the paper."""
    sizes = sorted({student.classroom.size for student in smat})
    middle = sizes[len(sizes) // 2]
    limit = min(choice.limit or MARKED, 60) if choice.quick else choice.limit or MARKED
    students = tuple(each for each in smat if isinstance(each, Scaffolded) and each.classroom.size == middle)
    learned = LearnedScores(subject, students, limit=limit)
    parts = ("source", "target") if subject.corpus.name in QUALITY else ()
    return Plausibility(subject, METHODS, ((SMAT, learned),), parts, limit=limit)
