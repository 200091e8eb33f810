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
    from heedful.attributions.layermix import LayerMix
    from heedful.attributions.learned import HeadMix, StaticAttention
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
    from heedful.data.recast import Recast
    from heedful.data.subwords import SubwordBatcher, Subwords
    from heedful.data.tables import Reading, Table
    from heedful.data.truths import Known, PlantedWeights, Shortcut
    from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors
    from heedful.models.attention import Additive, Dot, Entmax, Softmax, Sparsemax, UniformWeights
    from heedful.models.chorus import Chorus
    from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Perceptron
    from heedful.models.pooled import Pooled
    from heedful.models.scalarmix import ScalarMix
    from heedful.models.shapes import Asked, Compared, OneText
    from heedful.models.shortened import Shortened
    from heedful.models.tally import Tally
    from heedful.models.transformer import SmallTransformer, Transformer, TransformerModel
    from heedful.models.vision import SmallViT
    from heedful.recipes.answers import Answers
    from heedful.recipes.attributed import Attributed
    from heedful.recipes.deceiving import Deceive, Disperse, Rival
    from heedful.recipes.explanations import Learned, Mixed, Ridged, Static, Unexplained
    from heedful.recipes.fit import Adam, AdamW, Fit, Select
    from heedful.recipes.given import Given, given
    from heedful.recipes.guides import Scattered, Shuffled
    from heedful.recipes.objectives import Borrowed, Imposed, Supervised, Uniform
    from heedful.recipes.scaffolded import Scaffolded
    from heedful.recipes.scored import Scored
    from heedful.recipes.student import Student
    from heedful.recipes.subject import Subject, Trained
    from heedful.recipes.teaching import Classroom
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
    from heedful.trials.plausibility import Plausibility
    from heedful.trials.seeds import Seeds
    from heedful.trials.simulability import Simulability
    from heedful.trials.tradeoff import Tradeoff
    from heedful.trials.trial import Trial
    from heedful.trials.truth import Truth

_HOMES = {
    "attributions.attention": "HeadAttention RawAttention",
    "attributions.deeplift": "DeepLift DeepShap",
    "attributions.deletion": "LeaveOneOut",
    "attributions.flow": "Flow",
    "attributions.gradient": "Gradient GradientNorm InputXGradient",
    "attributions.layermix": "LayerMix",
    "attributions.learned": "HeadMix StaticAttention",
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
    "data.recast": "Recast",
    "data.subwords": "SubwordBatcher Subwords",
    "data.tables": "Reading Table",
    "data.truths": "Known PlantedWeights Shortcut",
    "data.vectors": "FileVectors PackagedGlove RandomVectors",
    "models.attention": "Additive Dot Entmax Softmax Sparsemax UniformWeights",
    "models.chorus": "Chorus",
    "models.encoders": "GRU Average BiLSTM Convolution Perceptron",
    "models.pooled": "Pooled",
    "models.scalarmix": "ScalarMix",
    "models.shapes": "Asked Compared OneText",
    "models.shortened": "Shortened",
    "models.tally": "Tally",
    "models.transformer": "SmallTransformer Transformer TransformerModel",
    "models.vision": "SmallViT",
    "recipes.answers": "Answers",
    "recipes.attributed": "Attributed",
    "recipes.deceiving": "Deceive Disperse Rival",
    "recipes.explanations": "Learned Mixed Ridged Static Unexplained",
    "recipes.fit": "Adam AdamW Fit Select",
    "recipes.given": "Given given",
    "recipes.guides": "Scattered Shuffled",
    "recipes.objectives": "Borrowed Imposed Supervised Uniform",
    "recipes.scaffolded": "Scaffolded",
    "recipes.scored": "Scored",
    "recipes.student": "Student",
    "recipes.subject": "Subject Trained",
    "recipes.teaching": "Classroom",
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
    "trials.plausibility": "Plausibility",
    "trials.seeds": "Seeds",
    "trials.simulability": "Simulability",
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
    "Classroom",
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
    "Given",
    "Gradient",
    "GradientNorm",
    "GradientShap",
    "Guided",
    "HeadAttention",
    "HeadMix",
    "Imposed",
    "InputXGradient",
    "IntegratedGradients",
    "KernelShap",
    "Known",
    "KobayashiNorm",
    "LayerMix",
    "Learned",
    "LeaveOneOut",
    "Lime",
    "Method",
    "Mixed",
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
    "Plausibility",
    "Pooled",
    "Random",
    "RandomVectors",
    "Randomised",
    "RawAttention",
    "Reading",
    "Recast",
    "Recipe",
    "Regression",
    "Relevance",
    "Ridged",
    "Rival",
    "Rollout",
    "Scaffolded",
    "ScalarMix",
    "Scattered",
    "Scored",
    "Seeds",
    "Select",
    "Shapley",
    "Shortcut",
    "Shortened",
    "Shuffled",
    "Simulability",
    "SmallTransformer",
    "SmallViT",
    "Softmax",
    "Sparsemax",
    "Static",
    "StaticAttention",
    "Stories",
    "Student",
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
    "Unexplained",
    "Uniform",
    "UniformWeights",
    "UserError",
    "ValueNorm",
    "Words",
    "Workspace",
    "check_explainer",
    "check_measure",
    "given",
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
