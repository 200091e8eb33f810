"""An explainer learned for a user's own model: SMaT on their texts, with what it is worth against static attention.

The model is the teacher and is never changed; its answers are the labels, so that texts alone are enough. Students
start as its first layers under a new head. The explainer that is kept is that of the median student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from heedful.attributions.learned import HeadMix
from heedful.core.types import UserError
from heedful.core.workspace import Recipe, Workspace
from heedful.data.subwords import Subwords
from heedful.data.tables import Reading, Table
from heedful.data.unlabelled import Unlabelled
from heedful.models.outputs import outputs_of
from heedful.models.transformer import Transformer
from heedful.papers.scaffold import SMAT, Arm
from heedful.papers.scaffold_schools import LAYERS, QUICK_EPOCHS, QUICK_SIZES, READING, School, layers_in, shorter
from heedful.recipes.explanations import Learned, Mixed, Unexplained
from heedful.recipes.given import Given, given
from heedful.recipes.learned_scores import LearnedScores
from heedful.recipes.scaffolded import Scaffolded
from heedful.recipes.teaching import Classroom
from heedful.recipes.unscored import Unscored
from heedful.trials.performance import Performance
from heedful.trials.simulability import PLAIN, Simulability

SIZE = 500
ATTENTION = "attention"
SMALL = 200
"""With fewer test texts the numbers are said to be rough."""
SURE = 0.9
"""A teacher that gives one answer this often can be simulated without reading."""
MEANINGS: Mapping[str, str] = {
    "helps": "students learn from it what the model's answers alone do not tell them",
    "does_not_help": "students learn nothing of use from it beyond the model's answers",
    "undecided": "whether students learn anything from it is undecided; train more (--seeds), or give more texts",
}
"""Verdicts on what was learned against no explanation."""
LISTED = 5
"""Heads that are told one by one."""


@dataclass(frozen=True)
class Wish:
    """What a user wants to have learned.

    Args:
        teacher: a folder with a fine-tuned model and its tokenizer.
        path: a CSV, TSV, JSONL or Parquet file with a row per text.
        label: a column of classes, only to tell how good the teacher is; None needs none.
        size: texts that a student learns from; None takes 500, or all there are.
        seed: of the first student.
        seeds: how many students each kind of explanation has.
    """

    teacher: str
    path: str
    text: str = "text"
    second: str | None = None
    label: str | None = None
    size: int | None = None
    seed: int = 0
    seeds: int = 3
    quick: bool = False


@dataclass(frozen=True)
class Lessons:
    """The teacher, and the trial that compares what was learned with static attention and with nothing."""

    teacher: Given
    trial: Simulability

    @property
    def recipes(self) -> list[Recipe]:
        """All that is to be made; the teacher's own performance where there are labels."""
        scored = [] if isinstance(self.teacher, Unscored) else [Performance(self.teacher)]
        return [*scored, self.trial]

    def explainer(self, workspace: Workspace) -> HeadMix:
        """That of the median student."""
        students = tuple(each for each in dict(self.trial.arms)[SMAT] if isinstance(each, Scaffolded))
        found = LearnedScores(self.teacher, students).median(workspace).explainer(workspace)
        assert isinstance(found, HeadMix)
        return found

    def told(self, workspace: Workspace) -> list[str]:
        """What was tested, what was learned, what it means and does not mean; the trial's reading stands before it."""
        found, summary = workspace.get(self.trial), self.trial.summary(workspace.get(self.trial).table)
        tested = found.notes["n"]
        assert isinstance(tested, int)
        size = self.trial.arms[0][1][0].classroom.size
        return [
            f"Tested: {len(self.trial.arms[0][1])} students of each kind learned from {size} texts how the model "
            f"answers, and were asked about {tested} other texts.",
            _weights(self.explainer(workspace)),
            _against(summary, size),
            *_cautions(summary, tested),
            f"What it does not mean: {self.trial.not_meaning}",
        ]


