"""Deterministic splits of examples that come as one heap.

Examples are ordered by a hash of (seed, content), class by class, so neither the order of the rows nor the
size of another class changes a split; examples of one content stay together, so no text straddles two splits.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from heedful.core.types import Example, Number


def content(example: Example) -> str:
    """What makes two examples the same to a reader: the texts without case and spacing, or the pixels."""
    parts = [
        " ".join(part.casefold().split())
        if isinstance(part, str)
        else hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest()
        for part in example.parts
    ]
    return "\x1f".join(parts)


def carve(examples: Sequence[Example], share: float, seed: int = 0) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The rest and the carved part, both in the given order; the part holds round(share x n) examples of each
    class.

    A class is carved group by group (a group has one content), so the last group may exceed the share.
    Real-valued labels are one class. A class of two or more groups gives at least one and keeps at least one.
    """
    classes: dict[Number | None, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    home: dict[str, Number | None] = {}
    for place, example in enumerate(examples):
        key = content(example)
        stratum = None if isinstance(example.label, float) else example.label
        classes[home.setdefault(key, stratum)][key].append(place)
    taken: set[int] = set()
    for groups in classes.values():
        taken.update(_taken(groups, share, seed))
    rest = tuple(example for place, example in enumerate(examples) if place not in taken)
    return rest, tuple(example for place, example in enumerate(examples) if place in taken)


def _taken(groups: dict[str, list[int]], share: float, seed: int) -> list[int]:
    wanted = round(share * sum(len(places) for places in groups.values()))
    if share > 0 and len(groups) > 1:
        wanted = max(1, wanted)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}\x1f{key}".encode()).digest())
    taken: list[int] = []
    for key in order[: len(groups) - 1]:
        if len(taken) >= wanted:
            break
        taken.extend(groups[key])
    return taken


def shared(first: Iterable[Example], second: Iterable[Example]) -> int:
    """How many examples of `second` have the content of one of `first`."""
    known = {content(example) for example in first}
    return sum(content(example) in known for example in second)
