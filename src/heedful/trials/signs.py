"""Scores that have no signs: they say how much a word matters, not for which answer.

Where words are taken away by their scores, such a method may take the word first that speaks against the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pandas as pd
from torch import Tensor

from heedful.attributions.deletion import LeaveOneOut
from heedful.core.types import Method

UNSIGNED = "unsigned"
"""The column of a table and the name in a summary."""


def signed(methods: Iterable[Method]) -> tuple[Method, ...]:
    """The same methods, each once; those that have a form with signs take it: leaving one out looks at the logit.

    Of two classes the loss of the logit ranks words as the signed loss of the probability does.

    >>> signed((LeaveOneOut(),))
    (LeaveOneOut(output='logit'),)
    """
    found = (replace(each, output="logit") if isinstance(each, LeaveOneOut) else each for each in methods)
    return tuple(dict.fromkeys(found))


def without_signs(scores: Tensor) -> Tensor:
    """Whether no score of a text is below zero, `[...]` for scores `[... unit]`."""
    return (scores >= 0).all(-1)


def unsigned(table: pd.DataFrame) -> dict[str, float]:
    """`unsigned.method` is 1 for every method, the null left out, that gave no text a score below zero.

    Tables that were made before this was asked say nothing.
    """
    if UNSIGNED not in table.columns:
        return {}
    by_method = table[~table["null"]].groupby("method", sort=False)[UNSIGNED].all()
    return {f"{UNSIGNED}.{method}": 1.0 for method, so in by_method.items() if so}


def told(summary: Mapping[str, float]) -> str:
    """Which methods these are, as a sentence; nothing where there are none."""
    start = f"{UNSIGNED}."
    names = [name.removeprefix(start) for name in summary if name.startswith(start)]
    if not names:
        return ""
    return f"Without signs are the scores of {', '.join(names)}: what speaks against the prediction may go first there."
