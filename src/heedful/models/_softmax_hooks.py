"""The second way to the attention of a network: the softmax that its layers compute themselves is intercepted.

DeBERTa, MPNet, XLM, BLOOM and others do not call transformers' attention interface. While one of their layers runs, a
torch function mode sees every operation: a softmax whose result is `[batch head unit unit]` (or `[batch x head unit
unit]`) is attention, and the matrix product that follows it has the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.models.attention_hooks import AttentionHook, attention_inputs, count_other_map, current_hook

FUSED_KERNEL = "scaled_dot_product_attention"
FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
PRODUCTS = ("matmul", "bmm", "__matmul__")
CONVERSIONS = ("to", "type", "type_as", "float", "double", "half", "bfloat16")


class SoftmaxInterception(TorchFunctionMode):
    """Passes the attention that layers normalise through the hook of the running pass.

    Args:
        rows: number of texts, or of windows of all images; a softmax of another shape than `[rows head units units]` is
            not attention.
    """

    def __init__(self, rows: int, units: int) -> None:
        super().__init__()
        self.rows, self.units = rows, units
        self._hook: AttentionHook | None = None
        self._weights: Tensor | None = None
        self._is_given = False

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options, name = dict(kwargs or {}), str(getattr(func, "__name__", ""))
        if name == FUSED_KERNEL and (hook := current_hook()) is not None:
            return _attend(hook, dict(zip(FUSED_ARGUMENTS, args, strict=False)) | options)
        if name not in ("softmax", "dropout", *PRODUCTS, *CONVERSIONS):
            return func(*args, **options)
        holds = bool(args) and self._holds_weights(args[0])
        if holds and name == "dropout" and self._is_given:
            return args[0]  # no dropout on attention that was given
        result = cast("Tensor", func(*args, **options))
        if name == "softmax" and self._is_attention(args, options, result):
            self._hook = current_hook()
            if self._hook is not None:
                return self._exchange(self._hook, cast("Tensor", args[0] if args else options["input"]), result)
        elif name == "softmax" and result.dim() == 4:
            count_other_map()
        elif holds and self._hook is not None and name in PRODUCTS:
            values = cast("Tensor", args[1])
            shape = (self.rows, -1, *values.shape[-2:])
            self._weights = None
            return self._hook.keep_values(values.reshape(shape), result.reshape(shape)).reshape(result.shape)
        elif holds:
            self._weights = result
        return result

    def _exchange(self, hook: AttentionHook, scores: Tensor, result: Tensor) -> Tensor:
        """The weights that the hook wants in place of the result of a softmax, in the same shape."""
        shape = (self.rows, -1, self.units, self.units)
        computed = result.reshape(shape)
        weights = hook.normalize(scores.reshape(shape), computed)
        hook.layers_run += 1
        self._is_given, self._weights = hook.gives_weights, weights.reshape(result.shape)
        return self._weights

    def _is_attention(self, args: Sequence[object], options: Mapping[str, object], result: Tensor) -> bool:
        dim = args[1] if len(args) > 1 else options.get("dim")
        if dim not in (-1, result.dim() - 1) or result.shape[-2:] != (self.units, self.units):
            return False
        if result.dim() == 4:
            return result.shape[0] == self.rows
        return result.dim() == 3 and result.shape[0] % self.rows == 0 and result.shape[0] >= self.rows

    def _holds_weights(self, value: object) -> bool:
        """Whether a tensor is the last weights or another view of them."""
        weights = self._weights
        return weights is not None and isinstance(value, Tensor) and _base(value) is _base(weights)


class SoftmaxSurvey(TorchFunctionMode):
    """Records the shape of every softmax over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **dict(kwargs or {}))
        if str(getattr(func, "__name__", "")) == "softmax" and isinstance(result, Tensor):
            self.shapes.append(tuple(result.shape))
        return result


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def _attend(hook: AttentionHook, options: Mapping[str, object]) -> Tensor:
    """The fused kernel of torch, by way of the hook."""
    query, key, value = (cast("Tensor", options[name]) for name in FUSED_ARGUMENTS[:3])
    mask = cast("Tensor | None", options.get("attn_mask"))
    if options.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()[None, None]
    scale, dropout = cast("float | None", options.get("scale")), cast("float", options.get("dropout_p", 0.0))
    attended, _ = hook.attend(attention_inputs(query, key, value, mask, scale, dropout))
    hook.layers_run += 1
    return attended
