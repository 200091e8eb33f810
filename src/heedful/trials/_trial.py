"""What every trial is: a recipe whose table has one row per observation, with its claim in plain words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from heedful.figures import Figure
from heedful.store.recipe import Recipe


class Trial(Recipe):
    """A claim put to the test on one subject.

    Concrete trials are frozen dataclasses with a field `subject`. All words here are read by people who do not know the
    papers: what was tested, what came out, what it means, what it does not mean.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    source: ClassVar[str]
    limits: ClassVar[str]

    @staticmethod
    @abstractmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """What the paper prints, as flat names and numbers; NaN where a number is undefined."""

    @staticmethod
    @abstractmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """What the paper draws."""

    @staticmethod
    @abstractmethod
    def interpretation(summary: Mapping[str, float]) -> str:
        """What came out and what it means, in one or two plain sentences."""
