"""Devices: which one a user may name here, what it lacks, half precision, and memory that runs out.

The device is not part of a recipe: the numbers of two devices differ in their last digits because sums are taken in
another order. All random draws are made on the CPU and moved, so that samples are the same everywhere. Half
precision has three digits or fewer, which is another result: it is part of the recipe of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.types import UserError, check_choice, shorten

OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory")
WITHOUT_FLOAT64 = {"mps"}
"""Kinds of devices that have no double precision."""
Precision = Literal["float32", "bfloat16", "float16"]
"""Of the weights and states of a network; what is made of its outputs is in single or double precision."""
AUTOMATIC = "auto"
"""A batch size that is halved whenever memory runs out."""


def available_devices() -> list[str]:
    """The devices of this machine, for instance `["cpu", "cuda:0"]`."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    count = torch.accelerator.device_count()
    numbered = [f"{accelerator.type}:{number}" for number in range(count)]
    return ["cpu", *([accelerator.type] if accelerator.type in WITHOUT_FLOAT64 else numbered)]


def check_device(name: str) -> torch.device:
    """The device of a name such as `cpu`, `cuda`, `cuda:1` or `mps`; UserError for one that is not there.

    >>> check_device("cpu")
    device(type='cpu')
    """
    names = available_devices()
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise UserError(f"unknown device {shorten(name)}; choose from {', '.join(names)}") from None
    if not any(is_same_device(device, torch.device(other)) for other in names):
        raise UserError(f"this machine has no device {name}: choose one of {', '.join(names)}")
    return device


def is_same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two names mean one device: a kind without a number is its first.

    >>> is_same_device(torch.device("cuda"), torch.device("cuda:0"))
    True
    """
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def device_of(network: nn.Module) -> torch.device:
    """That of the first weight; the CPU without weights."""
    return next((weight.device for weight in network.parameters()), torch.device("cpu"))


def check_precision(name: str) -> Precision:
    """The precision of a name; UserError for an unknown one.

    >>> check_precision("bfloat16")
    'bfloat16'
    """
    check_choice("precision", name, Precision)
    return cast(Precision, name)


def torch_dtype(precision: Precision) -> torch.dtype:
    """The type of torch for a precision."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def read_batch_size(text: str) -> int | None:
    """A batch size of a command: a number of texts, or None for `auto`; UserError for anything else.

    >>> read_batch_size("64"), read_batch_size("auto")
    (64, None)
    """
    if text == AUTOMATIC:
        return None
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 1_000_000:
        raise UserError(f"batch size {text!r}: give a whole number from 1 to 1000000, or {AUTOMATIC}")
    return int(text)


def arithmetic_notes(device: torch.device | str, precision: Precision = "float32") -> tuple[str, ...]:
    """What a reader must know about the digits of a result; empty where there is nothing unusual.

    >>> arithmetic_notes("mps")
    ('mps has no double precision: everything is computed in single precision',)
    """
    kind, notes = torch.device(device).type, []
    if precision != "float32":
        notes.append(f"the network computes in {precision}: numbers differ from those in single precision")
    if kind in WITHOUT_FLOAT64:
        notes.append(f"{kind} has no double precision: everything is computed in single precision")
    return tuple(notes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_MESSAGES)


def free_cached_memory(device: torch.device) -> None:
    """Give memory back that torch keeps for later on this device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


# Devices without double precision


class _SinglePrecision(TorchFunctionMode):
    """Takes single for double precision on a kind of device that has no other; the CPU keeps both."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if func is Tensor.double and first is not None and first.device.type == self.kind:
            return first.float()
        if func is Tensor.to and first is not None:
            return self._move(first, args[1:], options)
        device = options.get("device")
        to_device = self._is_here(device) or (device is None and first is not None and first.device.type == self.kind)
        if to_device and options.get("dtype") == torch.float64:
            options["dtype"] = torch.float32
        return func(*args, **options)

    def _is_here(self, device: object) -> bool:
        return isinstance(device, str | torch.device) and torch.device(device).type == self.kind

    def _move(self, tensor: Tensor, args: tuple[object, ...], options: dict[str, object]) -> object:
        """`tensor.to(...)`, whose target is a device, a type or another tensor."""
        values = [*args, *options.values()]
        like = next((value for value in values if isinstance(value, Tensor)), tensor)
        target = next((value for value in values if isinstance(value, str | torch.device)), like.device)
        wanted = next((value for value in values if isinstance(value, torch.dtype)), like.dtype)
        if not self._is_here(target) or wanted != torch.float64:
            return tensor.to(*args, **options)  # type: ignore[call-overload]
        return tensor.float().to(target)


@contextmanager
def arithmetic_of(device: torch.device | str) -> Iterator[None]:
    """Within this block numbers are computed as exactly and as repeatably as the device can without being slow.

    On CUDA convolutions and recurrent cells do not round to TF32 and take deterministic algorithms; where there is no
    double precision, single precision stands in for it.
    """
    kind = torch.device(device).type
    if kind in WITHOUT_FLOAT64:
        with _SinglePrecision(kind):
            yield
    elif kind == "cuda":
        before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before
    else:
        yield
