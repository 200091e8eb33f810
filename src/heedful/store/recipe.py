"""Recipes: frozen dataclasses that describe one piece of work, and their fingerprints.

The fingerprint is the SHA-256 of a canonical JSON text of everything that can change the result: module path, fields
and revision of each class, the content of every file behind them, and for classes defined outside the package a digest
of their code. Device, batch size and number of workers belong to the workspace and are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import site
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from dis import get_instructions
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from inspect import getattr_static, unwrap
from itertools import chain
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import pandas
import torch
from torch import Tensor

from heedful.types import DiskResource, UserError, shorten

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_FREEZE_HINT = "decorate the class with @dataclass(frozen=True)"
_PACKAGE = __name__.split(".")[0]
_ADDED = "added"
T = TypeVar("T")
_GENERATORS = ("dataclasses", "enum", "typing", "typing_extensions")
"""Modules whose decorators and base classes put functions of their own into a class."""
_ANNOTATIONS = ("__annotate__", "__annotate_func__")
"""Functions that Python 3.14 writes for the annotations of a class."""
_GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


class RecipeError(UserError, TypeError):
    """A recipe that cannot be identified: something in its fields, or the recipe itself, is of a wrong type."""


@dataclass(frozen=True, eq=False)
class Artefact:
    """The result of a recipe.

    Args:
        tensors: any dtype; stored on the CPU, contiguous.
        table: one row per observation; the index is dropped, arrays in cells come back as lists.
        notes: plain JSON values; numbers must be finite.
        summary: tidy rows computed from the table, filled in by the workspace through `Recipe.summarize`.
        shards: recipes whose artefacts are deleted when this one is stored. Where `table` is left out, their tables one
            below the other are the table, which is stored without ever being in memory as a whole.
        blocks: the numbers of rows that are stored so that they can be read alone; by default all together.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    table: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    notes: Mapping[str, Json] = field(default_factory=dict)
    summary: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    shards: tuple[Recipe, ...] = ()
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What making one artefact takes on a node of a cluster; Ray starts no more recipes there than fit.

    Args:
        cpus: cores; torch has one thread whatever the number, because results depend on it.
        gpus: GPUs, also a part of one; by default 1 if the workspace's device is a GPU, else 0. With 0 a cluster makes
            it on the CPU.
        memory: bytes; None says nothing.
    """

    cpus: float = 1.0
    gpus: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cpus < math.inf:
            raise UserError(f"Resources(cpus={self.cpus!r}): give a number above 0")
        if self.gpus is not None and not 0 <= self.gpus < math.inf:
            raise UserError(f"Resources(gpus={self.gpus!r}): give 0 or a number above it, or None")
        if self.memory is not None and self.memory <= 0:
            raise UserError(f"Resources(memory={self.memory!r}): give a number of bytes above 0, or None")


class Recipe(ABC):
    """A frozen dataclass that describes how to make one artefact.

    Increase `revision` whenever `make` gives another result for the same fields; older artefacts are then ignored.
    `kind` names the role of the artefact in the workspace index, for instance "model", "attributions" or "trial".
    """

    revision: ClassVar[int] = 1
    kind: ClassVar[str] = "other"

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """Recipes in the fields, also in tuples and frozen dataclasses, in order; not their own dependencies."""
        return tuple(recipe for value in _field_values(self) for recipe in _find_recipes(value))

    @property
    def resources(self) -> Resources:
        """What making the artefact takes; one core, and one GPU if the workspace's device is a GPU."""
        return Resources()

    @abstractmethod
    def make(self, workspace: Workspace) -> Artefact:
        """Make the artefact from the artefacts of `dependencies` and nothing else that may change."""

    def describe(self) -> Mapping[str, Json]:
        """Facts for the workspace index as plain values, for instance corpus, encoder, seed, method.

        By default those of the first dependency.
        """
        return next((recipe.describe() for recipe in self.dependencies), {})

    def summarize(self, artefact: Artefact) -> pandas.DataFrame:
        """The summary stored with the artefact; computed once, when it is made."""
        return pandas.DataFrame()

    def explain(self, summary: pandas.DataFrame) -> Mapping[str, Json]:
        """Notes stored with the artefact for readers that do not have this class."""
        return {}


def added_field(default: T) -> T:
    """A field that was added to a class later; its default is left out, so that older artefacts keep their names."""
    return field(default=default, metadata={_ADDED: True})


