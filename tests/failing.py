"""Models that fail at one of the calls of their modules, to see what a method leaves behind at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from heedful.types import Model

TRIES = 6


class Refused(Exception):
    """Raised inside a model."""


@contextmanager
def failing_at(model: Model, place: int | None) -> Iterator[list[int]]:
    """Inside, the call with this number (from 1) of any module of the model, or of a copy, fails; calls are counted."""
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1
        if calls[0] == place:
            raise Refused

    handles = [module.register_forward_hook(count) for module in model.modules()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def failures(model: Model, explain: Callable[[], object]) -> Iterator[int]:
    """Makes the method fail at up to six places spread over all calls of a clean run, and gives each place after it."""
    with failing_at(model, None) as calls:
        explain()
    places = torch.linspace(1, calls[0], min(TRIES, calls[0])).round().long().tolist()
    for place in places:
        with failing_at(model, place), pytest.raises(Refused):
            explain()
        yield place
