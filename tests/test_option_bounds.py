"""Options outside their bounds or choices are refused by name, in methods, models, trainings and trials."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from heedful.attributions.attention import HeadAttention
from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.method import MAX_PREDICTED, MAX_SAMPLES, MAX_STEPS
from heedful.attributions.perturbation import Occlusion
from heedful.attributions.shapley import KernelShap
from heedful.models.attentive import Softmax
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution
from heedful.models.small_transformers import SmallTransformer, TruncatedTransformer
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import AdversarialTraining, TrainedAdversary
from heedful.training.student import Student
from heedful.training.teacher import LearnedExplanation, MethodExplanation, StudentData
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversary_search import AdversarySearchSettings
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.types import UserError
from tests.tiny import subject

METHODS = (InputXGradient(), GradientNorm())
WRONG: tuple[tuple[Callable[..., object], dict[str, object]], ...] = (
    (GradientNorm, {"order": 3}),
    (IntegratedGradients, {"n_steps": 0}),
    (IntegratedGradients, {"n_steps": MAX_STEPS + 1}),
    (IntegratedGradients, {"n_steps": 2.0}),
    (GradientShap, {"n_samples": 0}),
    (GradientShap, {"baselines": "delete"}),
    (DeepLift, {"output": "logits"}),
    (DeepShap, {"n_baselines": True}),
    (DeepShap, {"n_baselines": 0}),
    (DeepShap, {"stdevs": -0.1}),
    (HeadAttention, {"layer": 0.5}),
    (LayerMix, {"temperature": 0.0}),
    (LayerMix, {"temperature": math.inf}),
    (LayerMix, {"n_steps": 0}),
    (Lime, {"n_samples": 1}),
    (Lime, {"n_samples": MAX_SAMPLES + 1}),
    (Lime, {"kernel_width": 0.0}),
    (Lime, {"ridge": -1.0}),
    (Lime, {"ridge": "1"}),
    (KernelShap, {"n_samples": 0}),
    (KernelShap, {"n_samples": MAX_PREDICTED + 1, "error": 0.1}),
    (KernelShap, {"error": 1}),
    (Occlusion, {"window": 0}),
    (BiLSTM, {"width": 0}),
    (GRU, {"width": -1}),
    (Average, {"width": 0}),
    (Convolution, {"filters": 0}),
    (Softmax, {"temperature": 0.0}),
    (lambda layers: TruncatedTransformer(SmallTransformer(), layers), {"layers": 0}),
    (lambda limit: AttributionTable(subject(), InputXGradient(), limit=limit), {"limit": 0}),
    (lambda initialization: TrainedAdversary(subject(), initialization), {"initialization": "frsh"}),
    (lambda kl_weight: AdversarialTraining(subject(), kl_weight=kl_weight), {"kl_weight": -0.1}),
    (lambda kl_weight: AdversarialTraining(subject(), kl_weight=kl_weight), {"kl_weight": math.nan}),
    (lambda beta: Student(subject(), subject().architecture, beta=beta), {"beta": -1.0}),
    (lambda beta: Student(subject(), subject().architecture, beta=beta), {"beta": math.inf}),
    (StudentData, {"train_size": 0}),
    (StudentData, {"eval_limit": 1}),
    (StudentData, {"sampling": "drawn"}),
    (lambda temperature: MethodExplanation(InputXGradient(), temperature), {"temperature": 0.0}),
    (LearnedExplanation, {"normalizer": "hardmax"}),
    (LearnedExplanation, {"lr": -1.0}),
    (LearnedExplanation, {"lr": math.nan}),
    (LearnedExplanation, {"pilot_lr": 0.0}),
    (LearnedExplanation, {"batch_size": 0}),
    (Training, {"reduction": "men"}),
    (EpochSelection, {"split": "train"}),
    (lambda epsilon: AdversarialAttention(subject(), epsilon), {"epsilon": 0.0}),
    (lambda solver: AdversarialAttention(subject(), solver=solver), {"solver": "guess"}),
    (AdversarySearchSettings, {"num_adversaries": 0}),
    (AdversarySearchSettings, {"steps": -1}),
    (AdversarySearchSettings, {"candidates": -1}),
    (lambda measure: Agreement(subject(), METHODS, measure=measure), {"measure": "cosine"}),
    (lambda level: Agreement(subject(), METHODS, level=level), {"level": "sentence"}),
    (lambda baseline: Faithfulness(subject(), METHODS, baseline), {"baseline": "hide"}),
    (lambda steps: Faithfulness(subject(), METHODS, steps=steps), {"steps": 0}),
    (lambda samples: Faithfulness(subject(), METHODS, samples=samples), {"samples": 0}),
    (lambda error: Faithfulness(subject(), METHODS, error=error), {"error": 0.0}),
    (lambda error: Faithfulness(subject(), METHODS, error=error), {"error": -0.1}),
    (lambda error: Permutation(subject(), error=error), {"error": 1.0}),
    (lambda margin: UniformBaseline(subject(), margin=margin), {"margin": -0.1}),
    (lambda target: Plausibility(subject(), METHODS, target=target), {"target": "gold"}),
    (lambda rank: Plausibility(subject(), METHODS, rank=rank), {"rank": "sign"}),
)


@pytest.mark.parametrize(("make", "wrong"), WRONG, ids=[str(wrong) for _, wrong in WRONG])
def test_an_option_outside_its_type_is_refused_by_name(make: Callable[..., object], wrong: dict[str, object]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(UserError, match=name) as refused:
        make(**wrong)
    assert str(value)[:8] in str(refused.value)


def test_the_ends_of_a_range_are_allowed() -> None:
    assert DeepShap(n_baselines=1, stdevs=0).n_baselines == 1
    assert Lime(n_samples=MAX_SAMPLES, ridge=0.0, error=None).ridge == 0
    assert KernelShap(MAX_PREDICTED, error=0.5).error == 0.5
    assert Faithfulness(subject(), METHODS, steps=1, samples=1).steps == 1
    assert AdversarialAttention(subject(), 1.0).epsilon == 1
    assert LearnedExplanation(lr=0.0, batch_size=None).lr == 0
