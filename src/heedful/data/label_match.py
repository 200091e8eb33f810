"""Which output of a model each label of a table, or class of a corpus, is: by name, by number, or by order.

Every command asks here, once. All ways but those by name and by number are assumptions, which are shown to the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

LabelOrder = Literal["name", "index", "beginning", "united", "counted", "order"]
"""From the surest to the least sure."""
CERTAIN_MATCHES: tuple[LabelOrder, ...] = ("name", "index")
"""All others are assumptions."""
MATCH_NAMES: Mapping[str, str] = {
    "name": "by name",
    "index": "by number",
    "beginning": "by the beginning of their names",
    "united": "by uniting hate speech and offensive",
    "counted": "by number, counted from 0",
    "order": "by order",
}
HATEXPLAIN_CLASSES = ("hatespeech", "normal", "offensive")
"""In the order of their numbers in the version of the hub."""
_PLACEHOLDER = re.compile(r"(?:label)?_?(\d{1,6})", re.IGNORECASE)
_WHOLE = re.compile(r"(-?\d{1,9})(?:\.0+)?")
LabelMatch = tuple[LabelOrder, tuple[tuple[str, int], ...]]
"""How labels were matched, and the output of each label."""


def match_labels(values: Sequence[str], outputs: Sequence[str]) -> LabelMatch | None:
    """How labels and outputs correspond, and the output of each label; None if some label has no output.

    In this order: by name without case and punctuation; by the beginning of a name, if no two labels have one output;
    by number from 0, which is only counted where no label is 0; by order, for numbers from 1 and for outputs that are
    only counted (LABEL_0, LABEL_1).

    >>> match_labels(["neg", "pos"], ["POSITIVE", "NEGATIVE"])
    ('beginning', (('neg', 1), ('pos', 0)))
    """
    if not values:
        return None
    names, keys = [_name_key(output) for output in outputs], [_name_key(value) for value in values]
    exact = [names.index(key) if names.count(key) == 1 else None for key in keys]
    by_name = _label_match("name", values, exact)
    if by_name is not None:
        return by_name
    begun = [_match_beginning(key, names) if index is None else index for key, index in zip(keys, exact, strict=True)]
    if len(set(begun)) == len(begun) and (by_beginning := _label_match("beginning", values, begun)) is not None:
        return by_beginning
    if len(outputs) == 2 and set(values) <= set(HATEXPLAIN_CLASSES):
        return _label_match("united", values, _match_toxicity(values, names))
    numbers = [number for value in values if (number := _match_number(value)) is not None]
    if len(numbers) == len(values):
        return _match_numbers(values, numbers, outputs)
    if len(values) == len(outputs) and are_placeholders(outputs):
        order = sorted(values, key=str.casefold)
        return "order", tuple((value, order.index(value)) for value in values)
    return None


def match_classes(classes: Sequence[str], outputs: Sequence[str]) -> LabelMatch | None:
    """How the classes of a corpus correspond to as many outputs of a model; None unless each has its own output.

    As `match_labels`, but classes have an order: it counts where outputs are only counted. Of the outputs ("not x",
    "x") the second one decides alone.

    >>> match_classes(["up", "down"], ["LABEL_0", "LABEL_1"])
    ('order', (('up', 0), ('down', 1)))
    """
    in_order = tuple((name, index) for index, name in enumerate(classes))
    if tuple(classes) == tuple(outputs):
        return "name", in_order
    match = match_labels(classes, outputs)
    if match is not None and len({index for _, index in match[1]}) < len(outputs):
        match = None
    if match is not None and match[0] != "order":
        return match
    if len(outputs) == 2 and _name_key(outputs[0]) == _name_key(negated_name(outputs[1])):
        if _name_key(classes[0]) == _name_key(outputs[1]):
            return "name", ((classes[0], 1), (classes[1], 0))
        return "order", in_order
    return ("order", in_order) if are_placeholders(outputs) else match


def are_placeholders(names: Sequence[str]) -> bool:
    """Whether the names only count: LABEL_0, LABEL_1 ... or 0, 1 ..."""
    return all(_PLACEHOLDER.fullmatch(name.strip()) for name in names)


def negated_name(name: str) -> str:
    """The name of the other class of a model whose one output stands for the class of this name."""
    return f"not {name}"


def _label_match(how: LabelOrder, values: Sequence[str], indices: Sequence[int | None]) -> LabelMatch | None:
    pairs = tuple((value, index) for value, index in zip(values, indices, strict=True) if index is not None)
    return (how, pairs) if len(pairs) == len(values) else None


def _match_numbers(values: Sequence[str], numbers: Sequence[int], outputs: Sequence[str]) -> LabelMatch | None:
    """Numbers are those in the names of the outputs (1 star, 2 stars), or counted from 0, or from 1, or -1 and 1."""
    in_names = [int(digits[0]) for output in outputs if len(digits := re.findall(r"\d{1,9}", output)) == 1]
    counted = list(range(len(outputs)))
    if len(set(in_names)) == len(outputs) and in_names != counted and set(numbers) <= set(in_names):
        return "name", tuple((value, in_names.index(number)) for value, number in zip(values, numbers, strict=True))
    if set(numbers) <= set(counted):
        # Without a 0, and without a number that only counting from 1 has, both ways of counting are possible.
        is_certain = 0 in numbers or not all(_WHOLE.fullmatch(value) for value in values)
        return "index" if is_certain else "counted", tuple(zip(values, numbers, strict=True))
    order = sorted(set(numbers))
    if len(order) == len(outputs) and order in ([number + 1 for number in counted], [-1, 1]):
        return "order", tuple((value, order.index(number)) for value, number in zip(values, numbers, strict=True))
    return None


def _name_key(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _match_beginning(value: str, names: Sequence[str]) -> int | None:
    """The only output whose name begins like this one, or the other way round (at least three letters)."""
    alike = [
        index
        for index, name in enumerate(names)
        if min(len(name), len(value)) >= 3 and (name.startswith(value) or value.startswith(name))
    ]
    # label1 and label10 are two names.
    return alike[0] if len(alike) == 1 and not any(char.isdigit() for char in value + names[alike[0]]) else None


def _match_toxicity(values: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """The outputs of a model with two classes: normal, and hate speech or offensive together."""
    normal = [index for index, name in enumerate(names) if name == "normal" or name.startswith(("non", "not"))]
    return [(normal[0] if value == "normal" else 1 - normal[0]) if len(normal) == 1 else None for value in values]


def _match_number(value: str) -> int | None:
    whole = _WHOLE.fullmatch(value) or re.fullmatch(r"label_?(\d{1,6})", value, re.IGNORECASE)
    return int(whole.group(1)) if whole else None
