"""Recipes: frozen dataclasses that describe one piece of work, and their fingerprints.

The fingerprint is the SHA-256 of a canonical JSON text of everything that can change the result: module path, fields
and revision of each class, the content of every file behind them, and for classes defined outside the package a digest
of their code. Device, batch size and number of workers belong to the workspace and are not part of it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import pandas
from torch import Tensor

from heedful.store.state_digest import class_digest
from heedful.types import DiskResource, UserError, shorten

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_FREEZE_HINT = "decorate the class with @dataclass(frozen=True)"
_PACKAGE = __name__.split(".")[0]
_ADDED = "added"
T = TypeVar("T")


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
    return [getattr(value, entry.name) for entry in fields(value)]


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
    for item in value if isinstance(value, tuple) else _field_values(value):
        yield from _find_recipes(item)


def canonical_json(value: object, data: Path | None, *, model_seeds: bool = True) -> Json:
    """The unique JSON form of a value that a recipe may hold; RecipeError names the field of any other value.

    A frozen dataclass is `{"type": "module.Class", field: ...}`, with `"revision"` where its class has one, `"code"`
    where its class is defined outside the package, and `"content"` (a digest) for a resource on disk. An enum is
    `{"type", "member"}`, a path its POSIX text, a tuple a list. 1 and 1.0 differ unless the field is declared `float`
    or `float | None`. Infinity is `{"float": "inf"}`. The default of an `added_field` is left out, and seeds of models
    can be.

    Args:
        data: the folder of corpora; None reads no files and leaves the digests of resources on disk out.
    """
    digests: dict[str, str] = {}  # of each resource on disk, computed once

    def convert(value: object, field_path: str) -> Json:
        if isinstance(value, Enum):
            return {**_type_header(type(value)), "member": value.name}
        if isinstance(value, tuple):
            return [convert(item, f"{field_path}[{index}]") for index, item in enumerate(value)]
        if not is_dataclass(value) or isinstance(value, type):
            return _plain_json(value, field_path)
        if not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise RecipeError(
                f"{field_path}: {type(value).__name__} can be altered after its fingerprint is taken; {_FREEZE_HINT}"
            )
        form = _type_header(type(value))
        omitted = "seed" if not model_seeds and isinstance(value, Recipe) and value.kind == "model" else None
        for entry in (entry for entry in fields(value) if entry.name != omitted):
            where = f"{field_path}.{entry.name}"
            if entry.name in ("type", "code") or (entry.name == "content" and isinstance(value, DiskResource)):
                raise RecipeError(f"{where}: the name {entry.name!r} is reserved in recipe.json; rename the field")
            item = getattr(value, entry.name)
            if _ADDED in entry.metadata and item == entry.default:
                continue
            form[entry.name] = convert(float(item) if _is_declared_float(item, entry.type) else item, where)
        if data is not None and isinstance(value, DiskResource):
            key = dump_compact_json(form)
            if key not in digests:
                digests[key] = value.digest(data)
            form["content"] = digests[key]
        return form

    return convert(value, type(value).__name__)


def describe_recipe(recipe: Recipe, data: Path) -> dict[str, Json]:
    """The canonical form of a recipe; RecipeError with the remedy for anything that is not a frozen recipe."""
    _require_recipe(recipe)
    description = canonical_json(recipe, data)
    assert isinstance(description, dict)
    return description


_PARAMETERS = "__dataclass_params__"
"""Where a dataclass keeps the arguments of its decorator."""


def recipe_from_json(description: Json) -> Recipe:
    """The recipe of a canonical form; UserError for a class that is not imported, or that has other fields now.

    A workspace may come from other people: nothing is imported by the names in it but modules of this package.
    """

    def convert(form: Json, declared: str = "") -> object:
        if isinstance(form, list):
            return tuple(convert(item) for item in form)
        if isinstance(form, str) and "Path" in (words := re.findall(r"\w+", declared)) and "str" not in words:
            return Path(form)
        if not isinstance(form, dict):
            return form
        if "type" not in form:
            return float(str(form["float"]))
        kind = _find_class(str(form["type"]))
        if issubclass(kind, Enum):
            return kind[str(form["member"])]
        # Recipes and their parts are frozen; constructors of other dataclasses may do anything.
        if not is_dataclass(kind) or not getattr(kind, _PARAMETERS).frozen:
            raise TypeError
        known = {entry.name: str(entry.type) for entry in fields(kind) if entry.init}
        return kind(**{name: convert(value, known[name]) for name, value in form.items() if name in known})

    try:
        recipe = convert(description)
    except (LookupError, TypeError, ValueError, AttributeError, ImportError, RecursionError) as error:
        kind = description.get("type") if isinstance(description, dict) else None
        raise UserError(
            f"{shorten(kind)}: its classes are not imported, or have other fields than when it was stored; import the "
            "module that defines them"
        ) from error
    _require_recipe(recipe)
    assert isinstance(recipe, Recipe)
    return recipe


def _find_class(path: str) -> type:
    """The class of a canonical form, in a module that is imported or belongs to this package."""
    parts = path.split(".")
    modules = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
    for name in modules:
        if name not in sys.modules and parts[0] == _PACKAGE:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
        if name in sys.modules:
            found: object = sys.modules[name]
            for part in parts[name.count(".") + 1 :]:
                found = getattr(found, part)
            if isinstance(found, type):
                return found
    raise LookupError(path)


def check_recipe(recipe: object) -> None:
    """RecipeError with the remedy for anything but a recipe whose fields can be identified; reads no files."""
    _require_recipe(recipe)
    try:
        hash(recipe)
    except Exception as error:  # a list deep inside, or a __hash__ of the user's own
        canonical_json(recipe, None)
        raise RecipeError(f"{type(recipe).__name__} cannot be identified ({error}); {_FREEZE_HINT}") from error


def _require_recipe(value: object) -> None:
    if not isinstance(value, Recipe):
        raise RecipeError(
            f"{shorten(value)} is not a recipe: give an instance of a frozen dataclass that inherits from Recipe"
        )


def artefact_name(description: Mapping[str, Json]) -> str:
    """The folder name of the artefact of a canonical recipe: `<ClassName>-<12 hex of the fingerprint>`."""
    return f"{str(description['type']).rpartition('.')[2]}-{json_digest(dict(description))[:12]}"


def plain_settings(recipe: Recipe) -> dict[str, Json]:
    """The fields of a recipe that are plain values or tuples of them; infinities and NaN become None."""
    assert is_dataclass(recipe)
    values = {entry.name: getattr(recipe, entry.name) for entry in fields(recipe)}
    return {name: to_json(value) for name, value in values.items() if _is_plain(value)}


def to_json(value: object) -> Json:
    """The value in JSON's types, with undefined numbers as null and enums by their values."""
    if isinstance(value, Enum):
        return to_json(value.value)
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
    linked = {entry.name: [*_find_recipes(getattr(recipe, entry.name))] for entry in fields(recipe)}
    return {
        name: [artefact_name(describe_recipe(dependency, data)) for dependency in recipes]
        for name, recipes in linked.items()
        if recipes
    }


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
        header["code"] = class_digest(kind)
    return header


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | None)


def _is_declared_float(value: object, declared: object) -> bool:
    if type(value) is not int:
        return False
    words = declared.__name__ if isinstance(declared, type) else re.sub(r"Annotated\[(\w+),.*?\]", r"\1", str(declared))
    return {word.strip() for word in words.split("|")} in ({"float"}, {"float", "None"})


def _plain_json(value: object, field_path: str) -> Json:
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
        raise RecipeError(f"{field_path}: {type(value).__name__} is not a dataclass; {_FREEZE_HINT}")
    raise RecipeError(
        f"{field_path}: a recipe cannot hold a {type(value).__name__}; it holds numbers, strings, None, paths, "
        f"enums, tuples and frozen dataclasses{_remedy(value)}"
    )


def _remedy(value: object) -> str:
    if isinstance(value, list | set | frozenset):
        return "; give a tuple"
    return "; give an instance of the class" if isinstance(value, type) else ""
