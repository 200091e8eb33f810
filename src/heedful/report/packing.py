"""Texts and weights as little JSON as possible, safe inside an HTML page.

A weight is two letters of base 64: its share of the heaviest weight of its row, in steps of 1/2047, so that a page
differs from the stored row by at most 1/4094 of that weight. Zero and an undefined number are one letter.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.report.heat import spelled
from heedful.report.ink import printable
from heedful.report.texts import Text, Texts, Weights

ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
STEPS = 2047
ZERO, UNDEFINED = ".", "~"
_CODES = [first + second for first in ALPHABET for second in ALPHABET]
_CODES[STEPS + 1] = ZERO

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def packed(texts: Texts) -> str:
    """The texts as JSON that cannot end the script element it stands in, whatever the words are."""
    content: Json = {
        "classes": [texts.named(number) for number in range(_classes(texts))],
        "rows": [{"name": row.name, "opposed": row.is_opposed} for row in texts.rows],
        "figures": list(texts.figures),
        "texts": [_text(text) for text in texts.texts],
    }
    found = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Neither a tag nor a comment can begin without these; JSON has them in strings only, where escapes are the same.
    for letter in "<>&\u2028\u2029":
        found = found.replace(letter, f"\\u{ord(letter):04x}")
    return found


def _classes(texts: Texts) -> int:
    seen = [int(n) for text in texts.texts for n in (text.predicted, text.label) if n is not None and n == int(n)]
    return max([len(texts.classes), *(number + 1 for number in seen)])


def _text(text: Text) -> Json:
    letters = spelled(tuple(printable(unit) for unit in text.units))
    words = [word for _, word in letters]
    glued: list[Json] = [place for place, (gap, _) in enumerate(letters) if place and not gap]
    known = [_rounded(number) for number in (text.probability, text.label)]
    figures: list[Json] = [_rounded(number) for number in text.figures]
    rows: list[Json] = [None if weights is None else _weights(weights) for weights in text.weights]
    return [printable(text.uid), _joined(words), glued or 0, text.second, text.predicted, *known, figures, rows]


def _joined(words: Sequence[str]) -> Json:
    """Words with a space between them; a list where that could not be taken apart again."""
    return " ".join(words) if words and not any(" " in word for word in words) else list(words)


def _weights(weights: Weights) -> Json:
    peak, codes = encoded(weights.values)
    found = weights.opposition
    told = (
        [] if found is None else [*map(_rounded, (found.divergence, found.bound, found.change)), int(found.certified)]
    )
    return [peak, codes, *told]


def encoded(values: NDArray[np.float64]) -> tuple[float, str]:
    """The heaviest weight, and all weights as letters.

    >>> encoded(np.array([0.5, 0.0, -0.5, float("nan")]))
    (0.5, '//.AB~')
    """
    known = np.isfinite(values)
    peak = float(np.abs(values[known]).max(initial=0.0))
    steps = np.rint(np.where(known, values, 0.0) / (peak or 1.0) * STEPS).astype(int) + STEPS + 1
    codes = [_CODES[step] for step in steps.tolist()]
    if not known.all():
        codes = [code if defined else UNDEFINED for code, defined in zip(codes, known.tolist(), strict=True)]
    return float(f"{peak:.6g}"), "".join(codes)


def _rounded(number: float | None) -> float | None:
    """Six significant digits; None for what JSON cannot say."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.6g}")
