# ruff: noqa: E501
"""heedful: does a model's attention, or any other token attribution, explain it?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heedful.attributions.attention import (
        AttentionXGradient,
        Flow,
        HeadAttention,
        KobayashiNorm,
        RawAttention,
        Relevance,
        Rollout,
        ValueNorm,
    )
    from heedful.attributions.controls import PermutedAttention, RandomizedModel
    from heedful.attributions.deeplift import DeepLift, DeepShap
    from heedful.attributions.gradient import Gradient, GradientNorm, InputXGradient
    from heedful.attributions.head_mix import HeadMix, StaticAttention
    from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
    from heedful.attributions.layer_mix import LayerMix
    from heedful.attributions.lime import Lime
    from heedful.attributions.perturbation import LeaveOneOut, Occlusion, Random
    from heedful.attributions.shapley import KernelShap, Shapley
    from heedful.catalogue import PUBLISHED_CORPORA
    from heedful.data.embeddings import FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings
    from heedful.data.synthetic import GroundTruthCorpus, GroundTruthEmbeddings, Mock, Shortcut, Stories
    from heedful.data.table import Table, TableColumns
    from heedful.data.tokenization import Patches, Subwords, SubwordTokenizer, Words
    from heedful.models.attentive import Additive, Attentive, Dot, Entmax, Softmax, Sparsemax, UniformWeights
    from heedful.models.bag_of_words import WordWeightSum
    from heedful.models.chorus import Chorus
    from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Perceptron
    from heedful.models.input_forms import PairInput, QuestionAnswering, SingleInput
    from heedful.models.small_transformers import ScalarMix, SmallViT, TruncatedTransformer
    from heedful.models.transformer import SmallTransformer, Transformer, TransformerModel
    from heedful.report.gathering import write_report
    from heedful.runner import run
    from heedful.store.recipe import Artefact, Recipe
    from heedful.store.workspace import Workspace
    from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
    from heedful.testing.checks import check_explainer, check_measure
    from heedful.training.adversarial_objectives import AdversarialTraining, Disperse, TrainedAdversary
    from heedful.training.attention_from_scores import FromScores
    from heedful.training.attention_sources import FromModel, RandomAttention, ShuffledAttention, UniformAttention
    from heedful.training.attribution_tables import AttributionTable
    from heedful.training.objectives import ImposedAttention, Supervised
    from heedful.training.predictions import Predictions
    from heedful.training.smat import SMaT
    from heedful.training.student import Student
    from heedful.training.teacher import (
        AttentionExplanation,
        LearnedExplanation,
        MethodExplanation,
        NoExplanation,
        RidgeExplanation,
        StudentData,
    )
    from heedful.training.trained_model import Checkpoint, LabelAlignedCorpus, LoadedModel, TrainedModel, checkpoint
    from heedful.training.trainer import Adam, AdamW, EpochSelection, Training
    from heedful.trials._trial import Trial
    from heedful.trials.adversarial_attention import AdversarialAttention
    from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
    from heedful.trials.agreement import Agreement
    from heedful.trials.dispersal import Dispersal
    from heedful.trials.faithfulness import Faithfulness
    from heedful.trials.ground_truth import GroundTruth
    from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
    from heedful.trials.performance import Performance
    from heedful.trials.permutation import Permutation
    from heedful.trials.plausibility import Plausibility
    from heedful.trials.seed_variance import SeedVariance
    from heedful.trials.simulability import Simulability
    from heedful.types import Attribution, Batch, Corpus, Example, Method, Model, Trace, UserError

__version__ = "0.1.0"

_HOMES = {
    "attributions.attention": "AttentionXGradient Flow HeadAttention KobayashiNorm RawAttention Relevance Rollout ValueNorm",
    "attributions.controls": "PermutedAttention RandomizedModel",
    "attributions.deeplift": "DeepLift DeepShap",
    "attributions.gradient": "Gradient GradientNorm InputXGradient",
    "attributions.head_mix": "HeadMix StaticAttention",
    "attributions.integrated_gradients": "GradientShap IntegratedGradients",
    "attributions.layer_mix": "LayerMix",
    "attributions.lime": "Lime",
    "attributions.perturbation": "LeaveOneOut Occlusion Random",
    "attributions.shapley": "KernelShap Shapley",
    "catalogue": "PUBLISHED_CORPORA",
    "data.embeddings": "FileEmbeddings PackagedGloveEmbeddings RandomEmbeddings",
    "data.synthetic": "GroundTruthCorpus GroundTruthEmbeddings Mock Shortcut Stories",
    "data.table": "Table TableColumns",
    "data.tokenization": "Patches SubwordTokenizer Subwords Words",
    "models.attentive": "Additive Attentive Dot Entmax Softmax Sparsemax UniformWeights",
    "models.bag_of_words": "WordWeightSum",
    "models.chorus": "Chorus",
    "models.encoders": "Average BiLSTM Convolution GRU Perceptron",
    "models.input_forms": "PairInput QuestionAnswering SingleInput",
    "models.small_transformers": "ScalarMix SmallViT TruncatedTransformer",
    "models.transformer": "SmallTransformer Transformer TransformerModel",
    "report.gathering": "write_report",
    "runner": "run",
    "store.recipe": "Artefact Recipe",
    "store.workspace": "Workspace",
    "tasks": "BinaryClassification MulticlassClassification Regression",
    "testing.checks": "check_explainer check_measure",
    "training.adversarial_objectives": "AdversarialTraining Disperse TrainedAdversary",
    "training.attention_from_scores": "FromScores",
    "training.attention_sources": "FromModel RandomAttention ShuffledAttention UniformAttention",
    "training.attribution_tables": "AttributionTable",
    "training.objectives": "ImposedAttention Supervised",
    "training.predictions": "Predictions",
    "training.smat": "SMaT",
    "training.student": "Student",
    "training.teacher": "AttentionExplanation LearnedExplanation MethodExplanation NoExplanation RidgeExplanation StudentData",
    "training.trained_model": "Checkpoint LabelAlignedCorpus LoadedModel TrainedModel checkpoint",
    "training.trainer": "Adam AdamW EpochSelection Training",
    "trials._trial": "Trial",
    "trials.adversarial_attention": "AdversarialAttention",
    "trials.adversarial_training": "AdversarialTradeoff AtteFa",
    "trials.agreement": "Agreement",
    "trials.dispersal": "Dispersal",
    "trials.faithfulness": "Faithfulness",
    "trials.ground_truth": "GroundTruth",
    "trials.imposed_attention": "GuidedModel UniformBaseline",
    "trials.performance": "Performance",
    "trials.permutation": "Permutation",
    "trials.plausibility": "Plausibility",
    "trials.seed_variance": "SeedVariance",
    "trials.simulability": "Simulability",
    "types": "Attribution Batch Corpus Example Method Model Trace UserError",
}
"""Where each public name lives. It is fetched when it is first asked for: importing everything takes seconds."""

__all__ = [
    "GRU",
    "PUBLISHED_CORPORA",
    "Adam",
    "AdamW",
    "Additive",
    "AdversarialAttention",
    "AdversarialTradeoff",
    "AdversarialTraining",
    "Agreement",
    "Artefact",
    "AtteFa",
    "AttentionExplanation",
    "AttentionXGradient",
    "Attentive",
    "Attribution",
    "AttributionTable",
    "Average",
    "Batch",
    "BiLSTM",
    "BinaryClassification",
    "Checkpoint",
    "Chorus",
    "Convolution",
    "Corpus",
    "DeepLift",
    "DeepShap",
    "Dispersal",
    "Disperse",
    "Dot",
    "Entmax",
    "EpochSelection",
    "Example",
    "Faithfulness",
    "FileEmbeddings",
    "Flow",
    "FromModel",
    "FromScores",
    "Gradient",
    "GradientNorm",
    "GradientShap",
    "GroundTruth",
    "GroundTruthCorpus",
    "GroundTruthEmbeddings",
    "GuidedModel",
    "HeadAttention",
    "HeadMix",
    "ImposedAttention",
    "InputXGradient",
    "IntegratedGradients",
    "KernelShap",
    "KobayashiNorm",
    "LabelAlignedCorpus",
    "LayerMix",
    "LearnedExplanation",
    "LeaveOneOut",
    "Lime",
    "LoadedModel",
    "Method",
    "MethodExplanation",
    "Mock",
    "Model",
    "MulticlassClassification",
    "NoExplanation",
    "Occlusion",
    "PackagedGloveEmbeddings",
    "PairInput",
    "Patches",
    "Perceptron",
    "Performance",
    "Permutation",
    "PermutedAttention",
    "Plausibility",
    "Predictions",
    "QuestionAnswering",
    "Random",
    "RandomAttention",
    "RandomEmbeddings",
    "RandomizedModel",
    "RawAttention",
    "Recipe",
    "Regression",
    "Relevance",
    "RidgeExplanation",
    "Rollout",
    "SMaT",
    "ScalarMix",
    "SeedVariance",
    "Shapley",
    "Shortcut",
    "ShuffledAttention",
    "Simulability",
    "SingleInput",
    "SmallTransformer",
    "SmallViT",
    "Softmax",
    "Sparsemax",
    "StaticAttention",
    "Stories",
    "Student",
    "StudentData",
    "SubwordTokenizer",
    "Subwords",
    "Supervised",
    "Table",
    "TableColumns",
    "Trace",
    "TrainedAdversary",
    "TrainedModel",
    "Training",
    "Transformer",
    "TransformerModel",
    "Trial",
    "TruncatedTransformer",
    "UniformAttention",
    "UniformBaseline",
    "UniformWeights",
    "UserError",
    "ValueNorm",
    "WordWeightSum",
    "Words",
    "Workspace",
    "__version__",
    "check_explainer",
    "check_measure",
    "checkpoint",
    "run",
    "write_report",
]


def __getattr__(name: str) -> object:
    """A public name, imported now."""
    for module, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(f"heedful.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
