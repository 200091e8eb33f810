"""On what attributions are compared: units or whole words, with special symbols or without.

Tables as `Attributed` makes them come in and go out; what leaves has one entry per unit or word that is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.nulls import Randomised
from heedful.core.types import Method, UserError

Level = Literal["unit", "word"]


def check_level(level: str) -> None:
    """Refuses a level that there is not."""
    if level not in get_args(Level):
        raise UserError(f"there is no level {level!r} to compare scores on; choose one of {', '.join(get_args(Level))}")


def check_specials(names: Sequence[str], methods: Sequence[Method]) -> None:
    """Refuses methods that give special symbols no score: zeros would rank them last, which nobody found out."""
    silent = [name for name, method in zip(names, methods, strict=True) if not _scores_specials(method)]
    if silent:
        deletes = any(isinstance(_asked(method), LeaveOneOut) for method in methods)
        raise UserError(
            f"special symbols get no score from {', '.join(silent)}: leave these out, give them specials=True where "
            f"they have it, or compare without special symbols{_DELETES if deletes else ''}"
        )


_DELETES = (
    "; leave-one-out deletes, and a text without its class symbol is none that the model knows: "
    "Occlusion(specials=True) puts another symbol there instead"
)


def with_specials(methods: Sequence[Method]) -> tuple[Method, ...]:
    """The methods with special symbols scored by all that have the option; others as they are.

    >>> with_specials((Randomised(), LeaveOneOut()))
    (Randomised(method=RawAttention(layer=None, head=None, specials=True), seed=0), LeaveOneOut(output='probability'))
    """
    return tuple(_with_specials(method) for method in methods)


def _with_specials(method: Method) -> Method:
    if isinstance(method, Randomised):
        return replace(method, method=_with_specials(method.method))
    return replace(method, specials=True) if is_dataclass(method) and _has_option(method) else method


def _asked(method: Method) -> Method:
    """The method whose scores are given back: that of a randomised model speaks for its own."""
    return _asked(method.method) if isinstance(method, Randomised) else method


def _has_option(method: Method) -> bool:
    return is_dataclass(method) and "specials" in {each.name for each in fields(method)}


def _scores_specials(method: Method) -> bool:
    found = _asked(method)
    return _has_option(found) and bool(getattr(found, "specials", False))


def on_level(table: pd.DataFrame, level: Level, *, specials: bool) -> pd.DataFrame:
    """The table with one score per compared unit, or per word: the sum of its units'.

    Special symbols are left out, or are units and words of their own.

    >>> row = {"uid": ["a"], "predicted": [1], "segments": [[0, 0, 0, 0]]}
    >>> row |= {"scores": [[9.0, 1.0, -3.0, 5.0]], "scored": [[False, True, True, True]], "words": [[-1, 0, 0, 1]]}
    >>> on_level(pd.DataFrame(row), "word", specials=False)["scores"].tolist()
    [[-2.0, 5.0]]
    >>> on_level(pd.DataFrame(row), "word", specials=True)["scores"].tolist()
    [[-2.0, 5.0, 9.0]]
    """
    if level == "unit":
        every = table["scored"].map(lambda row: [True] * len(row))
        return table.assign(scored=every) if specials else table
    columns = ("scores", "scored", "words", "segments")
    rows = zip(*(table[name].tolist() for name in columns), strict=True)
    found = [
        _by_word(np.asarray(scores, dtype=np.float64), _numbered(scored, words, specials=specials), np.asarray(parts))
        for scores, scored, words, parts in rows
    ]
    return pd.DataFrame(
        {
            "uid": table["uid"].tolist(),
            "predicted": table["predicted"].tolist(),
            "scores": [scores.tolist() for scores, _ in found],
            "scored": [[True] * len(scores) for scores, _ in found],
            "segments": [parts.tolist() for _, parts in found],
        }
    )


def _numbered(scored: Sequence[bool], words: Sequence[int], *, specials: bool) -> NDArray[np.int64]:
    """The word of each unit; special symbols stand behind all words, each by itself, or are -1."""
    known, number = np.asarray(scored, dtype=bool), np.asarray(words, dtype=np.int64)
    behind = number.max(initial=-1) + 1 + np.arange(len(number))
    return np.where(known, number, behind if specials else -1)


def _by_word(
    scores: NDArray[np.float64], words: NDArray[np.int64], parts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    kept = words >= 0
    _, first, place = np.unique(words[kept], return_index=True, return_inverse=True)
    sums = np.zeros(len(first))
    np.add.at(sums, place, scores[kept])
    return sums, parts[kept][first]
