"""A Song of (Dis)agreement: its models, methods and trials, what it refuses, and checks of our specification."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from transformers import AutoConfig, DistilBertForSequenceClassification

from heedful.attributions import perturbation
from heedful.attributions.attention import Flow
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.shapley import KernelShap
from heedful.data.synthetic import GROUND_TRUTH_CORPORA
from heedful.data.text_corpora import IMDB
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import PairInput, SingleInput
from heedful.papers import PAPERS
from heedful.papers.disagreement import (
    ADDITIVE_METHODS,
    ATTENTIVE_METHODS,
    SEEDS,
    TRANSFORMER_METHODS,
    DisagreementOptions,
    bilstm_model,
    transformer_model,
)
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness, signed_methods
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.types import Batch, Method, Model, Trace, UserError
from tests.papers.results import stored_results
from tests.small_models import some_batch
from tests.training.test_checkpoint import fine_tuned

TEN = 10


@pytest.mark.parametrize("corpus", GROUND_TRUTH_CORPORA)
def test_faithfulness_is_measured_wherever_the_ground_truth_is_known(corpus: str) -> None:
    found = DisagreementOptions((corpus,), limit=30).recipes()
    (truth,) = [each for each in found if isinstance(each, GroundTruth)]
    (faithful,) = [each for each in found if isinstance(each, Faithfulness)]
    assert (faithful.subject, faithful.limit) == (truth.subject, truth.limit)
    assert faithful.methods == signed_methods(truth.methods)
    assert truth.methods == (ADDITIVE_METHODS if corpus == "known-additive" else ATTENTIVE_METHODS)
    assert truth.limit == 30


def test_a_bilstm_has_ten_methods_three_seeds_and_uniform_weights_beside_learned_ones() -> None:
    found = DisagreementOptions(("sst",)).recipes()
    agreements = [each for each in found if isinstance(each, Agreement)]
    assert [each.subject.seed for each in agreements] == list(SEEDS)
    assert {(len(each.methods), each.limit, each.level, each.special_tokens) for each in agreements} == {
        (TEN, 500, "unit", False)
    }
    assert sum(isinstance(each, UniformBaseline) for each in found) == 1
    assert {type(each) for each in found} == {Performance, Agreement, Faithfulness, UniformBaseline}
    more = DisagreementOptions(("sst",), n_seeds=4, limit=700).recipes()
    asked = [(each.subject.seed, each.limit) for each in more if isinstance(each, Agreement)]
    assert asked == [(87, 700), (2134, 700), (5555, 700), (100, 700)]
    quick = DisagreementOptions(("sst",), quick=True).recipes()
    assert {type(each) for each in quick} == {Performance, Agreement, Faithfulness}


def test_a_checkpoint_has_rollout_first_and_pairs_are_compared(tmp_path: Path) -> None:
    fine_tuned(tmp_path, labels=3)
    found = DisagreementOptions(("snli",), checkpoints=(str(tmp_path),), n_seeds=1).recipes()
    (agreement,) = [each for each in found if isinstance(each, Agreement)]
    assert agreement.methods == TRANSFORMER_METHODS
    options = DisagreementOptions()
    models = [bilstm_model(options.known_corpora[corpus], options) for corpus in ("snli", "sst")]
    formats = [model.architecture.input_format for model in models if isinstance(model.architecture, Attentive)]
    assert formats == [PairInput(), SingleInput()]
    both = DisagreementOptions(("sst",), n_seeds=1, encoders=("bilstm",), checkpoints=(str(tmp_path),)).recipes()
    assert len([each for each in both if isinstance(each, Agreement)]) == 2


def test_an_encoder_that_is_no_folder_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="'elmo'"):
        DisagreementOptions(("sst",), encoders=("elmo",)).recipes()
    with pytest.raises(UserError, match="checkpoint 'elmo'"):
        DisagreementOptions(("sst",), checkpoints=("elmo",)).recipes()


def test_a_checkpoint_that_cannot_be_loaded_is_refused_before_any_work(tmp_path: Path) -> None:
    fine_tuned(tmp_path, labels=3)
    for name, complaint in (
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "it has no model.safetensors"),
    ):
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match=complaint):
            DisagreementOptions(("sst",), checkpoints=(str(tmp_path),)).recipes()


@pytest.mark.slow
def test_the_ground_truth_evaluation_of_the_additive_model(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for recipe in DisagreementOptions(("known-additive",), limit=25).recipes():
        workspace.get(recipe)
    found = PAPERS["disagreement"].tables(stored_results(workspace))
    tables = {each.caption: {row[0]: row for row in each.rows} for each in found}
    methods = tables["Methods by ground truth"]
    assert [methods[name][2] for name in ("integrated-gradients", "lime", "kernel-shap", "leave-one-out")] == [1.0] * 4
    assert float(str(methods["random"][2])) < 0.5
    assert float(str(methods["lime"][4])) >= 0.95
    first = tables["Does each measure rank the ground truth above wrong explanations?"]
    assert first["deletion auc"][1:6] == ("1 of 1", "25 of 25", "1 of 1", "25 of 25", "none")
    assert "Faithfulness measures by ground truth" in tables


BATCH = some_batch((9, 6, 12, 4))
TARGET = torch.tensor([0, 1, 1, 0])


def recurrent() -> Model:
    generator = Generator().manual_seed(0)
    table = torch.randn(30, 8, generator=generator)
    return Attentive(BiLSTM(6), Additive()).build(BinaryClassification(), table, generator).eval()


class Even(Model):
    """Two layers of even attention over all three units, the first of which is a class symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.task = BinaryClassification()

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        even = torch.full((len(batch), 2, 1, 3, 3), 1 / 3)
        return Trace(even[:, 0, 0], even[:, 0, 0], even, torch.zeros(len(batch), 1))


