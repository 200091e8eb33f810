"""The Song as recipes: what stands in its court, which models and methods it has, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.core.types import UserError
from heedful.core.workspace import Workspace
from heedful.data.truths import KNOWN
from heedful.models.shapes import Compared, OneText
from heedful.papers.choosing import Choice
from heedful.papers.song import ADDED, LAYERED, POOLED, SEEDS, disagreement, song_subject
from heedful.report.gathering import page
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.necessity import Necessity
from heedful.trials.performance import Performance
from heedful.trials.signs import signed
from heedful.trials.truth import Truth

TEN = 10


@pytest.mark.parametrize("corpus", KNOWN)
def test_in_the_court_faithfulness_is_measured_wherever_the_truth_is_known(corpus: str) -> None:
    found = disagreement(Choice(corpora=(corpus,), limit=30))
    (truth,) = [each for each in found if isinstance(each, Truth)]
    (faithful,) = [each for each in found if isinstance(each, Faithfulness)]
    assert (faithful.subject, faithful.limit) == (truth.subject, truth.limit)
    assert faithful.methods == signed(truth.methods)
    assert truth.methods == (ADDED if corpus == "known-additive" else POOLED)
    assert truth.limit == 30


def test_a_bilstm_has_ten_methods_three_seeds_and_uniform_weights_beside_learned_ones() -> None:
    found = disagreement(Choice(corpora=("sst",)))
    agreements = [each for each in found if isinstance(each, Agreement)]
    assert [each.subject.seed for each in agreements] == list(SEEDS)
    assert {(len(each.methods), each.limit, each.level, each.specials) for each in agreements} == {
        (TEN, 500, "unit", False)
    }
    assert sum(isinstance(each, Necessity) for each in found) == 1
    assert {type(each) for each in found} == {Performance, Agreement, Faithfulness, Necessity}
    more = disagreement(Choice(corpora=("sst",), seeds=4, limit=700))
    asked = [(each.subject.seed, each.limit) for each in more if isinstance(each, Agreement)]
    assert asked == [(87, 700), (2134, 700), (5555, 700), (100, 700)]
    quick = disagreement(Choice(corpora=("sst",), quick=True))
    assert {type(each) for each in quick} == {Performance, Agreement, Faithfulness}


def test_a_checkpoint_has_rollout_first_and_pairs_are_compared(tmp_path: Path) -> None:
    found = disagreement(Choice(corpora=("snli",), encoders=(str(tmp_path),), seeds=1))
    (agreement,) = [each for each in found if isinstance(each, Agreement)]
    assert agreement.methods == LAYERED
    shapes = {corpus: song_subject(corpus, "bilstm", Choice()).model for corpus in ("snli", "sst")}
    assert [type(getattr(plan, "shape", None)) for plan in shapes.values()] == [Compared, OneText]


def test_an_encoder_that_is_no_folder_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="no encoder 'elmo' in this paper; choose bilstm, minilm"):
        disagreement(Choice(corpora=("sst",), encoders=("elmo",)))


def test_the_court_of_the_model_that_adds_tells_who_and_what_can_be_trusted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for recipe in disagreement(Choice(corpora=("known-additive",), limit=12)):
        workspace.get(recipe)
    (chapter,) = page(workspace).papers
    tables = {table.caption: {row[0]: row for row in table.rows} for table in chapter.tables}
    trusted = tables["Who can be trusted"]
    assert [trusted[name][2] for name in ("integrated-gradients", "lime", "kernel-shap", "leave-one-out")] == [1.0] * 4
    assert float(str(trusted["random"][2])) < 0.5
    assert float(str(trusted["lime"][4])) >= 0.95
    first = tables["Does each measure rank the truth above what is wrong?"]
    assert first["deletion auc"][1:] == ("1 of 1", "12 of 12", "1 of 1", "12 of 12", "none", "knows the truth")
    assert any(caption.startswith("Which measures of faithfulness") for caption in tables)
