"""The parts that methods share, by hand: explained outputs, options, features, deleted texts, chunks."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful.attributions import method as method_module
from heedful.attributions.attention import AttentionXGradient, RawAttention
from heedful.attributions.controls import Random, RandomizedModel
from heedful.attributions.gradient import Gradient, InputXGradient
from heedful.attributions.head_mix import HeadMix
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.method import (
    copy_to_units,
    divide_among_units,
    expand_to_units,
    feature_counts,
    feature_index,
    is_stochastic,
    on_features,
    register,
    registered_methods,
    replace_units,
    run_in_chunks,
    tags_of,
    target_output,
    with_other_seed,
    with_special_tokens,
)
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.catalogue import METHODS
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.training.attribution_tables import TrueClass
from heedful.types import Attribution, Batch, Method, Model, UserError
from tests.games import words
from tests.small_models import some_batch


def test_the_explained_output_is_the_targets_probability_or_logit() -> None:
    one, target = torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 1])
    assert target_output(BinaryClassification(), one, target, "logit").tolist() == [-2, -1]
    sigmoid = [1 / (1 + math.exp(2)), 1 / (1 + math.exp(1))]
    assert target_output(BinaryClassification(), one, target, "probability").tolist() == pytest.approx(sigmoid)
    several = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]])
    found = target_output(MulticlassClassification(3), several, torch.tensor([2, 0]), "logit")
    assert found.tolist() == [[3, 6], [7, 10]]
    assert found.dtype == torch.float64


def test_options_are_refused_outside_their_choices_and_where_they_contradict() -> None:
    assert Lime(baselines="delete").baselines == "delete"
    assert Lime(special_tokens=True).special_tokens
    with pytest.raises(UserError, match="cannot remove special tokens"):
        Lime(baselines="delete", special_tokens=True)
    for method in (Lime, Gradient, LeaveOneOut):
        with pytest.raises(UserError, match=r"'logits'.*probability, logit"):
            method(output="logits")  # type: ignore[arg-type]


def test_features_are_numbered_in_text_order() -> None:
    batch = some_batch((3, 1))
    assert feature_index(batch, "unit").tolist() == [[-1, 0, 1, 2, -1], [-1, 0, -1, -1, -1]]
    everything = feature_index(batch, "unit", special_tokens=True)
    assert everything.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]
    assert feature_counts(everything).tolist() == [5, 3]
    assert feature_index(words((1, 2, 3), (4, 5, 6), pieces=(0, 0, 1)), "word").tolist() == [[0, 0, 1]] * 2


def test_scores_and_coalitions_of_features_go_to_their_tokens() -> None:
    index, scores = torch.tensor([[0, 0, 1, -1], [0, 1, -1, -1]]), torch.tensor([[6.0, 4.0], [5.0, 7.0]])
    assert divide_among_units(scores, index).tolist() == [[3, 3, 4, 0], [5, 7, 0, 0]]
    assert copy_to_units(scores, index).tolist() == [[6, 6, 4, 0], [5, 7, 0, 0]]
    kept = torch.tensor([[[True, False], [False, True], [True, True]], [[True, False], [False, True], [False, False]]])
    assert expand_to_units(kept, index).long().tolist() == [
        [[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]],
    ]


def test_a_text_that_would_be_empty_keeps_one_pad_token() -> None:
    removed = torch.tensor([[True, True], [True, False]])
    found = replace_units(words((5, 6), (7, 8)), removed, "delete")
    assert [row[mask].tolist() for row, mask in zip(found.inputs, found.mask, strict=True)] == [[0], [8]]
    assert replace_units(words((5, 6), (7, 8)), removed, "pad").inputs.tolist() == [[0, 0], [0, 8]]


@pytest.mark.parametrize("room", [1, 2, 3, 9])
def test_chunks_are_halved_until_they_fit(room: int) -> None:
    done: list[int] = []

    def work(chunk: Tensor) -> None:
        if len(chunk) > room:
            raise MemoryError
        done.extend(chunk.tolist())

    run_in_chunks(work, 7, lambda start: 4, torch.device("cpu"))
    assert done == list(range(7))


def test_a_text_that_does_not_fit_alone_is_an_error() -> None:
    def work(chunk: Tensor) -> None:
        raise MemoryError

    with pytest.raises(UserError, match="does not fit into memory"):
        run_in_chunks(work, 7, lambda start: 4, torch.device("cpu"))


# Tags, names and options


@dataclass(frozen=True)
class Mine:
    """A method of a user that states no tags."""

    seed: int = 0
    feature: str = "sentence"

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return Random(self.seed)(model, batch, target)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (IntegratedGradients(), {"signed": True, "pooling": "sum"}),
        (LeaveOneOut(), {"signed": True, "pooling": "sum"}),
        (LeaveOneOut("distribution"), {"signed": False, "pooling": "mean", "target_specific": False}),
        (LeaveOneOut("distribution", feature="word"), {"signed": False, "pooling": "sum"}),
        (AttentionXGradient(), {"signed": False, "pooling": "mean", "is_form_of_attention": False}),
        (AttentionXGradient(positive=False), {"signed": True, "pooling": "sum"}),
        (LayerMix(score_type="distribution"), {"signed": False, "pooling": "mean"}),
        (HeadMix((1.0,), 1, 1), {"signed": False, "pooling": "mean", "is_form_of_attention": True}),
        (HeadMix((1.0,), 1, 1, score_type="logits"), {"signed": True, "pooling": "mean"}),
        (Gradient(), {"reads": "gradient", "needs_attention": True}),
        (InputXGradient(), {"reads": "gradient", "needs_attention": False}),
        (RandomizedModel(), {"pooling": "mean", "target_specific": False, "is_control": True, "needs_attention": True}),
        (RandomizedModel(Gradient()), {"signed": True, "pooling": "sum", "is_control": True, "needs_attention": True}),
        (RandomizedModel(LeaveOneOut()), {"optimizes": (), "needs_attention": False}),
        (TrueClass(Gradient()), {"signed": True, "target_specific": False}),
        (Occlusion(baselines="mask"), {"optimizes": ("comprehensiveness (mask)",)}),
        (Mine(), {"signed": True, "pooling": "sum", "reads": "output", "target_specific": True}),
    ],
    ids=repr,
)
def test_the_tags_of_a_method_follow_its_options_and_what_it_wraps(method: Method, expected: dict[str, object]) -> None:
    tags = tags_of(method)
    assert {name: getattr(tags, name) for name in expected} == expected


def test_tags_must_be_tags() -> None:
    class Wrong:
        tags = "signed"

    with pytest.raises(UserError, match="MethodTags"):
        tags_of(Wrong())


def test_every_seed_of_a_method_changes_also_of_one_that_it_wraps() -> None:
    seeded = {name for name, make in METHODS.items() if is_stochastic(make())}
    assert seeded == {"lime", "kernel-shap", "gradient-shap", "deep-shap", "random", "permuted-attention", "randomized"}
    assert with_other_seed(Mine()) == Mine(1)
    assert with_other_seed(RandomizedModel(Lime(), 4)) == RandomizedModel(Lime(seed=1), 5)
    assert with_other_seed(TrueClass(Mine(3))) == TrueClass(Mine(4))
    assert with_other_seed(Gradient()) == Gradient()


def test_options_change_in_what_a_method_wraps_and_only_where_they_mean_the_same() -> None:
    assert on_features(RandomizedModel(Lime()), "word") == RandomizedModel(Lime(feature="word"))
    assert on_features(Mine(), "word") == Mine()
    assert with_special_tokens(RandomizedModel()) == RandomizedModel(RawAttention(special_tokens=True))


def test_a_method_is_importable_from_the_package_if_it_is_registered() -> None:
    stub = ast.parse(Path(str(method_module.__file__)).with_name("__init__.pyi").read_text(encoding="utf-8"))
    names = [alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(names) == sorted({type(make()).__name__ for make in registered_methods().values()} | {"HeadMix"})


def test_a_name_is_registered_once() -> None:
    with pytest.raises(UserError, match="lime"):
        register("lime")(Mine)
    assert METHODS["lime"] is Lime