def _field_values(value: object) -> list[object]:
    if not is_dataclass(value) or isinstance(value, type):
        return []
    return [getattr(value, each.name) for each in fields(value)]


@runtime_checkable
class SupportsDependencies(Protocol):
    """A value in a recipe's field that needs other recipes than those in its own fields."""

    @property
    def dependencies(self) -> tuple[Recipe, ...]: ...


def _find_recipes(value: object) -> Iterator[Recipe]:
    if isinstance(value, Recipe):
        yield value
        return
    if isinstance(value, SupportsDependencies) and not isinstance(value, type):
        yield from value.dependencies
        return
    for part in value if isinstance(value, tuple) else _field_values(value):
        yield from _find_recipes(part)


def canonical_json(value: object, data: Path, *, model_seeds: bool = True) -> Json:
    """The unique JSON form of a value that a recipe may hold; RecipeError names the field of any other value.

    A frozen dataclass is `{"type": "module.Class", field: ...}`, with `"revision"` where its class has one, `"code"`
    where its class is defined outside the package, and `"content"` (a digest) for a resource on disk. An enum is
    `{"type", "member"}`, a path its POSIX text, a tuple a list. 1 and 1.0 differ unless the field is declared `float`
    or `float | None`. Infinity is `{"float": "inf"}`. The default of an `added_field` is left out, and seeds of models
    can be.
    """
    digests: dict[str, str] = {}  # of each resource on disk, computed once

    def convert(value: object, place: str) -> Json:
        if isinstance(value, Enum):
            return {**_type_header(type(value)), "member": value.name}
        if isinstance(value, tuple):
            return [convert(part, f"{place}[{index}]") for index, part in enumerate(value)]
        if not is_dataclass(value) or isinstance(value, type):
            return _plain_json(value, place)
        if not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise RecipeError(
                f"{place}: {type(value).__name__} can be altered after its fingerprint is taken; {_FREEZE_HINT}"
            )
        form = _type_header(type(value))
        omitted = "seed" if not model_seeds and isinstance(value, Recipe) and value.kind == "model" else None
        for each in (part for part in fields(value) if part.name != omitted):
            where = f"{place}.{each.name}"
            if each.name in ("type", "code") or (each.name == "content" and isinstance(value, DiskResource)):
                raise RecipeError(f"{where}: the name {each.name!r} is reserved in recipe.json; rename the field")
            part = getattr(value, each.name)
            if _ADDED in each.metadata and part == each.default:
                continue
            form[each.name] = convert(float(part) if _is_declared_float(part, each.type) else part, where)
        if isinstance(value, DiskResource):
            key = dump_compact_json(form)
            if key not in digests:
                digests[key] = value.digest(data)
            form["content"] = digests[key]
        return form

    return convert(value, type(value).__name__)


def describe_recipe(recipe: Recipe, data: Path) -> dict[str, Json]:
    """The canonical form of a recipe; RecipeError with the remedy for anything that is not a frozen recipe."""
    if not isinstance(recipe, Recipe):
        raise RecipeError(_not_a_recipe(recipe))
    description = canonical_json(recipe, data)
    assert isinstance(description, dict)
    return description


def check_recipe(recipe: object) -> None:
    """RecipeError with the remedy for anything but a recipe whose fields can be identified; reads no files."""
    if not isinstance(recipe, Recipe):
        raise RecipeError(_not_a_recipe(recipe))
    try:
        hash(recipe)
    except Exception as error:  # a list deep inside, or a __hash__ of the user's own
        _check_fields(recipe, type(recipe).__name__)
        raise RecipeError(f"{type(recipe).__name__} cannot be identified ({error}); {_FREEZE_HINT}") from error


def _check_fields(value: object, place: str) -> None:
    if isinstance(value, tuple):
        for index, part in enumerate(value):
            _check_fields(part, f"{place}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            _check_fields(getattr(value, each.name), f"{place}.{each.name}")
    elif not isinstance(value, Enum):
        _plain_json(value, place)


def _not_a_recipe(value: object) -> str:
    return f"{shorten(value)} is not a recipe: give an instance of a frozen dataclass that inherits from Recipe"


def artefact_name(description: Mapping[str, Json]) -> str:
    """The folder name of the artefact of a canonical recipe: `<ClassName>-<12 hex of the fingerprint>`."""
    return f"{str(description['type']).rpartition('.')[2]}-{json_digest(dict(description))[:12]}"


def plain_settings(recipe: Recipe) -> dict[str, Json]:
    """The fields of a recipe that are plain values or tuples of them; infinities and NaN become None."""
    assert is_dataclass(recipe)
    values = {each.name: getattr(recipe, each.name) for each in fields(recipe)}
    return {name: to_json(value) for name, value in values.items() if _is_constant(value)}


def to_json(value: object) -> Json:
    """The value in JSON's types, with undefined numbers as null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def linked_artefacts(recipe: Recipe, data: Path) -> dict[str, list[str]]:
    """Artefact names of the dependencies by the field that holds them; fields without recipes are left out."""
    assert is_dataclass(recipe)
    found = {each.name: [*_find_recipes(getattr(recipe, each.name))] for each in fields(recipe)}
    return {name: [artefact_name(describe_recipe(each, data)) for each in held] for name, held in found.items() if held}


def seed_group(recipe: Recipe, data: Path) -> str:
    """A digest of the recipe without the seeds of its models: runs that differ only in these have the same one."""
    return json_digest(canonical_json(recipe, data, model_seeds=False))[:12]


def json_digest(value: Json) -> str:
    """SHA-256 of the compact JSON text with sorted keys, as 64 hexadecimal digits."""
    return hashlib.sha256(dump_compact_json(value).encode("ascii")).hexdigest()


def dump_compact_json(value: Json) -> str:
    """The unique JSON text of a value: sorted keys, no spaces, ASCII; ValueError for infinities and NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts and their order, the same in every process.

    >>> derive_seed(1, "review-7") == derive_seed(1, "review-7")
    True
    >>> derive_seed(1, "2") == derive_seed("1", 2)
    False
    """
    return int(json_digest(list(parts))[:16], 16) >> 1


def _type_header(kind: type) -> dict[str, Json]:
    """Module path and name of a class, its revision if it has one, and the digest of code outside the package."""
    header: dict[str, Json] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    revision = getattr(kind, "revision", None)
    if isinstance(revision, int):
        header["revision"] = revision
    if kind.__module__.split(".")[0] != _PACKAGE:
        header["code"] = code_digest(kind)
    return header


def code_digest(kind: type) -> str:
    """A digest of the loaded code of a class: its methods, and the functions, classes and values they refer to.

    References are followed through the user's own modules and through wrappers, containers and dataclasses; heedful
    itself, the standard library and installed packages count by their names. Comments, formatting and the order of sets
    do not count. An object of any other kind counts by its class. Values count as they are when a class of the module
    is first asked about: what one recipe changes while it is made must not change the names of the others.
    """
    if kind not in _digests:
        _digests[kind] = _compute_digest(kind)
        module = sys.modules.get(kind.__module__)
        for each in [*vars(module).values()] if module is not None else ():
            if isinstance(each, type) and each.__module__ == kind.__module__ and each not in _digests:
                with suppress(Exception):  # raised where it is asked for
                    _digests[each] = _compute_digest(each)
    return _digests[kind]


_digests: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def _compute_digest(kind: type) -> str:
    return graph_digest(kind, lambda thing: code_parts(thing, kind.__module__))


def graph_digest(root: object, parts_of: Callable[[object], Iterable[object]]) -> str:
    """A digest of a thing and all that is reached from it through its parts; cycles and depth do no harm."""
    things: list[object] = [root]  # all that is reached, each once; kept alive, so that no id is used again
    places = {id(root): 0}
    rows: list[list[str | int]] = []  # what each consists of: texts, and places of other things
    for thing in things:  # which grows on the way
        row: list[str | int] = []
        for part in parts_of(thing):
            text = _plain_text(part)
            if text is None and id(part) not in places:
                places[id(part)] = len(things)
                things.append(part)
            row.append(places[id(part)] if text is None else text)
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
        texts = ([part if isinstance(part, str) else labels[part] for part in row] for row in rows)
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


def code_parts(thing: object, home: str) -> Iterable[object]:
    """What the digest of a thing is made of; things of the module `home` and of the user's modules are followed."""

    def is_own(module: object) -> bool:
        return isinstance(module, str) and (module == home or is_user_module(module))

    if isinstance(thing, type):
        return _class_parts(thing) if is_own(thing.__module__) else ("class", _full_name(thing))
    if isinstance(thing, FunctionType):
        return _function_parts(thing, is_own)
    if isinstance(thing, CodeType):
        return _code_object_parts(thing)
    if isinstance(thing, ModuleType):
        return ("module", thing.__name__)
    if isinstance(thing, Enum):
        return ("member", type(thing), thing._name_, thing._value_)
    if isinstance(thing, dict | MappingProxyType):
        factory = thing.default_factory if isinstance(thing, defaultdict) else None
        return ("dict", type(thing), factory, *chain.from_iterable(tuple(thing.items())))
    if isinstance(thing, list | tuple | deque | set | frozenset):
        return (type(thing), *thing)
    if isinstance(thing, _REDUCED):
        return thing.__reduce__()
    if isinstance(thing, re.Pattern):
        return ("pattern", thing.pattern, thing.flags)
    if isinstance(thing, staticmethod | classmethod | MethodType):
        return (type(thing), thing.__func__, thing.__self__ if isinstance(thing, MethodType) else None)
    if isinstance(thing, property):
        return ("property", thing.fget, thing.fset, thing.fdel)
    if isinstance(thing, cached_property):
        return ("cached property", thing.func)
    if isinstance(thing, partialmethod):
        return ("partial method", thing.func, thing.args, thing.keywords)
    if isinstance(thing, singledispatchmethod):
        return ("dispatch", thing.dispatcher)
    if isinstance(thing, BuiltinFunctionType):
        holder = thing.__self__
        return ("built in", _full_name(thing), None if isinstance(holder, ModuleType) else holder)
    if isinstance(thing, MethodDescriptorType | WrapperDescriptorType):
        return ("built in", thing.__qualname__)
    return _object_parts(thing, own=is_own(type(thing).__module__))


_REDUCED = (
    *(PurePath, range, slice, Decimal, Fraction, date, time, timedelta),
    *(partial, attrgetter, itemgetter, methodcaller),
)
"""Immutable objects whose parts `__reduce__` tells, as classes, functions, tuples and plain values."""


CODE_KINDS = (
    *(dict, MappingProxyType, list, tuple, deque, set, frozenset, re.Pattern, MethodType, staticmethod, classmethod),
    *(property, cached_property, partialmethod, singledispatchmethod, MethodDescriptorType, WrapperDescriptorType),
    *_REDUCED,
)
"""Containers and wrappers of which `code_parts` tells all that they hold, as far as their own class goes."""


def _full_name(thing: type | FunctionType | BuiltinFunctionType) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _object_parts(thing: object, *, own: bool) -> Iterator[object]:
    """The class, the fields of a dataclass, and functions: the state of other objects may differ between processes."""
    kind = type(thing)
    yield from ("object", kind)
    if is_dataclass(thing) and (own or kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        for each in fields(thing):
            yield from (each.name, getattr(thing, each.name, None))
        return
    yield getattr_static(thing, "__wrapped__", None)
    if own:
        for name, value in sorted(getattr(thing, "__dict__", {}).items()):
            if isinstance(value, FunctionType | type):
                yield from (name, value)


def _class_parts(kind: type) -> Iterator[object]:
    yield from ("class", kind.__qualname__, type(kind), *kind.__bases__)
    for name, value in sorted(vars(kind).items()):
        if _is_written(kind, name, value):
            yield from (name, value)
    if issubclass(kind, Enum):
        for name, member in kind.__members__.items():
            yield from (name, member._value_)
    if is_dataclass(kind):
        for each in sorted(fields(kind), key=lambda part: part.name):
            yield from (each.name, each.default, each.default_factory)


def _is_written(kind: type, name: str, value: object) -> bool:
    """Whether a member of a class is the user's, not one that Python, `@dataclass`, `Enum` or `Protocol` wrote."""
    special = name.startswith("__") and name.endswith("__")
    if issubclass(kind, Enum):
        special = name.startswith("_") and name.endswith("_")
    if not special:
        return True
    if name in _ANNOTATIONS or any(vars(base).get(name) is value for base in kind.__mro__[1:]):
        return False
    if isinstance(value, FunctionType):
        inner = unwrap(value)
        generated = isinstance(inner, FunctionType) and inner.__code__.co_filename == "<string>"
        return value.__module__ not in _GENERATORS and not (generated and is_dataclass(kind))
    if isinstance(value, classmethod | property | cached_property | partialmethod):
        return True
    return callable(value) and not isinstance(value, type)


def _function_parts(function: FunctionType, is_own: Callable[[object], bool]) -> Iterator[object]:
    """Code, defaults, closure and globals; a wrapper of a package counts by its name and what it holds of the user."""
    cells: list[tuple[str, object]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell: a name that is not bound yet
            cells.append((name, cell.cell_contents))
    if not is_own(function.__module__):
        held = [value for _, value in cells if isinstance(value, FunctionType | type)]
        yield from ("function", _full_name(function), *held)
        return
    yield from ("function", function.__qualname__, function.__defaults__, function.__kwdefaults__)
    yield from (vars(function).get("__wrapped__"), vars(function).get("registry"))  # the latter of @singledispatch
    for name, value in cells:
        yield from (name, value)
    if not is_own(function.__globals__.get("__name__", function.__module__)):
        return  # the code of a package's decorator, which has taken the name of the user's function
    yield function.__code__
    names = _global_names(function.__code__) & function.__globals__.keys()
    left = [(name, function.__globals__[name]) for name in sorted(names)]
    attributes = _attribute_names(function.__code__)
    opened = set()
    for name, value in left:  # which grows by what is read from the user's modules
        yield from (name, value)
        if isinstance(value, ModuleType) and is_own(value.__name__) and value.__name__ not in opened:
            opened.add(value.__name__)
            left.extend(
                (member, part)
                for member, part in sorted(vars(value).items())
                if member in attributes or (isinstance(part, FunctionType | type) and part.__module__ == value.__name__)
            )


def _code_object_parts(code: CodeType) -> Iterator[object]:
    yield from ("code", code.co_name, code.co_code, code.co_exceptiontable, code.co_flags)
    yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        yield repr(names)
    yield from code.co_consts


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(each) for each in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


@lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> frozenset[str]:
    """Names that code reads as globals, also in inner functions; attributes of the same name are left out."""
    read = {each.argval for each in get_instructions(code) if each.opname in _GLOBAL_READS}
    return frozenset(read).union(*map(_global_names, _inner_code(code)))


def _attribute_names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*map(_attribute_names, _inner_code(code)))


def _inner_code(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def is_user_module(name: str) -> bool:
    """Whether a module is the user's own: neither heedful nor the standard library nor an installed package.

    A project installed with `pip install --editable` is the user's.
    """
    root = name.split(".")[0]
    if root in ("__main__", "__mp_main__"):
        return True  # also in a worker, whose own main module is another
    if root == _PACKAGE or root in sys.stdlib_module_names:
        return False
    for each in (name, root):  # a module made by code has no file, or one in no folder: its package tells
        file = getattr(sys.modules.get(each), "__file__", None)
        if isinstance(file, str) and os.path.isabs(file):
            return not _is_installed(each, file)
    return True


@lru_cache(maxsize=2**16)
def _is_installed(name: str, file: str) -> bool:
    """Whether the file of a module lies among the installed packages, or was put beside them by `pip --target`."""
    path = Path(file)
    if file.startswith(_library_folders()) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return True
    above = name.count(".") + (path.stem == "__init__")
    return above < len(path.parents) and name.split(".")[0] in _recorded_names(path.parents[above])


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages, each with a separator at its end."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({os.path.join(path, "") for path in (*paths, *site.getsitepackages(), site.getusersitepackages())})


@lru_cache(maxsize=1024)
def _recorded_names(folder: Path) -> frozenset[str]:
    """The modules that an installer put into a folder, by the records that it left there."""
    found: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with suppress(OSError), record.open(encoding="utf-8", errors="replace") as lines:
            found.update(line.split(",")[0].split("/")[0].split(".")[0] for line in lines)
    return frozenset(found)


def _is_declared_float(part: object, declared: object) -> bool:
    if type(part) is not int:
        return False
    words = declared.__name__ if isinstance(declared, type) else str(declared)
    return {word.strip() for word in words.split("|")} in ({"float"}, {"float", "None"})


def _plain_json(value: object, place: str) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Recipe):
        raise RecipeError(f"{place}: {type(value).__name__} is not a dataclass; {_FREEZE_HINT}")
    raise RecipeError(
        f"{place}: a recipe cannot hold a {type(value).__name__}; it holds numbers, strings, None, paths, "
        f"enums, tuples and frozen dataclasses{_remedy(value)}"
    )


def _remedy(value: object) -> str:
    if isinstance(value, list | set | frozenset):
        return "; give a tuple"
    return "; give an instance of the class" if isinstance(value, type) else ""
