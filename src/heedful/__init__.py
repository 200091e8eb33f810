"""heedful: does a model's attention, or any other token attribution, explain it?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heedful.attributions.attention import HeadAttention, RawAttention
    from heedful.attributions.deeplift import DeepLift, DeepShap
    from heedful.attributions.deletion import LeaveOneOut
    from heedful.attributions.flow import Flow
    from heedful.attributions.gradient import Gradient, GradientNorm, InputXGradient
    from heedful.attributions.lime import Lime
    from heedful.attributions.norms import KobayashiNorm, ValueNorm
    from heedful.attributions.nulls import PermutedAttention, Randomised
    from heedful.attributions.paths import GradientShap, IntegratedGradients
    from heedful.attributions.perturbation import Occlusion, Random
    from heedful.attributions.relevance import AttentionXGradient, Relevance
    from heedful.attributions.rollout import Rollout
    from heedful.attributions.shapley import KernelShap, Shapley
    from heedful.checking import check_explainer, check_measure
    from heedful.core.tasks import Binary, Classes, Regression
    from heedful.core.types import Attribution, Batch, Corpus, Example, Method, Model, Trace, UserError
    from heedful.core.workspace import Artefact, Recipe, Workspace
    from heedful.data.batching import Words
    from heedful.data.corpora import CORPORA
    from heedful.data.patches import Patches
    from heedful.data.planted import Mock, Stories
    from heedful.data.subwords import SubwordBatcher, Subwords
    from heedful.data.tables import Reading, Table
    from heedful.data.truths import Known, PlantedWeights, Shortcut
    from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors
    from heedful.models.attention import Additive, Dot, Entmax, Softmax, Sparsemax, UniformWeights
    from heedful.models.chorus import Chorus
    from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Perceptron
    from heedful.models.pooled import Pooled
    from heedful.models.shapes import Asked, Compared, OneText
    from heedful.models.tally import Tally
    from heedful.models.transformer import SmallTransformer, Transformer, TransformerModel
    from heedful.recipes.answers import Answers
    from heedful.recipes.attributed import Attributed
    from heedful.recipes.deceiving import Deceive, Disperse, Rival
    from heedful.recipes.fit import Adam, AdamW, Fit, Select
    from heedful.recipes.guides import Scattered, Shuffled
    from heedful.recipes.objectives import Borrowed, Imposed, Supervised, Uniform
    from heedful.recipes.scored import Scored
    from heedful.recipes.subject import Subject, Trained
    from heedful.report.gathering import write_report
    from heedful.runner import run
    from heedful.trials.adversary import Adversary
    from heedful.trials.agreement import Agreement
    from heedful.trials.attefa import AtteFa
    from heedful.trials.dispersal import Dispersal
    from heedful.trials.faithfulness import Faithfulness
    from heedful.trials.guided import Guided
    from heedful.trials.necessity import Necessity
    from heedful.trials.performance import Performance
    from heedful.trials.permutation import Permutation
    from heedful.trials.seeds import Seeds
    from heedful.trials.tradeoff import Tradeoff
    from heedful.trials.trial import Trial
    from heedful.trials.truth import Truth

_HOMES = {
    "attributions.attention": "HeadAttention RawAttention",
    "attributions.deeplift": "DeepLift DeepShap",
    "attributions.deletion": "LeaveOneOut",
    "attributions.flow": "Flow",
    "attributions.gradient": "Gradient GradientNorm InputXGradient",
    "attributions.lime": "Lime",
    "attributions.norms": "KobayashiNorm ValueNorm",
    "attributions.nulls": "PermutedAttention Randomised",
    "attributions.paths": "GradientShap IntegratedGradients",
    "attributions.perturbation": "Occlusion Random",
    "attributions.relevance": "AttentionXGradient Relevance",
    "attributions.rollout": "Rollout",
    "attributions.shapley": "KernelShap Shapley",
    "checking": "check_explainer check_measure",
    "core.tasks": "Binary Classes Regression",
    "core.types": "Attribution Batch Corpus Example Method Model Trace UserError",
    "core.workspace": "Artefact Recipe Workspace",
    "data.batching": "Words",
    "data.corpora": "CORPORA",
    "data.patches": "Patches",
    "data.planted": "Mock Stories",
    "data.subwords": "SubwordBatcher Subwords",
    "data.tables": "Reading Table",
    "data.truths": "Known PlantedWeights Shortcut",
    "data.vectors": "FileVectors PackagedGlove RandomVectors",
    "models.attention": "Additive Dot Entmax Softmax Sparsemax UniformWeights",
    "models.chorus": "Chorus",
    "models.encoders": "GRU Average BiLSTM Convolution Perceptron",
    "models.pooled": "Pooled",
    "models.shapes": "Asked Compared OneText",
    "models.tally": "Tally",
    "models.transformer": "SmallTransformer Transformer TransformerModel",
    "recipes.answers": "Answers",
    "recipes.attributed": "Attributed",
    "recipes.deceiving": "Deceive Disperse Rival",
    "recipes.fit": "Adam AdamW Fit Select",
    "recipes.guides": "Scattered Shuffled",
    "recipes.objectives": "Borrowed Imposed Supervised Uniform",
    "recipes.scored": "Scored",
    "recipes.subject": "Subject Trained",
    "report.gathering": "write_report",
    "runner": "run",
    "trials.adversary": "Adversary",
    "trials.agreement": "Agreement",
    "trials.attefa": "AtteFa",
    "trials.dispersal": "Dispersal",
    "trials.faithfulness": "Faithfulness",
    "trials.guided": "Guided",
    "trials.necessity": "Necessity",
    "trials.performance": "Performance",
    "trials.permutation": "Permutation",
    "trials.seeds": "Seeds",
    "trials.tradeoff": "Tradeoff",
    "trials.trial": "Trial",
    "trials.truth": "Truth",
}
"""Where each public name lives. It is fetched when it is first asked for: importing everything takes seconds."""

__all__ = [
    "CORPORA",
    "GRU",
    "Adam",
    "AdamW",
    "Additive",
    "Adversary",
    "Agreement",
    "Answers",
    "Artefact",
    "Asked",
    "AtteFa",
    "AttentionXGradient",
    "Attributed",
    "Attribution",
    "Average",
    "Batch",
    "BiLSTM",
    "Binary",
    "Borrowed",
    "Chorus",
    "Classes",
    "Compared",
    "Convolution",
    "Corpus",
    "Deceive",
    "DeepLift",
    "DeepShap",
    "Dispersal",
    "Disperse",
    "Dot",
    "Entmax",
    "Example",
    "Faithfulness",
    "FileVectors",
    "Fit",
    "Flow",
    "Gradient",
    "GradientNorm",
    "GradientShap",
    "Guided",
    "HeadAttention",
    "Imposed",
    "InputXGradient",
    "IntegratedGradients",
    "KernelShap",
    "Known",
    "KobayashiNorm",
    "LeaveOneOut",
    "Lime",
    "Method",
    "Mock",
    "Model",
    "Necessity",
    "Occlusion",
    "OneText",
    "PackagedGlove",
    "Patches",
    "Perceptron",
    "Performance",
    "Permutation",
    "PermutedAttention",
    "PlantedWeights",
    "Pooled",
    "Random",
    "RandomVectors",
    "Randomised",
    "RawAttention",
    "Reading",
    "Recipe",
    "Regression",
    "Relevance",
    "Rival",
    "Rollout",
    "Scattered",
    "Scored",
    "Seeds",
    "Select",
    "Shapley",
    "Shortcut",
    "Shuffled",
    "SmallTransformer",
    "Softmax",
    "Sparsemax",
    "Stories",
    "Subject",
    "SubwordBatcher",
    "Subwords",
    "Supervised",
    "Table",
    "Tally",
    "Trace",
    "Tradeoff",
    "Trained",
    "Transformer",
    "TransformerModel",
    "Trial",
    "Truth",
    "Uniform",
    "UniformWeights",
    "UserError",
    "ValueNorm",
    "Words",
    "Workspace",
    "check_explainer",
    "check_measure",
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
