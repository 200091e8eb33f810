"""Questions about what a heat-map seems to say: for or against the prediction, and why this class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.attributions.method import option_values, tags_of
from heedful.audits.evidence import BlockAttributions, rank_correlations
from heedful.audits.topics import MeanQuestion, Question
from heedful.audits.verdict_rules import EQUAL_OUTPUTS, NULL, MeanScale, Rules, defined
from heedful.formatting import format_share
from heedful.measures.bounded_mean import mean_interval
from heedful.results import Finding, Statistic
from heedful.store.recipe import Recipe
from heedful.types import Method

if TYPE_CHECKING:  # both import this module
    from heedful.audits.work_list import AuditPlan, FinishedWork

CLASS_CHANGE = 0.5
"""Maps that differ less (1 - rank correlation) do not tell classes apart; a randomized model must change as much."""
CLASS_TEXTS = 12
"""The first texts, of which another class is explained as well; and a third of the others."""
NO_CLASSES = "the model predicts a number and has no classes"


class Polarity(Question):
    """How often the removal of the word that a method ranks first raises the output of the predicted class.

    A column per method: the share of the ways of deletion under which it does; and one for any word of the text.
    """

    name = "polarity"
    label = "first word speaks for it"
    title = "Does the word that it ranks first speak for the prediction?"
    measured = (
        "The word that the explanation ranks highest is removed from the text, and nothing else. It speaks against the "
        "prediction if the output of the predicted class rises. The number is how often that happens."
    )
    null = "Any word of the same text: how often removing one of its words, whichever it is, raises the output."
    rule = (
        "Supported if the word ranked first speaks against the prediction clearly less often than any word of the same "
        "text, not supported if clearly more often (paired by text, Holm over methods). No decision rests on this "
        "question: a method that ranks words against the prediction first already loses faithfulness, and one without "
        "signs never said that its words speak for the prediction."
    )
    limits = (
        "A word whose removal raises the output a little counts like one that raises it much. Two words that say the "
        "same hide each other: removing one of them changes nothing."
    )
    references = ("liu-2022",)
    axis = "share of texts whose first word speaks against the prediction"
    column = "first word against"
    meaning = "how often the word ranked first speaks against the prediction"
    metric: ClassVar[str] = "first word speaks against"

    def read(self, work: FinishedWork) -> pd.DataFrame:
        searched = work.searched
        if not work.plan.explainer.class_names or "without_each" not in searched:
            return pd.DataFrame()
        rises: dict[str, list[NDArray[np.bool_]]] = {}
        for uid, full, without in zip(searched["uid"], searched["full"], searched["without_each"], strict=True):
            rises.setdefault(str(uid), []).append(np.asarray(without) > full + EQUAL_OUTPUTS)
        against = {uid: np.mean(ways, axis=0) for uid, ways in rises.items()}
        columns = {NULL: pd.Series({uid: values.mean() for uid, values in against.items()}, dtype=float)}
        for name in work.plan.answered:
            erased = work.erasures(name)
            first = {str(uid): order[0] for uid, order in zip(erased["uid"], erased["order"], strict=True)}
            columns[name] = pd.Series({uid: against[uid][int(word)] for uid, word in first.items()}, dtype=float)
        return pd.DataFrame(columns)

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return "" if plan.explainer.class_names else NO_CLASSES

    def answers(self, rules: Rules) -> dict[str, Finding]:
        table = rules.table(self.name)
        less = pd.DataFrame({name: table[NULL] - table[name] for name in rules.evidence.methods if name in table})
        answers = rules.judge_means(self.name, less, MeanScale("difference", -1.0, 1.0, 0.0, 0.0), "")
        for name in map(str, less):
            pairs = table[[name, NULL]].dropna()
            if pairs.empty:
                continue
            values, any_word = defined(pairs[name]), float(pairs[NULL].mean())
            value, low, high = mean_interval(values, 0.0, 1.0, rules.alpha)
            p_value = answers[name].statistic.p_value
            row = Statistic(self.metric, name, "", value, low, high, len(values), any_word, p_value)
            reason = f"the word that it ranks first speaks against the prediction in {format_share(value)} of the texts"
            reason += f", any word in {format_share(any_word)}"
            answers[name] = replace(answers[name], evidence=(row,), reason=reason)
        return answers


class ClassSensitive(MeanQuestion):
    """1 - the rank correlation of the scores for the predicted class and for the runner-up.

    0 for methods that are blind to the class. Where a model has two classes, the scores for the other one are those for
    this one with the opposite sign, if they are signed contributions to a probability: opposed maps count as 1.
    """

    name = "class-sensitive"
    label = "differs between classes"
    title = "Does the explanation differ between classes?"
    measured = (
        "Some texts are explained again, for the class with the second highest output. The number is 1 minus the "
        "rank correlation of the two explanations: 0 if they are the same, 1 if they are unrelated or opposed. By "
        "definition it is 0 for methods that do not know which class they explain. Of two classes, whose probabilities "
        "add up to 1, signed contributions to the probability are opposed by definition (correlation -1): what speaks "
        "for one class speaks against the other."
    )
    null = "The same map for both classes."
    rule = (
        "Supported if the mean is clearly above 0.5, not supported if it is clearly below (Holm over methods). No "
        "decision rests on this question: a map that is the same for every class can name the words that matter."
    )
    limits = (
        "A map that differs between classes may be wrong for both of them. One that does not differ shows where the "
        "model looked, not why it chose this class rather than another."
    )
    references = ("sixt-2020",)
    axis = "difference between the maps for two classes"
    recomputes = True
    texts = CLASS_TEXTS
    limit = CLASS_CHANGE
    metric = "1 - rank correlation"
    reason = "its maps for the predicted class and the runner-up differ by {value:.2f} (0: not at all, 1: unrelated)"

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        for name, method in plan.recomputable.items() if plan.explainer.class_names else ():
            if known_difference(method, len(plan.explainer.class_names)) is None:
                yield name, BlockAttributions(plan.sample, method, block, runner_up=True)

    def read(self, work: FinishedWork) -> pd.DataFrame:
        columns = {}
        for name, method in work.plan.recomputable.items() if work.plan.explainer.class_names else ():
            scores, known = work.scores[name], known_difference(method, len(work.plan.explainer.class_names))
            columns[name] = (
                # Opposed maps differ no more than unrelated ones.
                (1 - rank_correlations(scores, work.table(self, name))).clip(upper=1.0)
                if known is None
                else pd.Series(known, scores.index)
            )
        return pd.DataFrame(columns)

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return super().unasked(plan, method) or ("" if plan.explainer.class_names else NO_CLASSES)


def known_difference(method: Method, classes: int) -> float | None:
    """How much maps for two of so many classes differ, where that follows from what a method is; None elsewhere."""
    tags, outputs = tags_of(method), {*option_values(method, "output")}
    if not tags.target_specific:
        return 0.0
    return 1.0 if classes == 2 and tags.signed and outputs == {"probability"} else None
