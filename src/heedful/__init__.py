"""heedful: does a model's attention, or any other token attribution, explain it?"""

from __future__ import annotations

__version__ = "0.1.0"

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
