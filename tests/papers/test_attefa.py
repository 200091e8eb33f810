"""AtteFa: the recipes of the paper, its sweeps, and warnings about own data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heedful.data.splitting import SubsampledCorpus
from heedful.data.synthetic import MOCK_CORPORA
from heedful.data.tokenization import Words
from heedful.models.attentive import Attentive, Softmax
from heedful.papers import attefa
from heedful.papers._options import PaperOptions
from heedful.papers.attefa import AttefaOptions, data_warnings
from heedful.papers.wiegreffe_pinter import WiegreffePinterOptions
from heedful.runner import topological_order
from heedful.tasks import BinaryClassification
from heedful.training.objectives import Initialization
from heedful.training.trained_model import TrainedModel
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
from heedful.types import Example, Splits


def test_attefa_has_fourteen_corpora_two_encoders_and_nine_adversaries() -> None:
    found = [recipe for recipe in AttefaOptions().recipes() if isinstance(recipe, AtteFa)]
    assert len({(r.subject.about["corpus"], r.subject.about["encoder"]) for r in found}) == len(found) == 28
    assert all(len(recipe.adversary_seeds) == 9 and len(recipe.base_models) == 3 for recipe in found)
    assert all(recipe.adversary_training.reduction == "mean" for recipe in found)
    sst = next(recipe.subject for recipe in found if recipe.subject.about["corpus"] == "sst")
    assert isinstance(sst.tokenization, Words)
    assert (sst.tokenization.longer_than, sst.tokenization.shorter_than) == (None, None)


@pytest.mark.parametrize("start", ["fresh", "base"])
def test_adversaries_start_where_the_option_says(start: Initialization) -> None:
    trials = [
        *AttefaOptions(("sst",), start=start).recipes(),
        *WiegreffePinterOptions(("sst",), start=start).recipes(),
    ]
    assert {trial.start for trial in trials if isinstance(trial, AtteFa | AdversarialTradeoff)} == {start}


@pytest.mark.parametrize("paper", [WiegreffePinterOptions, AttefaOptions])
def test_quick_versions_look_at_a_part_of_the_corpus(paper: type[PaperOptions]) -> None:
    recipes = topological_order(paper(("agnews",), quick=True).recipes())
    trained = [recipe for recipe in recipes if isinstance(recipe, TrainedModel)]
    assert all(isinstance(model.corpus, SubsampledCorpus) for model in trained)
    assert len(trained) <= 20


def test_what_attefa_depends_on_can_be_swept() -> None:
    temperatures = attefa.attefa_by_temperature(MOCK_CORPORA["mock-1"], (0.5, 2.0))
    plans = [trial.subject.architecture for trial in temperatures]
    assert [plan.normalizer for plan in plans if isinstance(plan, Attentive)] == [Softmax(0.5), Softmax(2.0)]
    swept = [
        *attefa.attefa_by_position(("start", "end")),
        *attefa.attefa_by_strength((3.0,)),
        *attefa.attefa_by_filler_count((7,)),
    ]
    models = [trial.subject.about["encoder"] for trial in attefa.attefa_by_architecture(MOCK_CORPORA["mock-1"])]
    assert models == ["bilstm", "gru", "convolution", "average", "smalltransformer"]
    names = {str(trial.subject.about["corpus"]) for trial in swept}
    assert names == {"mock-5-position-start", "mock-5-position-end", "mock-5-strength-3.0", "mock-5-fillers-7"}


def test_a_reader_is_warned_about_few_texts_and_a_base_model_that_learned_nothing() -> None:
    many = tuple(Example(str(number), ("a text",), int(number % 4 == 0)) for number in range(200))
    splits = Splits(BinaryClassification(), ("no", "yes"), many, many, many)
    assert data_warnings(splits, 0.9) == ()
    (nothing,) = data_warnings(splits, 0.75)
    assert "75%" in nothing
    assert len(data_warnings(replace(splits, test=many[:20]), 0.5)) == 2
