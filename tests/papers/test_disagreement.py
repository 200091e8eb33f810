"""The Song as recipes: what stands in its court, which models and methods it has, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.synthetic import GROUND_TRUTH_CORPORA
from heedful.models.input_forms import PairInput, SingleInput
from heedful.papers._options import PaperOptions
from heedful.papers.disagreement import (
    ADDITIVE_METHODS,
    ATTENTIVE_METHODS,
    SEEDS,
    TRANSFORMER_METHODS,
    disagreement_model,
    disagreement_recipes,
)
from heedful.report.gathering import build_page
from heedful.store.workspace import Workspace
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness, signed_methods
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.types import UserError

TEN = 10


@pytest.mark.parametrize("corpus", GROUND_TRUTH_CORPORA)
def test_in_the_court_faithfulness_is_measured_wherever_the_truth_is_known(corpus: str) -> None:
    found = disagreement_recipes(PaperOptions(corpora=(corpus,), limit=30))
    (truth,) = [each for each in found if isinstance(each, GroundTruth)]
    (faithful,) = [each for each in found if isinstance(each, Faithfulness)]
    assert (faithful.subject, faithful.limit) == (truth.subject, truth.limit)
    assert faithful.methods == signed_methods(truth.methods)
    assert truth.methods == (ADDITIVE_METHODS if corpus == "known-additive" else ATTENTIVE_METHODS)
    assert truth.limit == 30


def test_a_bilstm_has_ten_methods_three_seeds_and_uniform_weights_beside_learned_ones() -> None:
    found = disagreement_recipes(PaperOptions(corpora=("sst",)))
    agreements = [each for each in found if isinstance(each, Agreement)]
    assert [each.subject.seed for each in agreements] == list(SEEDS)
    assert {(len(each.methods), each.limit, each.level, each.special_tokens) for each in agreements} == {
        (TEN, 500, "unit", False)
    }
    assert sum(isinstance(each, UniformBaseline) for each in found) == 1
    assert {type(each) for each in found} == {Performance, Agreement, Faithfulness, UniformBaseline}
    more = disagreement_recipes(PaperOptions(corpora=("sst",), n_seeds=4, limit=700))
    asked = [(each.subject.seed, each.limit) for each in more if isinstance(each, Agreement)]
    assert asked == [(87, 700), (2134, 700), (5555, 700), (100, 700)]
    quick = disagreement_recipes(PaperOptions(corpora=("sst",), quick=True))
    assert {type(each) for each in quick} == {Performance, Agreement, Faithfulness}


def test_a_checkpoint_has_rollout_first_and_pairs_are_compared(tmp_path: Path) -> None:
    found = disagreement_recipes(PaperOptions(corpora=("snli",), encoders=(str(tmp_path),), n_seeds=1))
    (agreement,) = [each for each in found if isinstance(each, Agreement)]
    assert agreement.methods == TRANSFORMER_METHODS
    shapes = {corpus: disagreement_model(corpus, "bilstm", PaperOptions()).architecture for corpus in ("snli", "sst")}
    assert [type(getattr(plan, "shape", None)) for plan in shapes.values()] == [PairInput, SingleInput]


def test_an_encoder_that_is_no_folder_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="no encoder 'elmo' in this paper; choose bilstm, minilm"):
        disagreement_recipes(PaperOptions(corpora=("sst",), encoders=("elmo",)))


def test_the_court_of_the_model_that_adds_tells_who_and_what_can_be_trusted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for recipe in disagreement_recipes(PaperOptions(corpora=("known-additive",), limit=12)):
        workspace.get(recipe)
    (chapter,) = build_page(workspace).papers
    tables = {table.caption: {row[0]: row for row in table.rows} for table in chapter.tables}
    trusted = tables["Who can be trusted"]
    assert [trusted[name][2] for name in ("integrated-gradients", "lime", "kernel-shap", "leave-one-out")] == [1.0] * 4
    assert float(str(trusted["random"][2])) < 0.5
    assert float(str(trusted["lime"][4])) >= 0.95
    first = tables["Does each measure rank the truth above what is wrong?"]
    assert first["deletion auc"][1:] == ("1 of 1", "12 of 12", "1 of 1", "12 of 12", "none", "knows the truth")
    assert any(caption.startswith("Which measures of faithfulness") for caption in tables)
