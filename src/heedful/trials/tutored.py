"""What the numbers of a simulability trial come to, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping


def told(summary: Mapping[str, float], plain: str) -> str:
    """What students reach without explanations and with each kind, and whether it helps; one class size after another.

    Args:
        plain: the arm without explanations.
    """
    sizes = [name.rsplit(".", 1)[1] for name in summary if name.startswith(f"median.{plain}.")]
    words = [_of_size(summary, plain, size) for size in sizes]
    if not math.isnan(summary["commonest"]):
        words.append(f"Always giving the teacher's commonest answer would reach {summary['commonest']:.1%}.")
    return " ".join(words)


def _of_size(summary: Mapping[str, float], plain: str, size: str) -> str:
    start, end = "median.", f".{size}"
    arms = [name[len(start) : -len(end)] for name in summary if name.startswith(start) and name.endswith(end)]
    # Explanations that know nothing come last: they are what the others are measured by.
    others = sorted((arm for arm in arms if arm != plain), key=lambda arm: summary[f"null.{arm}.{size}"])
    reached = _reached(summary, summary[f"median.{plain}.{size}"])
    alone = "students that see the teacher's answers alone"
    words = [f"From {size} examples, {alone} {reached} (median of {summary['seeds']:.0f} seeds)."]
    words += [_arm(summary, arm, size) for arm in others]
    if any(summary[f"null.{arm}.{size}"] and summary[f"helps.{arm}.{size}"] for arm in others):
        words.append("Explanations that know nothing help here: only what others gain over them is evidence.")
    return " ".join(words)


def _arm(summary: Mapping[str, float], arm: str, size: str) -> str:
    at = f"{arm}.{size}"
    gain, low, high = (summary[f"{name}.{at}"] for name in ("difference", "difference_low", "difference_high"))
    called = f"{arm} (which knows nothing)" if summary[f"null.{at}"] else arm
    median = _number(summary, summary[f"median.{at}"])
    if math.isnan(low):
        return f"{called}: {median}, {_gain(summary, gain)}, undecided; train more seeds, or test on more examples."
    verdict = "helps" if summary[f"helps.{at}"] else "does not help" if summary[f"does_not_help.{at}"] else "undecided"
    interval = f"{_gain(summary, gain)}, 95 % interval {_gain(summary, low)} to {_gain(summary, high)}"
    return f"{called}: {median}, {interval}: {verdict}{_by_paper(summary, at)}."


def _by_paper(summary: Mapping[str, float], at: str) -> str:
    """The paper's rule where it says something else, or the same; nothing where it is undefined."""
    if math.isnan(summary[f"paper_helps.{at}"]):
        return ""
    helps, harms, ours = (bool(summary[f"{name}.{at}"]) for name in ("paper_helps", "paper_harms", "helps"))
    rule = "by the paper's rule (quartiles apart)"
    if helps:
        return f", and helps {rule}" if not ours else f", also {rule}"
    return f", and harms {rule}" if harms else f", not {rule}" if ours else ""


def _reached(summary: Mapping[str, float], value: float) -> str:
    if summary["pearson"]:
        return f"correlate with it at {value:.3f} on unseen examples"
    return f"answer as it does on {value:.1%} of unseen examples"


def _number(summary: Mapping[str, float], value: float) -> str:
    return f"{value:.3f}" if summary["pearson"] else f"{value:.1%}"


def _gain(summary: Mapping[str, float], value: float) -> str:
    """A gain with its sign: in hundredths of a correlation, or in points of a percentage."""
    return f"{value + 0.0:+.3f}" if summary["pearson"] else f"{100 * value + 0.0:+.1f} points"
