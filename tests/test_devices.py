"""Every method, trial, training, audit and explanation on a device that is not the CPU, against the CPU.

The device is `tests.fake_device`: apart from the CPU as a GPU is, and computed on the CPU, so that numbers must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Generator, Tensor

from heedful.catalogue import METHODS
from heedful.devices import check_device
from heedful.types import UserError
from tests.fake_device import DEVICE, FakeTensor, fake_device
from tests.small_models import subject as model_and_batch
from tests.small_models import targets

MODELS = ("SingleInput", "PairInput", "bert", "vit")


@pytest.fixture
def device() -> Iterator[str]:
    with fake_device() as name:
        yield name


def test_the_fake_device_refuses_what_a_gpu_refuses(device: str) -> None:
    here, there = torch.ones(3), torch.ones(3, device=device)
    assert type(there + 1) is FakeTensor
    assert (there + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]
    assert there[torch.tensor([0])].tolist() == [1.0]
    refused: tuple[Callable[[], Tensor], ...] = (
        lambda: there + here,
        lambda: torch.stack([there[0], here[0]]),
        lambda: here[torch.tensor([0], device=device)],
        lambda: torch.nn.functional.linear(here, torch.ones(2, 3, device=device)),
        lambda: there.normal_(generator=Generator()),
    )
    for each in refused:
        with pytest.raises(RuntimeError):
            each()
    with pytest.raises(RuntimeError):
        there.numpy()


def test_gradients_of_the_fake_device_are_those_of_the_cpu(device: str) -> None:
    here = torch.nn.LSTM(4, 3, batch_first=True)
    there = copy.deepcopy(here).to(device)
    inputs = torch.randn(2, 5, 4, generator=Generator().manual_seed(0))
    for cell, given in ((here, inputs), (there, inputs.to(device))):
        cell(given)[0].square().sum().backward()
    for own, other in zip(here.parameters(), there.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad.cpu(), own.grad)


def test_a_device_that_is_not_there_is_refused_in_one_line() -> None:
    assert check_device("cpu") == torch.device("cpu")
    for name in ("cuda:77", "xpu:9", "nonsense"):
        with pytest.raises(UserError, match="choose one of cpu"):
            check_device(name)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_scores_of_the_cpu(name: str, model_name: str, device: str) -> None:
    model, batch = model_and_batch(model_name)
    method, target = METHODS[name](), targets(batch)
    try:
        here = method(model, batch, target)
    except UserError:
        with pytest.raises(UserError):
            method(copy.deepcopy(model).to(device), batch.to(device), target.to(device))
        return
    there = method(copy.deepcopy(model).to(device), batch.to(device), target.to(device))
    assert there.scores.device == there.mask.device == torch.device(DEVICE)
    torch.testing.assert_close(there.scores.cpu(), here.scores, rtol=1e-6, atol=1e-9)
    assert torch.equal(there.mask.cpu(), here.mask)
