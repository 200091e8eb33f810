"""Numbers and texts as people read them, in a terminal and on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Integral
from unicodedata import category

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def terminal_line(text: str) -> str:
    """The text in one line, with escapes in place of characters that would steer a terminal or cannot be written.

    Spaces of other widths, as in large numbers, are plain ones.

    >>> terminal_line("a\\x1b[2J\\nb, 10\\u202f000")
    'a\\\\x1b[2J\\\\nb, 10 000'
    """
    plain = (" " if category(char) == "Zs" else char for char in text)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in plain)


def page_text(text: str) -> str:
    """The text with U+FFFD for every character that XML or UTF-8 cannot represent."""
    if all(map(str.isprintable, text.split("\n"))):
        return text  # without the search, which takes several times as long
    return _UNPRINTABLE.sub("\ufffd", text)


def format_number(value: float | None) -> str:
    """Whole numbers in full, others with three significant digits; "undefined" for None and NaN.

    >>> [format_number(v) for v in (0.81249, -0.5, 12.345, 863, 440320, 0, None)]
    ['0.812', '−0.500', '12.3', '863', '440\\u202f320', '0', 'undefined']
    >>> format_number(0.0000123), format_number(float("-inf"))
    ('1.23 × 10⁻⁵', '−∞')
    """
    if isinstance(value, float) and 1e-4 <= abs(value) < 999.5:
        return f"{value:#.3g}".removesuffix(".").replace("-", "−", 1)
    if value is None or math.isnan(value):
        return "undefined"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    elif isinstance(value, Integral) or value == 0 or abs(value) >= 999.5:
        whole = round(value)
        text = f"{whole:,}".replace(",", "\u202f") if abs(whole) >= 10_000 else str(whole)
    else:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return text.replace("-", "−", 1)


def format_difference(ours: float | None, published: float | None) -> str:
    """`ours - published` with its sign and the decimals of the larger number; a dash if one is missing.

    >>> format_difference(0.345, 0.34), format_difference(0.34, 0.36), format_difference(3034, 3034)
    ('+0.005', '−0.020', '0')
    """
    if ours is None or published is None or not math.isfinite(ours - published):
        return "–"
    whole = ours == round(ours) and published == round(published)
    text = f"{ours - published:+.{0 if whole else _decimals(max(ours, published, key=abs))}f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _decimals(value: float) -> int:
    """Decimals that leave three significant digits after rounding: 0.9996 is 1.00, not 1.000."""
    return max(0, 2 - int(f"{abs(value):.2e}".split("e")[1]))


def short_number(value: float) -> str:
    """At most three significant digits, without trailing zeros, as in charts."""
    return f"{value:.3g}".replace("-", "−") if math.isfinite(value) else "undefined"


def two_decimals(value: float | None, missing: str = "undefined") -> str:
    """Two decimals, never a negative zero; `missing` for None, NaN and infinity.

    >>> two_decimals(-0.5), two_decimals(-0.001), two_decimals(None)
    ('−0.50', '0.00', 'undefined')
    """
    if value is None or not math.isfinite(value):
        return missing
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def format_share(low: float, high: float | None = None) -> str:
    """A share in whole percent, or the interval of one; empty where undefined.

    >>> format_share(0.784), format_share(-0.01, 0.09), format_share(float("nan"))
    ('78 %', '−1 to 9 %', '')
    """
    ends = [low] if high is None else [low, high]
    if not all(map(math.isfinite, ends)):
        return ""
    return " to ".join(f"{round(100 * end)}".replace("-", "−") for end in ends) + " %"


def format_small_share(share: float) -> str:
    """A share as `format_share` has it, with one significant digit below 1 %.

    >>> [format_small_share(share) for share in (0.784, 0.0123, 0.0062, 0.00004, 0.0)]
    ['78 %', '1 %', '0.6 %', '0.004 %', '0 %']
    """
    return f"{float(f'{100 * share:.1g}'):f}".rstrip("0") + " %" if 1e-8 < share < 0.0095 else format_share(share)


def order_of_magnitude(amount: float) -> int:
    """A positive number rounded up to one digit, as an estimate is told.

    >>> [order_of_magnitude(amount) for amount in (0.2, 4.0, 9.1, 10.0, 341.0)]
    [1, 4, 10, 10, 400]
    """
    unit: int = 10 ** max(0, int(math.log10(amount)))
    return math.ceil(amount / unit) * unit


def format_duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> [format_duration(seconds) for seconds in (0.04, 3.21, 59.6, 754, 12_000, 200_000)]
    ['0.04 s', '3.2 s', '1 min 0 s', '12 min 34 s', '3 h 20 min', '2 d 8 h']
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if (whole := round(seconds)) < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if (minutes := round(seconds / 60)) < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def more_minutes(count: int) -> str:
    """
    >>> more_minutes(1), more_minutes(20)
    ('1 more minute', '20 more minutes')
    """
    return f"{count} more minute{'' if count == 1 else 's'}"


def join_names(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> join_names(["a"]), join_names(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
