"""An explainer learned for a user's own model: SMaT on their texts, with what it is worth against static attention.

The model is the teacher and is never changed; its answers are the labels, so that texts alone are enough. Students
start as its first layers under a new head. The explainer that is kept is that of the median student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from heedful.attributions.head_mix import HeadMix
from heedful.data.table import Table, TableColumns
from heedful.data.tokenization import Subwords
from heedful.models.transformer import Transformer, read_output_labels
from heedful.papers.scaffold import (
    QUICK_EPOCHS,
    QUICK_SIZES,
    SMAT,
    STUDENT_LAYERS,
    TEXT_TRAINING,
    ExplanationArm,
    ScaffoldSetting,
    count_layers,
    shortened_student,
)
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.checkpoint import Checkpoint, checkpoint
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.teacher import AttentionExplanation, LearnedExplanation, NoExplanation, StudentData
from heedful.trials.performance import Performance
from heedful.trials.simulability import NO_EXPLANATION, Simulability
from heedful.types import UserError

DEFAULT_SIZE = 500
ATTENTION = "attention"
SMALL_TEST_SET = 200
"""With fewer test texts the numbers are said to be rough."""
MAJORITY_THRESHOLD = 0.9
"""A teacher that gives one answer this often can be simulated without reading."""
VERDICT_MEANINGS: Mapping[str, str] = {
    "helps": "students learn from it what the model's answers alone do not tell them",
    "does_not_help": "students learn nothing of use from it beyond the model's answers",
    "undecided": "whether students learn anything from it is undecided; train more (--seeds), or give more texts",
}
"""Verdicts on what was learned against no explanation."""
N_HEADS_LISTED = 5
"""Heads that are told one by one."""


@dataclass(frozen=True)
class LearnOptions:
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
    text_column: str = "text"
    second_column: str | None = None
    label_column: str | None = None
    size: int | None = None
    first_seed: int = 0
    n_seeds: int = 3
    quick: bool = False


@dataclass(frozen=True)
class LearnRecipes:
    """The teacher, and the trial that compares what was learned with static attention and with nothing."""

    teacher: Checkpoint
    trial: Simulability

    @property
    def recipes(self) -> list[Recipe]:
        """All that is to be made; the teacher's own performance where there are labels."""
        corpus = self.teacher.corpus
        unlabelled = isinstance(corpus, Table) and corpus.columns.label is None
        scored = [] if unlabelled else [Performance(self.teacher)]
        return [*scored, self.trial]

    def explainer(self, workspace: Workspace) -> HeadMix:
        """That of the median student."""
        students = tuple(each for each in dict(self.trial.arms)[SMAT] if isinstance(each, SMaT))
        found = LearnedAttributionTable(self.teacher, students).median_student(workspace).explainer(workspace)
        assert isinstance(found, HeadMix)
        return found

    def sentences(self, workspace: Workspace) -> list[str]:
        """What was tested, what was learned, what it means and does not mean; the trial's reading stands before it."""
        found, summary = workspace.get(self.trial), self.trial.flat_summary(workspace.get(self.trial).table)
        tested = found.notes["n"]
        assert isinstance(tested, int)
        size = self.trial.arms[0][1][0].data.train_size
        return [
            f"Tested: {len(self.trial.arms[0][1])} students of each kind learned from {size} texts how the model "
            f"answers, and were asked about {tested} other texts.",
            _heads_sentence(self.explainer(workspace)),
            _comparison_sentence(summary, size),
            *_warnings(summary, tested),
            f"What it does not mean: {self.trial.limits}",
        ]


