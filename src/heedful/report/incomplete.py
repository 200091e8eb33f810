"""Warnings about methods that promise to share out a difference, and do not on this model.

What is left over by chance is no broken promise: gradient SHAP draws a few points, so nothing is said of it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from heedful.attributions.deeplift import DeepLift, DeepShap
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.report.runs import Run, json_object
from heedful.report.shelves import method_type, newest_artefacts
from heedful.store.recipe import Json
from heedful.store.workspace import IndexEntry
from heedful.training.attribution_tables import COMPLETENESS_NOTE, completeness_error
from heedful.types import Method, method_name

COMPLETENESS_TOLERANCES: Mapping[str, tuple[Method, float]] = {
    "DeepLift": (DeepLift(), 1e-4),
    "DeepShap": (DeepShap(), 1e-4),
    "IntegratedGradients": (IntegratedGradients(), 1e-3),
}
"""Methods that promise it, and the share of the mean difference up to which the promise counts as kept."""


def completeness_warnings(runs: Sequence[Run], finished: Sequence[IndexEntry]) -> list[str]:
    """A sentence for each of the trial's methods that misses more than it may, on the seed where it misses most."""
    worst: dict[str, float] = {}
    for each in newest_artefacts(each for run in runs for each in _attributions_of_trial(run, finished)):
        usual, most = COMPLETENESS_TOLERANCES[method_type(each)]
        largest = json_object(completeness_error(each.load().table).get(COMPLETENESS_NOTE, {})).get("largest")
        if isinstance(largest, float) and largest > most:
            name = _method_label(json_object(each.recipe["method"]), usual)
            worst[name] = max(largest, worst.get(name, 0.0))
    return [
        f"{name} is not complete on this model: it misses up to {_format_percent(largest)} of the mean difference between a "
        "text and its reference, which its scores should add up to."
        for name, largest in sorted(worst.items())
    ]


def _attributions_of_trial(run: Run, finished: Sequence[IndexEntry]) -> Iterator[IndexEntry]:
    """The stored attributions by such methods that the trial rests on."""
    methods = run.recipe.get("methods")
    asked = [_effective_method(json_object(method), run) for method in methods] if isinstance(methods, list) else []
    for each in finished:
        promised = (
            each.recipe_class == "AttributionTable"
            and method_type(each) in COMPLETENESS_TOLERANCES
            and each.recipe["method"] in asked
        )
        if promised and all(
            each.recipe.get(name) == run.recipe.get(name, usual) for name, usual in _SHARED_FIELDS.items()
        ):
            yield each


_SHARED_FIELDS: Mapping[str, Json] = {"subject": None, "split": "test", "limit": None}
"""What an attribution shares with the trial that rests on it, and what a trial without such a field means."""


def _effective_method(method: dict[str, Json], run: Run) -> dict[str, Json]:
    """The method as the trial asks it: a trial of special symbols asks for their scores."""
    return (
        {**method, "special_tokens": True}
        if run.recipe.get("special_tokens") is True and "special_tokens" in method
        else method
    )


def _method_label(method: Mapping[str, Json], usual: Method) -> str:
    """The method's name, and the settings that are not usual."""
    given = {each.name: method[each.name] for each in fields(usual) if each.name in method}  # type: ignore[arg-type]
    differing = {name: value for name, value in given.items() if value != getattr(usual, name)}
    words = [
        value if isinstance(value, str) else name if value is True else f"{name}-{value}"
        for name, value in differing.items()
    ]
    return f"{method_name(usual)}({','.join(words)})" if words else method_name(usual)


def _format_percent(share: float) -> str:
    """Two digits of a share, in percent.

    >>> _format_percent(0.0534), _format_percent(0.00021), _format_percent(1.25)
    ('5.3 %', '0.021 %', '125 %')
    """
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
