"""A digest of what objects in memory do: their code, and the values that they hold, as far as these can be known.

Numbers, texts, arrays, tensors, containers, dataclasses, functions with what they capture, and objects of the user's
own classes are known. An object of any other class, a fitted pipeline of scikit-learn for instance, is not: its pickle
is not the same in every process, and nothing here is ever unpickled. The digest then says which classes are unknown.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from dis import get_instructions
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)

import numpy as np
import torch
from torch import Tensor, nn

from heedful.store.code_digest import UnseenCodeWarning, code_digest, is_standard, is_user_module, module_digest
from heedful.types import Tokenizer

CONFIG_NOISE = ("_name_or_path", "transformers_version", "architectures", "dtype")
"""Entries of the configuration of a network that say nothing of its outputs."""
_LIBRARIES = ("heedful", "torch", "transformers", "peft", "entmax")
"""Packages whose modules compute what their weights, representation and configuration say."""
_WITH_CODE = ("torch.jit", "torch.fx", "torch.export")
"""Parts of torch whose modules hold code that can be told by neither."""
_HARMLESS = (
    *("_abc._abc_data", "_thread.lock", "_thread.RLock", "dataclasses._MISSING_TYPE"),
    "builtins.NotImplementedType",
)
"""Classes of Python whose objects decide no output."""
_TYPING = ("typing", "types", "typing_extensions")
"""Modules of Python whose objects are types, and are told by their representation."""
_MODULE_STATE = frozenset(vars(nn.Module()))
_BASES = ("abc.ABC", "typing.Generic", "typing.Protocol", "builtins.object")
_CARRIED = "__heedful_code__"
"""The attribute in which a class carries its digest."""
_GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


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

    return StateDigest(_graph_digest(root, parts_of), tuple(unknown))


def class_digest(kind: type) -> str:
    """The `code_digest` of a class, and what it holds if code made it, perhaps several classes of one name.

    The class carries the digest to machines that do not have its source. What it holds counts as it is when the class
    is first asked about: what a recipe changes while it is made must not change its name.
    """
    carried = vars(kind).get(_CARRIED)
    if isinstance(carried, str) and _is_made_by_code(kind):
        return carried
    digest = code_digest(kind)
    if not digest or _is_made_by_code(kind):
        state = digest_state(kind)
        digest = state.digest
        if state.unknown and digest != carried:
            warnings.warn(
                f"cannot notice changes of what {_class_name(kind)} holds ({', '.join(state.unknown)}): increase its "
                "`revision` when it changes",
                UnseenCodeWarning,
                stacklevel=2,
            )
    if digest != carried:
        with suppress(AttributeError, TypeError):  # a class written in C, or a metaclass that forbids it
            setattr(kind, _CARRIED, digest)
    return digest


def _is_made_by_code(kind: type) -> bool:
    """Whether a class was defined in a function, made by a call or sent here: its source is not all of it."""
    module = sys.modules.get(kind.__module__)
    return "<locals>" in kind.__qualname__ or kind.__qualname__.split(".")[0] not in (vars(module) if module else ())


def _graph_digest(root: object, parts_of: Callable[[object], Iterable[object]]) -> str:
    """A digest of a thing and all that is reached from it through its parts; cycles and depth do no harm."""
    things: list[object] = [root]  # all that is reached, once; kept alive, so that no id is used again
    numbers = {id(root): 0}
    rows: list[list[str | int]] = []  # what each thing consists of: texts, and numbers of other things
    for thing in things:  # which grows on the way
        row: list[str | int] = []
        for neighbor in parts_of(thing):
            text = _plain_text(neighbor)
            if text is None and id(neighbor) not in numbers:
                numbers[id(neighbor)] = len(things)
                things.append(neighbor)
            row.append(numbers[id(neighbor)] if text is None else text)
        rows.append(row)
    labels = _row_labels(rows, [isinstance(thing, set | frozenset) for thing in things])
    return _text_digest([labels[0], *sorted(set(labels))])


def _row_labels(rows: list[list[str | int]], unordered: list[bool]) -> list[str]:
    """A digest of each row, with the digests of the rows that it refers to in place of their numbers.

    Refined until no more rows are told apart (Weisfeiler and Leman 1968), so that neither cycles nor the numbers count,
    nor whether two equal things are one object, which differs between processes.
    """
    labels = ["" for _ in rows]
    kinds = 0
    while len(set(labels)) > kinds:
        kinds = len(set(labels))
        texts = ([entry if isinstance(entry, str) else labels[entry] for entry in row] for row in rows)
        labels = [_text_digest(sorted(text) if free else text) for text, free in zip(texts, unordered, strict=True)]
    return labels


def _text_digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def _plain_text(value: object) -> str | None:
    """The canonical text of a value without parts, the same in every process; None of any other value."""
    if value is None or value is Ellipsis or isinstance(value, torch.dtype):
        return repr(value)
    if isinstance(value, Enum):
        return None
    for kind in (bool, int, float, complex, str, bytes):
        if isinstance(value, kind):
            text = hex(value) if isinstance(value, int) else kind.__repr__(value)
            return f"{type(value).__qualname__} {text}"
    return None


def module_state(network: nn.Module) -> dict[str, object]:
    """What decides the outputs of a network beside its weights, representation and configuration; often nothing.

    All attributes and the code of modules that are not of torch, transformers or heedful; hooks and functions that were
    put into any module.
    """
    state: dict[str, object] = {}
    for name, module in network.named_modules():
        if not is_library(type(module)) or type(module).__module__.startswith(_WITH_CODE):
            state[name] = _OwnModule(module)
            continue
        added = {key: value for key, value in vars(module).items() if _is_own_function(value)}
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            added |= {f"hook {number}": hook for number, hook in enumerate(hooks.values()) if _is_own_function(hook)}
        if added:
            state[name] = added
    return state


def is_library(kind: type) -> bool:
    """Whether a class is of heedful or of a library of networks."""
    return kind.__module__.split(".")[0] in _LIBRARIES


@dataclass(frozen=True)
class _OwnModule:
    """A module without its weights and submodules, which are digested elsewhere."""

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
        return _function_parts(thing)
    if isinstance(thing, functools._lru_cache_wrapper):
        return ("cached function", thing.__wrapped__)
    if isinstance(thing, MemberDescriptorType | GetSetDescriptorType):
        return ("member", thing.__name__)
    if isinstance(thing, type):
        return ("class", _class_name(thing), *(_class_parts(thing) if is_user_module(thing.__module__) else ()))
    if isinstance(thing, CodeType):
        return _code_parts(thing)
    if isinstance(thing, ModuleType):
        return ("module", thing.__name__, module_digest(thing.__name__) if is_user_module(thing.__name__) else "")
    if isinstance(thing, Enum):
        return ("member", kind, thing._name_, thing._value_)
    if isinstance(thing, BuiltinFunctionType):
        holder = thing.__self__
        name = f"{thing.__module__}.{thing.__qualname__}"
        return ("built in", name, None if isinstance(holder, ModuleType) else holder)
    if _class_name(kind) in _HARMLESS or kind.__module__ in _TYPING:
        return (_class_name(kind), repr(thing) if kind.__module__ in _TYPING else "")
    if is_dataclass(thing):
        return ("dataclass", kind, *((entry.name, getattr(thing, entry.name, None)) for entry in fields(thing)))
    if (held := _held_parts(thing)) is not None:
        return (*held, *(_attributes(thing) if is_user_module(kind.__module__) else ()))
    if (text := _config_text(thing)) is not None:
        return (_class_name(kind), text)
    if all(is_user_module(base.__module__) or _class_name(base) in _BASES for base in kind.__mro__):
        return ("object", kind, *_attributes(thing))
    return None


def _held_parts(thing: object) -> Iterable[object] | None:
    """What an object of a class of Python holds, or of one derived from it; None for anything else."""
    if isinstance(thing, dict | MappingProxyType):
        return ("dict", type(thing), getattr(thing, "default_factory", None), *thing.items())
    if isinstance(thing, list | tuple | set | frozenset):
        return (type(thing), *thing)
    if isinstance(thing, MethodType):
        return ("method", thing.__func__, thing.__self__)
    if not is_standard(type(thing).__module__):
        return None
    reduce = copyreg.dispatch_table.get(type(thing))
    parts = thing.__reduce_ex__(2) if reduce is None else reduce(thing)
    return [[*held] if isinstance(held, Iterator) else held for held in parts]


def _class_parts(kind: type) -> Iterator[object]:
    """The source of a class; its bases and members as well if it was created at run time or has no source."""
    source = code_digest(kind)
    yield source
    if source and not _is_made_by_code(kind):
        return
    yield from kind.__bases__
    for name, value in sorted(vars(kind).items()):
        functions = [getattr(value, holder, None) for holder in ("__func__", "fget", "fset", "func", "__wrapped__")]
        for function in (value, *functions):
            if isinstance(function, FunctionType) and not _is_generated(function):
                yield from (name, *_definition_parts(function))
        if not name.startswith("__") and not any(isinstance(held, FunctionType) for held in (value, *functions)):
            yield from (name, value)


def _is_generated(function: FunctionType) -> bool:
    """Whether `@dataclass` wrote a function."""
    special = function.__name__.startswith("__") and function.__name__ != "__call__"
    return special and function.__code__.co_filename == "<string>"


def _function_parts(function: FunctionType) -> Iterator[object]:
    """Source, definition and globals; a function of a package counts by its name and what it captures."""
    yield from ("function", f"{function.__module__}.{function.__qualname__}")
    if not is_user_module(function.__globals__.get("__name__", "")):  # a decorator's, which took the user's name
        yield from _captured(function)
        return
    yield code_digest(function)
    yield from _definition_parts(function)
    for name in sorted(_global_names(function.__code__) & function.__globals__.keys()):
        yield (name, function.__globals__[name])


def _definition_parts(function: FunctionType) -> Iterator[object]:
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__, vars(function).get("__wrapped__"))
    yield from _captured(function)


def _code_parts(code: CodeType) -> Iterator[object]:
    yield from ("code", code.co_name, code.co_code, code.co_exceptiontable, code.co_flags)
    yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        yield repr(names)
    yield from code.co_consts


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> frozenset[str]:
    """Names that code reads as globals, also in inner functions; attributes of the same name are left out."""
    read = {line.argval for line in get_instructions(code) if line.opname in _GLOBAL_READS}
    return frozenset(read).union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


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
