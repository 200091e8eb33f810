"""Figures as data: what is to be drawn, not how. Trials return these; `report.charts` turns them into SVG."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A labelled axis; `limits` None lets the drawing choose."""

    label: str
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Named numbers; in histograms and violins one series per class."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Violin:
    """Horizontal violins with quartile lines: one row per bin, one violin per series inside it.

    Args:
        bins: labels of the rows, bottom to top.
        groups: for each bin, the series (same names in the same order in every bin; empty values are drawn as nothing).
    """

    title: str
    x: Axis
    y: Axis
    bins: tuple[str, ...]
    groups: tuple[tuple[Series, ...], ...]


@dataclass(frozen=True)
class Histogram:
    """Overlaid histograms on common bins, each series normalised to sum 1."""

    title: str
    x: Axis
    series: tuple[Series, ...]
    bins: int = 30
    y: Axis = Axis("share of instances")


@dataclass(frozen=True)
class Scatter:
    """Named point clouds; `joined` series are drawn as a dotted line through their points."""

    title: str
    x: Axis
    y: Axis
    points: tuple[tuple[Series, Series], ...]
    connected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one per label, grouped by series, with optional half-widths of error bars."""

    title: str
    x: Axis
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    errors: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Lines:
    """Curves over a common meaning of x: training histories, deletion curves."""

    title: str
    x: Axis
    y: Axis
    curves: tuple[tuple[Series, Series], ...]


@dataclass(frozen=True)
class Matrix:
    """A table of numbers drawn as shaded cells with the number in each; None cells are left empty."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    limits: tuple[float, float] = (-1.0, 1.0)


@dataclass(frozen=True)
class Heatmap:
    """One text, several rows of weights over the same units.

    Args:
        rows: named weights, one value per unit; negative values get another hue.
        caption: label, prediction and numbers of this example, in plain words.
    """

    title: str
    units: tuple[str, ...]
    rows: tuple[Series, ...]
    caption: str = ""


@dataclass(frozen=True)
class Pixels:
    """A picture: rows from above, of pixels with shares of red, green and blue in [0, 1]."""

    rows: tuple[tuple[tuple[float, float, float], ...], ...]


@dataclass(frozen=True)
class PatchScores:
    """A number for each patch of a picture, rows from above; each patchwork is shaded by its own largest number."""

    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ImageGrid:
    """Pictures and what explanations say of their patches, in rows and columns that have names."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    tiles: tuple[tuple[Pixels | PatchScores, ...], ...]


Figure = Violin | Histogram | Scatter | Bars | Lines | Matrix | ImageGrid | Heatmap
