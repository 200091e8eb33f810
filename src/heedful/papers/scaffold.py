"""Teachers and students of "Learning to Scaffold", by corpus: what they read, how they are built and trained.

The paper's pretrained teachers (ELECTRA-small, ViT-B/16, XLM-R) are replaced by what two cores can train: a small
pretrained transformer for texts and pairs, a small vision transformer from scratch for images. Students are of the
same family, with fewer layers where the teacher is pretrained.

Learning to Scaffold (Fernandes et al. 2022): which explanations teach a student to answer as its teacher does?

Teachers explain in many ways, and in one that is learned so that students learn from it (SMaT). Beyond the paper:
random explanations as the null, rollout, integrated gradients over the whole path (the paper's went 9 % of it), and two
rivals of SMaT: heads mixed by ridge regression on leave-one-out effects, and layers of integrated gradients, mixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful import catalogue
from heedful.attributions.attention import Rollout
from heedful.attributions.controls import Random
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.head_mix import MixNormalizer, StaticAttention
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.data.splitting import SubsampledCorpus
from heedful.data.text_corpora import MLQE, SMAT_LANGUAGE_PAIRS, SST, MissingLeavesError
from heedful.data.tokenization import Subwords
from heedful.models._attention_hooks import NetworkConfig
from heedful.models.small_transformers import ScalarMix, SmallViT, TruncatedTransformer
from heedful.models.transformer import Transformer
from heedful.papers._options import PaperOptions, extend_seeds, resolve_names
from heedful.papers.disagreement import checkpoint_folder
from heedful.store.recipe import Recipe
from heedful.training.attribution_tables import AttributionTable, ImageSample
from heedful.training.model_recipe import ModelRecipe
from heedful.training.objectives import Supervised
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.student import STUDENT_TRAINING, Student, StudentRecipe
from heedful.training.teacher import (
    AttentionExplanation,
    HeadMaps,
    LayerMaps,
    LearnedExplanation,
    MethodExplanation,
    NoExplanation,
    RidgeExplanation,
    StudentData,
    TeacherExplanation,
)
from heedful.training.trained_model import OnOtherData, TrainedModel
from heedful.training.trainer import Adam, AdamW, EpochSelection, Training
from heedful.trials.performance import Performance
from heedful.trials.plausibility import Plausibility
from heedful.trials.simulability import NO_EXPLANATION, Simulability
from heedful.types import Architecture, Corpus, Method, Tokenization, UserError

TEXT_CORPORA = ("sst", "imdb-raw", "imdb")
IMAGE_CORPORA = ("cifar10", "cifar100", "fashion-mnist", "digits")
LANGUAGE_PAIRS: Mapping[str, Corpus] = {
    corpus.name: corpus for corpus in (MLQE((pair,)) for pair in SMAT_LANGUAGE_PAIRS)
}
"""The language pairs one by one, by their names; the catalogue has them together."""
QUALITY_CORPORA = ("mlqe", *LANGUAGE_PAIRS)
MAX_TOKENS = 256
"""Units of the longest text, as in the paper."""
STUDENT_LAYERS = 3
"""Layers of a student whose teacher is pretrained."""
QUICK_SIZES = (150,)
QUICK_SPLIT_SIZES = (1200, 200, 400)
QUICK_EPOCHS = 12

_STUDENT_SIZES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(TEXT_CORPORA, (500, 1000, 2000)),
    **dict.fromkeys(IMAGE_CORPORA, (2250, 4500, 9000)),
    **dict.fromkeys(QUALITY_CORPORA, (2100, 4200)),
    "mlqe": (2100, 4200, 8400),
    # Too few images for the paper's sizes.
    "digits": (125, 250, 500),
}
_VISION_TRANSFORMERS: Mapping[str, SmallViT] = {
    "cifar10": SmallViT((3, 32, 32), 4),
    "cifar100": SmallViT((3, 32, 32), 4),
    "fashion-mnist": SmallViT((1, 28, 28), 4),
    "digits": SmallViT((1, 8, 8), 2),
}
_TEACHER_EPOCHS: Mapping[str, int] = {
    **dict.fromkeys(TEXT_CORPORA, 1),
    **dict.fromkeys(QUALITY_CORPORA, 2),
    **dict.fromkeys(IMAGE_CORPORA, 20),
    "digits": 40,
}
QUICK_VISION_EPOCHS = 25
"""Epochs of a quick vision transformer, teacher or student: it starts from nothing."""
TEXT_TRAINING = replace(
    STUDENT_TRAINING, optimizer=Adam(lr=1e-4, weight_decay=0.0, amsgrad=False, no_decay=()), epochs=50
)
"""Students that read. The paper's plain descent at 5e-3 left one of MiniLM at .57 after eight epochs on SST; at 0.1 it
jumped between .81 and .48; Adam brought it to .84 in five."""
PILOT_LR = 0.1
"""Rate of the pilot step, which is plain descent: Adam's own rate would give hypergradients too small to be heard."""
QUALITY_TRAINING = replace(TEXT_TRAINING, batch_size=16, patience=6)
"""Students of quality estimation: batch and patience are the paper's, whose code waits an epoch longer than it says."""
IMAGE_TRAINING = replace(QUALITY_TRAINING, optimizer=Adam(lr=1e-3, weight_decay=0.0, amsgrad=False, no_decay=()))
"""Students that see images start from nothing, where the paper's plain descent at 5e-3 leads nowhere."""


