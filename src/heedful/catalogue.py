"""The catalogue: every corpus, encoder, attention, method and trial by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from heedful.attributions.registry import METHODS as METHODS
from heedful.data.images import CIFAR10, CIFAR100, Digits, FashionMNIST
from heedful.data.licensed import ADRTweets, Anemia, Diabetes
from heedful.data.synthetic import GROUND_TRUTH_CORPORA, MOCK_CORPORA
from heedful.data.text_corpora import (
    CNN,
    IMDB,
    MLQE,
    MNLI,
    QQP,
    SNLI,
    SST,
    AGNews,
    Babi,
    EraserMovies,
    IMDBRaw,
    RottenTomatoes,
    TwentyNewsSports,
)
from heedful.models.attentive import Additive, Attention, Dot
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Encoder
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.seed_variance import SeedVariance
from heedful.trials.simulability import Simulability
from heedful.trials.trial import Trial
from heedful.types import Corpus

CORPORA: Mapping[str, Corpus] = {
    "sst": SST(),
    "imdb": IMDB(),
    "imdb-raw": IMDBRaw(),
    "20news": TwentyNewsSports(),
    "agnews": AGNews(),
    "cnn": CNN(),
    "eraser-movies": EraserMovies(),
    "snli": SNLI(),
    "mnli": MNLI(),
    "qqp": QQP(),
    "mlqe": MLQE(),
    "cifar10": CIFAR10(),
    "cifar100": CIFAR100(),
    "fashion-mnist": FashionMNIST(),
    "digits": Digits(),
    "babi-1": Babi(1),
    "babi-2": Babi(2),
    "babi-3": Babi(3),
    "babi-3-v11": Babi(3, version="v1-1"),
    "diabetes": Diabetes(),
    "anemia": Anemia(),
    "adr": ADRTweets(),
    "rotten-tomatoes": RottenTomatoes(),
    **MOCK_CORPORA,
    **GROUND_TRUTH_CORPORA,
}
"""Every corpus by its name, with its default options."""
ENCODERS: Mapping[str, type[Encoder]] = {
    "bilstm": BiLSTM,
    "gru": GRU,
    "convolution": Convolution,
    "average": Average,
}
ENCODER_ALIASES = {"perceptron": "average", "mlp": "average"}
"""What papers call the same encoder, and its name here, which stored results have."""
ATTENTIONS: Mapping[str, Callable[[], Attention]] = {"additive": Additive, "dot": Dot}
TRIALS: Mapping[str, type[Trial]] = {
    trial.name: trial
    for trial in (
        Performance,
        Agreement,
        Permutation,
        AdversarialAttention,
        UniformBaseline,
        SeedVariance,
        AdversarialTradeoff,
        GuidedModel,
        AtteFa,
        Faithfulness,
        GroundTruth,
        Simulability,
        Plausibility,
    )
}


def descriptions() -> dict[str, dict[str, str]]:
    """Names and first sentences of everything in the catalogue, by kind."""
    kinds: Mapping[str, Mapping[str, object]] = {
        "corpora": CORPORA,
        "encoders": ENCODERS,
        "attentions": ATTENTIONS,
        "methods": METHODS,
        "trials": TRIALS,
    }
    return {kind: {name: _first_paragraph(thing) for name, thing in things.items()} for kind, things in kinds.items()}


def _first_paragraph(thing: object) -> str:
    described = thing if inspect.isclass(thing) else type(thing)
    text = inspect.cleandoc(described.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())
