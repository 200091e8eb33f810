"""heedful: does a model's attention, or any other token attribution, explain it?"""

from __future__ import annotations

__version__ = "0.1.0"

from heedful.attributions.attention import RawAttention
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
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Perceptron
from heedful.models.pooled import Pooled
from heedful.models.shapes import Asked, Compared, OneText
from heedful.models.transformer import Transformer, TransformerModel
from heedful.recipes.attributed import Attributed
from heedful.recipes.fit import Adam, AdamW, Fit, Select
from heedful.recipes.objectives import Borrowed, Imposed, Supervised, Uniform
from heedful.recipes.subject import Subject, Trained
from heedful.report.gathering import write_report
from heedful.runner import run
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.trial import Trial

__all__ = [
    "CORPORA",
    "GRU",
    "Adam",
    "AdamW",
    "Additive",
    "Artefact",
    "Asked",
    "Attributed",
    "Attribution",
    "Average",
    "Batch",
    "BiLSTM",
    "Binary",
    "Borrowed",
    "Classes",
    "Compared",
    "Convolution",
    "Corpus",
    "Dot",
    "Entmax",
    "Example",
    "FileVectors",
    "Fit",
    "Imposed",
    "Method",
    "Mock",
    "Model",
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
    "Select",
    "Softmax",
    "Sparsemax",
    "Stories",
    "Subject",
    "SubwordBatcher",
    "Subwords",
    "Supervised",
    "Table",
    "Trace",
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