@dataclass(frozen=True)
class ScaffoldSetting:
    """A teacher and what its students have in common.

    Args:
        rate: of phi's optimiser. The paper's 5e-4 (2e-4 for quality) is for hundreds of epochs of descent; here there
            are few.
    """

    teacher: ModelRecipe
    student_architecture: Architecture
    student_data: StudentData
    student_sizes: tuple[int, ...]
    training: Training = TEXT_TRAINING
    explainer_lr: float = 2e-3


def find_corpus(name: str) -> Corpus:
    """A corpus by its name in this paper."""
    return LANGUAGE_PAIRS[name] if name in LANGUAGE_PAIRS else catalogue.CORPORA[name]


def scaffold_setting(corpus: str, encoder: str, options: PaperOptions) -> ScaffoldSetting:
    """The teacher, students and classes of a corpus.

    Args:
        encoder: for texts and pairs "minilm" or a checkpoint's folder; images have a small vision transformer.
    """
    whole = find_corpus(corpus)
    # In the paper students learn from the half of IMDB's test split that the teacher has not seen.
    room = StudentData(source_split="test" if corpus == "imdb-raw" else "train", eval_limit=options.limit)
    part = SubsampledCorpus(whole, *QUICK_SPLIT_SIZES) if options.quick else whole
    teacher, plan = (
        _image_models(corpus, part, options)
        if corpus in IMAGE_CORPORA
        else _text_models(corpus, part, encoder, options)
    )
    fit = (
        IMAGE_TRAINING if corpus in IMAGE_CORPORA else QUALITY_TRAINING if corpus in QUALITY_CORPORA else TEXT_TRAINING
    )
    if options.quick:
        epochs = QUICK_VISION_EPOCHS if corpus in IMAGE_CORPORA else QUICK_EPOCHS
        fit = replace(fit, epochs=epochs, patience=epochs // 3)
    return ScaffoldSetting(
        teacher, plan, room, student_sizes(corpus, options), fit, 1e-3 if corpus in QUALITY_CORPORA else 2e-3
    )


def student_sizes(corpus: str, options: PaperOptions) -> tuple[int, ...]:
    """How many examples students see: the chosen numbers, or the paper's as far as there are so many images."""
    if options.student_sizes:
        return tuple(sorted(set(options.student_sizes)))
    if options.quick:
        return QUICK_SIZES
    if corpus not in IMAGE_CORPORA or options.data is None:
        return _STUDENT_SIZES[corpus]
    there = len(find_corpus(corpus).read(options.data).train)
    return tuple(sorted({min(size, there) for size in _STUDENT_SIZES[corpus]}))


def _text_models(corpus: str, part: Corpus, encoder: str, options: PaperOptions) -> tuple[TrainedModel, Architecture]:
    source = checkpoint_folder(encoder)
    quality = corpus in QUALITY_CORPORA
    # The rate is the paper's for texts (1e-5 in print for quality); its warm-up of 500 steps, and of 4000 for quality,
    # is a tenth of all steps here, where training is shorter.
    fit = Training(
        epochs=1 if options.quick else _TEACHER_EPOCHS[corpus],
        batch_size=16 if quality else 32,
        optimizer=AdamW(lr=5e-5),
        selection=EpochSelection(),
        max_grad_norm=1.0,
        reduction="mean",
    )
    return _teacher(part, Subwords(source, MAX_TOKENS), ScalarMix(Transformer(source)), fit), shortened_student(
        source, STUDENT_LAYERS
    )


def shortened_student(source: str, layers: int) -> ScalarMix:
    """Students that start as the first layers of a checkpoint under a new head; all layers where it has no more."""
    own = Transformer(source)
    return ScalarMix(own if count_layers(source) <= layers else TruncatedTransformer(own, layers))


def count_layers(source: str) -> int:
    """How many layers the checkpoint in a folder or on the hub has, from its configuration alone."""
    folder = Path(source).expanduser()
    try:
        config, _ = NetworkConfig.get_config_dict(str(folder) if folder.is_dir() else source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no configuration could be read from {source!r} ({reason}): give a folder with it") from error
    count = config.get("num_hidden_layers", config.get("n_layers"))
    if not isinstance(count, int):
        raise UserError(
            f"{source} has no config.json that says how many layers there are: give the folder of a model as "
            "save_pretrained writes it"
        )
    return count


def _image_models(corpus: str, part: Corpus, options: PaperOptions) -> tuple[TrainedModel, Architecture]:
    plan = ScalarMix(_VISION_TRANSFORMERS[corpus])
    fit = Training(
        epochs=QUICK_VISION_EPOCHS if options.quick else _TEACHER_EPOCHS[corpus],
        batch_size=32,
        optimizer=AdamW(lr=1e-3),
        selection=EpochSelection(),
        max_grad_norm=5.0,
        reduction="mean",
    )
    return _teacher(part, part.tokenization, plan, fit), plan


def _teacher(
    corpus: Corpus, tokenization: Tokenization, architecture: Architecture, training: Training
) -> TrainedModel:
    return TrainedModel(
        corpus, tokenization, architecture, training, objective=Supervised(balance_classes=False), embeddings=None
    )


MOVIES = "eraser-movies"
DEFAULT_LANGUAGE_PAIR = "mlqe-ro-en"
"""The language pair that is run unless others are named: the one whose quality models judge best."""
SCAFFOLD_CORPORA = ("sst", "imdb-raw", MOVIES, *IMAGE_CORPORA, DEFAULT_LANGUAGE_PAIR)
AVAILABLE_CORPORA = (
    *SCAFFOLD_CORPORA,
    "imdb",
    "mlqe",
    *(pair for pair in LANGUAGE_PAIRS if pair != DEFAULT_LANGUAGE_PAIR),
)
"""All that may be named; without a name the first ones are run."""
SEEDS = (0, 9, 11, 30, 69)
N_QUICK_SEEDS = 2
MAX_RATIONALE_TEXTS = 500
"""Texts with rationales that explanations are compared with; integrated gradients of more would take a day."""
NORMALIZERS: tuple[MixNormalizer, ...] = ("sparsemax", "softmax", "entmax15", "none")
"""What makes weights of phi (table 7); the paper's choice comes first."""
N_IMAGES_SHOWN = 4
"""Images that the report shows."""
SMAT = "SMaT"

# Explained is the logit of the answer, as in the paper.
GRADIENT_NORM = GradientNorm(output="logit")
INPUT_X_GRADIENT = InputXGradient(output="logit")
# The paper's 10 points from a vector of zeros miss more than the whole sum on MiniLM (140 %), 50 from padding .1 %.
INTEGRATED_GRADIENTS = IntegratedGradients(output="logit")
IMAGE_INTEGRATED_GRADIENTS = IntegratedGradients(baselines="zero", output="logit")
"""Images have no padding: their reference is a vector of zeros."""
LAYER_MIX = LearnedExplanation(LayerMaps(LayerMix(n_steps=20)), "softmax", temperature=0.5, learn_temperature=True)
IMAGE_LAYER_MIX = replace(LAYER_MIX, map_source=LayerMaps(LayerMix(n_steps=20, baselines="zero")))
PLAUSIBILITY_METHODS: tuple[Method, ...] = (
    GRADIENT_NORM,
    INPUT_X_GRADIENT,
    INTEGRATED_GRADIENTS,
    Rollout(),
    StaticAttention(),
    StaticAttention(-1),
)
"""What is compared with rationales, beside SMaT and random scores."""


@dataclass(frozen=True)
class ExplanationArm:
    """One way to explain.

    Args:
        beta: how heavily it weighs; None is the paper's, 5 for attention, .2 for gradients.
    """

    name: str
    explanation: TeacherExplanation
    beta: float | None = None

    def students(self, setting: ScaffoldSetting, seeds: Sequence[int]) -> tuple[StudentRecipe, ...]:
        """One for each size of the class and each seed."""
        return tuple(self._student(setting, size, seed) for size in setting.student_sizes for seed in seeds)

    def _student(self, setting: ScaffoldSetting, size: int, seed: int) -> StudentRecipe:
        room, plan = replace(setting.student_data, train_size=size), setting.student_architecture
        if isinstance(self.explanation, LearnedExplanation):
            learned = replace(self.explanation, lr=setting.explainer_lr, pilot_lr=PILOT_LR)
            return SMaT(setting.teacher, plan, learned, room, self.beta, training=setting.training, seed=seed)
        return Student(setting.teacher, plan, self.explanation, room, self.beta, training=setting.training, seed=seed)


def scaffold_recipes(options: PaperOptions) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus.

    `choice.encoders` may name "minilm" (if its package is installed) or a folder with a checkpoint; images have a small
    vision transformer. `choice.attentions` are normalisers of SMaT's heads, each an arm of its own (table 7).
    """
    corpora = resolve_names("corpus", options.corpora or SCAFFOLD_CORPORA, AVAILABLE_CORPORA)
    normalisers = [_check_normalizer(name) for name in options.attentions] or [NORMALIZERS[0]]
    seeds = extend_seeds(SEEDS, options.n_seeds or (N_QUICK_SEEDS if options.quick else len(SEEDS)))
    homes = [name for name in corpora if name in TEXT_CORPORA] or (["sst"] if MOVIES in corpora else [])
    schooled = [name for name in corpora if name != MOVIES]
    found: list[Recipe] = []
    for name in dict.fromkeys((*schooled, *homes)):
        for encoder in ("small-vit",) if name in IMAGE_CORPORA else options.encoders or ("minilm",):
            taught = scaffold_setting(name, encoder, options)
            arms = _explanation_arms(name, normalisers, quick=options.quick)
            students = [(arm.name, arm.students(taught, seeds)) for arm in arms]
            smat = dict(students)[smat_arm_name(normalisers[0], normalisers)]
            if name in schooled:
                found += [Performance(taught.teacher), Simulability(taught.teacher, tuple(students))]
            if name in IMAGE_CORPORA:
                found += _image_recipes(taught.teacher)
            marked = [
                _plausibility_trial(place, smat, options)
                for place in _models_with_rationales(name, taught.teacher, corpora, options)
            ]
            # People marked what is wrong and the answer is the quality: a true signed score is negative there.
            found += [*marked, *(replace(each, rank="size") for each in marked if name in QUALITY_CORPORA)]
    return found


def _image_recipes(teacher: ModelRecipe) -> list[Recipe]:
    """A few images with the scores of their patches, for figures 4, 7 and 8."""
    return [
        ImageSample(teacher),
        *(
            AttributionTable(teacher, method, limit=N_IMAGES_SHOWN)
            for method in (INPUT_X_GRADIENT, IMAGE_INTEGRATED_GRADIENTS)
        ),
    ]


def _check_normalizer(name: str) -> MixNormalizer:
    for known in NORMALIZERS:
        if known == name:
            return known
    raise UserError(f"there is no normaliser {name!r} of heads in this paper; choose from {', '.join(NORMALIZERS)}")


def smat_arm_name(normalizer: MixNormalizer, normalizers: Sequence[MixNormalizer]) -> str:
    """The name of SMaT's arm; the normaliser is named where there are several."""
    return SMAT if len(normalizers) == 1 else f"{SMAT}, {normalizer}"


def _explanation_arms(corpus: str, normalizers: Sequence[MixNormalizer], *, quick: bool) -> tuple[ExplanationArm, ...]:
    few = (
        ExplanationArm(NO_EXPLANATION, NoExplanation()),
        # As heavy as attention, and as peaked as gradient x input: a null that could do harm or good.
        ExplanationArm("random", MethodExplanation(Random(), 0.1), beta=AttentionExplanation.beta),
        ExplanationArm("gradient x input", MethodExplanation(INPUT_X_GRADIENT, 0.1)),
        ExplanationArm("attention", AttentionExplanation()),
        ExplanationArm("attention, last layer", AttentionExplanation(HeadMaps(-1))),
        *(
            ExplanationArm(smat_arm_name(each, normalizers), LearnedExplanation(normalizer=each))
            for each in normalizers
        ),
    )
    if quick:
        return few
    # Taking away each word of long reviews costs more than all the rest.
    rival = () if corpus in ("imdb", "imdb-raw") else (ExplanationArm("ridge on leave-one-out", RidgeExplanation()),)
    return (
        *few,
        ExplanationArm("gradient norm", MethodExplanation(GRADIENT_NORM)),
        ExplanationArm(
            "integrated gradients",
            MethodExplanation(IMAGE_INTEGRATED_GRADIENTS if corpus in IMAGE_CORPORA else INTEGRATED_GRADIENTS, 0.5),
        ),
        # Shares that add up to 1 are nearly equal after a softmax unless they are made larger.
        ExplanationArm("rollout", MethodExplanation(Rollout(), 0.05), beta=AttentionExplanation.beta),
        *rival,
        ExplanationArm(
            "SMaT of layers", IMAGE_LAYER_MIX if corpus in IMAGE_CORPORA else LAYER_MIX, beta=MethodExplanation.beta
        ),
    )


def _models_with_rationales(
    name: str, teacher: ModelRecipe, corpora: Sequence[str], options: PaperOptions
) -> list[ModelRecipe]:
    """The teacher wherever people marked words: in its own corpus, in the leaves of SST, among other film reviews."""
    if name in QUALITY_CORPORA:
        return [teacher]
    found: list[ModelRecipe] = []
    if name == "sst" and name in corpora and _has_leaves(options):
        found.append(OnOtherData(teacher, SST(tree_leaves=True)))
    if name in TEXT_CORPORA and MOVIES in corpora:
        # All splits together, as in the paper: the teacher has seen none.
        found.append(OnOtherData(teacher, catalogue.CORPORA[MOVIES], merge_splits=True))
    return found


def _has_leaves(options: PaperOptions) -> bool:
    """Whether the copy in the data folder has leaves, which that of the hub has not; says so where it has none."""
    if options.data is None:
        return True
    try:
        SST(tree_leaves=True).read(options.data)
    except MissingLeavesError:
        warnings.warn(
            "this copy of sst has no tree leaves with their sentiment, so that explanations are not compared there "
            "with what people marked; the Stanford Sentiment Treebank itself has them",
            stacklevel=2,
        )
        return False
    return True


def _plausibility_trial(subject: ModelRecipe, smat: Sequence[StudentRecipe], options: PaperOptions) -> Plausibility:
    """Explanations beside people's marks; SMaT is that of the median student of the middle size, as in the paper."""
    sizes = sorted({student.data.train_size for student in smat})
    middle = sizes[len(sizes) // 2]
    limit = min(options.limit or MAX_RATIONALE_TEXTS, 60) if options.quick else options.limit or MAX_RATIONALE_TEXTS
    students = tuple(each for each in smat if isinstance(each, SMaT) and each.data.train_size == middle)
    learned = LearnedAttributionTable(subject, students, limit=limit)
    parts = ("source", "target") if subject.corpus.name in QUALITY_CORPORA else ()
    return Plausibility(subject, PLAUSIBILITY_METHODS, ((SMAT, learned),), parts, limit=limit)
