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

from heedful.report.heat import token_spacing
from heedful.report.ink import replace_unprintable
from heedful.report.texts import ExplorerText, ExplorerTexts, TokenWeights

ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
WEIGHT_STEPS = 2047
ZERO_CODE, UNDEFINED_CODE = ".", "~"
_WEIGHT_CODES = [first + second for first in ALPHABET for second in ALPHABET]
_WEIGHT_CODES[WEIGHT_STEPS + 1] = ZERO_CODE

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def texts_json(texts: ExplorerTexts) -> str:
    """The texts as JSON that cannot end the script element it stands in, whatever the words are."""
    content: JsonValue = {
        "classes": [texts.class_name(number) for number in range(_class_count(texts))],
        "rows": [{"name": row.name, "opposed": row.is_adversarial} for row in texts.rows],
        "figures": list(texts.figures),
        "texts": [_text_json(text) for text in texts.texts],
    }
    found = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Neither a tag nor a comment can begin without these; JSON has them in strings only, where escapes are the same.
    for letter in "<>&\u2028\u2029":
        found = found.replace(letter, f"\\u{ord(letter):04x}")
    return found


def _class_count(texts: ExplorerTexts) -> int:
    seen = [int(n) for text in texts.texts for n in (text.predicted, text.label) if n is not None and n == int(n)]
    return max([len(texts.classes), *(number + 1 for number in seen)])


def _text_json(text: ExplorerText) -> JsonValue:
    letters = token_spacing(tuple(replace_unprintable(unit) for unit in text.units))
    words = [word for _, word in letters]
    glued: list[JsonValue] = [place for place, (gap, _) in enumerate(letters) if place and not gap]
    known = [_round_for_json(number) for number in (text.probability, text.label)]
    figures: list[JsonValue] = [_round_for_json(number) for number in text.figures]
    rows: list[JsonValue] = [None if weights is None else _weights_json(weights) for weights in text.weights]
    return [
        replace_unprintable(text.uid),
        _join_words(words),
        glued or 0,
        text.second_start,
        text.predicted,
        *known,
        figures,
        rows,
    ]


def _join_words(words: Sequence[str]) -> JsonValue:
    """Words with a space between them; a list where that could not be taken apart again."""
    return " ".join(words) if words and not any(" " in word for word in words) else list(words)


def _weights_json(weights: TokenWeights) -> JsonValue:
    peak, codes = encode_weights(weights.values)
    found = weights.adversary
    told = (
        []
        if found is None
        else [*map(_round_for_json, (found.divergence, found.bound, found.change)), int(found.certified)]
    )
    return [peak, codes, *told]


def encode_weights(values: NDArray[np.float64]) -> tuple[float, str]:
    """The heaviest weight, and all weights as letters.

    >>> encode_weights(np.array([0.5, 0.0, -0.5, float("nan")]))
    (0.5, '//.AB~')
    """
    known = np.isfinite(values)
    peak = float(np.abs(values[known]).max(initial=0.0))
    steps = np.rint(np.where(known, values, 0.0) / (peak or 1.0) * WEIGHT_STEPS).astype(int) + WEIGHT_STEPS + 1
    codes = [_WEIGHT_CODES[step] for step in steps.tolist()]
    if not known.all():
        codes = [code if defined else UNDEFINED_CODE for code, defined in zip(codes, known.tolist(), strict=True)]
    return float(f"{peak:.6g}"), "".join(codes)


def _round_for_json(number: float | None) -> float | None:
    """Six significant digits; None for what JSON cannot say."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.6g}")
