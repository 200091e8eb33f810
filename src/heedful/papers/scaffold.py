"""Learning to Scaffold (Fernandes et al. 2022): which explanations teach a student to answer as its teacher does?

Teachers explain in many ways, one of them learned so that students profit from it (SMaT). The paper's pretrained
teachers (ELECTRA-small, ViT-B/16, XLM-R) are replaced by what two cores can train: a small pretrained transformer for
texts and pairs, a small vision transformer from scratch for images. Students are of the same family, with fewer layers
where the teacher is pretrained. Beyond the paper: random explanations as control, rollout, integrated gradients over
the whole path (the paper's covered 9 % of it), and two alternatives to SMaT: heads mixed by ridge regression on
leave-one-out effects, and a mix of layer-wise integrated gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from heedful import catalogue
from heedful.attributions.attention import Rollout
from heedful.attributions.controls import Random
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.head_mix import MixNormalizer, StaticAttention
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.data.splitting import SubsampledCorpus
from heedful.data.subwords import Subwords
from heedful.data.text_corpora import MLQE, SMAT_LANGUAGE_PAIRS, SST, MissingLeavesError
from heedful.models.small_transformers import ScalarMix, SmallViT
from heedful.models.transformer import Transformer
from heedful.papers.disagreement import checkpoint_folder
from heedful.papers.paper_options import PaperOptions, extend_seeds
from heedful.store.recipe import Recipe
from heedful.tasks import Regression
from heedful.training.attribution_tables import AttributionTable, ImageSample
from heedful.training.model_recipe import ModelRecipe
from heedful.training.objectives import Supervised
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.student import StudentRecipe
from heedful.training.student_arms import (
    QUICK_EPOCHS,
    QUICK_SIZES,
    SMAT,
    STUDENT_LAYERS,
    TEXT_TRAINING,
    ExplanationArm,
    StudentSetting,
    shortened_student,
)
from heedful.training.teacher import (
    AttentionExplanation,
    HeadMaps,
    LayerMaps,
    LearnedExplanation,
    MethodExplanation,
    NoExplanation,
    RidgeExplanation,
    Sampling,
    StudentData,
)
from heedful.training.trained_model import OnOtherData, TrainedModel
from heedful.training.trainer import Adam, AdamW, EpochSelection, Training
from heedful.trials.performance import Performance
from heedful.trials.plausibility import Plausibility
from heedful.trials.simulability import NO_EXPLANATION, Simulability
from heedful.types import Corpus, Method, check_choice

_TEXT_CORPORA = ("sst", "imdb-raw", "imdb")
IMAGE_CORPORA = ("cifar10", "cifar100", "fashion-mnist", "digits")
LANGUAGE_PAIRS: Mapping[str, Corpus] = {
    corpus.name: corpus for corpus in (MLQE((pair,)) for pair in SMAT_LANGUAGE_PAIRS)
}
"""Single language pairs by name; the catalogue has all of them as one corpus."""
QUALITY_CORPORA = ("mlqe", *LANGUAGE_PAIRS)
MAX_TOKENS = 256
"""Tokens after which texts are cut, as in the paper."""
TEXT_SIZES = (500, 1000, 2000)
"""Training sizes of students that read texts."""
QUICK_SPLIT_SIZES = (1200, 200, 400)

_SIZES_AND_EPOCHS: Mapping[str, tuple[tuple[int, ...], int]] = {
    **dict.fromkeys(_TEXT_CORPORA, (TEXT_SIZES, 1)),
    **dict.fromkeys(IMAGE_CORPORA, ((2250, 4500, 9000), 20)),
    **dict.fromkeys(QUALITY_CORPORA, ((2100, 4200), 2)),
    "mlqe": ((2100, 4200, 8400), 2),
    # Too few images for the paper's sizes.
    "digits": ((125, 250, 500), 40),
}
"""Training sizes of students and epochs of their teacher, by corpus."""
_VISION_TRANSFORMERS: Mapping[str, SmallViT] = {
    "cifar10": SmallViT((3, 32, 32), 4),
    "cifar100": SmallViT((3, 32, 32), 4),
    "fashion-mnist": SmallViT((1, 28, 28), 4),
    "digits": SmallViT((1, 8, 8), 2),
}
QUICK_VISION_EPOCHS = 25
"""Epochs of a quick vision transformer, teacher or student, which is trained from scratch."""
QUALITY_TRAINING = replace(TEXT_TRAINING, batch_size=16, patience=6)
"""Students of quality estimation: batch size and patience are those of the paper's code."""
IMAGE_TRAINING = replace(QUALITY_TRAINING, optimizer=Adam(lr=1e-3, weight_decay=0.0, amsgrad=False, no_decay=()))
"""Students that see images are trained from scratch, where the paper's SGD at 5e-3 makes no progress."""


