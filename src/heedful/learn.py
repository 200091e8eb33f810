"""Learn an explainer for a user's model: SMaT on their texts, compared with the mean attention of all heads.

The model is the teacher and is never changed; its predictions are the labels, so texts alone are enough. Students are
its first layers with a new head. The saved explainer is that of the median student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from heedful.attributions.head_mix import HeadMix
from heedful.data.columns import TableColumns
from heedful.data.table import Table
from heedful.models.model_files import check_distinct_names, check_model_source, read_output_labels
from heedful.results import Verdict, value_of
from heedful.store.workspace import Workspace
from heedful.training.checkpoint import Checkpoint, checkpoint
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.student_arms import (
    QUICK_EPOCHS,
    QUICK_SIZES,
    SMAT,
    STUDENT_LAYERS,
    TEXT_TRAINING,
    ExplanationArm,
    StudentSetting,
    count_layers,
    shortened_student,
)
from heedful.training.teacher import (
    AttentionExplanation,
    LearnedExplanation,
    MethodExplanation,
    NoExplanation,
    StudentData,
)
from heedful.trials.simulability import NO_EXPLANATION, Simulability, size_label
from heedful.types import Method, UserError, user_path

DEFAULT_SIZE = 500
_ATTENTION = "attention"
AUDIT_STUDENTS = 3
"""Students of each kind in an audit."""
_SMALL_TEST_SET = 200
"""With fewer test texts a warning says that the numbers are rough."""
MAJORITY_THRESHOLD = 0.9
"""A teacher that predicts one class this often can be simulated without reading the text."""
VERDICT_MEANINGS: Mapping[Verdict, str] = {
    Verdict.SUPPORTED: "the explanations help students to predict what the model predicts",
    Verdict.NOT_SUPPORTED: "the explanations do not help students beyond the model's predictions",
    Verdict.UNDECIDED: "whether the explanations help students is undecided; train more (--seeds), or give more texts",
}
"""The gain of the learned explainer over no explanation, in words."""
N_HEADS_LISTED = 5


def open_teacher(folder: str, path: str, columns: TableColumns) -> Checkpoint:
    """The model in a folder on the texts of a file; with a column of classes it is scored as well."""
    if not user_path(folder).is_dir():
        raise UserError(
            f"{folder}: no such folder; --teacher is a folder with config.json, model.safetensors and a tokenizer, as "
            "save_pretrained writes it"
        )
    check_model_source(folder)
    outputs = read_output_labels(folder)
    check_distinct_names(folder, outputs.names)
    if outputs.is_regression:
        columns = replace(columns, task="regression")
    elif len(outputs.names) > 1:
        columns = replace(columns, classes=outputs.names)
    return checkpoint(folder, Table(path, columns))


def explainer_trial(
    teacher: Checkpoint,
    data_dir: Path,
    *,
    size: int | None = None,
    seeds: Sequence[int] = range(3),
    quick: bool = False,
) -> Simulability:
    """Students that see no explanation, the mean attention of all heads, and heads learned with SMaT.

    Args:
        size: texts that a student learns from; None takes 500, or all there are.
        seeds: one student of each kind per seed.
    """
    available = len(teacher.corpus.read(data_dir).train)
    if size is not None and not 1 <= size <= available:
        raise UserError(f"--size {size}: {teacher.corpus.name} has {available} training texts; choose 1 to {available}")
    size = size or min(QUICK_SIZES[0] if quick else DEFAULT_SIZE, available)
    setting = _student_setting(teacher, size, quick=quick)
    arms = (
        ExplanationArm(NO_EXPLANATION, NoExplanation()),
        ExplanationArm(_ATTENTION, AttentionExplanation()),
        ExplanationArm(SMAT, LearnedExplanation()),
    )
    named = tuple((arm.name, arm.students(setting, seeds)) for arm in arms)
    return Simulability(teacher, named, controls=())


def _student_setting(teacher: Checkpoint, size: int, *, quick: bool) -> StudentSetting:
    """Students of the first half of the teacher's layers that learn from `size` texts."""
    training = replace(TEXT_TRAINING, epochs=QUICK_EPOCHS, patience=QUICK_EPOCHS // 3) if quick else TEXT_TRAINING
    source = teacher.architecture.source
    student = shortened_student(source, min(STUDENT_LAYERS, (count_layers(source) + 1) // 2))
    return StudentSetting(teacher, student, StudentData(), (size,), training)


def student_trial(teacher: Checkpoint, methods: Mapping[str, Method], data_dir: Path) -> Simulability:
    """Small students that see the scores of each method, random scores among them, or no explanation."""
    available = len(teacher.corpus.read(data_dir).train)
    setting = _student_setting(teacher, min(QUICK_SIZES[0], available), quick=True)
    arms = [ExplanationArm(NO_EXPLANATION, NoExplanation())]
    arms += [ExplanationArm(name, MethodExplanation(method)) for name, method in methods.items()]
    named = tuple((arm.name, arm.students(setting, range(AUDIT_STUDENTS))) for arm in arms)
    return Simulability(teacher, named, controls=tuple(name for name in methods if name == "random"))


def learned_explainer(trial: Simulability, workspace: Workspace) -> HeadMix:
    """The explainer of the median student."""
    students = tuple(student for student in dict(trial.arms)[SMAT] if isinstance(student, SMaT))
    explainer = LearnedAttributionTable(trial.subject, students).median_student(workspace).explainer(workspace)
    assert isinstance(explainer, HeadMix)
    return explainer


def describe_result(trial: Simulability, workspace: Workspace) -> list[str]:
    """What was tested, what was learned, what it means and what it does not mean, in sentences."""
    artefact = workspace.get(trial)
    summary, tested = artefact.summary, artefact.notes["n"]
    assert isinstance(tested, int)
    students = trial.arms[0][1]
    size = students[0].data.train_size
    return [
        f"Tested: {len(students)} students of each kind learned the model's predictions from {size} texts and were "
        f"tested on {tested} other texts.",
        _heads_sentence(learned_explainer(trial, workspace)),
        _comparison_sentence(summary, size),
        *_warnings(summary, tested),
        f"What it does not mean: {trial.limits}",
    ]


def _heads_sentence(mix: HeadMix) -> str:
    """The heads with the largest weights."""
    weights = mix.coefficients.flatten()
    order = torch.argsort(weights, descending=True, stable=True)
    used = [index for index in order.tolist() if weights[index] > 0]
    if len(weights) > 1 and bool((weights == weights[0]).all()):
        return f"Learned: all {len(weights)} heads have the same weight, as before training."
    listed = [
        f"layer {index // mix.heads} head {index % mix.heads} ({float(weights[index]):.0%})"
        for index in used[:N_HEADS_LISTED]
    ]
    more = ", ..." if len(used) > N_HEADS_LISTED else ""
    return f"Learned: {len(used)} of {len(weights)} heads have weight (numbered from 0): {', '.join(listed)}{more}."


def _comparison_sentence(summary: pd.DataFrame, size: int) -> str:
    """The learned explainer beside the mean of all heads, and the meaning of its gain over no explanation."""
    learned, static = (value_of(summary, "mean", arm, size_label(size)) for arm in (SMAT, _ATTENTION))
    number = "{:.3f}".format if value_of(summary, "pearson") else "{:.1%}".format
    verdict = next(finding.verdict for finding in Simulability.findings(summary) if finding.method == SMAT)
    no_better = " (learning gained nothing)" if learned <= static else ""
    return (
        f"Mean agreement of students with the model: {number(learned)} with the learned explainer, {number(static)} "
        f"with the mean of all heads{no_better}. What it means: {VERDICT_MEANINGS[verdict]}."
    )


def _warnings(summary: pd.DataFrame, tested: int) -> list[str]:
    warnings = []
    if tested < _SMALL_TEST_SET:
        warnings.append(f"Only {tested} texts were tested: the numbers are rough, another split may give other ones.")
    commonest = value_of(summary, "commonest")
    if commonest >= MAJORITY_THRESHOLD:
        warnings.append(
            f"The model predicts the same class for {commonest:.0%} of the texts, which needs no "
            "explanation: add texts of the other classes."
        )
    return warnings
