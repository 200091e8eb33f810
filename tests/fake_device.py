"""A device that this machine does not have: tensors on `fake:0`, computed on the CPU, apart from those of the CPU.

Torch's place for the backends of others (PrivateUse1) is filled in Python. A tensor of the device holds one of the CPU.
Every operation is computed on what is held, so that numbers are those of the CPU, and refuses what a GPU refuses: a
tensor of the CPU beside one of the device, a generator of the CPU, and `.numpy()`. `float64=False` refuses double
precision too, as Apple's mps does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

NAME = "fake"
DEVICE = f"{NAME}:0"
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
"""Operations that may see two devices."""
TAKES_INDEX = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
"""Operations of a GPU that accept row numbers on the CPU."""


FACTORIES = (
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
    "tril_indices",
    "triu_indices",
)
"""Functions without a tensor among their arguments, which otherwise would resize one."""
TAKES_NUMBER = {aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor, aten.fill_.Tensor, *TAKES_INDEX}
"""Operations of a GPU that accept one number on the CPU, besides those that work number by number."""


class _Settings:
    """What the device refuses at the moment, and how many operations it has computed."""

    float64 = True
    operations = 0


class FakeTensor(torch.Tensor):
    """A tensor of the fake device.

    Args:
        held: the same numbers on the CPU.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> FakeTensor:
        if held.dtype == torch.float64 and not _Settings.float64:
            raise TypeError("this device has no float64")
        own: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(DEVICE),
            requires_grad=False,
        )
        own.held = held.detach()
        return own

    def tolist(self) -> list[object]:
        """Torch refuses this for every class but its own, and allows it on every device."""
        return self.held.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return _compute(function, args, dict(kwargs or {}))