def scaffold_setting(corpus: Corpus, source: str | None, options: ScaffoldOptions) -> StudentSetting:
    """Teacher, students and training sizes of a corpus.

    Args:
        source: the checkpoint of a teacher that reads texts; None for images, which have a small vision transformer.
    """
    is_image, is_quality = source is None, options.is_quality(corpus)
    training_corpus = SubsampledCorpus(corpus, *QUICK_SPLIT_SIZES) if options.quick else corpus
    # The learning rate is the paper's for texts (1e-5 in print for quality); its warm-up of 500 steps, and of 4000 for
    # quality, is a tenth of all steps here, where training is shorter.
    _, teacher_epochs = _SIZES_AND_EPOCHS.get(corpus.name, (TEXT_SIZES, 1))
    teacher_training = Training(
        epochs=(QUICK_VISION_EPOCHS if is_image else 1) if options.quick else teacher_epochs,
        batch_size=32 if is_image else 16,
        optimizer=AdamW(lr=1e-3 if is_image else 5e-5),
        selection=EpochSelection(),
        max_grad_norm=5.0 if is_image else 1.0,
        reduction="mean",
    )
    teacher = TrainedModel(
        training_corpus,
        corpus.tokenization if source is None else Subwords(source, MAX_TOKENS),
        ScalarMix(_VISION_TRANSFORMERS[corpus.name] if source is None else Transformer(source)),
        options.adapt_training(teacher_training, training_corpus),
        objective=Supervised(balance_classes=False),
        embeddings=None,
    )
    student = teacher.architecture if source is None else shortened_student(source, STUDENT_LAYERS)
    training = IMAGE_TRAINING if is_image else QUALITY_TRAINING if is_quality else TEXT_TRAINING
    if options.quick:
        epochs = QUICK_VISION_EPOCHS if is_image else QUICK_EPOCHS
        training = replace(training, epochs=epochs, patience=epochs // 3)
    # In the paper students learn from the half of IMDB's test split that the teacher has not seen.
    data = StudentData(
        sampling=options.sampling,
        source_split="test" if corpus.name == "imdb-raw" else "train",
        share_dev=not options.divide_dev,
        eval_limit=options.limit,
    )
    return StudentSetting(teacher, student, data, options.sizes_for(corpus), training, 1e-3 if is_quality else 2e-3)


MOVIES = "eraser-movies"
DEFAULT_LANGUAGE_PAIR = "mlqe-ro-en"
"""The language pair that is run by default: the one whose quality models estimate best."""
_SEEDS = (0, 9, 11, 30, 69)
N_QUICK_SEEDS = 2
MAX_RATIONALE_TEXTS = 500
"""Texts with rationales; integrated gradients of more would take a day."""
NORMALIZERS: tuple[MixNormalizer, ...] = ("sparsemax", "softmax", "entmax15", "none")
"""Normalizers of the head coefficients (table 7); the paper's choice comes first."""
N_IMAGES_SHOWN = 4
"""Images in the report."""
# The logit of the predicted class is explained, as in the paper.
GRADIENT_NORM = GradientNorm(output="logit")
INPUT_X_GRADIENT = InputXGradient(output="logit")
# The paper's 10 points from a vector of zeros miss more than the whole sum on MiniLM (140 %), 50 from padding .1 %.
INTEGRATED_GRADIENTS = IntegratedGradients(output="logit")
IMAGE_INTEGRATED_GRADIENTS = IntegratedGradients(baselines="zero", output="logit")
"""Images have no padding token: their baseline is zero."""
LAYER_MIX = LearnedExplanation(LayerMaps(LayerMix(n_steps=20)), "softmax", temperature=0.5, learn_temperature=True)
IMAGE_LAYER_MIX = replace(LAYER_MIX, map_source=LayerMaps(LayerMix(n_steps=20, baselines="zero")))
_CHECKPOINTS = ("minilm",)
PLAUSIBILITY_METHODS: tuple[Method, ...] = (
    GRADIENT_NORM,
    INPUT_X_GRADIENT,
    INTEGRATED_GRADIENTS,
    Rollout(),
    StaticAttention(),
    StaticAttention(-1),
)
"""Methods that are compared with rationales, beside SMaT and random scores."""


@dataclass(frozen=True)
class ScaffoldOptions(PaperOptions):
    """Corpora and models of the paper, and the sizes and explanations of students.

    Args:
        limit: test examples of students, and texts with rationales.
        checkpoints: pretrained teachers for texts: "minilm" (if its package is installed) or folders.
        normalizers: normalizers of SMaT's head coefficients, each an arm of its own (table 7).
        student_sizes: numbers of examples that students learn from.
        sampling: whether all seeds learn from the same "fixed" examples, as in the paper, or from "redrawn" ones.
        divide_dev: train explainers on one half of the dev split and stop students on the other, not both on all of it
            as in the paper.
    """

    known_corpora: ClassVar = {
        **{name: catalogue.CORPORA[name] for name in ("sst", "imdb-raw", MOVIES, *IMAGE_CORPORA)},
        DEFAULT_LANGUAGE_PAIR: LANGUAGE_PAIRS[DEFAULT_LANGUAGE_PAIR],
        **{name: catalogue.CORPORA[name] for name in ("imdb", "mlqe")},
        **{name: pair for name, pair in LANGUAGE_PAIRS.items() if name != DEFAULT_LANGUAGE_PAIR},
    }
    optional_corpora: ClassVar = ("imdb", "mlqe", *(name for name in LANGUAGE_PAIRS if name != DEFAULT_LANGUAGE_PAIR))

    paper_defaults: ClassVar = {
        "n_seeds": len(_SEEDS),
        "checkpoints": _CHECKPOINTS,
        "normalizers": NORMALIZERS[:1],
        "student_sizes": "those of the paper",
        "limit": MAX_RATIONALE_TEXTS,
    }

    limit: int | None = None
    checkpoints: tuple[str, ...] = ()
    normalizers: tuple[MixNormalizer, ...] = ()
    student_sizes: tuple[int, ...] = ()
    sampling: Sampling = "fixed"
    divide_dev: bool = False

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, Sampling)
        for name in self.normalizers:
            check_choice("normalizer", name, MixNormalizer)

    def recipes(self) -> list[Recipe]:
        """Every trial of the paper on every chosen corpus."""
        chosen = {corpus.name: corpus for corpus in self.chosen_corpora()}
        taught = [corpus for name, corpus in chosen.items() if name != MOVIES]
        # A model of film reviews is needed to compare explanations with the rationales of other film reviews.
        if MOVIES in chosen and not any(corpus.name in _TEXT_CORPORA for corpus in taught):
            taught.append(catalogue.CORPORA["sst"])
        recipes: list[Recipe] = []
        for corpus in taught:
            if corpus.name in IMAGE_CORPORA:
                recipes += self._corpus_trials(corpus, scaffold_setting(corpus, None, self), chosen)
                continue
            for name in self.checkpoints or _CHECKPOINTS:
                recipes += self._corpus_trials(corpus, scaffold_setting(corpus, checkpoint_folder(name), self), chosen)
        return recipes

    def _corpus_trials(self, corpus: Corpus, setting: StudentSetting, chosen: Mapping[str, Corpus]) -> list[Recipe]:
        n_seeds = self.n_seeds or (N_QUICK_SEEDS if self.quick else len(_SEEDS))
        normalizers = self.normalizers or NORMALIZERS[:1]
        arms = _explanation_arms(corpus.name, normalizers, quick=self.quick)
        students = {arm.name: arm.students(setting, extend_seeds(_SEEDS, n_seeds)) for arm in arms}
        smat = students[smat_arm_name(normalizers[0], normalizers)]
        trials: list[Recipe] = []
        if corpus.name in chosen:
            trials += [Performance(setting.teacher), Simulability(setting.teacher, tuple(students.items()))]
        if corpus.name in IMAGE_CORPORA:
            # A few images with the scores of their patches, for figures 4, 7 and 8.
            methods = (INPUT_X_GRADIENT, IMAGE_INTEGRATED_GRADIENTS)
            scores = (AttributionTable(setting.teacher, method, limit=N_IMAGES_SHOWN) for method in methods)
            trials += [ImageSample(setting.teacher), *scores]
        plausibility = [
            _plausibility_trial(subject, smat, self)
            for subject in _models_with_rationales(corpus.name, setting.teacher, chosen, self)
        ]
        trials += plausibility
        if corpus.name in QUALITY_CORPORA:
            # People marked errors, and the model predicts quality: correct signed scores are negative there.
            trials += [replace(trial, rank="size") for trial in plausibility]
        return trials

    def is_quality(self, corpus: Corpus) -> bool:
        """Whether the task is to estimate a number: the quality of translations, or the user's real numbers."""
        if self.user_data is None:
            return corpus.name in QUALITY_CORPORA
        return isinstance(self.user_data.corpus.read(self.data_dir or Path()).task, Regression)

    def sizes_for(self, corpus: Corpus) -> tuple[int, ...]:
        """Training sizes of students: the chosen ones, or the paper's as far as there are enough examples."""
        if self.student_sizes:
            return tuple(sorted(set(self.student_sizes)))
        sizes = QUICK_SIZES if self.quick else _SIZES_AND_EPOCHS.get(corpus.name, (TEXT_SIZES, 1))[0]
        if self.user_data is None and (self.quick or corpus.name not in IMAGE_CORPORA or self.data_dir is None):
            return sizes
        available = len(corpus.read(self.data_dir or Path()).train)
        return tuple(sorted({min(size, available) for size in sizes}))


