"""Numbers for people: three significant digits, a real minus sign, "undefined" where there is no number."""

from __future__ import annotations

import math
from numbers import Integral

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NARROW_SPACE = "\u202f"


def format_number(value: float | None, count: int | None = None) -> str:
    """The value as a reader wants it: whole numbers in full, others with three significant digits.

    >>> [format_number(v) for v in (0.81249, -0.5, 12.345, 863, 440320, 0)]
    ['0.812', '−0.500', '12.3', '863', '440\\u202f320', '0']
    >>> format_number(0.0000123), format_number(None), format_number(float("nan"), count=1)
    ('1.23 × 10⁻⁵', 'undefined', 'undefined (n=1)')
    """
    if value is None or math.isnan(value):
        return "undefined" if count is None else f"undefined (n={count})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if math.isinf(value):
        return _use_minus_sign("∞" if value > 0 else "-∞")
    if isinstance(value, Integral) or value == 0 or abs(value) >= 999.5:
        return _use_minus_sign(_group_digits(round(value)))
    if abs(value) < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return _use_minus_sign(f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}")
    return _use_minus_sign(f"{value:.{_decimals(value)}f}")


def format_difference(ours: float | None, published: float | None) -> str:
    """`ours - published` with its sign, as precise as the larger one is shown; empty if one is missing.

    >>> format_difference(0.345, 0.34), format_difference(0.34, 0.36), format_difference(3034, 3034), format_difference(0.5, None)
    ('+0.005', '−0.020', '0', '')
    """
    known = [v for v in (ours, published) if v is not None and math.isfinite(v)]
    if len(known) < 2:
        return ""
    gap = known[0] - known[1]
    text = f"{gap:+.{_decimals(max(known, key=abs))}f}" if any(v != round(v) for v in known) else f"{gap:+.0f}"
    return "0" if float(text) == 0 else _use_minus_sign(text)


def _decimals(value: float) -> int:
    """Decimals that leave three significant digits, after rounding: 0.9996 is 1.00, not 1.000."""
    exponent = int(f"{abs(value):.2e}".split("e")[1])
    return max(0, 2 - exponent)


def _group_digits(value: int) -> str:
    """Digits in threes from five digits on, so that years and small counts stay as they are."""
    return f"{value:,}".replace(",", _NARROW_SPACE) if abs(value) >= 10_000 else str(value)


def _use_minus_sign(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text