def lessons(wish: Wish, data: Path) -> Lessons:
    """What `heedful learn` has to make; complains about everything in the wish that a user can mend."""
    teacher = _teacher(wish)
    there = len(teacher.corpus.read(data).train)
    if wish.size is not None and not 1 <= wish.size <= there:
        raise UserError(
            f"--size {wish.size}: {wish.path} has {there} texts to learn from, the others judge and test; "
            f"give a number from 1 to {there}"
        )
    size = wish.size or min(QUICK_SIZES[0] if wish.quick else SIZE, there)
    fit = replace(READING, epochs=QUICK_EPOCHS, patience=QUICK_EPOCHS // 3) if wish.quick else READING
    plan = shorter(wish.teacher, min(LAYERS, (layers_in(wish.teacher) + 1) // 2))
    school = School(teacher, plan, Classroom(), (size,), fit)
    arms = (Arm(PLAIN, Unexplained()), Arm(ATTENTION, Mixed()), Arm(SMAT, Learned()))
    seeds = range(wish.seed, wish.seed + wish.seeds)
    return Lessons(teacher, Simulability(teacher, tuple((arm.name, arm.students(school, seeds)) for arm in arms)))


def _teacher(wish: Wish) -> Given:
    if not Path(wish.teacher).expanduser().is_dir():
        raise UserError(
            f"{wish.teacher}: no such folder; --teacher is a folder with config.json, model.safetensors and a "
            "tokenizer, as save_pretrained writes it"
        )
    if wish.label is not None:
        return given(wish.teacher, Table(wish.path, Reading(wish.text, wish.label, wish.second)))
    outputs = outputs_of(wish.teacher)
    if not outputs.number and len(outputs.names) == 1:
        raise UserError(
            f"{wish.teacher} has one output that says yes or no to {outputs.names[0]}: name a column of two classes "
            "(--label-column), which tells what no is called"
        )
    classes = () if outputs.number else outputs.names
    corpus = Unlabelled(wish.path, wish.text, wish.second, classes)
    return Unscored(corpus, Subwords(wish.teacher), Transformer(wish.teacher))


def _weights(mix: HeadMix) -> str:
    """Which heads carry the weight, in a sentence."""
    weights = mix.coefficients.flatten()
    order = torch.argsort(weights, descending=True, stable=True)
    used = [place for place in order.tolist() if weights[place] > 0]
    if len(weights) > 1 and bool((weights == weights[0]).all()):
        return f"Learned: all {len(weights)} heads weigh the same, as before learning."
    told = [
        f"layer {place // mix.heads} head {place % mix.heads} ({float(weights[place]):.0%})" for place in used[:LISTED]
    ]
    listed = " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
    more = len(used) - LISTED
    rest = f"; {more} {'others weigh' if more > 1 else 'other weighs'} no more" if more > 0 else ""
    return f"Learned: {len(used)} of {len(weights)} heads count (layers and heads from 0), most {listed}{rest}."


def _against(summary: Mapping[str, float], size: int) -> str:
    """The learned mix beside the plain mean of all heads, and what its gain over no explanation means."""
    learned, static = (summary[f"mean.{arm}.{size}"] for arm in (SMAT, ATTENTION))
    shown = "{:.3f}".format if summary["pearson"] else "{:.1%}".format
    verdict = next((name for name in MEANINGS if summary.get(f"{name}.{SMAT}.{size}")), "undecided")
    no_better = ", so that learning has gained nothing" if learned <= static else ""
    return (
        f"Mean agreement of students with the model: {shown(learned)} with the learned explainer, {shown(static)} with "
        f"the plain mean of all heads{no_better}. What it means: {MEANINGS[verdict]}."
    )


def _cautions(summary: Mapping[str, float], tested: int) -> Sequence[str]:
    found = []
    if tested < SMALL:
        found.append(f"Only {tested} texts were tested, so the numbers are rough: another split may give other ones.")
    commonest = summary["commonest"]
    if not summary["pearson"] and commonest >= SURE:
        found.append(
            f"The model gives the same answer to {commonest:.0%} of them: a student needs no explanation for that; "
            "take texts on which it differs."
        )
    return found
