"""Estimates: what is left is counted, what is timed is scaled right, and nothing is left behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Generator, Tensor

from heedful import estimating
from heedful.attributions.attention import RawAttention
from heedful.data.tokenization import Words
from heedful.estimating import Estimate, estimated, planned, usual_epochs, wall
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.adversarial_objectives import TrainedAdversary
from heedful.training.attention_sources import FromModel
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import ImposedAttention
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.performance import Performance
from heedful.types import Architecture, Corpus, Model, Splits, Task, UserError
from tests.tiny import Sentences, subject

CLOCK = {"now": 0.0}
"""A clock that only ticking models move."""


@dataclass(frozen=True)
class Ticking(Architecture):
    """A model that takes so many seconds for each batch that it learns from, and half of that for one it is asked."""

    seconds: float
    plan: Architecture = Attentive(Average(4), Additive())

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        model = self.plan.build(task, embeddings, generator)

        def tick(module: torch.nn.Module, args: object) -> None:
            CLOCK["now"] += self.seconds if module.training else self.seconds / 2

        model.register_forward_pre_hook(tick)
        return model


@dataclass(frozen=True)
class Absent(Corpus):
    """A corpus whose files cannot be read, though they are there."""

    name: ClassVar[str] = "absent"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        raise UserError("absent: the file is damaged; fetch it again")

    def digest(self, data: Path) -> str:
        return "absent"


def adversary(base: TrainedModel) -> TrainedModel:
    """An adversary with patience."""
    return replace(base, objective=TrainedAdversary(base), training=replace(base.training, epochs=30, patience=4))


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the models moves the clock."""
    monkeypatch.setitem(CLOCK, "now", 0.0)
    still = SimpleNamespace(perf_counter=lambda: CLOCK["now"], monotonic=lambda: CLOCK["now"])
    monkeypatch.setattr(estimating, "time", still)


def test_what_is_left_and_what_is_finished_is_counted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first, second = subject(seed=0), subject(seed=1)
    recipes = [Performance(first), Performance(second), AttributionTable(second, RawAttention())]
    assert planned(recipes, workspace).words == (
        "To be made: 2 trainings, 2 trials and 1 other recipe; finished already: 0 of 5 recipes."
    )
    workspace.get(Performance(first))
    plan = planned(recipes, workspace)
    assert plan.words == "To be made: 1 training, 1 trial and 1 other recipe; finished already: 2 of 5 recipes."
    assert plan.trainings == (second,)
    assert planned([first], workspace).words == "Nothing is left to be made: everything is finished (recipes: 1)."


@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_an_epoch_is_its_steps_and_one_judging_whether_or_not_the_steps_were_cut_short(
    seconds: float, tmp_path: Path, ticking: None
) -> None:
    first = replace(subject(epochs=10), architecture=Ticking(seconds))
    trainings = [first, replace(first, seed=1), replace(first, seed=2, training=replace(first.training, epochs=20))]
    estimate = estimated(planned(trainings, Workspace(tmp_path)), Workspace(tmp_path), workers=2)
    assert estimate is not None
    # 40 texts in batches of 8 are 5 steps; the 40 of the dev split are judged at once, in half the time of a step.
    epoch = 5.5 * seconds
    assert [estimate.expected[each] for each in trainings] == pytest.approx([10 * epoch, 10 * epoch, 20 * epoch])
    assert estimate.likely == estimate.most == pytest.approx(20 * epoch)
    assert estimate.timed == (1, 1)


def test_patience_makes_the_likely_time_less_than_the_most(tmp_path: Path, ticking: None) -> None:
    base = replace(subject(epochs=10), architecture=Ticking(0.1))
    others = [adversary(replace(base, seed=seed)) for seed in (0, 0, 1)]
    estimate = estimated(planned(others, Workspace(tmp_path)), Workspace(tmp_path), workers=1)
    assert estimate is not None
    # Two bases of 10 epochs; two adversaries of 30 at most, and of twice their patience usually.
    assert estimate.most == pytest.approx(0.55 * (2 * 10 + 2 * 30))
    assert estimate.likely == pytest.approx(0.55 * (2 * 10 + 2 * 8))
    assert estimate.timed == (2, 2)