def smat_arm_name(normalizer: MixNormalizer, normalizers: Sequence[MixNormalizer]) -> str:
    """The name of SMaT's arm, with the normalizer if there are several."""
    return SMAT if len(normalizers) == 1 else f"{SMAT}, {normalizer}"


def _explanation_arms(corpus: str, normalizers: Sequence[MixNormalizer], *, quick: bool) -> tuple[ExplanationArm, ...]:
    few = (
        ExplanationArm(NO_EXPLANATION, NoExplanation()),
        # With the weight of attention and the temperature of gradient x input.
        ExplanationArm("random", MethodExplanation(Random(), 0.1), beta=AttentionExplanation.beta),
        ExplanationArm("gradient x input", MethodExplanation(INPUT_X_GRADIENT, 0.1)),
        ExplanationArm("attention", AttentionExplanation()),
        ExplanationArm("attention, last layer", AttentionExplanation(HeadMaps(-1))),
        *(
            ExplanationArm(smat_arm_name(normalizer, normalizers), LearnedExplanation(normalizer=normalizer))
            for normalizer in normalizers
        ),
    )
    if quick:
        return few
    # Leave-one-out on long reviews costs more than everything else together.
    ridge = () if corpus in ("imdb", "imdb-raw") else (ExplanationArm("ridge on leave-one-out", RidgeExplanation()),)
    return (
        *few,
        ExplanationArm("gradient norm", MethodExplanation(GRADIENT_NORM)),
        ExplanationArm(
            "integrated gradients",
            MethodExplanation(IMAGE_INTEGRATED_GRADIENTS if corpus in IMAGE_CORPORA else INTEGRATED_GRADIENTS, 0.5),
        ),
        # Scores that sum to 1 are nearly uniform after a softmax unless the temperature is low.
        ExplanationArm("rollout", MethodExplanation(Rollout(), 0.05), beta=AttentionExplanation.beta),
        *ridge,
        ExplanationArm(
            "SMaT of layers", IMAGE_LAYER_MIX if corpus in IMAGE_CORPORA else LAYER_MIX, beta=MethodExplanation.beta
        ),
    )


