"""What every method of the attention family owes: support, company, padding, an untouched model; and models to try."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Generator, Tensor

from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import InputFormat, PairInput, QuestionAnswering, SingleInput
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Method, Model
from tests.networks import batch_of, tiny

SHAPES: tuple[InputFormat, ...] = (SingleInput(), PairInput(), QuestionAnswering())
MODELS = (*(type(shape).__name__ for shape in SHAPES), "bert", "distilbert", "vit")


def pooled(shape: InputFormat | None = None) -> AttentiveModel:
    """A BiLSTM in float64 with two classes on one logit."""
    draw = Generator().manual_seed(0)
    plan = Attentive(BiLSTM(3), Additive(), input_format=shape or SingleInput())
    return plan.build(BinaryClassification(), torch.randn(50, 5, generator=draw), draw).double().eval()


def subject(name: str) -> tuple[Model, Batch]:
    """A model and a batch that it reads."""
    if name in ("bert", "distilbert", "vit"):
        return tiny(name), batch_of(name)
    batch = batch_of("bert")
    # The shortest text gets a second part, which pairs need.
    segments = batch.segments.clone()
    segments[2, 2] = 1
    return pooled(next(shape for shape in SHAPES if type(shape).__name__ == name)), replace(batch, segments=segments)


def targets(batch: Batch) -> Tensor:
    return torch.arange(len(batch)) % 2


def check_laws(method: Method, name: str) -> None:
    """All laws at once for one method and model."""
    model, batch = subject(name)
    target = targets(batch)
    found = method(model, batch, target)
    assert torch.equal(found.mask, batch.content_mask)
    assert (found.scores[~batch.content_mask] == 0).all()
    assert torch.isfinite(found.scores).all()
    assert found.scores.abs().sum() > 0
    for row in range(len(batch)):
        alone = method(model, batch.rows(torch.tensor([row])), target[row : row + 1]).scores[0]
        torch.testing.assert_close(alone, found.scores[row, : len(alone)], rtol=0, atol=1e-8)
    check_untouched(method, name)


def check_untouched(method: Method, name: str) -> None:
    """Weights, mode, hooks, gradients and random state are as before, also after an exception inside the model."""
    model, batch = subject(name)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    method(model, batch, targets(batch))
    inner = list(model.modules())[-1]
    handle = inner.register_forward_hook(_raising)
    with contextlib.suppress(ZeroDivisionError):
        method(model, batch, targets(batch))
    handle.remove()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def _raising(*_: object) -> None:
    raise ZeroDivisionError
