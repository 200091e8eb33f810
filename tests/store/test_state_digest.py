"""Digests of objects in memory: what must tell two apart, what must not, and what nobody can tell."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from heedful.store.state_digest import digest_state, module_state

LOGGER = logging.getLogger("test")


class Lexicon:
    """An object of the user's own."""

    def __init__(self, words: set[str]) -> None:
        self.words = words

    def score(self, text: str) -> int:
        LOGGER.debug("scored")
        return sum(word in self.words for word in text.split())


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


@dataclass
class Settings:
    """A dataclass that can be altered."""

    threshold: float
    classes: list[str]


class Scaled(nn.Module):
    """A module with a plain attribute."""

    def __init__(self, factor: object) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x


def closure(value: object) -> Callable[[], object]:
    return lambda: value


def coded(sign: int) -> type:
    """Classes of one name whose code differs."""
    if sign > 0:

        class Rule:
            def score(self) -> int:
                return 1

        return Rule

    class Rule:  # type: ignore[no-redef]
        def score(self) -> int:
            return -1

    return Rule


def with_hook(sign: int) -> nn.Module:
    linear = nn.Identity()
    linear.register_forward_hook(lambda module, inputs, output: output * sign)
    return nn.Sequential(linear)


def with_patch(sign: int) -> nn.Module:
    identity = nn.Identity()
    identity.forward = lambda input: input * sign  # type: ignore[method-assign]
    return identity


def cyclic(value: int) -> list[object]:
    items: list[object] = [value]
    items.append(items)
    return items


MAKERS: dict[str, Callable[[int], object]] = {
    "number": lambda n: n,
    "text": str,
    "array": lambda n: np.array([[0.0, n]]),
    "array of texts": lambda n: np.array(["a", str(n)], dtype=object),
    "scalar": lambda n: np.float32(n),
    "tensor": lambda n: torch.tensor([n], dtype=torch.bfloat16),
    "nested": lambda n: {"a": [(1, {"b": np.array([n])})]},
    "cycle": cyclic,
    "set": lambda n: {"x", "y", str(n)},
    "dataclass": lambda n: Settings(0.5, ["a", str(n)]),
    "namespace": lambda n: SimpleNamespace(a=[n]),
    "own object": lambda n: Lexicon({"good", str(n)}),
    "bound method": lambda n: Lexicon({str(n)}).score,
    "slots": lambda n: Slotted(n),
    "captured": closure,
    "captured array": lambda n: closure(np.array([n])),
    "default": lambda n: functools.partial(max, n),
    "cached": lambda n: functools.lru_cache(closure(n)),
    "code": lambda n: coded(n)(),
    "module": lambda n: Scaled(n),
    "list of modules": lambda n: [Scaled(n)],
    "hook": with_hook,
    "patched forward": with_patch,
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_an_object_holds_tells_it_apart_and_nothing_else_does(name: str) -> None:
    make = MAKERS[name]
    first, again, other = (digest_state([make(sign)]) for sign in (1, 1, -1))
    assert first == again
    assert first.digest != other.digest
    assert first.unknown == other.unknown == ()


UNKNOWN: dict[str, Callable[[], object]] = {
    "itself": LogisticRegression,
    "in a list": lambda: {"a": [LogisticRegression()]},
    "captured": lambda: closure(LogisticRegression()),
    "bound": lambda: LogisticRegression().fit,
    "in a partial": lambda: functools.partial(print, LogisticRegression()),
    "in an own object": lambda: Lexicon(LogisticRegression()),
    "in a dataclass": lambda: Settings(0.5, LogisticRegression()),
    "in a module": lambda: Scaled(LogisticRegression()),
    "in an array": lambda: np.array([LogisticRegression()], dtype=object),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_object_that_cannot_be_known_is_named(name: str) -> None:
    (unknown,) = digest_state(UNKNOWN[name]()).unknown
    assert unknown.endswith(".LogisticRegression")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_drawn_numbers_and_compiled_code_cannot_be_known() -> None:
    assert digest_state(torch.Generator()).unknown
    traced = torch.jit.trace(nn.Linear(2, 1), torch.zeros(1, 2))  # type: ignore[no-untyped-call]
    assert digest_state(module_state(nn.ModuleList([traced]))).unknown


def test_modules_of_torch_have_no_state_of_their_own() -> None:
    assert module_state(nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 2), nn.Dropout())) == {}


@pytest.mark.slow
def test_digests_are_the_same_in_every_process() -> None:
    """A text has another hash in a new process, and a set of texts another order."""
    script = f"import {__name__} as test; print([test.digest_state(make(1)).digest for make in test.MAKERS.values()])"
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONHASHSEED": "random"}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True
    ).stdout
    assert shown.strip() == str([digest_state(make(1)).digest for make in MAKERS.values()])