def _models_with_rationales(
    name: str, teacher: ModelRecipe, corpora: Mapping[str, Corpus], options: ScaffoldOptions
) -> list[ModelRecipe]:
    """The teacher on all data with rationales: its own corpus, the tree leaves of SST, other film reviews."""
    if name in QUALITY_CORPORA:
        return [teacher]
    models: list[ModelRecipe] = []
    if name == "sst" and name in corpora and _has_leaves(options):
        models.append(OnOtherData(teacher, SST(tree_leaves=True)))
    if name in _TEXT_CORPORA and MOVIES in corpora:
        # All splits together, as in the paper: the teacher was trained on none of them.
        models.append(OnOtherData(teacher, catalogue.CORPORA[MOVIES], merge_splits=True))
    return models


def _has_leaves(options: ScaffoldOptions) -> bool:
    """Whether the copy of SST in the data folder has tree leaves, which that of the hub lacks; warns if not."""
    if options.data_dir is None:
        return True
    try:
        SST(tree_leaves=True).read(options.data_dir)
    except MissingLeavesError:
        warnings.warn(
            "this copy of sst has no tree leaves with sentiment, so plausibility is not measured on it; the Stanford "
            "Sentiment Treebank itself has them",
            stacklevel=2,
        )
        return False
    return True


def _plausibility_trial(subject: ModelRecipe, smat: Sequence[StudentRecipe], options: ScaffoldOptions) -> Plausibility:
    """Explanations compared with rationales; SMaT is that of the median student of the middle size, as in the paper."""
    sizes = sorted({student.data.train_size for student in smat})
    middle = sizes[len(sizes) // 2]
    limit = min(options.limit or MAX_RATIONALE_TEXTS, 60) if options.quick else options.limit or MAX_RATIONALE_TEXTS
    students = tuple(student for student in smat if isinstance(student, SMaT) and student.data.train_size == middle)
    learned = LearnedAttributionTable(subject, students, limit=limit)
    parts = ("source", "target") if subject.corpus.name in QUALITY_CORPORA else ()
    return Plausibility(subject, PLAUSIBILITY_METHODS, ((SMAT, learned),), parts, pooling="sum", limit=limit)
