"""What a report says, as plain values: a page has chapters (papers), a chapter has sections (trials).

Whoever fills these knows the workspace; whoever sets them (`report.page`) knows only what is here. All
strings are plain text: they are escaped when the page is written, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heedful.figures import Figure, Heatmap
from heedful.papers._chapter import TableView


@dataclass(frozen=True)
class Link:
    """A way to another file of the report, by an address relative to the page that it stands on."""

    label: str
    address: str


@dataclass(frozen=True)
class Section:
    """One trial: what was claimed, what came out, what that means and what it does not mean.

    Args:
        anchor: name of the section in links; cleaned and made unique by the page.
        about: corpus, encoder, attention, seed, n and whatever else tells this section from its neighbours.
            By the first three and by the experiment readers choose among many sections.
        warnings: what a reader must know before believing the numbers.
        experiment: the trial's short name.
        texts: where any text of the trial's subjects can be looked up.
        texts_note: what there is to say where texts cannot be looked up.
    """

    anchor: str
    title: str
    claim: str
    source: str = ""
    about: Mapping[str, str | float] = field(default_factory=dict)
    interpretation: str = ""
    limits: str = ""
    tables: tuple[TableView, ...] = ()
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()
    warnings: tuple[str, ...] = ()
    experiment: str = ""
    texts: tuple[Link, ...] = ()
    texts_note: str = ""


@dataclass(frozen=True)
class Chapter:
    """One paper: its question, tables and figures over all of its trials, and a section for each trial."""

    name: str
    title: str
    question: str
    sections: tuple[Section, ...] = ()
    tables: tuple[TableView, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole report.

    Args:
        lead: one or two sentences below the title.
        made_from: what the page was made from: workspace, versions, counts.
        next_command: what to type while there is nothing to show.
    """

    title: str
    lead: str = ""
    provenance: Mapping[str, str | float] = field(default_factory=dict)
    papers: tuple[Chapter, ...] = ()
    next_command: str = "heedful demo"
