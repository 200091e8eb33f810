"""Texts of classes that a model rarely predicts, taken beside those that represent the data.

Of a model that predicts one class in a hundred, a sample in proportion holds no text of that class, and nothing could
be said about it. Every third text is therefore of such a class until there are enough for a verdict; more texts are
read to find them. The figures for all predictions rest on the representative texts alone, so that they need no weights;
the others count for their own class only.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pandas as pd

from heedful.measures.bootstrap import MIN_EXAMPLES

RARE_SHARE = 0.2
"""A class with a smaller share of the predictions is rare; of more than two classes, with less than half of an equal
share."""
RARE_CLASS_TEXTS = MIN_EXAMPLES + 3
"""Texts of a rare class that are taken; a verdict on faithfulness needs a few fewer, some of which may be undefined."""
REPRESENTATIVE_RUN = 2
"""Representative texts between two of rare classes."""


def rare_classes(predicted: pd.Series) -> list[int]:
    """The classes that are predicted so rarely that their texts are taken out of turn.

    >>> rare_classes(pd.Series([0] * 9 + [1])), rare_classes(pd.Series([0, 0, 1]))
    ([1], [])
    """
    shares = predicted.value_counts(normalize=True).sort_index()
    limit = min(RARE_SHARE, 0.5 / max(1, len(shares)))
    return [int(str(label)) for label, share in shares.items() if share < limit]


def missing_texts(predicted: pd.Series) -> dict[int, int]:
    """The texts of each rare class that must be found elsewhere.

    >>> missing_texts(pd.Series([0] * 90 + [1] * 10))
    {1: 18}
    """
    counts = predicted.value_counts()
    return {label: max(0, RARE_CLASS_TEXTS - int(counts[label])) for label in rare_classes(predicted)}


def take_rare_classes(order: pd.DataFrame, further: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows of a representative order, with rows of rare classes taken out of turn where that gives a verdict.

    The column `turn` is the place in the representative order. Rows that are taken out of turn are further ones, which
    have no place in it, and then the last of their class there.

    >>> order = pd.DataFrame({"predicted": [0] * 200 + [1] * 26})
    >>> take_rare_classes(order)["turn"][:7].tolist()
    [0, 1, 225, 2, 3, 224, 4]
    >>> take_rare_classes(order, pd.DataFrame({"predicted": [1]}))["turn"][:7].tolist()
    [0, 1, 227, 2, 3, 225, 4]
    """
    rows = order if further is None else pd.concat([order, further], ignore_index=True)
    predicted = rows["predicted"].tolist()
    # A gap before the further rows, so that they are never part of the representative beginning.
    turns = [*range(len(order)), *range(len(order) + 1, len(rows) + 1)]
    waiting = {label: deque(row for row, other in enumerate(predicted) if other == label) for label in {*predicted}}
    rare = [label for label in rare_classes(order["predicted"]) if len(waiting[label]) >= MIN_EXAMPLES]
    counts, taken = dict.fromkeys(rare, 0), dict[int, None]()
    run = 0
    for row, label in enumerate(predicted):
        if row in taken:
            continue
        wanted = [rare for rare, count in counts.items() if count < RARE_CLASS_TEXTS and waiting[rare]]
        if run == REPRESENTATIVE_RUN and wanted:
            rarest = min(wanted, key=lambda rare: (counts[rare], rare))
            taken[waiting[rarest].pop()] = None
            counts[rarest] += 1
            run = 0
            if row in taken:
                continue
        taken[row] = None
        waiting[label].popleft()
        if label in counts:
            counts[label] += 1
        run += 1
    places = list(taken)
    return rows.iloc[places].assign(turn=[turns[place] for place in places]).reset_index(drop=True)


def count_representative(turns: pd.Series) -> int:
    """How many of the first texts of a sample represent the data: those of the unbroken beginning of that order.

    >>> count_representative(pd.Series([0, 1, 7, 2]))
    3
    """
    held = {*turns}
    return next(turn for turn in range(len(held) + 1) if turn not in held)


def texts_with(turns: pd.Series, representative: int) -> int:
    """How many of the first texts of a sample hold so many representative ones.

    >>> texts_with(pd.Series([0, 1, 7, 2]), 3)
    4
    """
    places = np.flatnonzero(turns.to_numpy() < representative)
    return 1 + int(places[-1]) if len(places) else 0
