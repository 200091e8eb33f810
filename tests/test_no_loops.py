"""No Python loop over units, permutations or pairs: the interpreter does as much for long texts as for short ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Generator

import heedful
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.measures.rank_correlation import kendall_matrix
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import Average, BiLSTM, Convolution, Encoder
from heedful.tasks import BinaryClassification
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.permutation import Permutation
from heedful.types import Batch
from tests.tiny import subject

SHORT, LONG = 12, 48
OURS = str(Path(heedful.__file__).parent)
"""A full path: libraries may be installed in a folder called heedful."""


def batch_of(units: int, rows: int = 4) -> Batch:
    draw = Generator().manual_seed(units)
    inputs = torch.randint(4, 30, (rows, units), generator=draw)
    words = torch.arange(units).expand(rows, units)
    mask = torch.ones(rows, units, dtype=torch.bool)
    uids = tuple(f"u{row}" for row in range(rows))
    return Batch(uids, inputs, mask, torch.zeros_like(inputs), words, torch.arange(rows) % 2)


def model_of(encoder: Encoder) -> AttentiveModel:
    draw = Generator().manual_seed(1)
    return Attentive(encoder, Additive()).build(BinaryClassification(), torch.randn(30, 6, generator=draw), draw).eval()


def calls(work: Callable[[], object]) -> int:
    """The number of calls of our own Python functions; those of libraries do not count."""
    count = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    work()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines(work: Callable[[], object]) -> int:
    """The number of our own lines that are executed."""
    count = 0

    def seen(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        count += event == "line"
        return seen

    work()
    sys.settrace(seen)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def work_of(name: str, units: int) -> Callable[[], object]:
    batch, model = batch_of(units), model_of(Average(4))
    target = torch.zeros(len(batch), dtype=torch.int64)
    scores = torch.rand(3, len(batch), units, generator=Generator().manual_seed(2), dtype=torch.float64)
    works: dict[str, Callable[[], object]] = {
        "permutation": lambda: Permutation(subject()).rows(model, batch),
        "exact adversary": lambda: AdversarialAttention(subject()).rows(model, batch),
        "gradient": lambda: Gradient()(model, batch, target),
        "leave-one-out, average": lambda: LeaveOneOut()(model, batch, target),
        "leave-one-out, convolution": lambda: LeaveOneOut()(model_of(Convolution(2)), batch, target),
        "kendall": lambda: kendall_matrix(scores.transpose(0, 1), batch.content_mask),
    }
    return works[name]


@pytest.mark.parametrize(
    "name",
    ["permutation", "exact adversary", "gradient", "leave-one-out, average", "leave-one-out, convolution", "kendall"],
)
def test_four_times_the_units_take_no_more_python(name: str) -> None:
    short, long = work_of(name, SHORT), work_of(name, LONG)
    assert calls(long) == calls(short)
    # Rows of the table list their units, one comprehension each, which older interpreters trace line by line.
    assert lines(long) <= 1.1 * lines(short)


def test_leaving_out_each_word_of_a_recurrent_model_steps_over_time_alone() -> None:
    target = torch.zeros(4, dtype=torch.int64)
    model = model_of(BiLSTM(3))
    short, long = (lines(lambda n=n: LeaveOneOut()(model, batch_of(n), target)) for n in (SHORT, LONG))  # type: ignore[misc]
    # Steps grow with the length, four times as many here; a loop over pairs of units would take sixteen times.
    assert long <= 4 * short
