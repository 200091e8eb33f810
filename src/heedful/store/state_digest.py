"""A digest of what objects in memory do: their code, and the values that they hold, as far as these can be known.

Numbers, texts, arrays, tensors, containers, dataclasses, functions with what they capture, and objects of the user's
own classes are known. An object of any other class, a fitted pipeline of scikit-learn for instance, is not: its pickle
is not the same in every process, and nothing here is ever unpickled. The digest then says which classes are unknown.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    SimpleNamespace,
)

import numpy as np
import torch
from torch import Tensor, nn

from heedful.store.recipe import CODE_KINDS, code_parts, graph_digest, is_user_module
from heedful.types import Tokenizer

CONFIG_NOISE = ("_name_or_path", "transformers_version", "architectures", "dtype")
"""Entries of the configuration of a network that say nothing of its outputs."""
_LIBRARIES = ("heedful", "torch", "transformers", "peft", "entmax")
"""Packages whose modules compute what their weights, representation and configuration say."""
_WITH_CODE = ("torch.jit", "torch.fx", "torch.export")
"""Parts of torch whose modules hold code that can be told by neither."""
_HARMLESS = (
    *("_abc._abc_data", "_thread.lock", "_thread.RLock", "logging.Logger", "dataclasses._MISSING_TYPE"),
    "builtins.NotImplementedType",
)
"""Classes of Python whose objects decide no output."""
_TYPING = ("typing", "types", "typing_extensions")
"""Modules of Python whose objects are types, and are told by their representation."""
_MODULE_STATE = frozenset(vars(nn.Module()))
_BASES = ("abc.ABC", "typing.Generic", "typing.Protocol", "builtins.object")


@dataclass(frozen=True)
class StateDigest:
    """A digest of objects, and the classes of those in them whose content cannot be known."""

    digest: str
    unknown: tuple[str, ...]


def digest_state(root: object) -> StateDigest:
    """The digest of an object and of everything that it holds; the same in every process if nothing is unknown."""
    unknown: dict[str, None] = {}

    def parts_of(thing: object) -> Iterable[object]:
        try:
            parts = None if thing is None else _state_parts(thing)
            if parts is not None:
                return list(parts)
        except Exception:  # noqa: BLE001 - code of the user's own, which may do anything when it is asked
            parts = None
        unknown[_class_name(type(thing))] = None
        return ("unknown", _class_name(type(thing)))

    return StateDigest(graph_digest(root, parts_of), tuple(unknown))


def module_state(network: nn.Module) -> dict[str, object]:
    """What decides the outputs of a network beside its weights, representation and configuration; often nothing.

    All attributes and the code of modules that are not of torch, transformers or heedful; hooks and functions that were
    put into any module.
    """
    found: dict[str, object] = {}
    for name, module in network.named_modules():
        if not is_library(type(module)) or type(module).__module__.startswith(_WITH_CODE):
            found[name] = _OwnModule(module)
            continue
        added = {key: value for key, value in vars(module).items() if _is_own_function(value)}
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            added |= {f"hook {number}": hook for number, hook in enumerate(hooks.values()) if _is_own_function(hook)}
        if added:
            found[name] = added
    return found


def is_library(kind: type) -> bool:
    """Whether a class is of heedful or of a library of networks."""
    return kind.__module__.split(".")[0] in _LIBRARIES


@dataclass(frozen=True)
class _OwnModule:
    """A module of which everything counts, but its weights and the modules in it, which are told elsewhere."""

    module: nn.Module


def _is_own_function(value: object) -> bool:
    inner = value
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = getattr(inner, "__func__", inner)
    if isinstance(inner, FunctionType):
        return inner.__module__ is None or inner.__module__.split(".")[0] not in _LIBRARIES
    return callable(inner) and not isinstance(inner, type | nn.Module) and is_user_module(type(inner).__module__)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _state_parts(thing: object) -> Iterable[object] | None:
    """What an object consists of; None if that cannot be known."""
    kind = type(thing)
    if isinstance(thing, _OwnModule):
        return None if type(thing.module).__module__.startswith(_WITH_CODE) else _module_parts(thing.module)
    if isinstance(thing, nn.Module):
        weights = [*thing.named_parameters(), *thing.named_buffers()]
        return ("network", repr(thing), *weights, *module_state(thing).items())
    if isinstance(thing, Tensor):
        return ("tensor", str(thing.dtype), *thing.shape, tensor_digest(thing))
    if isinstance(thing, np.ndarray | np.generic):
        return _array_parts(np.asarray(thing))
    if isinstance(thing, torch.device | torch.Size | torch.layout | torch.memory_format):
        return (_class_name(kind), str(thing))
    if isinstance(thing, Tokenizer) and is_library(kind):
        return (_class_name(kind), thing.definition())
    if isinstance(thing, FunctionType):
        return (*code_parts(thing, ""), *_captured(thing))
    if isinstance(thing, functools._lru_cache_wrapper):
        return ("cached function", thing.__wrapped__)
    if isinstance(thing, MemberDescriptorType | GetSetDescriptorType):
        return ("member", thing.__name__)
    if isinstance(thing, BuiltinFunctionType | CodeType | ModuleType | Enum | type):
        return code_parts(thing, "")
    if isinstance(thing, SimpleNamespace):
        return ("namespace", *sorted(vars(thing).items()))
    if _class_name(kind) in _HARMLESS or kind.__module__ in _TYPING:
        return (_class_name(kind), repr(thing) if kind.__module__ in _TYPING else "")
    if is_dataclass(thing):
        return ("dataclass", kind, *((each.name, getattr(thing, each.name, None)) for each in fields(thing)))
    if isinstance(thing, CODE_KINDS):
        return (*code_parts(thing, ""), *(_attributes(thing) if is_user_module(kind.__module__) else ()))
    if (text := _config_text(thing)) is not None:
        return (_class_name(kind), text)
    if all(is_user_module(base.__module__) or _class_name(base) in _BASES for base in kind.__mro__):
        return ("object", kind, *_attributes(thing))
    return None


def _module_parts(module: nn.Module) -> Iterator[object]:
    yield from ("module", type(module))
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    yield from [*hooks[0].values(), *hooks[1].values()]
    for name, value in sorted(vars(module).items()):
        if name not in _MODULE_STATE:
            yield (name, value)


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object in the order of their names, in its dictionary and in slots."""
    names = {name for kind in type(thing).__mro__ for name in _slots(kind)}
    values: dict[str, object] = dict(getattr(thing, "__dict__", {}))
    for name in names - {"__dict__", "__weakref__"}:
        with suppress(AttributeError):  # a slot without a value
            values[name] = getattr(thing, name)
    yield from sorted(values.items())


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _captured(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell: a name that is not bound yet
            yield cell.cell_contents


def _array_parts(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Iterable[object]:
    if array.dtype.hasobject:
        return ("array", str(array.dtype), *array.shape, *array.ravel().tolist())
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return ("array", str(array.dtype), *array.shape, content)


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of the numbers of a tensor."""
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor as bytes: NumPy has no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _config_text(thing: object) -> str | None:
    """The configuration of a network of transformers, or how it generates; None for anything else."""
    write = getattr(thing, "to_json_string", None) if type(thing).__module__.startswith("transformers.") else None
    content = json.loads(write()) if callable(write) else None
    return json.dumps(without_noise(content), sort_keys=True) if isinstance(content, dict) else None


def without_noise(config: Mapping[str, object]) -> dict[str, object]:
    """The entries of a configuration that may decide outputs."""
    return {name: value for name, value in config.items() if name not in CONFIG_NOISE}
