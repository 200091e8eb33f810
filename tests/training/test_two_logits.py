"""Networks with two logits on corpora of two classes, whose own task has one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.models.given_model import GivenModel
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.training.checkpoint import model_in_memory
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.performance import Performance
from heedful.types import Architecture, Model, Task, UserError
from tests.tiny import Sentences, subject


@dataclass(frozen=True)
class TwoLogits(Architecture):
    """A model with as many logits as told, whatever its corpus."""

    claims: int | None = 2
    logits: int = 2

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        inner = MulticlassClassification(self.logits)
        model = Attentive(Average(8), Additive()).build(inner, embeddings, generator)
        model.task = task if self.claims is None else MulticlassClassification(self.claims)
        return model


def test_a_trained_network_with_two_logits_learns_a_binary_corpus(tmp_path: Path) -> None:
    workspace, recipe = Workspace(tmp_path), replace(subject(epochs=8), architecture=TwoLogits())
    assert recipe.corpus.read(tmp_path).task == BinaryClassification()
    table = workspace.get(Performance(recipe)).table
    assert {len(row) for row in table["probabilities"]} == {2}
    accuracy = (table["predicted"] == table["label"]).mean()
    assert accuracy > 0.8
    assert workspace.get(AdversarialAttention(recipe, limit=3)).table["certified"].all()


def test_a_network_in_memory_with_two_logits_reads_a_binary_corpus(tmp_path: Path) -> None:
    recipe, workspace = replace(subject(), architecture=TwoLogits()), Workspace(tmp_path)
    loaded = recipe.restore(workspace)
    given = GivenModel(loaded.model, loaded.tokenizer)
    examined = workspace.get(Performance(model_in_memory(given, Sentences(), "mine"))).table
    trained = workspace.get(Performance(recipe)).table
    assert torch.tensor(examined["probabilities"].tolist()).equal(torch.tensor(trained["probabilities"].tolist()))


@pytest.mark.parametrize(
    "architecture", [TwoLogits(claims=None), TwoLogits(claims=3, logits=3)], ids=["one claimed", "three classes"]
)
def test_other_numbers_of_logits_are_refused_with_the_page_that_helps(architecture: TwoLogits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"docs/own_models\.md"):
        Workspace(tmp_path).get(replace(subject(), architecture=architecture))
