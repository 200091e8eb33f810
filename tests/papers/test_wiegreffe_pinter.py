"""Attention is not not Explanation: the recipes of the paper."""

from __future__ import annotations

import pytest

from heedful.papers.wiegreffe_pinter import SelectionRule, WiegreffePinterOptions
from heedful.runner import topological_order
from heedful.trials.adversarial_training import AdversarialTradeoff
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.types import UserError


def test_wiegreffe_pinter_has_the_papers_seeds_lambdas_and_guides() -> None:
    found = {type(recipe): recipe for recipe in WiegreffePinterOptions(("sst",)).recipes()}
    necessity, curve, guided = found[UniformBaseline], found[AdversarialTradeoff], found[GuidedModel]
    assert isinstance(necessity, UniformBaseline)
    assert isinstance(curve, AdversarialTradeoff)
    assert isinstance(guided, GuidedModel)
    assert necessity.seeds == (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
    assert curve.lambdas[:3] == (0.0, 1e-5, 5e-5)
    assert len(curve.lambdas) == 16
    assert (
        curve.adversary_training.epochs,
        curve.adversary_training.patience,
        curve.adversary_training.selection.split,
    ) == (80, 10, "dev")
    assert [name for name, _ in guided.guides] == ["base", "adversary", "shuffled base", "random"]
    assert curve.adversary(1e-3) in topological_order([guided])


def test_the_rule_that_chooses_epochs_reaches_bases_and_adversaries() -> None:
    rules: dict[SelectionRule, tuple[str, str]] = {
        "dev": ("dev", "deception"),
        "paper": ("test", "deception"),
        "code": ("dev", "training_loss"),
    }
    for rule, (split, score) in rules.items():
        options = WiegreffePinterOptions(("imdb",), select=rule)
        (curve,) = [recipe for recipe in options.recipes() if isinstance(recipe, AdversarialTradeoff)]
        assert (
            curve.adversary_training.selection.split,
            curve.adversary_training.selection.metric,
            curve.adversary_training.epochs,
        ) == (split, score, 40)
        assert curve.subject.training.selection.split == ("dev" if rule == "dev" else "test")


def test_unknown_rules_and_starts_are_refused() -> None:
    with pytest.raises(UserError, match="unknown select 'test'"):
        WiegreffePinterOptions(select="test")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown start 'warm'"):
        WiegreffePinterOptions(start="warm")  # type: ignore[arg-type]