def test_usual_epochs_are_twice_the_patience_but_never_more_than_there_are() -> None:
    fits = (Training(80, patience=10), Training(12, patience=10), Training(8))
    assert [usual_epochs(replace(subject(), training=fit)) for fit in fits] == [20, 12, 8]


def test_the_wall_time_is_shared_work_or_the_longest_chain() -> None:
    base = subject()
    chained, free = adversary(base), subject(seed=1)
    left: list[Recipe] = [base, free, chained, Performance(chained)]
    assert wall(left, {base: 10.0, chained: 20.0, free: 30.0}, 1) == 60
    assert wall(left, {base: 10.0, chained: 20.0, free: 40.0}, 2) == 40
    assert wall(left, {base: 10.0, chained: 50.0, free: 5.0}, 8) == 60


def test_a_probe_leaves_no_file_and_no_trace_in_the_generator(tmp_path: Path) -> None:
    base = subject()
    guided = replace(base, architecture=Attentive(Average(4), Additive()), objective=ImposedAttention(FromModel(base)))
    plan = planned([adversary(base), guided], Workspace(tmp_path / "work"))
    before = torch.get_rng_state()
    estimate = estimated(plan, Workspace(tmp_path / "work"), workers=2)
    assert estimate is not None
    assert estimate.timed == (3, 3)
    assert min(estimate.expected.values()) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_timed_is_guessed_from_what_is_most_like_it(tmp_path: Path, ticking: None) -> None:
    slow, fast = (replace(subject(epochs=2), architecture=Ticking(seconds)) for seconds in (0.3, 0.1))
    like_slow, unlike = replace(slow, corpus=Absent()), replace(subject(epochs=2), corpus=Absent())
    trainings = [slow, fast, like_slow, unlike]
    estimate = estimated(planned(trainings, Workspace(tmp_path)), Workspace(tmp_path), workers=1)
    assert estimate is not None
    assert [estimate.expected[each] for each in trainings] == pytest.approx([3.3, 1.1, 3.3, 2.2])
    assert estimate.timed == (2, 4)
    assert "(2 of 4 kinds of training were timed, the others guessed)" in estimate.words


def test_every_corpus_has_its_turn_before_one_has_a_second(tmp_path: Path, ticking: None) -> None:
    first = replace(subject(epochs=2), architecture=Ticking(0.1))
    same = replace(first, architecture=Ticking(0.2))
    other = replace(first, corpus=Sentences(48), architecture=Ticking(0.3))
    plan = planned([first, same, other], Workspace(tmp_path))
    # The time is over after the second kind: the first of each corpus was timed, and `same` is guessed from `first`.
    estimate = estimated(plan, Workspace(tmp_path), workers=1, budget=1.5)
    assert estimate is not None
    assert estimate.timed == (2, 3)
    assert estimate.expected[same] == pytest.approx(estimate.expected[first])
    assert estimate.expected[other] > 2 * estimate.expected[first]


def test_little_work_unreadable_data_and_no_time_give_no_estimate(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    two = [subject(seed=seed) for seed in range(2)]
    three = [subject(seed=seed) for seed in range(3)]
    unreadable = [replace(each, corpus=Absent()) for each in three]
    assert estimated(planned(two, workspace), workspace, workers=1) is None
    assert estimated(planned(unreadable, workspace), workspace, workers=1) is None
    assert estimated(planned(three, workspace), workspace, workers=1, budget=-1.0) is None


def test_a_training_that_selects_by_deception_or_on_test_can_be_timed(tmp_path: Path) -> None:
    base = subject()
    picky = replace(
        adversary(base),
        training=Training(20, 8, selection=EpochSelection(split="test", metric="deception"), patience=2),
    )
    plan = planned([picky, replace(picky, seed=1)], Workspace(tmp_path))
    estimate = estimated(plan, Workspace(tmp_path), workers=1)
    assert estimate is not None
    assert estimate.timed == (2, 2)


def test_an_estimate_is_told_in_a_sentence() -> None:
    both = Estimate(18_000.0, 10_800.0, {}, 2, (4, 4))
    assert both.words == (
        "Trainings will take at most about 5 h, probably nearer 3 h, on 2 processes; trials come on top. "
        "Finished work is kept if you interrupt."
    )
    assert replace(both, most=10_900.0, workers=1).words.startswith("Trainings will take about 3 h, in one process;")
