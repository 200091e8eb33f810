"""Warnings about methods that promise to share out a difference, and do not on this model.

What is left over by chance is no broken promise: gradient SHAP draws a few points, so nothing is said of it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.paths import IntegratedGradients
from heedful.core.types import Method
from heedful.core.workspace import Finished, Json
from heedful.recipes.completeness import MISSED, missed
from heedful.report.runs import Run, mapping
from heedful.report.shelves import method_of, newest
from heedful.trials.agreement import named

PROMISES: Mapping[str, tuple[Method, float]] = {
    "DeepLift": (DeepLift(), 1e-4),
    "DeepShap": (DeepShap(), 1e-4),
    "IntegratedGradients": (IntegratedGradients(), 1e-3),
}
"""Methods that promise it, and the share of the mean difference up to which the promise counts as kept."""


def incomplete(runs: Sequence[Run], finished: Sequence[Finished]) -> list[str]:
    """A sentence for each of the trial's methods that misses more than it may, on the seed where it misses most."""
    worst: dict[str, float] = {}
    for each in newest(each for run in runs for each in _used(run, finished)):
        usual, most = PROMISES[method_of(each)]
        largest = mapping(missed(each.open().table).get(MISSED, {})).get("largest")
        if isinstance(largest, float) and largest > most:
            name = _called(mapping(each.recipe["method"]), usual)
            worst[name] = max(largest, worst.get(name, 0.0))
    return [
        f"{name} is not complete on this model: it misses up to {_percent(largest)} of the mean difference between a "
        "text and its reference, which its scores should add up to."
        for name, largest in sorted(worst.items())
    ]


def _used(run: Run, finished: Sequence[Finished]) -> Iterator[Finished]:
    """The stored attributions by such methods that the trial rests on."""
    methods = run.recipe.get("methods")
    asked = [_asked(mapping(method), run) for method in methods] if isinstance(methods, list) else []
    for each in finished:
        promised = each.kind == "Attributed" and method_of(each) in PROMISES and each.recipe["method"] in asked
        if promised and all(each.recipe.get(name) == run.recipe.get(name, usual) for name, usual in _SAME.items()):
            yield each


_SAME: Mapping[str, Json] = {"subject": None, "split": "test", "limit": None}
"""What an attribution shares with the trial that rests on it, and what a trial without such a field means."""


def _asked(method: dict[str, Json], run: Run) -> dict[str, Json]:
    """The method as the trial asks it: a trial of special symbols asks for their scores."""
    return {**method, "specials": True} if run.recipe.get("specials") is True and "specials" in method else method


def _called(method: Mapping[str, Json], usual: Method) -> str:
    """The method's name, and the settings that are not usual."""
    given = {each.name: method[each.name] for each in fields(usual) if each.name in method}  # type: ignore[arg-type]
    differing = {name: value for name, value in given.items() if value != getattr(usual, name)}
    words = [
        value if isinstance(value, str) else name if value is True else f"{name}-{value}"
        for name, value in differing.items()
    ]
    return f"{named(usual)}({','.join(words)})" if words else named(usual)


def _percent(share: float) -> str:
    """Two digits of a share, in percent.

    >>> _percent(0.0534), _percent(0.00021), _percent(1.25)
    ('5.3 %', '0.021 %', '125 %')
    """
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