def learn_recipes(options: LearnOptions, data: Path) -> LearnRecipes:
    """What `heedful learn` has to make; complains about everything in the wish that a user can mend."""
    teacher = _teacher(options)
    there = len(teacher.corpus.read(data).train)
    if options.size is not None and not 1 <= options.size <= there:
        raise UserError(
            f"--size {options.size}: {options.path} has {there} texts to learn from, the others judge and test; "
            f"give a number from 1 to {there}"
        )
    size = options.size or min(QUICK_SIZES[0] if options.quick else DEFAULT_SIZE, there)
    fit = replace(TEXT_TRAINING, epochs=QUICK_EPOCHS, patience=QUICK_EPOCHS // 3) if options.quick else TEXT_TRAINING
    plan = shortened_student(options.teacher, min(STUDENT_LAYERS, (count_layers(options.teacher) + 1) // 2))
    school = ScaffoldSetting(teacher, plan, StudentData(), (size,), fit)
    arms = (
        ExplanationArm(NO_EXPLANATION, NoExplanation()),
        ExplanationArm(ATTENTION, AttentionExplanation()),
        ExplanationArm(SMAT, LearnedExplanation()),
    )
    seeds = range(options.first_seed, options.first_seed + options.n_seeds)
    return LearnRecipes(teacher, Simulability(teacher, tuple((arm.name, arm.students(school, seeds)) for arm in arms)))


def _teacher(options: LearnOptions) -> Checkpoint:
    if not Path(options.teacher).expanduser().is_dir():
        raise UserError(
            f"{options.teacher}: no such folder; --teacher is a folder with config.json, model.safetensors and a "
            "tokenizer, as save_pretrained writes it"
        )
    if options.label_column is not None:
        return checkpoint(
            options.teacher,
            Table(options.path, TableColumns(options.text_column, options.label_column, options.second_column)),
        )
    outputs = read_output_labels(options.teacher)
    if not outputs.is_regression and len(outputs.names) == 1:
        raise UserError(
            f"{options.teacher} has one output that says yes or no to {outputs.names[0]}: name a column of two classes "
            "(--label-column), which tells what no is called"
        )
    classes = () if outputs.is_regression else outputs.names
    columns = TableColumns(options.text_column, None, options.second_column, classes=classes)
    return Checkpoint(Table(options.path, columns), Subwords(options.teacher), Transformer(options.teacher))


def _heads_sentence(mix: HeadMix) -> str:
    """Which heads carry the weight, in a sentence."""
    weights = mix.coefficients.flatten()
    order = torch.argsort(weights, descending=True, stable=True)
    used = [place for place in order.tolist() if weights[place] > 0]
    if len(weights) > 1 and bool((weights == weights[0]).all()):
        return f"Learned: all {len(weights)} heads weigh the same, as before learning."
    told = [
        f"layer {place // mix.heads} head {place % mix.heads} ({float(weights[place]):.0%})"
        for place in used[:N_HEADS_LISTED]
    ]
    listed = " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
    more = len(used) - N_HEADS_LISTED
    rest = f"; {more} {'others weigh' if more > 1 else 'other weighs'} no more" if more > 0 else ""
    return f"Learned: {len(used)} of {len(weights)} heads count (layers and heads from 0), most {listed}{rest}."


def _comparison_sentence(summary: Mapping[str, float], size: int) -> str:
    """The learned mix beside the plain mean of all heads, and what its gain over no explanation means."""
    learned, static = (summary[f"mean.{arm}.{size}"] for arm in (SMAT, ATTENTION))
    shown = "{:.3f}".format if summary["pearson"] else "{:.1%}".format
    verdict = next((name for name in VERDICT_MEANINGS if summary.get(f"{name}.{SMAT}.{size}")), "undecided")
    no_better = ", so that learning has gained nothing" if learned <= static else ""
    return (
        f"Mean agreement of students with the model: {shown(learned)} with the learned explainer, {shown(static)} with "
        f"the plain mean of all heads{no_better}. What it means: {VERDICT_MEANINGS[verdict]}."
    )


def _warnings(summary: Mapping[str, float], tested: int) -> Sequence[str]:
    found = []
    if tested < SMALL_TEST_SET:
        found.append(f"Only {tested} texts were tested, so the numbers are rough: another split may give other ones.")
    commonest = summary["commonest"]
    if not summary["pearson"] and commonest >= MAJORITY_THRESHOLD:
        found.append(
            f"The model gives the same answer to {commonest:.0%} of them: a student needs no explanation for that; "
            "take texts on which it differs."
        )
    return found
