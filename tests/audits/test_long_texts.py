"""An audit of texts that are explained by segments: a planted word is named, and what is shown is what was tested."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Generator

from heedful.audits.audit_page import answer_html
from heedful.audits.audit_result import Audit
from heedful.audits.audit_tables import basis
from heedful.audits.schedule import AuditOptions, audit
from heedful.data.words import Words
from heedful.explainer import Explainer, load
from heedful.models.attentive import LinearBagOfWords
from heedful.recommendation import find_recommendation
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.types import Corpus, Example, Splits

NAMES = ("negative", "positive")
TRIGGER = "zebra"
VOCABULARY = (*(f"word{number:03d}" for number in range(600)), TRIGGER)
LENGTH, TEXTS = 80, 40


@dataclass(frozen=True)
class Triggered(Corpus):
    """Texts of 80 random words; every other one has the trigger at a random place."""

    name: ClassVar[str] = "triggered"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        return Splits(BinaryClassification(), NAMES, (), (), tuple(self._text(number) for number in range(TEXTS)))

    def _text(self, number: int) -> Example:
        draw = Generator().manual_seed(number)
        words = [VOCABULARY[place] for place in torch.randint(len(VOCABULARY) - 1, (LENGTH,), generator=draw).tolist()]
        if number % 2:
            words[int(torch.randint(LENGTH, (1,), generator=draw))] = TRIGGER
        return Example(f"t{number}", (" ".join(words),), number % 2)

    def digest(self, data: Path) -> str:
        return "generated"


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    """A sum of weights: the trigger decides, all other words count a little; most of them are rarer."""
    tokenizer = Words().fit([Example("all", (" ".join(VOCABULARY),))])
    batch = tokenizer([Example(word, (word,)) for word in VOCABULARY])
    table = torch.zeros(int(batch.inputs.max()) + 1, 1)
    noise = 0.1 * torch.randn(len(VOCABULARY), generator=Generator().manual_seed(0))
    for row, ids in enumerate(batch.inputs):
        weight = 6.0 if VOCABULARY[row] == TRIGGER else float(noise[row]) - 0.04
        table[ids[batch.content_mask[row]], 0] = weight
    return load((LinearBagOfWords(BinaryClassification(), table, torch.ones(1)), tokenizer), class_names=NAMES)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("long"))


@pytest.fixture(scope="module")
def result(explainer: Explainer, workspace: Workspace) -> Audit:
    options = AuditOptions(texts=28, workers=1, only_methods=True, methods=("leave-one-out",))
    return audit(explainer, Triggered(), options=options, workspace=workspace)


def test_a_trigger_in_long_texts_is_the_first_word_that_the_model_uses(result: Audit) -> None:
    first = result.word_use[0]
    assert (first.word, first.predicted) == (TRIGGER, "positive")
    assert first.first == first.texts == result.data.classes["positive"]
    assert first.by_chance == pytest.approx(first.texts * LENGTH / 20 / LENGTH, rel=0.3)
    assert [use for use in result.word_use if use.word != TRIGGER] == []
    page = re.sub(r"\s+", " ", answer_html(result))
    assert f"{TRIGGER}</strong> for <bdi>positive</bdi> <small>in the segment ranked first in {first.first} of" in page


def test_what_is_shown_after_an_audit_is_what_it_tested(
    result: Audit, explainer: Explainer, workspace: Workspace
) -> None:
    assert (result.data.feature, result.data.segmented) == ("segment", 28)
    assert "explained by segments" in basis(result)
    found = find_recommendation(explainer.identity, workspace.root)
    assert found is not None
    assert found.feature == "segment"
    assert result.recommended == ("leave-one-out",)
    assert "removing the segments" in result.caption
    text = str(Triggered().read(Path()).test[1].parts[0])
    shown = explainer.explain(text, workspace=workspace.root)
    assert (len(shown.words), shown.feature, shown.rows[0].method) == (20, "segment", "leave-one-out")
    assert [note for note in shown.notes if "segments" in note]
    words = explainer.explain(text, feature="word", workspace=workspace.root)
    assert len(words.words) == LENGTH
    assert [note for note in words.notes if "tested segments, not words" in note]
