"""Audits of models whose behavior is not in their weights: no model gets the stored results of another one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from heedful.audits.audit_result import Audit
from heedful.audits.schedule import AuditOptions, audit
from heedful.explainer import Explainer, load
from heedful.results import Verdict
from heedful.training.checkpoint import ModelInMemory
from heedful.training.trainer import predict
from heedful.types import Model, UserError
from tests.own_models import GOOD, Opinions, RuleModel, TextModel, captured_rule, pipeline, word_tokenizer

NAMES = ("negative", "positive")
SUBJECTS = ("pipeline without weights", "pipeline", "closure", "attribute")


class Weighted(TextModel):
    """A pipeline beside a weight that decides nothing, and a switch."""

    inverted = False

    def __init__(self, scorer: object, *, inverted: bool = False) -> None:
        super().__init__(word_tokenizer(), scorer)
        self.bias = nn.Parameter(torch.zeros(1))
        self.inverted = inverted

    def score(self, texts: list[str]) -> list[float]:
        values = [self.scorer(text) for text in texts] if callable(self.scorer) else super().score(texts)
        return [1 - value if self.inverted else value for value in values]


def rule(text: str) -> float:
    return 0.9 if any(word in text.split() for word in GOOD) else 0.1


def subject(kind: str, *, inverted: bool) -> Model:
    if kind == "pipeline without weights":
        return TextModel(word_tokenizer(), pipeline(inverted=inverted))
    if kind == "pipeline":
        return Weighted(pipeline(inverted=inverted))
    if kind == "closure":
        return RuleModel(word_tokenizer(), captured_rule(0.1 if inverted else 0.9))
    return Weighted(rule, inverted=inverted)


def opened(model: Model, version: str | None = None) -> Explainer:
    return load((model, word_tokenizer()), class_names=NAMES, version=version)


def examined(explainer: Explainer, folder: Path) -> Audit:
    chosen = AuditOptions(texts=2, methods=("leave-one-out",), minutes=5, only_methods=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(explainer, Opinions(), options=chosen, workspace=folder)


@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.slow
def test_two_models_that_differ_in_no_weight_have_their_own_results(kind: str, tmp_path: Path) -> None:
    found = [examined(opened(subject(kind, inverted=inverted)), tmp_path) for inverted in (False, True)]
    assert [result.data.accuracy for result in found] == [1.0, 0.0]


def test_a_model_without_weights_is_audited_and_not_asked_for_randomized_ones(tmp_path: Path) -> None:
    explainer = opened(subject("pipeline without weights", inverted=False))
    assert explainer.device == torch.device("cpu")
    answer = examined(explainer, tmp_path).method("leave-one-out").answer("model-dependent")
    assert answer.verdict is Verdict.NOT_TESTED
    assert "weights" in answer.reason
    batch = explainer.tokenizer(Opinions().examples())
    assert predict(explainer.model, batch, 8).argmax(1).tolist() == [example.label for example in Opinions().examples()]


def recipe(explainer: Explainer) -> ModelInMemory:
    found = explainer.recipe(Opinions())
    assert isinstance(found, ModelInMemory)
    return found


def test_what_cannot_be_known_is_said_once_with_the_remedy() -> None:
    explainer = opened(subject("pipeline", inverted=False))
    with pytest.warns(UserWarning, match=r"sklearn\.pipeline\.Pipeline.*load\(\.\.\., version="):
        first = recipe(explainer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recipe(explainer) == first  # the same object is the same model
        for kind in ("closure", "attribute"):
            recipe(opened(subject(kind, inverted=False)))
        recipe(opened(subject("pipeline", inverted=False), "1"))


def test_a_version_names_what_a_model_does() -> None:
    digests = [
        opened(subject("pipeline", inverted=inverted), version).digest
        for inverted, version in ((False, "1"), (True, "1"), (False, "2"), (False, None), (False, None))
    ]
    assert digests[0] == digests[1]  # the user says so
    assert len({*digests}) == 4
    other = subject("pipeline", inverted=False)
    with torch.no_grad():
        other.get_parameter("bias").add_(1)
    assert opened(other, "1").digest not in digests


@pytest.mark.parametrize("version", ["", " ", 3, b"1"])
def test_a_version_is_a_text(version: object) -> None:
    with pytest.raises(UserError, match="version"):
        opened(subject("closure", inverted=False), version)  # type: ignore[arg-type]


def test_a_version_is_for_objects_in_memory(tmp_path: Path) -> None:
    for source in (tmp_path, str(tmp_path), opened(subject("closure", inverted=False))):
        with pytest.raises(UserError, match="in memory"):
            load(source, version="1")


@pytest.mark.slow
def test_an_attribute_that_is_changed_later_counts_when_the_model_is_examined_again(tmp_path: Path) -> None:
    explainer = opened(subject("attribute", inverted=False))
    assert examined(explainer, tmp_path).data.accuracy == 1.0
    assert isinstance(explainer.model, Weighted)
    explainer.model.inverted = True
    assert examined(explainer, tmp_path).data.accuracy == 0.0


def test_a_model_that_remembers_its_answers_can_be_audited(tmp_path: Path) -> None:
    """What it remembers changes while it is examined, and is known again in a new object."""

    class Remembering(Weighted):
        def score(self, texts: list[str]) -> list[float]:
            self.seen = [*getattr(self, "seen", ()), *texts]
            return super().score(texts)

    first = opened(Remembering(rule))
    before = first.digest
    assert examined(first, tmp_path).data.accuracy == 1.0
    assert opened(Remembering(rule)).digest == before


SCRIPT = """
import warnings
from heedful.store.workspace import Workspace
from tests.audits.test_own_models import opened, recipe, subject
warnings.simplefilter("ignore")
found = [opened(subject(kind, inverted=False), version) for kind, version in
         (("closure", None), ("attribute", None), ("pipeline", "1"), ("pipeline", None))]
print(*[Workspace("nowhere").artefact_name(recipe(each)) for each in found])
"""


@pytest.mark.slow
def test_another_process_finds_what_is_known_or_named() -> None:
    root = Path(__file__).parents[2]
    lines = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert lines[0][:3] == lines[1][:3]
    assert lines[0][3] != lines[1][3]


def test_a_model_that_cannot_be_copied_is_one_line() -> None:
    model = TextModel(word_tokenizer(), threading.Lock())
    with pytest.raises(UserError, match="__deepcopy__"):
        opened(model)
