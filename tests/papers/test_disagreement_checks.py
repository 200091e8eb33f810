"""Checks 1 to 11 of our specification of the Song, as far as no test beside a method, measure or model has them.

1 (rollout) test_rollout, 2 (flow) test_flow, 3 (top-k and tau-b) test_topk and test_kendall, 4 (integrated gradients)
test_paths, 5 and 6 (DeepLIFT, Deep-SHAP) test_deeplift, Grad-SHAP test_paths, 7 (LIME) test_lime, 8 (padding and
company) test_attributions, special symbols test_paths and test_levels, 9 (a layer rebuilt) test_norms and
test_transformer, 10 (sizes) test_pooled and test_real_corpora, 11 (bands) test_song_chapter and the acceptance run.
"""

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
from heedful.data.text_corpora import IMDB
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.transformer import TransformerModel
from heedful.papers._options import PaperOptions
from heedful.papers.disagreement import disagreement_model
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import Batch, Method, Model, Trace
from tests.trials.test_permutation import some_batch

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
@pytest.mark.parametrize(("cells", "block"), [(1 << 13, 1 << 21), (1 << 12, 1 << 10)])
def test_check_7_how_many_perturbations_are_read_at_once_changes_no_score(
    method: Method, cells: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recurrent()
    usual = method(model, BATCH, TARGET).scores
    monkeypatch.setattr(perturbation, "CHUNK_CELLS", cells)
    monkeypatch.setattr(perturbation, "BLOCK_ELEMENTS", block)
    assert torch.allclose(method(model, BATCH, TARGET).scores, usual, atol=1e-6)


def test_check_10_distilbert_with_three_classes_has_the_published_number_of_weights() -> None:
    with torch.device("meta"):
        network = DistilBertForSequenceClassification(AutoConfig.for_model("distilbert", num_labels=3))
        model = TransformerModel(network, MulticlassClassification(3))
    counts = {name: value.numel() for name, value in model.named_parameters()}
    assert sum(counts.values()) == 66_955_779 == 66_362_880 + 590_592 + 2_307
    head = [count for name, count in counts.items() if "classifier" in name]
    assert sum(head) == 590_592 + 2_307


def test_check_10_reviews_of_at_most_240_words_are_as_many_as_in_the_paper(tmp_path: Path) -> None:
    data = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not (data / "imdb_jw").is_dir():
        pytest.skip(f"no imdb_jw at {data}: set HEEDFUL_DATA to run on the reviews of Jain & Wallace")
    splits = IMDB().read(data)
    for encoder in ("bilstm", str(tmp_path)):
        batching = disagreement_model("imdb", encoder, PaperOptions()).tokenization
        assert [len(batching.select(splits[split]).examples) for split in ("dev", "test")] == [3318, 3482]
