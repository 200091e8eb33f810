"""From stored evidence to sentences: correlations on the words that two explanations share, seeds, the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest
from scipy import stats

from heedful.attributions.method import Feature
from heedful.audits.analysis import (
    AuditAnalysis,
    RankedText,
    class_counts,
    explained_units,
    words_of_first_segments,
)
from heedful.audits.audit_result import WordUse
from heedful.audits.decisions import answer_sentence, caption
from heedful.audits.evidence import rank_correlations
from heedful.audits.questions import AGREES
from heedful.audits.work_list import FinishedWork
from heedful.results import Decision
from heedful.types import Example
from tests.audits.sample_audit import sample_audit

Scores = Mapping[str, tuple[list[int], list[float]]]


def table(scores: Scores) -> pd.DataFrame:
    """Rows as a block of attributions has them: uid to numbers and scores of words."""
    columns = {
        "word_numbers": [each[0] for each in scores.values()],
        "word_scores": [each[1] for each in scores.values()],
    }
    return pd.DataFrame(columns, index=list(scores))


def test_correlations_are_those_of_scipy_on_the_words_that_both_have() -> None:
    first = table(
        {"a": ([0, 1, 2, 3], [0.1, 0.9, 0.3, 0.3]), "b": ([0, 1, 4], [3.0, 2.0, 1.0]), "c": ([0, 1], [1.0, 2.0])}
    )
    second = table(
        {
            "b": ([0, 4], [1.0, 2.0]),  # the text lost a word in the middle
            "a": ([0, 1, 2], [0.5, 0.4, 0.2]),  # and its last one
            "d": ([0, 1], [1.0, 2.0]),
        }
    )
    found = rank_correlations(first, second)
    assert {*found.index} == {"a", "b"}
    assert found["a"] == pytest.approx(stats.spearmanr([0.1, 0.9, 0.3], [0.5, 0.4, 0.2]).statistic)
    assert found["b"] == pytest.approx(-1.0)
    back = rank_correlations(second, first)
    assert back["a"] == pytest.approx(found["a"])


def test_correlations_that_are_not_defined_are_not_a_number() -> None:
    first = table({"a": ([0, 1, 2], [1.0, 1.0, 1.0]), "b": ([0, 1], [1.0, 2.0]), "c": ([0], [1.0])})
    second = table({"a": ([0, 1, 2], [1.0, 2.0, 3.0]), "b": ([2, 3], [1.0, 2.0]), "c": ([0], [1.0])})
    assert [math.isnan(value) for value in rank_correlations(first, second)] == [True, True, True]
    assert not len(rank_correlations(first, pd.DataFrame()))
    assert not len(rank_correlations(first, table({"z": ([0, 1], [1.0, 2.0])})))


def test_every_two_methods_are_compared_once() -> None:
    one, other = table({"a": ([0, 1, 2], [1.0, 2.0, 3.0])}), table({"a": ([0, 1, 2], [3.0, 2.0, 1.0])})
    correlations = AGREES.read(cast(FinishedWork, SimpleNamespace(scores={"z": one, "a": other, "m": one})))
    assert {pair: values.tolist() for pair, values in correlations.items()} == {
        ("a", "m"): pytest.approx([-1.0]),
        ("a", "z"): pytest.approx([-1.0]),
        ("m", "z"): pytest.approx([1.0]),
    }


def test_texts_are_counted_by_predicted_class() -> None:
    found = pd.DataFrame({"predicted": [0, 2, 2]})
    assert class_counts(found, ("a", "b", "c")) == {"a": 1, "b": 0, "c": 2}
    assert sum(class_counts(found, ()).values()) == 3


def test_the_answer_names_what_may_be_shown_and_what_must_not() -> None:
    audit = sample_audit()
    shown = [each.name for each in audit.methods if each.decision is Decision.SHOW]
    hidden = [each.name for each in audit.methods if each.decision in (Decision.HIDE, Decision.MISLEADING)]
    sentence = answer_sentence(audit.methods)
    assert sentence.startswith(f"Show {shown[0]}")
    before, after = sentence.split("Do not show")
    assert all(name in before for name in shown)
    assert all(name in after for name in hidden)
    assert shown[0] in caption(audit.methods, 212, "folder/reviews.csv")
    assert "reviews.csv" in caption(audit.methods, 212, "folder/reviews.csv")


def test_nothing_to_show_has_no_caption_and_says_what_comes_next() -> None:
    doubtful = tuple(
        replace(each, decision=Decision.NOT_ALONE, reason="few texts") if each.decision is Decision.SHOW else each
        for each in sample_audit().methods
    )
    assert caption(doubtful, 28, "reviews.csv") == ""
    sentence = answer_sentence(doubtful)
    first = max((each for each in doubtful if each.decision is Decision.NOT_ALONE), key=lambda each: each.achievable)
    assert not sentence.startswith("Show")
    assert first.name in sentence
    refused = tuple(replace(each, decision=Decision.HIDE) for each in doubtful)
    assert "The best" not in answer_sentence(refused)
    assert all(each.name in answer_sentence(refused) for each in refused)


def test_what_the_model_uses_are_words_that_are_ranked_first_twice() -> None:
    long = "seventeen one two three four five six seven eight ten eleven twelve"
    examples = {uid: Example(uid, (text,)) for uid, text in {"a": "Good film", "b": "so good!", "c": long}.items()}
    scores = pd.DataFrame(
        {
            "predicted": [1, 1, 0],
            "words": [[-1, 0, 1], [0, 0, 1], [*range(10)]],
            "features": [[-1, 0, 1], [0, 0, 1], [*[0] * 9, 9]],
            "word_numbers": [[0, 1], [0, 1], [0, 9]],
            "word_scores": [[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]],
        },
        index=[*examples],
    )
    explainer = SimpleNamespace(class_names=("bad", "fine"))
    work = SimpleNamespace(scores={"m": scores}, examples=examples)
    work.plan = SimpleNamespace(explainer=explainer, reads_images=False)
    analysis = AuditAnalysis(cast(FinishedWork, work), {}, 1, 60.0)
    assert analysis._words("c", scores) == ["seventeen one two three four five six seven eight", "ten"]
    used = analysis._word_use("m")
    assert used == (WordUse("good", "fine", 2, 2),)


def test_words_of_first_segments_are_compared_with_random_places_of_the_same_words() -> None:
    """Ten segments of two words; "the" is everywhere, "key" once in each text, and "odd" in too few texts."""

    def text(number: int, first: int | None) -> RankedText:
        runs = [["the", f"w{number}-{place}"] for place in range(9)]
        return RankedText("yes", [*runs, ["the", "key"]], first)

    texts = [*(text(number, 9) for number in range(6)), text(6, 0), text(7, None)]
    texts += [RankedText("no", [["odd", "one"], ["the", "key"], *[["the", "rest"]] * 8], 0)] * 2
    [use] = words_of_first_segments(texts)
    assert (use.word, use.predicted, use.first, use.texts) == ("key", "yes", 6, 8)
    assert use.by_chance == pytest.approx(7 * 2 / 20)
    assert words_of_first_segments([text(number, number % 9) for number in range(9)]) == []
    assert words_of_first_segments([]) == []


def test_the_caption_names_what_was_audited() -> None:
    audit = sample_audit()

    def words(feature: Feature, segmented: int) -> tuple[str, str]:
        return explained_units(replace(audit.data, feature=feature, segmented=segmented))

    assert words("segment", 0) == ("word", "words")
    assert words("segment", 5) == ("word or segment", "words or segments")
    assert words("sentence", audit.data.texts) == ("sentence", "sentences")
    shown = caption(audit.methods, 212, "reviews.csv", units=words("sentence", audit.data.texts))
    assert "removing the sentences" in shown
    assert "Sentence scores" in shown