def test_check_2_even_flow_over_two_layers_has_a_quarter_for_each_word() -> None:
    words = torch.tensor([[-1, 0, 1]])
    batch = Batch(("a",), torch.tensor([[2, 5, 6]]), torch.ones(1, 3).bool(), torch.zeros_like(words), words)
    scores = Flow()(Even(), batch, torch.zeros(1, dtype=torch.int64)).scores[0]
    # The class symbol itself gets 1, which is half of all; it has no score.
    assert (scores / (1 + scores.sum())).tolist() == pytest.approx([0, 0.25, 0.25], abs=1e-7)


def test_check_6_the_order_of_grad_shap_comes_closer_to_that_of_integrated_gradients() -> None:
    model = recurrent()
    whole = IntegratedGradients()(model, BATCH, TARGET).scores.abs()
    taus = []
    for samples in (1, 8, 100):
        found = [GradientShap(samples, seed=seed)(model, BATCH, TARGET).scores.abs() for seed in range(3)]
        pairs = torch.stack([torch.stack((each, whole), 1) for each in found])
        taus.append(float(kendall_matrix(pairs, BATCH.content_mask.expand(3, -1, -1)).value[..., 0, 1].mean()))
    assert taus[0] < taus[1] < taus[2]
    assert taus[2] > 0.95


@pytest.mark.parametrize("method", [Lime(60), KernelShap(60)], ids=["lime", "kernel-shap"])
@pytest.mark.parametrize(("tokens", "block"), [(1 << 9, 1 << 21), (1 << 8, 1 << 10)])
def test_check_7_how_many_perturbations_are_read_at_once_changes_no_score(
    method: Method, tokens: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recurrent()
    usual = method(model, BATCH, TARGET).scores
    monkeypatch.setattr(model, "tokens_per_pass", tokens)
    monkeypatch.setattr(perturbation, "BLOCK_ELEMENTS", block)
    assert torch.allclose(method(model, BATCH, TARGET).scores, usual, atol=1e-6)


def test_check_10_distilbert_with_three_classes_has_the_published_number_of_weights() -> None:
    with torch.device("meta"):
        network = DistilBertForSequenceClassification(AutoConfig.for_model("distilbert", num_labels=3))
    counts = {name: value.numel() for name, value in network.named_parameters()}
    assert sum(counts.values()) == 66_955_779 == 66_362_880 + 590_592 + 2_307
    head = [count for name, count in counts.items() if "classifier" in name]
    assert sum(head) == 590_592 + 2_307


@pytest.mark.slow
def test_check_10_reviews_of_at_most_240_words_are_as_many_as_in_the_paper(tmp_path: Path) -> None:
    data = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not (data / "imdb_jw").is_dir():
        pytest.skip(f"no imdb_jw at {data}: set HEEDFUL_DATA to run on the reviews of Jain & Wallace")
    splits = IMDB().read(data)
    options = DisagreementOptions()
    for model in (bilstm_model(IMDB(), options), transformer_model(IMDB(), str(tmp_path), options)):
        selected = [model.tokenization.select(splits[split]).examples for split in ("dev", "test")]
        assert list(map(len, selected)) == [3318, 3482]
