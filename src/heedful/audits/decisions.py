"""The decision on each method from its answers, the order of recommendation, and the sentences that say so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from heedful.attributions.method import MethodTags
from heedful.audits.audit_result import MethodAudit, OtherThreshold
from heedful.audits.questions import QUESTIONS, UNDER_INFILL
from heedful.audits.topics import Role
from heedful.audits.verdict_rules import FAITHFUL, MIN_ANSWER_TEXTS, Rules, more_texts
from heedful.formatting import format_share, join_names
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.measures.bounded_mean import p_value
from heedful.measures.hypothesis_tests import adjust_holm
from heedful.results import Decision, Finding, Statistic, Verdict

NO_EFFECT = 0.05
"""Where the probability of a prediction falls by less than this without the best words found, words do not matter."""
CHEAP_SECONDS, EQUAL_COSTS = 0.1, 3.0
"""Below so many seconds nobody waits for an explanation; costs within this factor are equal."""
UNITS: Mapping[str, tuple[str, str]] = {"texts": ("word", "words"), "images": ("patch", "patches")}
"""What has a score in a text or an image."""
_Answers = Mapping[str, Mapping[str, Finding]]
"""By question and method."""
_BEST_FIRST = (
    Decision.SHOW,
    Decision.NOT_ALONE,
    Decision.UNDECIDED,
    Decision.BEATEN,
    Decision.MISLEADING,
    Decision.HIDE,
)


def judge_methods(rules: Rules, effects: Sequence[Statistic] = ()) -> tuple[MethodAudit, ...]:
    """Every method with its answers and its decision, the best first, controls last.

    Args:
        effects: how much the output falls without the best words found, by predicted class, as in `Audit.effects`.
    """
    ways = (*rules.by_way().values(), UNDER_INFILL.shares(rules))
    return tuple(
        replace(method, by_way=tuple(by_method[method.name] for by_method in ways if method.name in by_method))
        for method in _methods(rules, _answers(rules), rules.tiers(), effects)
    )


def _answers(rules: Rules) -> _Answers:
    return {question.name: question.answers(rules) for question in QUESTIONS}


def _methods(
    rules: Rules, answers: _Answers, tiers: Mapping[str, int], effects: Sequence[Statistic]
) -> tuple[MethodAudit, ...]:
    evidence, audits, faithful = rules.evidence, [], answers[FAITHFUL]
    others = [name for name in evidence.methods if name not in evidence.controls]
    required = [answers[question.name] for question in QUESTIONS if question.role is Role.REQUIRED]
    passing = [name for name in others if all(each[name].verdict is Verdict.SUPPORTED for each in required)]
    best, first = (
        max(names, key=lambda name: (faithful[name].statistic.value, name), default="")
        for names in (passing, [name for name in others if tiers[name] == 1])
    )
    behind = rules.behind(best) if best else {}
    whole = next((row for row in groups_without_effect(effects, rules.alpha) if not row.subset), None)
    for name in evidence.methods:
        findings = {question: by_method[name] for question, by_method in answers.items()}
        share = findings[FAITHFUL].statistic
        is_control = name in evidence.controls
        decision, reason = None, "a control, which must do badly"
        if not is_control and whole is not None:
            decision = Decision.HIDE
            reason = f"most predictions do not rest on what it scores: the output falls by {whole.value:.3f} at best"
        elif not is_control:
            decision, reason = decide(findings, behind.get(name), evidence.texts)
            if decision is Decision.SHOW and tiers[name] > 1 and first not in passing:
                reason += f"; {first} is clearly more faithful, but may not be shown"
        audits.append(
            MethodAudit(
                name=name,
                control=is_control,
                answers=tuple(findings.values()),
                achievable=share.value,
                achievable_low=share.low,
                achievable_high=share.high,
                tier=tiers[name],
                seconds=evidence.seconds.get(name, math.nan),
                decision=decision,
                reason=reason,
                optimized_for=evidence.optimized_for.get(name, ()),
                tags=evidence.tags.get(name, MethodTags()),
                behind=behind.get(name),
            )
        )
    return _ranked(audits)


def other_thresholds(rules: Rules, effects: Sequence[Statistic] = ()) -> tuple[OtherThreshold, ...]:
    """What the same rules would decide with each threshold halved and doubled.

    Only what depends on a threshold is tested again.
    """
    answers, tiers, used = _answers(rules), rules.tiers(), rules.thresholds
    others = []
    for name, value, thresholds in used.others():
        other = rules.with_thresholds(thresholds)
        again = [each for each in QUESTIONS if each.thresholds_used(thresholds) != each.thresholds_used(used)]
        methods = _methods(
            other,
            {**answers, **{question.name: question.answers(other) for question in again}},
            other.tiers() if thresholds.tier_margin != used.tier_margin else tiers,
            effects,
        )
        decisions = {method.name: method.decision for method in methods if method.decision is not None}
        others.append(OtherThreshold(name, getattr(used, name), value, decisions))
    return tuple(others)


def decide(answers: Mapping[str, Finding], behind: Finding | None = None, texts: int = 0) -> tuple[Decision, str]:
    """Whether an explanation may be shown, and why.

    *may be shown*: passes what is required, fails nothing that is desired, and is clearly not far behind the most
    faithful one that passes what is required. *looks right but is not*: plausible to people, but fails what is
    required. *not to be shown*: fails what is required. *another is better*: clearly far behind that one. *undecided*:
    something required is not known yet, or whether it is far behind. *not alone*: passes what is required, but fails
    what is desired.

    Args:
        answers: by question.
        behind: as in `Rules.behind`; None for the most faithful method, and if no method passes what is required.
        texts: that were audited.
    """
    by_role = {role: [answers[each.name] for each in QUESTIONS if each.role is role] for role in Role}
    faults = [answer.reason for answer in by_role[Role.REQUIRED] if answer.verdict is Verdict.NOT_SUPPORTED]
    if faults:
        reason = "; ".join(faults)
        if any(answer.verdict is Verdict.SUPPORTED for answer in by_role[Role.APPEARANCE]):
            return Decision.MISLEADING, f"people find it plausible, but {reason}"
        return Decision.HIDE, reason
    unknown = [answer for answer in by_role[Role.REQUIRED] if answer.verdict is not Verdict.SUPPORTED]
    open_questions = [_missing(answer, texts) for answer in unknown]
    failed = [
        f"not {answer.question}: {answer.reason}"
        for answer in by_role[Role.DESIRED]
        if answer.verdict is Verdict.NOT_SUPPORTED
    ]
    if behind is not None and behind.verdict is Verdict.NOT_SUPPORTED:
        beaten = f"{behind.reason}, clearly more than {_limit(behind)}"
        return Decision.BEATEN, "; ".join((beaten, *open_questions, *failed))
    if behind is not None and behind.verdict is not Verdict.SUPPORTED:
        more = _would_decide(behind, texts)
        open_questions.append(f"{behind.reason}, undecided whether by more than {_limit(behind)}{more}")
    if open_questions:
        return Decision.UNDECIDED, "; ".join((*open_questions, *failed))
    if failed:
        return Decision.NOT_ALONE, "; ".join(failed)
    return Decision.SHOW, answers[FAITHFUL].reason


def _missing(answer: Finding, texts: int) -> str:
    """What is not known of something required, and about how many texts would tell."""
    state = "not tested" if answer.verdict is Verdict.NOT_TESTED else "undecided"
    return f"{state} whether it is {answer.question}: {answer.reason}{_would_decide(answer, texts)}"


def _would_decide(answer: Finding, texts: int) -> str:
    """About how many texts would decide, in parentheses; empty where that is not known."""
    if not answer.texts_needed:
        return ""
    if answer.texts_needed <= texts:
        return " (more minutes for these texts would decide)"
    return f" ({more_texts(answer.texts_needed, texts)} would decide)"


def _limit(behind: Finding) -> str:
    """How far behind the most faithful method a method is not shown."""
    return format_share(behind.statistic.null)


def _ranked(audits: Sequence[MethodAudit]) -> tuple[MethodAudit, ...]:
    """Decision first; among those that may be shown the cheapest, among equally cheap ones the most faithful first."""
    groups = cost_groups([audit.seconds for audit in audits if audit.decision is Decision.SHOW])
    return tuple(sorted(audits, key=lambda audit: _order(audit, groups)))


def _order(audit: MethodAudit, groups: Mapping[float, int] = MappingProxyType({})) -> tuple[bool, int, int, float, str]:
    rank = len(_BEST_FIRST) if audit.decision is None else _BEST_FIRST.index(audit.decision)
    cost = groups.get(audit.seconds, len(groups)) if audit.decision is Decision.SHOW else 0
    share = audit.achievable if math.isfinite(audit.achievable) else -math.inf
    return audit.control, rank, cost, -share, audit.name


def cost_groups(seconds: Sequence[float]) -> dict[float, int]:
    """The group of each cost, from 0: a group holds what costs at most three times as much as its cheapest.

    Below a tenth of a second nobody waits, so that such costs are equal. Unknown costs have no group.

    >>> cost_groups([0.02, 0.09, 0.29, 0.31, 2.0, math.nan])
    {0.02: 0, 0.09: 0, 0.29: 0, 0.31: 1, 2.0: 2}
    """
    groups, limit = dict[float, int](), -math.inf
    for cost in sorted(filter(math.isfinite, seconds)):
        if cost > limit:
            limit = EQUAL_COSTS * max(cost, CHEAP_SECONDS)
            group = len({*groups.values()})
        groups[cost] = group
    return groups


def caution(noun: str) -> str:
    """The sentence that must go with every heat-map."""
    where = "parts of the image" if noun == "images" else "words"
    return (
        f"The colors show which {where} the prediction depends on, as far as this method can tell; they do not show "
        "why, and they do not show that the prediction is right."
    )


def answer_sentence(methods: Sequence[MethodAudit]) -> str:
    """What may be shown and what must not, in a few words; the reasons are with the methods."""
    shown = [method.name for method in methods if method.decision is Decision.SHOW]
    by_name = {method.name: method for method in methods}
    hidden = [method.name for method in methods if method.decision in (Decision.HIDE, Decision.MISLEADING)]
    not_shown = f" Do not show {join_names(hidden)}." if hidden else ""
    if shown:
        shown = [f"{name}{_exception(by_name[name])}" for name in shown]
        more = f" You can also show {join_names(shown[1:])}." if shown[1:] else ""
        return f"Show {shown[0]}.{more}{not_shown}"
    # What is beaten is never the best: the one that beats it passes what is required, and is shown at least not alone.
    candidates = [method for method in methods if method.decision in (Decision.NOT_ALONE, Decision.UNDECIDED)]
    first = min(candidates, key=_order, default=None)
    if first is None:
        return f"No explanation may be shown.{not_shown}"
    what = "may be shown alone" if first.decision is Decision.NOT_ALONE else "may be shown yet"
    return f"No explanation {what}. The best so far is {first.name}.{not_shown}"


def _exception(method: MethodAudit) -> str:
    """The classes for which a method must not be shown, in parentheses; empty if there are none."""
    classes = method.refuted_classes
    return f" (but not for predictions of {join_names(classes)})" if classes else ""


def no_effect_p_value(effects: NDArray[np.float64]) -> float:
    """P-value of the hypothesis that half of such texts or more have an effect of `NO_EFFECT` or more.

    A mean is not tested: few texts exclude no rare large effects, so that 72 would be needed even if none had any.

    >>> round(no_effect_p_value(np.zeros(12)) * 2**12, 6)
    1.0
    """
    return p_value((effects < NO_EFFECT).astype(np.float64), 0.0, 0.5)


def groups_without_effect(effects: Sequence[Statistic], alpha: float) -> list[Statistic]:
    """The groups of predictions (`subset`, empty for all) of which most do not rest on words (Holm over groups).

    None if there are too few texts in all for any verdict: no look is counted before.

    Args:
        effects: with the p-values of `no_effect_p_value`.
    """
    if max((row.n for row in effects if not row.subset), default=0) < MIN_EXAMPLES:
        return []
    p_values = adjust_holm([row.p_value for row in effects])
    return [
        row
        for row, p in zip(effects, p_values, strict=True)
        if p <= alpha and row.n >= MIN_ANSWER_TEXTS and row.value < NO_EFFECT
    ]


def nothing_sentence(effects: Sequence[Statistic], alpha: float, noun: str = "texts") -> str:
    """Which predictions do not rest on words, so that no explanation can show why; empty if there are none.

    Args:
        effects: how much the output falls without the best words found, by predicted class.
    """
    unit = UNITS[noun][1]
    without = groups_without_effect(effects, alpha)
    rows = [row for row in without if not row.subset] or without
    if not rows:
        return ""
    classes = [row.subset for row in rows if row.subset]
    which = f"Most predictions of {join_names(classes)}" if classes else "Most predictions"
    most = max(row.value for row in rows)
    return (
        f" {which} do not rest on single {unit}: without the best {unit} found, the output falls by {most:.3f} on "
        "average. There is nothing to show for them."
    )


def caption(
    methods: Sequence[MethodAudit],
    texts: int,
    source: str,
    noun: str = "texts",
    *,
    units: tuple[str, str] | None = None,
) -> str:
    """The text under a heat-map of the first method that may be shown; empty if there is none.

    Args:
        units: what was audited, one and several of them; by default what has a score in texts or images.
    """
    shown = next((method for method in methods if method.decision is Decision.SHOW), None)
    if shown is None:
        return ""
    unit, several = units or UNITS[noun]
    limits = "".join(f" {limit[:1].upper()}{limit[1:]}." for limit in shown.tags.limits)
    return (
        f"{unit.capitalize()} scores by {shown.name} for the predicted class.{limits} On {texts} {noun} of "
        f"{Path(source).name}, removing the {several} that it ranks highest had {format_share(shown.achievable)} of "
        f"the effect of the best explanation found; random {several} have 0 %. {caution(noun)}"
    )


def removal_sentence(method: str, words: Sequence[str], output: str, full: float, left: float, noun: str) -> str:
    """What removing the words that a method ranks highest does to an output, for the example of a failure.

    Args:
        full: the output for the whole text.
        left: the output without the words.
    """
    listed = ("; " if noun == "images" else ", ").join(words)
    return (
        f"Without {format_count(len(words), noun)} that {method} ranks highest ({listed}), the output for {output} "
        f"goes from {full:.2f} to {left:.2f}"
    )


def format_count(count: int, noun: str = "texts") -> str:
    """
    >>> format_count(1), format_count(3, "images")
    ('the word', 'the 3 patches')
    """
    return f"the {UNITS[noun][0]}" if count == 1 else f"the {count} {UNITS[noun][1]}"
