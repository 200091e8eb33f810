"""The index: every corpus, encoder, attention, method and trial by the name that people use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from heedful.attributions.attention import HeadAttention, RawAttention
from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.flow import Flow
from heedful.attributions.gradient import Gradient, GradientNorm, GradientSum, InputXGradient
from heedful.attributions.layermix import LayerMix
from heedful.attributions.learned import StaticAttention
from heedful.attributions.lime import Lime
from heedful.attributions.norms import KobayashiNorm, ValueNorm
from heedful.attributions.nulls import PermutedAttention, Randomised
from heedful.attributions.paths import GradientShap, IntegratedGradients
from heedful.attributions.perturbation import Occlusion, Random
from heedful.attributions.relevance import AttentionXGradient, Relevance
from heedful.attributions.rollout import Rollout
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.core.types import Corpus, Method
from heedful.data.corpora import CORPORA as PUBLISHED
from heedful.data.licensed import ADRTweets, Anemia, Diabetes
from heedful.data.packaged import RottenTomatoes
from heedful.data.planted import MOCKS, Stories
from heedful.data.truths import KNOWN
from heedful.models.attention import Additive, Attention, Dot
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Encoder, Perceptron
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

CORPORA: Mapping[str, Corpus] = {
    **PUBLISHED,
    **{corpus.name: corpus for corpus in (Diabetes(), Anemia(), ADRTweets(), RottenTomatoes())},
    **MOCKS,
    **KNOWN,
    **{corpus.name: corpus for corpus in (Stories(task) for task in (1, 2, 3))},
}
ENCODERS: Mapping[str, type[Encoder]] = {
    "bilstm": BiLSTM,
    "gru": GRU,
    "convolution": Convolution,
    "average": Average,
    "perceptron": Perceptron,
}
ATTENTIONS: Mapping[str, Callable[[], Attention]] = {"additive": Additive, "dot": Dot}
METHODS: Mapping[str, Callable[[], Method]] = {
    "raw-attention": RawAttention,
    "gradient": Gradient,
    "gradient-norm": GradientNorm,
    "gradient-sum": GradientSum,
    "input-x-gradient": InputXGradient,
    "integrated-gradients": IntegratedGradients,
    "gradient-shap": GradientShap,
    "deep-lift": DeepLift,
    "deep-shap": DeepShap,
    "leave-one-out": LeaveOneOut,
    "occlusion": Occlusion,
    "lime": Lime,
    "kernel-shap": KernelShap,
    "shapley": Shapley,
    "head-attention": HeadAttention,
    "static-attention": StaticAttention,
    "layer-mix": LayerMix,
    "rollout": Rollout,
    "flow": Flow,
    "value-norm": ValueNorm,
    "kobayashi-norm": KobayashiNorm,
    "attention-x-gradient": AttentionXGradient,
    "relevance": Relevance,
    "random": Random,
    "permuted-attention": PermutedAttention,
    "randomised": Randomised,
}
TRIALS: Mapping[str, type[Trial]] = {
    trial.name: trial
    for trial in (
        *(Performance, Agreement, Permutation, Adversary),
        *(Necessity, Seeds, Tradeoff, Dispersal, Guided),
        AtteFa,
        *(Faithfulness, Truth),
        *(Simulability, Plausibility),
    )
}


def trial_named(class_name: str) -> type[Trial] | None:
    """The trial of this class name, as it stands in recipe.json; None for recipes that are no trials."""
    return next((trial for trial in TRIALS.values() if trial.__name__ == class_name), None)


def listing() -> dict[str, dict[str, str]]:
    """Names and first sentences of everything in the index, by kind."""
    kinds: Mapping[str, Mapping[str, object]] = {
        "corpora": CORPORA,
        "encoders": ENCODERS,
        "attentions": ATTENTIONS,
        "methods": METHODS,
        "trials": TRIALS,
    }
    return {kind: {name: _meaning(thing) for name, thing in things.items()} for kind, things in kinds.items()}


def _meaning(thing: object) -> str:
    described = thing if inspect.isclass(thing) else type(thing)
    text = inspect.cleandoc(described.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())
