"""The certified adversary of every SST test instance, against the paper's search for it; projected scores at hand.

Both answer the same question on the same batches of a briefly trained BiLSTM (an untrained one lets every unit stand
alone, which would be too easy). It is checked on the way that the search never finds more than the certified maximum.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from benchmarks.sst_batches import bilstm, sst
from benchmarks.timing import Row, compared
from heedful.measures.divergence import jensen_shannon
from heedful.models.attentive import AttentiveModel
from heedful.training.trainer import Adam, inference_batches, length_sorted_batches
from heedful.trials.adversarial_attention import build_adversary_problem, find_adversary
from heedful.trials.adversary_search import AdversaryProblem, AdversarySearchSettings
from heedful.types import Batch

EPSILON = 0.05
SIZE = 64


def rows() -> Iterator[Row]:
    """One row: all test instances, the best of two runs."""
    name, splits = sst()
    model = _briefly_trained(splits["train"])
    cases = []
    with torch.no_grad():
        for _, part in inference_batches(splits["test"], SIZE):
            cases.append(build_adversary_problem(model, part, model(part)))
    found: dict[bool, Tensor] = {}

    def solved(*, exact: bool) -> None:
        found[exact] = torch.cat([_divergences(case, exact=exact) for case in cases])

    peer_name = "the paper's search: 5 adversaries, 500 steps, same batches, gradient written out"
    title = f"epsilon-max divergence of {len(splits['test'])} instances, {name}"
    row = compared(title, lambda: solved(exact=True), lambda: solved(exact=False), peer_name, runs=2)
    if not (found[True] >= found[False] - 1e-9).all():
        raise AssertionError("the search found more than the certified maximum")
    yield row


def _divergences(case: AdversaryProblem, *, exact: bool) -> Tensor:
    """Divergences of one batch; the search of an instance starts from its place in the batch."""
    seeds = torch.arange(len(case.attention))
    found = find_adversary(case, EPSILON, AdversarySearchSettings(), seeds, exact=exact)
    return jensen_shannon(found.adversary, case.attention)[:, 0]


def _briefly_trained(train: Batch) -> AttentiveModel:
    model = bilstm().train()
    optimiser = Adam().build(model)
    for index in length_sorted_batches(train.lengths, 32, 0.1, Generator().manual_seed(0)):
        batch = train.rows(index)
        assert batch.labels is not None
        optimiser.zero_grad(set_to_none=True)
        model.task.losses(model(batch).logits, batch.labels).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model.eval()