def _compute(function: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """An operation on the tensors that are held; its results are tensors of the device unless it moves them."""
    _Settings.operations += 1
    _check_one_device(function, args, kwargs)
    run: Callable[..., object] = _CELLS.get(function, function)
    to_device = True
    if kwargs.get("device") is not None:
        to_device = torch.device(str(kwargs["device"])).type == NAME
        kwargs["device"] = "cpu"
    if function is aten.copy_.default:
        to_device = isinstance(args[0], FakeTensor)
    held_args, held_kwargs = pytree.tree_map_only(FakeTensor, lambda tensor: tensor.held, (args, kwargs))
    result = run(*held_args, **held_kwargs)
    given = {id(tensor.held): tensor for tensor in pytree.tree_leaves((args, kwargs)) if isinstance(tensor, FakeTensor)}

    for tensor in given.values():
        if tensor.shape != tensor.held.shape:
            raise NotImplementedError(f"{function} changes the shape of a tensor of the fake device")

    def wrap(tensor: Tensor) -> Tensor:
        same = given.get(id(tensor))
        return same if same is not None else FakeTensor(tensor) if to_device else tensor

    if not to_device and function is aten.copy_.default:
        return args[0]
    return pytree.tree_map_only(Tensor, wrap, result)


def _check_one_device(function: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    if function in MOVES:
        return
    leaves = pytree.tree_leaves((args, kwargs))
    for leaf in leaves:
        if isinstance(leaf, Generator) and leaf.device.type != NAME:
            raise RuntimeError(f"{function}: a generator of the {leaf.device} for a tensor of the {DEVICE}")
    if function in TAKES_INDEX:
        if not isinstance(args[0], FakeTensor):
            raise RuntimeError(f"{function}: a tensor of the cpu with row numbers on the {DEVICE}")
        leaves = pytree.tree_leaves((args[0], args[2:]))
    takes_number = torch.Tag.pointwise in function.tags or function in TAKES_NUMBER or "_foreach" in str(function)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and not (takes_number and leaf.dim() == 0):
            raise RuntimeError(f"{function}: a tensor of the cpu {tuple(leaf.shape)} beside one of the {DEVICE}")


def _lstm_cell(
    inputs: Tensor, hidden: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The cell that a GPU computes in one kernel, of which the CPU has no version."""
    gates = inputs + hidden
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    one, two, three, four = gates.chunk(4, 1)
    enter, forget, cell, out = one.sigmoid(), two.sigmoid(), three.tanh(), four.sigmoid()
    cy = forget * cx + enter * cell
    return out * cy.tanh(), cy, torch.cat((enter, forget, cell, out), 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: object
) -> tuple[Tensor, Tensor, Tensor | None]:
    enter, forget, cell, out = workspace.chunk(4, 1)
    bent = cy.tanh()
    to_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    to_cy = to_hy * out * (1 - bent**2) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        (
            to_cy * cell * enter * (1 - enter),
            to_cy * cx * forget * (1 - forget),
            to_cy * enter * (1 - cell**2),
            to_hy * bent * out * (1 - out),
        ),
        1,
    )
    return gates, to_cy * forget, gates.sum(0) if has_bias else None


def _gru_cell(
    inputs: Tensor, hidden: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if input_bias is not None and hidden_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    (ir, iz, new), (hr, hz, hn) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    reset, keep = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    state = (new + reset * hn).tanh()
    return state + keep * (hx - state), torch.cat((reset, keep, state, hx, hn), 1)


def _gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: object
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    reset, keep, state, hx, hn = workspace.chunk(5, 1)
    to_state = grad_hy * (1 - keep) * (1 - state**2)
    to_keep = grad_hy * (hx - state) * keep * (1 - keep)
    to_reset = to_state * hn * reset * (1 - reset)
    inputs = torch.cat((to_reset, to_keep, to_state), 1)
    hidden = torch.cat((to_reset, to_keep, to_state * reset), 1)
    return inputs, hidden, grad_hy * keep, inputs.sum(0) if has_bias else None, hidden.sum(0) if has_bias else None


_CELLS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}


class _Backend:
    """What torch asks of a device's module, `torch.fake`."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def is_in_bad_fork(self) -> bool:
        return False

    _is_in_bad_fork = is_in_bad_fork

    def _lazy_init(self) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def get_rng_state(self, device: object = None) -> Tensor:
        """Empty: dropout on this device draws from the generator of the CPU."""
        return torch.empty(0)

    def set_rng_state(self, state: Tensor, device: object = None) -> None: ...

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []


@cache
def register() -> None:
    """Make the device known to torch, once for a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, _Backend())

    def compute(function: torch._ops.OpOverload, *args: object, **kwargs: object) -> object:
        return _compute(function, args, kwargs)

    def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
        return FakeTensor(torch.empty(list(size), dtype=dtype))

    def empty_strided(
        size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: object
    ) -> Tensor:
        return FakeTensor(torch.empty_strided(list(size), list(stride), dtype=dtype))

    def copy_from(source: Tensor, target: Tensor, non_blocking: object = False) -> Tensor:
        held = [each.held if isinstance(each, FakeTensor) else each for each in (target, source)]
        held[0].copy_(held[1])
        return target

    # Where torch itself works below the level of Python tensors, for instance in `torch.tensor(..., device="fake")`.
    own = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    own.impl("empty.memory_format", empty, "PrivateUse1")  # type: ignore[no-untyped-call]
    own.impl("empty_strided", empty_strided, "PrivateUse1")  # type: ignore[no-untyped-call]
    own.impl("_copy_from", copy_from, "PrivateUse1")  # type: ignore[no-untyped-call]
    for name in FACTORIES:
        packet, _, overload = name.partition(".")
        function = getattr(getattr(aten, packet), overload or "default")
        own.impl(name, partial(compute, function), "PrivateUse1")  # type: ignore[no-untyped-call]

    def quantile(function: torch._ops.OpOverload, source: Tensor, *args: object, **kwargs: object) -> Tensor:
        held = [each.held if isinstance(each, FakeTensor) else each for each in (source, *args)]
        return FakeTensor(function(*held, **kwargs))

    # Torch's own changes the shape of a tensor in place, which this device does not know; nothing is differentiated.
    for name in ("quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"):
        packet, _, overload = name.partition(".")
        function = getattr(getattr(aten, packet), overload or "default")
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            own.impl(name, partial(quantile, function), key)  # type: ignore[no-untyped-call]

    def matmul(one: Tensor, other: Tensor) -> Tensor:
        if one.dim() == 1 and other.dim() == 2:
            return torch.mm(one.unsqueeze(0), other).squeeze(0)
        found: Tensor = aten.matmul.default.decompose(one, other)
        return found

    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        own.impl("matmul", matmul, key)  # type: ignore[no-untyped-call]
    everything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    everything.fallback(compute, "PrivateUse1")  # type: ignore[no-untyped-call]
    _registrations.extend((own, everything))


_registrations: list[torch.library.Library] = []
"""Kept: a library that is collected takes its operations back."""


def count_operations() -> int:
    """How many operations the device has computed so far."""
    return _Settings.operations


def _run_backward_here(*args: object, **kwargs: object) -> object:
    with torch.autograd.set_multithreading_enabled(False):
        return _run_backward(*args, **kwargs)


_run_backward: Callable[..., object] = torch.autograd.graph._engine_run_backward


@contextmanager
def fake_device(*, float64: bool = True) -> Iterator[str]:
    """The name of the device, whose refusals are as asked for until the end of the block.

    Backward passes run in this thread: torch starts a thread for each device at the first backward pass of a process,
    which may have been before this device was known.
    """
    register()
    _Settings.float64 = float64
    try:
        # At each call: `torch.inference_mode(mode=False)` allows threads again.
        with patch.object(torch.autograd, "_engine_run_backward", _run_backward_here):
            yield DEVICE
    finally:
        _Settings.float64 = True
