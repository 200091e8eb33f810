"""Ratings of studies: hand values, oracles, planted orders, and a stated answer to every degenerate study."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import krippendorff
import numpy as np
import pandas as pd
import pytest
import trueskill
from typer.testing import CliRunner, Result

from heedful import cli
from heedful.report.build import build_page
from heedful.report.page import page_parts
from heedful.results import Statistic, Verdict, find_statistic, get_statistic, select_statistics
from heedful.store.workspace import Workspace
from heedful.study import rating as rating_module
from heedful.study.answers import Occasion, Ranking, Simulation, StudyAnswers
from heedful.study.plackett_luce import draw_ranks
from heedful.study.rating import (
    CHARTS,
    SkillRating,
    StudyRating,
    count_failed_checks,
    findings,
    interpretation,
    krippendorff_alpha,
    leave_out_careless_people,
    partial_order,
    rate_by_trueskill,
    rate_study,
    store_rating,
    write_rating_page,
)
from heedful.table_view import Comparison
from heedful.trials.simulability import NO_EXPLANATION
from heedful.types import UserError

METHODS = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """TrueSkill takes milliseconds for a game."""
    monkeypatch.setattr(rating_module, "MAX_ORDERS", 2)


def ranking(
    ranks: Sequence[int], person: int = 0, item: int = 0, occasion: Occasion = Occasion.MAIN, worst: str | None = None
) -> Ranking:
    return Ranking(f"p{person}", f"i{item}", occasion, dict(zip(METHODS, ranks, strict=False)), 5.0, worst)


def guess(
    method: str | None, right: int, person: int = 0, item: int = 0, occasion: Occasion = Occasion.MAIN
) -> Simulation:
    return Simulation(f"p{person}", f"i{item}", occasion, method, "yes" if right else "no", "yes", 3.0)


def study(rankings: Iterable[Ranking] = (), guesses: Iterable[Simulation] = (), allowed: int = 1) -> StudyAnswers:
    return StudyAnswers(METHODS, tuple(rankings), tuple(guesses), allowed)


def rate(rankings: Iterable[Ranking] = (), guesses: Iterable[Simulation] = ()) -> pd.DataFrame:
    """The summary, after checks that hold for every study."""
    rating = rate_study(study(rankings, guesses), "tested")
    assert not any(math.isnan(row.value) for row in rating.statistics), "no number is undefined"
    json.dumps(rating.to_record(), allow_nan=False)
    assert all(sentence and "nan" not in sentence for sentence in interpretation(rating.summary))
    return rating.summary


def planted_rankings(n_people: int, n_items: int) -> list[Ranking]:
    rng = np.random.default_rng(3)
    worths = np.tile([1.2, 0.0, -1.2], (n_people * n_items, 1)) + 0.4 * rng.normal(size=(n_people, 3)).repeat(
        n_items, 0
    )
    drawn = draw_ranks(worths, {2: -1.0}, rng).tolist()
    return [ranking(ranks, *divmod(number, n_items)) for number, ranks in enumerate(drawn)]


def test_the_planted_order_comes_out() -> None:
    summary = rate(planted_rankings(14, 12))
    assert [(row.method, row.value, row.low, row.high) for row in select_statistics(summary, "rank")] == [
        ("a", 1, 1, 1),
        ("b", 2, 2, 2),
        ("c", 3, 3, 3),
    ]
    assert [each.verdict for each in findings(summary)] == [Verdict.SUPPORTED] * 2
    for pair, truth in (("a~b", 1.2), ("a~c", 2.4), ("b~c", 1.2)):
        row = get_statistic(summary, "log_worth_difference", pair)
        assert row.low < truth < row.high
        assert row.n == 168
    assert sum(row.value for row in select_statistics(summary, "log_worth")) == pytest.approx(0)


def test_verdicts_are_about_log_odds_not_differences_of_log_worths() -> None:
    """Worths e^1.23, 1 and 1 with many ties: the log odds of the first against the others are .91."""
    drawn = draw_ranks(np.tile([1.23, 0.0, 0.0], (2000, 1)), {2: 0.5}, np.random.default_rng(0)).tolist()
    summary = rate(ranking(ranks, *divmod(number, 40)) for number, ranks in enumerate(drawn))
    strict = [(a < b, a > b) for a, b, _ in drawn if a != b]
    counted = math.log(sum(above for above, _ in strict) / sum(below for _, below in strict))
    row = get_statistic(summary, "log_odds", "a~b")
    assert row.value == pytest.approx(counted, abs=0.05)
    assert row.low < 0.912 < row.high
    assert get_statistic(summary, "log_worth_difference", "a~b").value == pytest.approx(1.23, abs=0.1)
    assert (row,) in [finding.evidence for finding in findings(summary)]


def test_preferred_shares_count_ties_as_halves() -> None:
    given = [[1, 2, 3], [1, 1, 3], [2, 1, 3], [1, 2, 2]]
    summary = rate(ranking(ranks, person) for person, ranks in enumerate(given))
    assert get_statistic(summary, "preferred", "a~b").value == 2.5 / 4
    assert get_statistic(summary, "preferred", "b~c").value == 3.5 / 4
    assert get_statistic(summary, "tied_share").value == 2 / 12


def guesses_of(right: Mapping[str | None, Sequence[int]]) -> list[Simulation]:
    """The number of right guesses of four by each person with each method."""
    return [
        guess(method, item < count, person, item)
        for method, counts in right.items()
        for person, count in enumerate(counts)
        for item in range(4)
    ]


def test_gains_by_hand() -> None:
    summary = rate(guesses=guesses_of({None: [2] * 12, "a": [4] * 12, "b": [2] * 12}))
    assert get_statistic(summary, "accuracy", NO_EXPLANATION).value == 0.5
    assert get_statistic(summary, "accuracy", "a").value == 1
    gain, none = (get_statistic(summary, "accuracy_gain", name) for name in "ab")
    assert (gain.value, none.value) == (0.5, 0)
    assert gain.n == 48
    assert none.low < 0 < none.high
    assert find_statistic(summary, "accuracy_gain", "c") is None, "nobody saw it"


def test_an_accuracy_that_everybody_reaches_still_has_an_interval() -> None:
    """Two wrong and two right guesses more: 50 of 52, so that the half width is t sqrt(.0370 / 52)."""
    row = get_statistic(rate(guesses=guesses_of({None: [4] * 12})), "accuracy", NO_EXPLANATION)
    assert (row.value, row.high) == (1, 1)
    assert row.low == pytest.approx(1 - 3.1824 * math.sqrt(50 / 52 * 2 / 52 / 52), abs=1e-3)


def test_people_who_failed_more_checks_than_allowed_are_left_out() -> None:
    check = Occasion.CHECK
    given = [
        *(ranking([1, 2, 3], person) for person in range(3)),
        ranking([3, 1, 2], 0, 9, check, "a"),  # passed
        ranking([1, 1, 1], 1, 9, check, "a"),  # level with all: failed
        ranking([2, 1, 2], 1, 8, check, "a"),  # last with another: passed
        ranking([2, 1, 3], 2, 9, check, "a"),
        ranking([1, 2, 3], 2, 8, check, "a"),
        ranking([3, 1, 2], 9, 0, Occasion.PRACTICE),
    ]
    answers = study(given, [guess(None, False, 1, occasion=Occasion.PRACTICE), guess(None, True, 0, occasion=check)])
    assert dict(count_failed_checks(answers)) == {"p0": 0, "p1": 1, "p2": 2}
    assert {each.person for each in leave_out_careless_people(answers).rankings} == {"p0", "p1"}
    summary = rate_study(answers, "tested").summary
    assert [get_statistic(summary, name).value for name in ("people", "people_left_out", "people_who_count")] == [
        3,
        1,
        2,
    ]
    assert [get_statistic(summary, name).value for name in ("checks", "checks_failed")] == [6, 3]
    assert get_statistic(summary, "times_ranked", "a").value == 2, "checks and practice are not rated"


def test_trueskill_is_the_package_with_the_settings_of_the_paper() -> None:
    games = [{"a": 1, "b": 2, "c": 2}, {"a": 2, "b": 1, "c": 3}, {"a": 1, "b": 2}]
    environment = trueskill.TrueSkill(mu=0, sigma=0.5, beta=25 / 6, tau=25 / 300, draw_probability=0.1)
    a, b, c = (environment.create_rating() for _ in range(3))
    (a,), (b,), (c,) = environment.rate([(a,), (b,), (c,)], ranks=[1, 2, 2])
    (a,), (b,), (c,) = environment.rate([(a,), (b,), (c,)], ranks=[2, 1, 3])
    (a,), (b,) = environment.rate([(a,), (b,)], ranks=[1, 2])
    found = rate_by_trueskill(games, METHODS)
    for name, rating in zip(METHODS, (a, b, c), strict=True):
        assert (found[name].mu, found[name].sigma) == pytest.approx((rating.mu, rating.sigma))


def test_the_rule_of_the_paper_groups_what_overlaps_with_the_group() -> None:
    chain = {"a": SkillRating(4, 0.5), "b": SkillRating(2.5, 0.5), "c": SkillRating(1, 0.5), "d": SkillRating(-3, 0.5)}
    assert partial_order(chain) == {"a": (1, 3), "b": (1, 3), "c": (1, 3), "d": (4, 4)}


def test_alpha_by_hand_and_against_the_package() -> None:
    """Two people, units (1 1), (1 2), (2 2): 2 of 6 pairs differ, of random pairs 2 x 3 x 3 of 30; 1 - 10/18 = 4/9."""
    assert krippendorff_alpha(np.array([[2, 0], [1, 1], [0, 2]]), "nominal") == pytest.approx(4 / 9)
    given = [ranking([1, 2, 3], 0), ranking([1, 3, 2], 1), ranking([2, 1, 3], 0, 1), ranking([1, 1, 3], 1, 1)]
    expected = krippendorff.alpha(
        reliability_data=[[1, 2, 3, 2, 1, 3], [1, 3, 2, 1, 1, 3]], level_of_measurement="ordinal"
    )
    assert get_statistic(rate(given), "alpha_between_people", "", "rankings").value == pytest.approx(expected)


def test_repeated_items_measure_reliability_and_nothing_else() -> None:
    first = [ranking([1, 2, 3], person, item) for person in range(3) for item in range(6)]
    again = [ranking([1, 2, 3] if item else [3, 2, 1], 0, item, Occasion.REPEAT) for item in range(6)]
    once, twice = rate(first), rate([*first, *again])
    expected = krippendorff.alpha(
        reliability_data=[[1, 2, 3] * 6, [3, 2, 1, *[1, 2, 3] * 5]], level_of_measurement="ordinal"
    )
    found = get_statistic(twice, "alpha_of_repeated_items", "", "rankings")
    assert found.value == pytest.approx(expected)
    assert found.n == 18
    worths = [each[each["metric"] == "log_worth"]["value"].tolist() for each in (once, twice)]
    assert worths[0] == worths[1]


# Degenerate studies: each has a stated answer, and `rate` checks that no number is NaN.


def test_nobody_answered() -> None:
    with pytest.raises(UserError, match="nobody has answered"):
        rate_study(study([ranking([1, 2, 3], occasion=Occasion.PRACTICE)]), "tested")


def test_everybody_failed_the_checks() -> None:
    careless = [ranking([1, 2, 3]), ranking([1, 2, 3], 0, 1, Occasion.CHECK, "a")]
    with pytest.raises(UserError, match="all 1 people"):
        rate_study(study(careless, allowed=0), "tested")


def test_only_checks_were_answered() -> None:
    summary = rate([ranking([3, 1, 2], 0, 9, Occasion.CHECK, "a")])
    assert findings(summary) == ()


def rows_of(summary: pd.DataFrame) -> list[Statistic]:
    return [Statistic(*row) for row in summary.itertuples(index=False)]


def bounds(row: Statistic) -> tuple[float, float]:
    return row.low, row.high


@pytest.mark.parametrize(("n_people", "n_items"), [(1, 9), (9, 1), (1, 1)])
def test_one_person_or_one_item_decides_nothing(n_people: int, n_items: int, tmp_path: Path) -> None:
    summary = rate(
        [ranking([1, 2, 3], person, item) for person in range(n_people) for item in range(n_items)],
        [guess("a", True, person, item) for person in range(n_people) for item in range(n_items)]
        + [guess(None, False, person, item) for person in range(n_people) for item in range(n_items)],
    )
    assert {each.verdict for each in findings(summary)} == {Verdict.UNDECIDED}
    assert {bounds(row) for row in select_statistics(summary, "rank")} == {(1, 3)}
    text = write_rating_page(StudyRating("tested", tuple(rows_of(summary))), tmp_path / "rating.html").read_text(
        "utf-8"
    )
    assert "−∞ to ∞" in text
    assert "nan" not in re.findall(r"\w+", text.partition("<main")[2].lower())
    assert bounds(get_statistic(summary, "accuracy_gain", "a")) == (-1, 1)


def test_all_ties() -> None:
    summary = rate(ranking([1, 1, 1], person, item) for person in range(8) for item in range(8))
    assert [row.value for row in select_statistics(summary, "log_worth")] == pytest.approx([0, 0, 0])
    for metric in ("log_odds", "log_worth_difference"):
        assert {bounds(row) for row in select_statistics(summary, metric)} == {(-math.inf, math.inf)}
    assert {each.verdict for each in findings(summary)} == {Verdict.UNDECIDED}
    assert find_statistic(summary, "alpha_between_people", "", "rankings") is None, "undefined: all answers are equal"


def test_a_method_that_nobody_ranked_has_no_worth() -> None:
    summary = rate(ranking([1, 2], person, item) for person in range(8) for item in range(8))
    assert {row.method for row in select_statistics(summary, "log_worth")} == {"a", "b"}
    assert get_statistic(summary, "times_ranked", "c").value == 0


def test_names_that_are_no_methods_of_the_study_are_passed_over() -> None:
    strange = [Ranking(f"p{person}", "i7", Occasion.MAIN, {"strange": 1, "a": 2, "b": 2}, 1.0) for person in range(4)]
    alone = Ranking("p0", "i9", Occasion.MAIN, {"a": 1, "strange": 2}, 1.0)
    row = get_statistic(rate([*strange, alone, ranking([1, 2, 3])]), "preferred", "a~b")
    assert (row.value, row.n) == (3 / 5, 5)
    assert select_statistics(rate([alone]), "log_worth") == []


def test_always_first_has_no_upper_bound_and_the_lower_one_of_unanimous_votes() -> None:
    """Twelve people, three pairs: the share (.025 / 3)^(1/12) of people is still likely."""
    rankings = [
        ranking([1, *rest], person, item) for person in range(12) for item, rest in enumerate([(2, 3), (3, 2)] * 8)
    ]
    summary = rate(rankings)
    share = (0.025 / 3) ** (1 / 12)
    for metric in ("log_odds", "log_worth_difference"):
        row = get_statistic(summary, metric, "a~b")
        assert row.low == pytest.approx(math.log(share / (1 - share)))
        assert row.high == math.inf
    assert get_statistic(summary, "log_worth", "a").high == math.inf
    assert get_statistic(summary, "log_worth", "b").low == -math.inf
    level = get_statistic(summary, "log_worth_difference", "b~c")
    assert -2 < level.low < 0 < level.high < 2
    few = rate(each for each in rankings if each.person in ("p0", "p1", "p2"))
    assert get_statistic(few, "log_worth_difference", "a~b").low < 0, "three people who agree decide nothing"


def test_methods_that_were_never_compared_have_an_unbounded_difference() -> None:
    parts = [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"c": 1}]
    given = [
        Ranking(f"p{person}", f"i{item}", Occasion.MAIN, parts[(person + item) % 3], 1.0)
        for person in range(6)
        for item in range(6)
    ]
    summary = rate(given)
    assert {row.method for row in select_statistics(summary, "log_worth")} == {"a", "b"}
    apart = [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"c": 1, "d": 2}, {"c": 2, "d": 1}]
    many = tuple(
        Ranking(f"p{person}", f"i{item}", Occasion.MAIN, apart[(person + item) % 4], 1.0)
        for person in range(8)
        for item in range(8)
    )
    summary = rate_study(StudyAnswers(("a", "b", "c", "d"), many, (), 0), "tested").summary
    rows = {row.method: row for row in select_statistics(summary, "log_worth_difference")}
    assert bounds(rows["a~c"]) == (-math.inf, math.inf)
    assert math.isfinite(rows["a~b"].low)


def test_guesses_without_a_control_have_no_gain() -> None:
    summary = rate(guesses=[guess("a", True, person, item) for person in range(5) for item in range(5)])
    assert select_statistics(summary, "accuracy_gain") == []
    assert findings(summary) == ()


def test_the_seed_decides_and_the_rating_is_stored(tmp_path: Path) -> None:
    answers = study(planted_rankings(5, 4))
    rating = rate_study(answers, "tested", seed=1)
    assert rating == rate_study(StudyAnswers.from_json(answers.to_json()), "tested", seed=1)
    assert rating != rate_study(answers, "tested", seed=2)
    workspace = Workspace(tmp_path)
    stored = workspace.get(rating).summary
    pd.testing.assert_frame_equal(stored, rating.summary, check_dtype=False)
    assert "p0" not in json.dumps(StudyRating.to_record(rating)), "no person is in the result"


def test_the_report_shows_a_study_with_table_4_of_the_paper(tmp_path: Path) -> None:
    methods = ("learned-head-mix(2-of-4-heads,64926a)", "integrated-gradients", "own")
    given = tuple(
        replace(each, ranks=dict(zip(methods, each.ranks.values(), strict=True))) for each in planted_rankings(6, 5)
    )
    rating = rate_study(StudyAnswers(methods, given, (), 0), "birds <b>")
    workspace = Workspace(tmp_path)
    workspace.get(rating)
    [chapter] = build_page(workspace).papers
    [section] = chapter.sections
    assert chapter.name == "scaffold"
    assert section.title.endswith("birds <b>")
    assert section.findings[0].verdict is findings(rating.summary)[0].verdict
    assert [each.title for each in section.figures] == [CHARTS[0][1], CHARTS[1][1]]
    table = next(each for each in chapter.tables if each.caption.startswith("Table 4"))
    cells = {row[0]: row for row in table.rows}
    assert set(cells) == {*methods, "Gradient x Input", "Attention (all layers)"}
    mu, sigma = cells[methods[0]][1:3]
    assert isinstance(mu, Comparison)
    assert isinstance(sigma, Comparison)
    assert (mu.ours, mu.published) == (get_statistic(rating.summary, "trueskill", methods[0]).value, 4.3)
    assert sigma.published == 0.7
    assert "birds <b>" not in "".join(page_parts(build_page(workspace)))


def test_a_new_rating_replaces_that_of_the_same_study_only(tmp_path: Path) -> None:
    rating, workspace = rate_study(study(planted_rankings(5, 4)), "tested", origin="a"), Workspace(tmp_path)
    again, other = replace(rating, seed=1), replace(rating, study="other")
    for stored in (rating, other, again):
        store_rating(stored, workspace)
    with pytest.raises(UserError, match="another study"):
        store_rating(replace(rating, origin="b"), workspace)
    assert [workspace.has(stored) for stored in (rating, other, again)] == [False, True, True]


@pytest.mark.parametrize(("rare", "t"), [(1, math.inf), (2, 12.7062), (3, 4.3027), (6, 2.5706)])
def test_a_share_of_few_answers_has_the_degrees_of_freedom_of_these(rare: int, t: float) -> None:
    def guess(person: int, item: int, method: str | None, *, right: bool) -> Simulation:
        return Simulation(f"p{person}", f"i{item}", Occasion.MAIN, method, "x" if right else "y", "x", 1.0)

    without = [guess(person, item, None, right=(person + item) % 3 == 0) for person in range(10) for item in range(10)]
    summary = rate_study(study([], [*without, *(guess(n, n, "a", right=True) for n in range(rare))]), "tested").summary
    # All are right: the bootstrap has no variance, and Agresti and Coull's is (rare + 2) * 2 / (rare + 4) ** 3.
    low = max(0.0, 1 - t * math.sqrt((rare + 2) * 2 / (rare + 4) ** 3))
    assert get_statistic(summary, "accuracy", "a").low == pytest.approx(low, abs=1e-4)
    if rare == 1:  # one guess decides nothing
        assert bounds(get_statistic(summary, "accuracy_gain", "a")) == (-1, 1)


def test_the_origin_of_a_study_is_its_keys_or_the_place_of_its_answers(tmp_path: Path) -> None:
    given = study(planted_rankings(3, 3))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "answers.json").write_text(given.to_json(), encoding="utf-8")
    workspace = tmp_path / "workspace"
    codes = [
        heedful("study", "rate", tmp_path / name / "answers.json", "-w", workspace).exit_code
        for name in ("one", "one", "two")
    ]
    assert codes == [0, 0, 2]


def heedful(*words: str | Path) -> Result:
    """The output of the command and its exit code."""
    return CliRunner().invoke(cli.app, [*map(str, words)])


def test_the_command_rates_exported_answers_and_the_report_shows_them(tmp_path: Path) -> None:
    answers, workspace, out = tmp_path / "birds.json", tmp_path / "workspace", tmp_path / "out.json"
    given = study(planted_rankings(8, 6), guesses_of({None: [2] * 8, "a": [4, 3] * 4}))
    answers.write_text(given.to_json(), encoding="utf-8")
    result = heedful("study", "rate", answers, "--workspace", workspace, "--json", out, "--seed", "4")
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text(encoding="utf-8"))
    rating = rate_study(given, "birds", seed=4)
    assert record == json.loads(json.dumps(rating.to_record()))
    assert {*record["summary"][0]} == {"metric", "method", "subset", "value", "low", "high", "n"}
    assert record["sentences"][0] in result.output
    assert "<svg" in (tmp_path / "birds.rating.html").read_text(encoding="utf-8")
    assert heedful("report", "--workspace", workspace, "--out", tmp_path / "report").exit_code == 0
    assert "birds" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "[]", "{", study().to_json()])
def test_what_cannot_be_rated_is_one_line(tmp_path: Path, content: str | None) -> None:
    answers = tmp_path / "answers.json"
    if content is not None:
        answers.write_text(content, encoding="utf-8")
    result = heedful("study", "rate", answers, "--workspace", tmp_path / "workspace")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "workspace").exists()
