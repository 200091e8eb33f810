"""Answers: competition ranks by hand, and the export as a round trip."""

from __future__ import annotations

import json

import pytest

from heedful.study import Occasion, Ranking, Simulation, StudyAnswers
from heedful.study.answers import competition_ranks
from heedful.types import UserError

RANKING = Ranking("p1", "i1", Occasion.CHECK, {"lime": 1, "gradient": 1, "control": 3}, 4.5, worst="control")
GUESS = Simulation("p1", "i2", Occasion.MAIN, None, "pos", "neg", 2.0)
ANSWERS = StudyAnswers(("lime", "gradient"), (RANKING,), (GUESS,), 1)


@pytest.mark.parametrize(
    ("given", "right"),
    [([1, 1, 3], [1, 1, 3]), ([1, 2, 2, 3], [1, 2, 2, 4]), ([2, 2, 2], [1, 1, 1]), ([9, 4], [2, 1])],
)
def test_equal_values_share_the_best_rank(given: list[int], right: list[int]) -> None:
    assert competition_ranks(given) == right


def test_a_ranking_with_a_forgotten_gap_is_refused() -> None:
    with pytest.raises(UserError, match="write 1 2 2 4"):
        Ranking("p", "i", Occasion.MAIN, {"a": 1, "b": 2, "c": 2, "d": 3}, 1.0)


def test_the_export_is_read_back_as_it_was() -> None:
    assert StudyAnswers.from_json(ANSWERS.to_json()) == ANSWERS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"max_failed_checks": 1', '"max_failed_checks": 3'),
        ("4.5", "4.7"),
        ('"checksum"', '"cheaksum"'),
        ('"guess": "pos"', '"guess": "nos"'),
    ],
)
def test_damaged_exports_are_refused(before: str, after: str) -> None:
    text = ANSWERS.to_json()
    assert before in text
    with pytest.raises(UserError, match="checksum"):
        StudyAnswers.from_json(text.replace(before, after))


def test_exports_of_earlier_versions_have_no_checksum() -> None:
    content = json.loads(ANSWERS.to_json())
    del content["checksum"], content["damaged"]
    assert StudyAnswers.from_json(json.dumps(content)) == ANSWERS


@pytest.mark.parametrize("text", ["", "{}", '{"methods": 3}', ANSWERS.to_json().replace('"main"', '"later"')])
def test_what_is_no_export_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="not the answers of a study") as error:
        StudyAnswers.from_json(text)
    assert "\n" not in str(error.value)
