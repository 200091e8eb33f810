"""heedful: does a model's attention, or any other token attribution, explain it?"""

from __future__ import annotations

__version__ = "0.1.0"

from heedful.attributions.attention import RawAttention
from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import Random
from heedful.core.tasks import Binary, Classes, Regression
from heedful.core.types import Attribution, Batch, Corpus, Example, Method, Model, Trace, UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.data.batching import Words
from heedful.data.corpora import CORPORA
from heedful.data.patches import Patches
from heedful.data.planted import Mock, Stories
from heedful.data.subwords import SubwordBatcher, Subwords
from heedful.data.tables import Reading, Table
from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors
from heedful.models.attention import Additive, Dot, Entmax, Softmax, Sparsemax, UniformWeights
from heedful.models.chorus import Chorus
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Perceptron
from heedful.models.pooled import Pooled
from heedful.models.shapes import Asked, Compared, OneText
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
from heedful.trials.guided import Guided
from heedful.trials.necessity import Necessity
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.seeds import Seeds
from heedful.trials.tradeoff import Tradeoff
from heedful.trials.trial import Trial

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
    "Dispersal",
    "Disperse",
    "Dot",
    "Entmax",
    "Example",
    "FileVectors",
    "Fit",
    "Gradient",
    "Guided",
    "Imposed",
    "LeaveOneOut",
    "Method",
    "Mock",
    "Model",
    "Necessity",
    "OneText",
    "PackagedGlove",
    "Patches",
    "Perceptron",
    "Performance",
    "Permutation",
    "Pooled",
    "Random",
    "RandomVectors",
    "RawAttention",
    "Reading",
    "Recipe",
    "Regression",
    "Rival",
    "Scattered",
    "Scored",
    "Seeds",
    "Select",
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
    "Trace",
    "Tradeoff",
    "Trained",
    "Transformer",
    "TransformerModel",
    "Trial",
    "Uniform",
    "UniformWeights",
    "UserError",
    "Words",
    "Workspace",
    "run",
    "write_report",
]
