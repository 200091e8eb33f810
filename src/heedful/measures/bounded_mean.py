"""Intervals and tests of means of bounded values, at their level from few and skewed values on.

A bootstrap cannot know of what it has not seen: a method that helps on every twentieth text helps on none of 28 texts
in 24 % of samples, and an interval from such a sample excludes the true mean. What is known is how large a value can
be. So each bound is that of Student's t for the sample and a little more: some values at the far end of the range, as
many as make the bound of a sample without any spread that of Clopper and Pearson (1934), 1 - alpha^(1/n) of the range.
Agresti and Coull (1998) add two values to a sample of zeros and ones for the same reason.

The mean lies beyond a bound in at most 1.2 alpha of samples, from 8 values on, for zeros and ones of any share and
everything milder; far less often where values near the end of the range are rare (`benchmarks/interval_coverage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from heedful.measures.bootstrap import Interval

_STEPS = 40
"""Halvings of an interval until its ends are equal in float64, or nearly so."""
_POWER_QUANTILE = 0.84
"""Of the normal distribution at 80 %."""
_LEAST = 1e-9
"""No p-value is smaller."""
_Values = NDArray[np.float64]


@cache
def end_weight(count: int, alpha: float) -> float:
    """How many values at the end of the range are added to a sample of this size.

    >>> round(end_weight(28, 0.025), 2), round(end_weight(28, 0.0025), 2)
    (1.3, 1.75)
    """
    wanted, quantile = 1 - alpha ** (1 / count), _student_quantile(count, alpha)
    low, high = 0.0, float(count)
    for _ in range(_STEPS):
        weight = (low + high) / 2
        # The bound of a sample of zeros with this many ones, as in `upper_bound`.
        spread = math.sqrt(count * weight) / (count + weight) / math.sqrt(count + weight - 1)
        low, high = (weight, high) if weight / (count + weight) + quantile * spread < wanted else (low, weight)
    return high


@cache
def _student_quantile(count: int, alpha: float) -> float:
    from scipy import special  # its import costs 10 MB, and reports do without it

    return float(special.stdtrit(count, 1 - alpha))


def upper_bound(values: _Values, highest: float, alpha: float) -> float:
    """A bound below which the mean lies with probability 1 - alpha, of values that cannot exceed `highest`.

    With w more values at the end of the range, mean and standard deviation are those of n + w values, and the bound is
    mean + t(n, 1 - alpha) deviation / sqrt(n + w - 1). NaN for fewer than 2 values.

    >>> round(upper_bound(np.zeros(28), 1.0, 0.025), 4), round(1 - 0.025 ** (1 / 28), 4)
    (0.1234, 0.1234)
    """
    if len(values) < 2:
        return math.nan
    return _upper_bound(len(values), float(values.mean()), float(values.var()), highest, alpha)


def _upper_bound(count: int, mean: float, variance: float, highest: float, alpha: float) -> float:
    """The bound of a sample with these moments."""
    weight, gap = end_weight(count, alpha), highest - mean
    total = count + weight
    # Of two groups: the variance within the first, and the one between both.
    spread = math.sqrt((count * variance + count * weight * gap**2 / total) / total)
    return mean + weight * gap / total + _student_quantile(count, alpha) * spread / math.sqrt(total - 1)


def lower_bound(values: _Values, lowest: float, alpha: float) -> float:
    """A bound above which the mean lies with probability 1 - alpha, of values that cannot be below `lowest`."""
    return -upper_bound(-values, -lowest, alpha)


def mean_interval(values: _Values, lowest: float, highest: float, alpha: float) -> Interval:
    """The mean with both bounds, each of which it lies beyond with probability alpha; neither leaves the range.

    >>> [round(end, 3) for end in mean_interval(np.array([0.4, 0.5, 0.6] * 10), 0.0, 1.0, 0.025)]
    [0.5, 0.432, 0.568]
    """
    mean = float(values.mean()) if len(values) else math.nan
    bounds = lower_bound(values, lowest, alpha), upper_bound(values, highest, alpha)
    return Interval(mean, *(float(np.clip(bound, lowest, highest)) for bound in bounds))


def p_value(values: _Values, lowest: float, threshold: float = 0.0) -> float:
    """The smallest alpha whose lower bound is at or above the threshold: a test that the mean is at most that.

    NaN for fewer than 2 values; 1 if the mean is at most the threshold.

    >>> round(p_value(np.ones(10), 0.0, 0.5) * 2**10, 6)
    1.0
    """
    if len(values) < 2:
        return math.nan
    if float(values.mean()) <= threshold or lower_bound(values, lowest, 0.5) < threshold:
        return 1.0
    if lower_bound(values, lowest, _LEAST) >= threshold:
        return _LEAST
    low, high = math.log(_LEAST), math.log(0.5)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if lower_bound(values, lowest, math.exp(middle)) >= threshold else (middle, high)
    return math.exp(high)


def sample_size(values: _Values, lowest: float, threshold: float, alpha: float) -> int | None:
    """How many examples would probably show that the mean is above the threshold, as an order of magnitude (one digit).

    The mean of so many examples is expected 0.84 standard errors below the present one in one of five cases (power of
    80 %). None if the present mean is not above the threshold, or if there are not even 2 values.

    >>> sample_size(np.array([-0.5, 1.5] * 12), -1.0, 0.0, 0.025), sample_size(np.zeros(12), -1.0, 0.0, 0.025)
    (40, None)
    """
    if len(values) < 2 or not float(values.mean()) > threshold:
        return None
    mean, variance = float(values.mean()), float(values.var())
    for count in (digit * 10**power for power in range(1, 6) for digit in (1, 2, 3, 4, 5, 6, 8)):
        expected = mean - _POWER_QUANTILE * math.sqrt(variance / count)
        if count > len(values) and -_upper_bound(int(count), -expected, variance, -lowest, alpha) > threshold:
            return int(count)
    return None


def unseen_p_value(values: _Values, lowest: float) -> float:
    """The largest probability that all failures are missing from the sample, if the mean with them is at most 0.

    Failures are values of `lowest`. For them to outweigh a mean of m elsewhere, their share must be m / (m - lowest),
    and then n values hold none with probability (lowest / (lowest - m))^n; 1 if the mean is at most 0.

    A bootstrap tells how far a sample with some failures may be from the mean, and knows nothing of those that it has
    not seen: alone it errs in up to 40 % of samples. The larger of its p-value and this one is at most .025 in at most
    3.9 % of samples, 7 % where losses have the tail of a lognormal (`benchmarks/interval_coverage.py`).

    >>> round(unseen_p_value(np.full(28, 0.1), -0.9), 6), round(0.9**28, 6)
    (0.052335, 0.052335)
    """
    mean = float(values.mean()) if len(values) else 0.0
    share: float = lowest / (lowest - mean) if mean > 0 else 1.0
    return float(share ** len(values))


def ratio_bound(parts: _Values, wholes: _Values, alpha: float) -> float:
    """A bound below which the ratio of two means lies with probability 1 - alpha, where no part exceeds its whole.

    A ratio r is above the bound if the mean of part - r whole is below 0 at level alpha (Fieller 1954). A part that was
    not seen may be as high as the largest whole. At most 1; NaN where the mean of the wholes is not positive.

    >>> wholes = np.array([0.6, 0.4] * 20)
    >>> ratio_bound(wholes, wholes, 0.025), round(ratio_bound(wholes / 2, wholes, 0.025), 2)
    (1.0, 0.55)
    """
    if len(wholes) < 2 or not float(wholes.mean()) > 0:
        return math.nan
    largest = float(wholes.max())

    def is_refuted(ratio: float) -> bool:
        return upper_bound(parts - ratio * wholes, (1 - ratio) * largest, alpha) < 0

    estimate = float(parts.mean()) / float(wholes.mean())
    return max(estimate, _crossing(is_refuted, 1.0, estimate)) if is_refuted(1.0) else 1.0


def _crossing(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """The end of the values for which a condition holds, between one where it does and one where it does not."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return outside
