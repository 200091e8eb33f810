"""LIME and KernelSHAP on test sentences against captum with the same number of samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import KernelShap as CaptumKernelShap
from captum.attr import Lime as CaptumLime
from torch import Tensor

from benchmarks.sst_batches import bilstm, sst
from benchmarks.timing import Row, compared
from heedful.attributions.lime import Lime
from heedful.attributions.shapley import KernelShap
from heedful.models.attentive import AttentiveModel
from heedful.types import Batch, Method

INSTANCES, SAMPLES, TOGETHER = 8, 1000, 500


def rows() -> Iterator[Row]:
    """Two rows for LIME, two for KernelSHAP."""
    name, splits = sst()
    test, model = splits["test"], bilstm().eval()
    batch = test.rows(torch.arange(0, len(test), max(1, len(test) // INSTANCES))[:INSTANCES])
    for kind, method in (("LIME", Lime(SAMPLES)), ("KernelSHAP", KernelShap(SAMPLES - 2))):
        title = f"{kind}, {SAMPLES} samples, {INSTANCES} texts, BiLSTM(128), {name}"
        yield _row(title, method, model, batch, 1)
        yield _row(title, method, model, batch, TOGETHER)


def _row(title: str, method: Method, model: AttentiveModel, batch: Batch, together: int) -> Row:
    def ours() -> None:
        method(model, batch, _target(batch))

    def captums() -> None:
        for row in range(len(batch)):
            _captum(method, model, batch.rows(torch.tensor([row])), together)

    peer = "captum, its defaults" if together == 1 else f"captum, {together} samples at once"
    return compared(title, ours, captums, peer, runs=1 if together == 1 else 2)


def _captum(method: Method, model: AttentiveModel, text: Batch, together: int) -> None:
    """One text by captum, in the space of vectors: special tokens stay, removed words become padding."""

    def probability(vectors: Tensor) -> Tensor:
        logits = model(text.repeat(len(vectors)), embeddings=vectors).logits
        return model.task.probabilities(logits)[:, 1]

    with torch.no_grad():
        vectors = model(text).embeddings
        empty = vectors * ~text.content_mask.unsqueeze(-1)
        index = (
            (text.content_mask.cumsum(1) - 1)
            .masked_fill(~text.content_mask, int(text.content_mask.sum()))
            .unsqueeze(-1)
        )
        if isinstance(method, Lime):
            explainer = CaptumLime(probability, interpretable_model=SkLearnRidge(alpha=method.ridge))
        else:
            explainer = CaptumKernelShap(probability)
        explainer.attribute(
            vectors, baselines=empty, feature_mask=index, n_samples=SAMPLES, perturbations_per_eval=together
        )


def _target(batch: Batch) -> Tensor:
    return torch.ones(len(batch), dtype=torch.int64)
