"""Recipes: frozen values that say how to make something, and the fingerprint that makes them addresses.

The fingerprint is the SHA-256 of a canonical JSON text of all that could change the result: class names,
fields and revisions at every depth, and the content of every file behind them. Device, batch size and worker count
belong to the workspace and are therefore no part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import pandas
from torch import Tensor

from heedful.types import DiskResource

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

OMIT_IF_DEFAULT = {"later": True}
"""Metadata of a field that came when there was finished work already: at its default it is no part of the
fingerprint, so that work done before keeps its name. Its default may never change."""

_FREEZE_HINT = "decorate the class with @dataclass(frozen=True)"


@dataclass(frozen=True, eq=False)
class Artefact:
    """What was made: tensors, a table with one row per observation, and notes.

    Args:
        tensors: any dtype; kept on the CPU, contiguous.
        table: the index is dropped; arrays in cells come back as lists.
        notes: plain JSON values; numbers must be finite, because JSON has no word for the others.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    table: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    notes: Mapping[str, Json] = field(default_factory=dict)


class Recipe(ABC):
    """A frozen dataclass that says how to make one artefact.

    Raise `revision` whenever `make` gives another result for the same fields; old artefacts are thenignored.
    """

    revision: ClassVar[int] = 1

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The recipes in the fields, also in tuples and frozen dataclasses, in order; not theirs in turn."""
        return tuple(recipe for value in _field_values(self) for recipe in _find_recipes(value))

    @abstractmethod
    def make(self, workspace: Workspace) -> Artefact:
        """The artefact, from the artefacts of `needs` and nothing else that may change."""


def _field_values(value: object) -> list[object]:
    if not is_dataclass(value) or isinstance(value, type):
        return []
    return [getattr(value, each.name) for each in fields(value)]


def _find_recipes(value: object) -> Iterator[Recipe]:
    if isinstance(value, Recipe):
        yield value
        return
    for part in value if isinstance(value, tuple) else _field_values(value):
        yield from _find_recipes(part)


def canonical_json(value: object, data: Path) -> Json:
    """The one JSON form of a value that a recipe may hold; TypeError names the field of any other.

    A frozen dataclass is `{"type": ClassName, "revision": n, field: ...}` (revision only where its class has
    one), with `"content": digest` for a corpus; an enum `{"type", "member"}`, a path its posix text, a tuple
    a list. 1 and 1.0 differ, as they may mean different things (one document, all documents), unless the
    field is declared `float` or `float | None`: there 1 means 1.0. Infinity is `{"float": "inf"}`.
    """
    return _Canonicalizer(data).convert(value, type(value).__name__)


def fingerprint(recipe: Recipe, data: Path) -> str:
    """SHA-256 of the canonical JSON of a recipe, as 64 hexadecimal digits."""
    return json_digest(describe_recipe(recipe, data))


def describe_recipe(recipe: Recipe, data: Path) -> dict[str, Json]:
    """The canonical form of a recipe; TypeError with the remedy for what is no frozen recipe."""
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{recipe!r} is no recipe: give an instance of a frozen dataclass that inherits from Recipe")
    description = canonical_json(recipe, data)
    assert isinstance(description, dict)
    return description


def json_digest(value: Json) -> str:
    """SHA-256 of the compact JSON text with sorted keys, as 64 hexadecimal digits."""
    return hashlib.sha256(dump_compact_json(value).encode("ascii")).hexdigest()


def dump_compact_json(value: Json) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII; ValueError for infinities and NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts and their order, the same in every process.

    >>> derive_seed(1, "review-7") == derive_seed(1, "review-7")
    True
    >>> derive_seed(1, "2") == derive_seed("1", 2)
    False
    """
    return int(json_digest(list(parts))[:16], 16) >> 1


@dataclass(frozen=True)
class _Canonicalizer:
    """Writes values canonically; reads the content of a corpus once, however often it stands in a recipe."""

    data: Path
    digests: dict[str, str] = field(default_factory=dict)

    def convert(self, value: object, place: str) -> Json:
        if isinstance(value, Enum):
            return {"type": type(value).__name__, "member": value.name}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, tuple):
            return [self.convert(part, f"{place}[{index}]") for index, part in enumerate(value)]
        if is_dataclass(value) and not isinstance(value, type):
            return self._convert_fields(value, place)
        return _plain_json(value, place)

    def _convert_fields(self, value: object, place: str) -> dict[str, Json]:
        _check_frozen(value, place)
        form = _type_header(value)
        for each in fields(value):  # type: ignore[arg-type]
            where = f"{place}.{each.name}"
            if each.name == "type" or (each.name == "content" and isinstance(value, DiskResource)):
                raise TypeError(f"{where}: the name {each.name!r} is taken in recipe.json; rename the field")
            part = getattr(value, each.name)
            if each.metadata.get("later") and part == each.default:
                continue
            form[each.name] = self.convert(float(part) if _is_declared_float(part, each.type) else part, where)
        return form | {"content": self._content_digest(value, form)} if isinstance(value, DiskResource) else form

    def _content_digest(self, kept: DiskResource, form: dict[str, Json]) -> str:
        key = dump_compact_json(form)
        if key not in self.digests:
            self.digests[key] = kept.digest(self.data)
        return self.digests[key]


def _type_header(value: object) -> dict[str, Json]:
    """Class name, and the revision where the class has one: methods and plans may carry one as recipes do."""
    revision = getattr(type(value), "revision", None)
    return {"type": type(value).__name__} | ({"revision": revision} if isinstance(revision, int) else {})


def _check_frozen(value: object, place: str) -> None:
    if not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(
            f"{place}: {type(value).__name__} can be altered after its fingerprint is taken; {_FREEZE_HINT}"
        )


def _is_declared_float(part: object, declared: object) -> bool:
    if type(part) is not int:
        return False
    words = declared.__name__ if isinstance(declared, type) else str(declared)
    return {word.strip() for word in words.split("|")} in ({"float"}, {"float", "None"})


def _plain_json(value: object, place: str) -> Json:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Recipe):
        raise TypeError(f"{place}: {type(value).__name__} is no dataclass; {_FREEZE_HINT}")
    raise TypeError(
        f"{place}: a recipe cannot hold a {type(value).__name__}; it holds numbers, strings, None, paths, "
        "enums, tuples and frozen dataclasses"
    )
