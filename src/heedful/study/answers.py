"""The answers of a study: what people said, without who they are; the one thing that the statistics read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from heedful.study.checksum import CHECKSUM, add_checksum, find_damage
from heedful.types import UserError


class Occasion(StrEnum):
    """Why an item was shown to a person."""

    MAIN = "main"
    REPEAT = "repeat"
    """An item that the same person has answered before, to measure reliability."""
    CHECK = "check"
    """An attention check, whose right answer is known."""
    PRACTICE = "practice"


@dataclass(frozen=True)
class Ranking:
    """One person ranked the heat-maps of one item.

    Ranks are competition ranks: equal maps share the best of their ranks, and the next rank is left out ("1 1 3"). On a
    check, `worst` names the map to which the page asked to give the last place; it is not a method of the study.
    """

    person: str
    item: str
    occasion: Occasion
    ranks: Mapping[str, int]
    seconds: float
    worst: str | None = None

    def __post_init__(self) -> None:
        right = competition_ranks(list(self.ranks.values()))
        if list(self.ranks.values()) != right:
            ranks = " ".join(map(str, self.ranks.values()))
            raise UserError(
                f"{ranks} is not a competition ranking of item {self.item}: write {' '.join(map(str, right))}"
            )
        if self.worst is not None and self.worst not in self.ranks:
            raise UserError(f"the worst map {self.worst!r} of item {self.item} was not ranked")


@dataclass(frozen=True)
class Simulation:
    """One person guessed what the model predicts for one item, with the heat-map of one method or with none.

    On a check, `predicted` is the guess that the instructions asked for.
    """

    person: str
    item: str
    occasion: Occasion
    method: str | None
    guess: str
    predicted: str
    seconds: float


@dataclass(frozen=True)
class StudyAnswers:
    """All answers of a study, and the rule of exclusion that was stated before the first of them.

    A person who failed more than `max_failed_checks` attention checks is left out.

    Args:
        damaged: stored answers that are not among these, because their checksum does not match.
    """

    methods: tuple[str, ...]
    rankings: tuple[Ranking, ...]
    simulations: tuple[Simulation, ...]
    max_failed_checks: int
    damaged: int = 0

    @property
    def all_answers(self) -> tuple[Ranking | Simulation, ...]:
        return (*self.rankings, *self.simulations)

    def to_json(self) -> str:
        """The form in which a study is exported; `from_json` reads it."""
        return add_checksum(_ADAPTER.dump_json(self, indent=1).decode())

    @staticmethod
    def from_json(text: str | bytes) -> StudyAnswers:
        try:
            answers = _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(map(str, first["loc"]))
            raise UserError(f"these are not the answers of a study: {location or 'JSON'}: {first['msg']}") from error
        if damage := find_damage(text, [field.name for field in fields(StudyAnswers)]):
            raise UserError(
                f"the exported answers are damaged or were edited ({damage}): export them again, or delete the entry "
                f"{CHECKSUM!r} if you edited them"
            )
        return answers


_ADAPTER = TypeAdapter(StudyAnswers)


def competition_ranks(values: Sequence[float]) -> list[int]:
    """1 + the number of smaller values, for each value: equal values share the best rank.

    >>> competition_ranks([1, 2, 2, 3])
    [1, 2, 2, 4]
    """
    return [1 + sum(other < value for other in values) for value in values]
