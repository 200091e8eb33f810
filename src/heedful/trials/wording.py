"""What the numbers of an agreement come to, in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

ANOTHER_SEED = "-of-another-seed"
"""Ends the name of attention that another training of the same model gave."""

LOWEST, NO_RELATION = "lowest", "no_relation"
"""Numbers in the summary of a measure that does not run from -1 by 0 to 1."""

LEAST = 0.1
"""Differences of correlations or shares below this are not spoken of."""


def told(summary: Mapping[str, float]) -> str:
    """How strongly attention agrees with each measure, beside chance, another training and the measures themselves."""
    means = _means(summary)
    attention = next(iter(means))[0]
    nulls = {name.rsplit("~", 1)[1] for name in summary if name.startswith(f"excess.{attention}~")}
    beside = {second: value for (first, second), value in means.items() if first == attention}
    methods = {name: value for name, value in beside.items() if name not in nulls}
    again = {name: value for name, value in beside.items() if name.endswith(ANOTHER_SEED)}
    chance = {name: value for name, value in beside.items() if name in nulls - again.keys()}
    own = [value for pair, value in means.items() if not {attention, *nulls} & set(pair) and not _akin(*pair)]
    words = [f"On average over texts, {attention} agrees with {_listed(methods)}, {_scale(summary)}."]
    words += [f"What knows nothing agrees with it as chance has it: {_listed(chance)}."] if chance else []
    words += [f"The same model trained from another seed agrees with it at {_number(v)}." for v in again.values()]
    words += [f"The other measures agree with each other at {_number(_mean(own))}."] if own else []
    return " ".join([*words, _verdict(_mean([*methods.values()]), _mean([*chance.values()]), _mean(own))])


def _means(summary: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """The mean of each pair over all classes."""
    found = {}
    for name, value in summary.items():
        if name.startswith("mean.") and not re.search(r"\.class_-?\d+$", name):
            first, second = name.removeprefix("mean.").split("~")
            found[first, second] = value
    return found


def _scale(summary: Mapping[str, float]) -> str:
    """What the ends of the measure's scale mean; `LOWEST` stands in summaries of shares only."""
    if LOWEST not in summary:
        return "where 1 is the same order of words, 0 no relation and -1 the reverse order"
    if NO_RELATION in summary:
        return f"where 1 is the same order of words, {summary[NO_RELATION]:g} no relation and 0 the reverse order"
    return "where 1 is agreement on all of the words that each puts first and 0 on none of them"


def _akin(first: str, second: str) -> bool:
    """Whether two names are variants of one method, which agree because they are nearly the same."""
    return first.split("(")[0] == second.split("(")[0]


def _verdict(attention: float, chance: float, own: float) -> str:
    """What the mean agreements come to; comparisons with what is unknown (NaN) are not made."""
    if math.isnan(attention):
        return "No agreement of attention is defined, so nothing can be said."
    if attention - chance < LEAST:
        return "So attention agrees with them hardly more than chance does."
    if own - attention > LEAST:
        return "So attention agrees with them less than they do with each other."
    if own - attention <= LEAST:
        return "So attention agrees with them no less than they do with each other."
    if attention - chance >= LEAST:
        return "So attention agrees with them more than chance does."
    return "Nothing stands beside these numbers to say whether they are large."


def _listed(numbers: Mapping[str, float]) -> str:
    *others, last = (f"{name} at {_number(value)}" for name, value in numbers.items())
    return f"{', '.join(others)} and {last}" if others else last


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan
