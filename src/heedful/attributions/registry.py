"""Every attribution method by its name, as users write it and as reports show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeAlias

from heedful.attributions.method import (
    CheckedOptions,
    Feature,
    change_option,
    method_name,
    on_features,
    registered_methods,
)
from heedful.names import choose_name
from heedful.types import Method, UserError, check_methods, shorten

METHODS: Mapping[str, Callable[[], Method]] = registered_methods()
Methods: TypeAlias = "str | Method | Sequence[str | Method]"
"""Names of the catalogue or methods, one or several."""


def find_method(name: str) -> Method:
    """The method of this name in the catalogue, also by the name that reports show; options in brackets.

    >>> from heedful.attributions import Lime
    >>> find_method("lime") == Lime(), find_method("lime(error=0.05, seed=3)") == Lime(error=0.05, seed=3)
    (True, True)
    """
    if name in METHODS:
        return METHODS[name]()
    if (parts := re.fullmatch(r"([\w-]+)\((.+[=-].+)\)", name)) is not None:
        return _with_options(find_method(parts[1]), parts[2])
    for make in METHODS.values():
        if method_name(make()) == name:
            return make()
    return METHODS[choose_name("method", name, METHODS, remedy="`heedful list` shows all methods")]()


def _with_options(method: Method, text: str) -> Method:
    """The method with the plain options of a text such as `error=0.05, seed=3`."""
    defaults: dict[str, object] = {}
    if is_dataclass(method):
        defaults = {field.name: field.default for field in fields(method)}
    options: dict[str, object] = {}
    for entry in text.split(","):
        name, value = (part.strip() for part in re.split("[=-]|$", entry, maxsplit=1))
        try:
            options[name] = _read_option(value, defaults[name])
        except (ValueError, KeyError):
            raise UserError(
                f"unknown option {shorten(entry.strip())} of {method_name(method)}: give NAME(option=value), for "
                "instance lime(error=0.05); options are " + ", ".join(defaults)
            ) from None
    return replace(method, **options)  # type: ignore[type-var]


def _read_option(text: str, default: object) -> object:
    """The value of an option, of the type of its default; None stands for a number."""
    if isinstance(default, bool):
        return {"true": True, "false": False}[text.lower()]
    if isinstance(default, int):
        return int(text)
    if default is None or isinstance(default, float):
        return float(text)
    if isinstance(default, str):
        return text
    raise ValueError


def method_for_words(method: str | Method, feature: Feature = "word") -> Method:
    """A method by its name or itself; one that removes tokens removes whole words, or other features.

    By name, methods have their `word_options` unless tokens are asked for, of which a text has more than words.

    >>> from heedful.attributions import Lime
    >>> method_for_words("lime") == Lime(feature="word", n_samples=100, paired=True)
    True
    """
    chosen = find_method(method) if isinstance(method, str) else method
    check_methods((chosen,), "method")
    is_named = isinstance(method, str) and feature != "unit"
    if is_named and isinstance(chosen, CheckedOptions) and chosen == type(chosen)():
        chosen = chosen.for_words()
    return on_features(chosen, feature)


def list_methods(methods: Methods | None) -> tuple[str | Method, ...]:
    """One method or several, by name or themselves, as a tuple; UserError for anything else.

    >>> list_methods("lime"), list_methods(["lime", "gradient"]), list_methods(None)
    (('lime',), ('lime', 'gradient'), ())
    """
    if methods is None:
        return ()
    if isinstance(methods, str) or callable(methods):
        return (methods,)
    if not isinstance(methods, Iterable) or isinstance(methods, bytes | bytearray | Mapping):
        raise UserError(f"methods is {shorten(methods)}: give names or methods, for instance ['lime', Gradient()]")
    return tuple(methods)


def catalogue_name(method: Method) -> str:
    """The name of a method in the catalogue if its options are the defaults, with any features, else its display name.

    >>> from heedful.attributions import Lime, RawAttention
    >>> catalogue_name(Lime(feature="word")), catalogue_name(RawAttention()), catalogue_name(Lime(seed=3))
    ('lime', 'raw-attention', 'lime(seed-3)')
    """
    plain = _on_units(method)
    for name, make in METHODS.items():
        if plain in (_on_units(make()), _on_units(method_for_words(name))):
            return name
    return method_name(plain)


def _on_units(method: Method) -> Method:
    return change_option(method, "feature", lambda _: "unit")
