"""Choosing among many sections: what a reader can choose by, and where each section stands in it.

A section's place in each choice is told to the page as a number, so that no name from data is ever compared,
and pages with hundreds of sections stay small.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.report.content import Section
from heedful.report.numbers import format_number

FACETS = ("corpus", "encoder", "attention", "experiment")
"""What sections are chosen by."""
MIN_SECTIONS_FOR_FACETS = 5
"""Sections from which on a chapter offers to choose."""
MANY_SECTIONS = 20
"""Sections from which on only what is looked at is laid out: all of it at once would take seconds."""
_NOT_STATED = "not stated"


@dataclass(frozen=True)
class Facet:
    """One thing to choose by, and the values that occur, in order of appearance."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class FacetIndex:
    """What a chapter's reader can choose by, and for each section the number of its option in each choice."""

    facets: tuple[Facet, ...] = ()
    positions: tuple[tuple[int, ...], ...] = ()


def facet_index(sections: tuple[Section, ...]) -> FacetIndex:
    """The choices that tell sections apart; none where sections are few or all alike."""
    if len(sections) < MIN_SECTIONS_FOR_FACETS:
        return FacetIndex((), ((),) * len(sections))
    columns = {name: [facet_value(section, name) or _NOT_STATED for section in sections] for name in FACETS}
    choices = tuple(Facet(name, tuple(dict.fromkeys(column))) for name, column in columns.items())
    useful = tuple(choice for choice in choices if len(choice.options) > 1)
    places = [[choice.options.index(value) for value in columns[choice.name]] for choice in useful]
    return FacetIndex(useful, tuple(zip(*places, strict=True)) if places else ((),) * len(sections))


def facet_value(section: Section, name: str) -> str:
    """What the section says about itself under this name; empty if nothing."""
    value = section.experiment if name == "experiment" else section.about.get(name, "")
    return value if isinstance(value, str) else format_number(value)
