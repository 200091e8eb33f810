"""Options: fields of frozen dataclasses whose types say which values they may have.

`n_steps: Annotated[int, Bounds(1, 1000)] = 50` is a whole number from 1 to 1000. `check_options` refuses other values,
and those outside a Literal type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

from heedful.types import UserError, check_choice, shorten


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option may be.

    >>> str(Bounds(1, 1000)), str(Bounds(above=0, below=1)), Bounds(above=0, below=1).contain(1)
    (' of at least 1 and at most 1000', ' above 0 and below 1', False)
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def contain(self, number: float) -> bool:
        """Whether a number is finite and within the bounds."""
        return math.isfinite(number) and self.at_least <= number <= self.at_most and self.above < number < self.below

    def __str__(self) -> str:
        words = {"of at least": self.at_least, "at most": self.at_most, "above": self.above, "below": self.below}
        listed = " and ".join(f"{word} {bound}" for word, bound in words.items() if math.isfinite(bound))
        return f" {listed}" if listed else ""


def is_whole_number(value: object) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_options(options: object) -> None:
    """Raise a `UserError` for a field of a dataclass that is outside the choices or the bounds of its type."""
    kind: type = type(options)
    for name, option_type, bounds, is_optional in _checked_fields(kind):
        value = vars(options)[name]
        if value is None and is_optional:
            continue
        if get_origin(option_type) is Literal:
            check_choice(name, value, option_type)
            continue
        is_number = is_whole_number(value) if option_type is int else isinstance(value, Real)
        if not (is_number and bounds.contain(value)):
            noun, otherwise = "a whole number" if option_type is int else "a number", ", or None" * is_optional
            raise UserError(f"{kind.__name__}({name}={shorten(value)}): give {noun}{bounds}{otherwise}")


@lru_cache(maxsize=256)
def _checked_fields(kind: type) -> tuple[tuple[str, object, Bounds, bool], ...]:
    """Name, type, bounds and whether it may be None of each field that is a choice or a number."""
    hints, checked = get_type_hints(kind, include_extras=True), []
    for field in fields(kind):
        hint = hints[field.name]
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        is_optional = len(members) == 2 and members[1] is type(None)
        option_type, bounds = members[0] if is_optional else hint, Bounds()
        if get_origin(option_type) is Annotated:
            option_type, bounds = get_args(option_type)
        if option_type in (int, float) or get_origin(option_type) is Literal:
            checked.append((field.name, option_type, bounds, is_optional))
    return tuple(checked)
