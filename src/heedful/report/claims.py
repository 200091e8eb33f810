"""What the Song of (Dis)agreement claims of its numbers, each claim told true or false of ours.

A claim is judged on all corpora and models that were run, no quick versions, and with the paper's own methods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

from heedful.papers._chapter import Cell, TableView
from heedful.papers.published import DISAGREEMENT_METHODS
from heedful.report.tabulating import ResultRow, subtract, summary_value

MAX_ATTENTION_TAU = 0.33
"""Print has attention with any method below this, everywhere (at most .316)."""
STRONG_TAU = 0.33
"""Print's strong pairs on transformers have .39 to .60, all others at most .29: the line lies between."""
MAX_UNIFORM_COST = 0.008
"""The most that print's BiLSTMs lose by uniform attention, in accuracy."""
STRONG_PAIRS = frozenset({"integrated-gradients~gradient-shap", "deep-lift~deep-shap"})
TEXT_PAIR_CORPORA = ("snli", "mnli", "qqp")
ClaimVerdict = tuple[str, bool | None]
"""Our numbers in words, and whether the claim holds of them; None where there is nothing to judge it by."""


def claim_table(told: Sequence[ResultRow]) -> TableView:
    """A row for each claim; no rows where nothing at all can be said."""
    told = [each for each in told if not each.quick]
    found: dict[str, ClaimVerdict] = {
        f"(i) attention agrees with no method at {MAX_ATTENTION_TAU} or more": _check_attention_disagrees(told),
        "(ii) methods agree more on BiLSTMs than on transformers": _check_recurrent_agree_more(told),
        "(iii) on BiLSTMs they agree more on single texts than on pairs": _check_single_texts_agree_more(told),
        "(iv) on transformers only integrated gradients with gradient SHAP, and DeepLIFT with Deep-SHAP, agree "
        f"strongly ({STRONG_TAU} or more)": _check_only_variants_agree(told),
        f"(v) uniform attention costs a BiLSTM at most {MAX_UNIFORM_COST} of its accuracy": _check_uniform_cost(told),
    }
    verdicts = {None: "not tested", True: "true", False: "false"}
    rows: list[tuple[Cell, ...]] = [(claim, numbers, verdicts[holds]) for claim, (numbers, holds) in found.items()]
    tested = any(holds is not None for _, holds in found.values())
    note = (
        "Judged on the corpora that were run, with the paper's methods; attention is rollout or flow in transformers. "
        "Means are over the fifteen pairs of its six methods. A claim is false where one corpus or model speaks "
        "against it, by however little."
    )
    return TableView("What the paper claims", ("claim", "our numbers", "verdict"), tuple(rows) if tested else (), note)


def method_pairs(attention: str) -> tuple[str, ...]:
    """The fifteen pairs of the paper's methods, with this for attention."""
    return tuple(f"{one}~{other}" for one, other in combinations((attention, *DISAGREEMENT_METHODS), 2))


def select_agreements(told: Sequence[ResultRow], attention: str) -> list[ResultRow]:
    """Agreement by Kendall's tau where this stands for attention: "attention" in BiLSTMs, else "rollout" or "flow"."""
    recurrent = attention == "attention"
    return [
        each
        for each in told
        if (each.trial, each.measure) == ("agreement", "kendall")
        and (each.encoder == "bilstm") == recurrent
        and any(f"mean.{attention}~{method}" in each.summary for method in DISAGREEMENT_METHODS)
    ]


def mean_tau(numbers: Mapping[str, float], attention: str) -> float | None:
    """The mean over the fifteen pairs; None unless all are defined."""
    values = [numbers.get(f"mean.{pair}", math.nan) for pair in method_pairs(attention)]
    return None if any(math.isnan(value) for value in values) else statistics.fmean(values)


def result_label(each: ResultRow) -> str:
    """The corpus, and the encoder where it is no BiLSTM."""
    return each.label if each.encoder == "bilstm" else f"{each.label}, {each.encoder}"


def _check_attention_disagrees(told: Sequence[ResultRow]) -> ClaimVerdict:
    found = {
        f"{result_label(each)}, {attention} and {method}": value
        for attention in ("attention", "rollout", "flow")
        for each in select_agreements(told, attention)
        for method in DISAGREEMENT_METHODS
        if (value := summary_value(each, f"mean.{attention}~{method}")) is not None
    }
    if not found:
        return "no agreement", None
    where = max(found, key=lambda name: found[name])
    return f"at most {_format_tau(found[where])} of {len(found)} ({where})", found[where] < MAX_ATTENTION_TAU


def _check_recurrent_agree_more(told: Sequence[ResultRow]) -> ClaimVerdict:
    recurrent, others = _mean_taus(told, "attention"), _mean_taus(told, "rollout")
    both = [
        (f"{other}: {_format_tau(mean)} and {_format_tau(value)}", mean > value)
        for corpus, mean in recurrent.values()
        for other, (same, value) in others.items()
        if same == corpus
    ]
    if not both:
        return "no corpus with both", None
    return "; ".join(words for words, _ in both), all(more for _, more in both)


def _mean_taus(told: Sequence[ResultRow], attention: str) -> dict[str, tuple[str, float]]:
    """Corpus and mean over all pairs, by what a model is called."""
    return {
        result_label(each): (each.corpus, mean)
        for each in select_agreements(told, attention)
        if (mean := mean_tau(each.summary, attention)) is not None
    }


def _check_single_texts_agree_more(told: Sequence[ResultRow]) -> ClaimVerdict:
    found = _mean_taus(told, "attention")
    single = {name: mean for name, (corpus, mean) in found.items() if corpus not in TEXT_PAIR_CORPORA}
    paired = {name: mean for name, (corpus, mean) in found.items() if corpus in TEXT_PAIR_CORPORA}
    if not single or not paired:
        return _format_numbers({**single, **paired}) or "no agreement", None
    return f"{_format_numbers(single)}; pairs: {_format_numbers(paired)}", min(single.values()) > max(paired.values())


def _check_only_variants_agree(told: Sequence[ResultRow]) -> ClaimVerdict:
    words: list[str] = []
    holds = True
    for each in select_agreements(told, "rollout"):
        taus = {pair: summary_value(each, f"mean.{pair}") for pair in method_pairs("rollout")}
        defined = {pair: tau for pair, tau in taus.items() if tau is not None}
        if len(defined) < len(taus):
            continue
        weakest = min(defined[pair] for pair in STRONG_PAIRS)
        strongest = max((pair for pair in defined if pair not in STRONG_PAIRS), key=lambda pair: defined[pair])
        words.append(
            f"{result_label(each)}: these at least {_format_tau(weakest)}, others at most {_format_tau(defined[strongest])} "
            f"({strongest.replace('~', ' and ')})"
        )
        holds = holds and weakest >= STRONG_TAU > defined[strongest]
    return ("; ".join(words), holds) if words else ("no transformer", None)


def _check_uniform_cost(told: Sequence[ResultRow]) -> ClaimVerdict:
    costs = {
        result_label(each): cost
        for each in told
        if (each.trial, each.encoder) == ("necessity", "bilstm")
        and (cost := subtract(summary_value(each, "accuracy.learned"), summary_value(each, "accuracy.uniform")))
        is not None
    }
    # Accuracies have three decimals in print: .667 - .659 must not be more than .008 by a binary digit.
    return (
        (_format_numbers(costs), max(costs.values()) <= MAX_UNIFORM_COST + 1e-9)
        if costs
        else ("no uniform attention", None)
    )


def _format_numbers(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_format_tau(value)}" for name, value in numbers.items())


def _format_tau(value: float) -> str:
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")
