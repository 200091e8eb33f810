"""The inputs of a transformer's layers, read and replaced during one call.

The input is watched by hooks that are gone when the call ends and that only the thread of the call obeys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import cast

from torch import Tensor, nn

from heedful.core.layerstates import Given
from heedful.core.types import UserError
from heedful.models.tapping import Network


def layers_of(network: Network) -> nn.ModuleList:
    """The stack of layers of a network, from the first up."""
    count = network.config.num_hidden_layers
    stacks = [part for part in network.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise UserError(f"{type(network).__name__} keeps its {count} layers in a way that is not known here")
    return stacks[0]


@contextmanager
def watched(network: Network, given: Given | None) -> Iterator[list[Tensor]]:
    """The list that the inputs of the layers come into while the network runs; the given one is put in its place."""
    states: list[Tensor] = []
    caller = get_ident()

    def watch(layer: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        if get_ident() != caller:
            return
        coming = cast("Tensor", inputs[0] if inputs else named["hidden_states"])
        if given is not None and len(states) == given.layer:
            # In place: whoever has kept the tensor, as a head over all layers does, shall see the same states.
            coming.copy_(given.states)
        states.append(coming)

    with ExitStack() as hooks:
        for layer in layers_of(network):
            handle = layer.register_forward_pre_hook(watch, with_kwargs=True)
            hooks.callback(handle.remove)
        yield states
